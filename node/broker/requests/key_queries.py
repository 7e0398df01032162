"""QUERY_MESSAGE (12): messages by key.

Who sends chooses the keys, so a million messages may have the same one, and a question for the oldest of them passes
all the others over. Most end within their first step, and are answered at once; of the others one step is done in a
turn of the loop, connection by connection, and each connection's in order.

Invariants: each is answered once; a connection's number of questions costs others nothing; no more than READ_BYTES_MAX
is read for one answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from node.broker.requests.context import Context
from node.message_store.properties import UNIQ_KEY, split_keys
from node.message_store.record import MessageRecord, decode_record
from node.protocol.entry import BytesLike
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Peer, Refusal, Reply, reply_of
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import QueryAnswer, QueryRequest

QUERY_MAX: Final = 64
UNIQUE_QUERY_MAX: Final = 32
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
READ_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # with what has the key's hash only, or no room in the body
NO_MESSAGE: Final = "can not find message, maybe time range not correct"


class KeyQueries:
    """See the module's docstring."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: dict[Peer, deque[tuple[Call, _Query]]] = {}  # whose turn is next first

    def ask(self, call: Call) -> Reply | None:
        query = _Query(self._context, read_header(QueryRequest, call.request.fields))
        mine = self._waiting.get(call.peer)
        if mine is None and query.has_ended():
            return query.reply()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._look_on)
        self._waiting.setdefault(call.peer, deque()).append((call, query))
        return None

    def _look_on(self) -> None:
        if not self._waiting:  # whoever asked is gone
            return
        peer = next(iter(self._waiting))
        mine = self._waiting.pop(peer)
        call, query = mine[0]
        reply, _sound = reply_of(lambda _call: query.reply() if query.has_ended() else None, call)
        if reply is not None:
            mine.popleft()
            call.answer(reply)
        if mine:
            self._waiting[peer] = mine
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._look_on)

    def gone(self, peer: Peer) -> None:
        """Its connection ended: nobody takes the answers."""
        for call, _query in self._waiting.pop(peer, ()):
            call.drop()


class _Query:
    """One question, and what was found so far."""

    def __init__(self, context: Context, said: QueryRequest) -> None:
        limit = UNIQUE_QUERY_MAX if said.unique_key_query else max(0, min(said.max_num, QUERY_MAX))
        self._said, self._reads = said, context.store.reads
        self._steps = self._reads.query(said.topic, said.key, limit, said.begin_timestamp, said.end_timestamp)
        self._found: list[BytesLike] = []
        self._size_bytes = self._read_bytes = 0

    def has_ended(self) -> bool:
        """After one step more."""
        for record in self._steps:
            if record is None:
                return False
            self._read_bytes += len(record)
            fits = self._size_bytes + len(record) <= BODY_BYTES_MAX
            if fits and has_key(decode_record(record), self._said.topic, self._said.key):
                self._found.append(record)
                self._size_bytes += len(record)
            if self._read_bytes > READ_BYTES_MAX:
                break
        return True

    def reply(self) -> Reply:
        """Raises Refusal."""
        if not self._found:
            raise Refusal(Answer.QUERY_NOT_FOUND, NO_MESSAGE, write_header(QueryAnswer(0, 0)))
        return Reply(fields=write_header(QueryAnswer(*self._reads.index_end())), body=b"".join(self._found))


def has_key(record: MessageRecord, topic: str, key: str) -> bool:
    """The index knows hashes only."""
    known = record.properties
    return record.topic == topic and (key == known.get(UNIQ_KEY) or key in split_keys(known.get("KEYS")))
