"""Offsets, and single messages: 12, 14, 15, 29 to 33."""

from __future__ import annotations

from typing import Final

from node.broker.requests.context import Context
from node.message_store.errors import MessageStoreError
from node.message_store.properties import UNIQ_KEY, split_keys
from node.message_store.record import MessageRecord, decode_record
from node.protocol.entry import BytesLike
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Refusal, Reply
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import (
    OffsetAnswer,
    QueryAnswer,
    QueryOffsetRequest,
    QueryRequest,
    QueueRequest,
    SearchOffsetRequest,
    TimestampAnswer,
    UpdateOffsetRequest,
    ViewRequest,
)

QUERY_MAX: Final = 64
UNIQUE_QUERY_MAX: Final = 32
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
NO_MESSAGE: Final = "can not find message, maybe time range not correct"


class Lookups:
    """See the module's docstring."""

    def __init__(self, context: Context) -> None:
        self._context = context

    # --- a group's offsets --------------------------------------------------------------------------------------
    def query_offset(self, call: Call) -> Reply:
        """Of a group that has committed none: 0 where the queue's beginning is still at hand, so that a new group of a
        young topic misses nothing; else nothing is found, and the client chooses."""
        said = read_header(QueryOffsetRequest, call.request.fields)
        found = self._context.offsets.get(said.consumer_group, said.topic, said.queue_id)
        if found is None:
            if said.set_zero_if_not_found is False or not self._begins_at_hand(said.topic, said.queue_id):
                raise Refusal(Answer.QUERY_NOT_FOUND, NOT_FOUND, {})
            found = 0
        return _offset(found)

    def _begins_at_hand(self, topic: str, queue_id: int) -> bool:
        reads = self._context.store.reads
        return reads.min_offset(topic, queue_id) <= 0 and not reads.get(topic, queue_id, 0, 1).suggests_slave

    def update_offset(self, call: Call) -> Reply:
        said = read_header(UpdateOffsetRequest, call.request.fields)
        if not self._context.takes_offsets:
            self._context.check_master()
        self._context.offsets.put(said.consumer_group, said.topic, said.queue_id, said.commit_offset)
        return Reply(fields={})

    # --- a queue's offsets --------------------------------------------------------------------------------------
    def max_offset(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        return _offset(self._context.store.reads.max_offset(said.topic, said.queue_id))

    def min_offset(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        return _offset(self._context.store.reads.min_offset(said.topic, said.queue_id))

    def search_offset(self, call: Call) -> Reply:
        said = read_header(SearchOffsetRequest, call.request.fields)
        return _offset(self._context.store.reads.offset_at(said.topic, said.queue_id, said.timestamp))

    def earliest_time(self, call: Call) -> Reply:
        said = read_header(QueueRequest, call.request.fields)
        reads = self._context.store.reads
        first = reads.min_offset(said.topic, said.queue_id)
        return Reply(fields=write_header(TimestampAnswer(reads.stored_at_ms(said.topic, said.queue_id, first))))

    # --- messages -----------------------------------------------------------------------------------------------
    def view(self, call: Call) -> Reply:
        """By place. The id that a client has may name another broker of the group: the place is the same here."""
        said = read_header(ViewRequest, call.request.fields)
        try:
            return Reply(body=self._context.store.reads.message_at(said.offset))
        except MessageStoreError:
            return Reply(Answer.SYSTEM_ERROR, None, f"can not find message by the offset, {said.offset}")

    def query(self, call: Call) -> Reply:
        said = read_header(QueryRequest, call.request.fields)
        limit = UNIQUE_QUERY_MAX if said.unique_key_query else max(0, min(said.max_num, QUERY_MAX))
        found: list[BytesLike] = []
        size_bytes = 0
        records = self._context.store.reads.query(
            said.topic, said.key, limit, said.begin_timestamp, said.end_timestamp
        )  # fmt: skip
        for record in records:
            if size_bytes + len(record) <= BODY_BYTES_MAX and has_key(decode_record(record), said.topic, said.key):
                found.append(record)
                size_bytes += len(record)
        if not found:
            raise Refusal(Answer.QUERY_NOT_FOUND, NO_MESSAGE, write_header(QueryAnswer(0, 0)))
        return Reply(fields=write_header(QueryAnswer(*self._context.store.reads.index_end())), body=b"".join(found))


def has_key(record: MessageRecord, topic: str, key: str) -> bool:
    """The index knows hashes only."""
    known = record.properties
    return record.topic == topic and (key == known.get(UNIQ_KEY) or key in split_keys(known.get("KEYS")))


def _offset(value: int) -> Reply:
    return Reply(fields=write_header(OffsetAnswer(value)))
