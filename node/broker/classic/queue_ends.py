"""Where queues go on none of whose messages is left: what a slave that began empty finds in no log.

Its log begins with the oldest file that its master has. A queue whose messages had all expired by then would begin at 0
again at that slave once it is promoted: consumers would pass over what comes, and the old master, whose queue is
further, could not take it. So a slave asks its master where every queue ends (`QUEUE_ENDS`), until it knows.

Invariants: a queue is placed only where this log, as far as its master's went then, has nothing of it; one that is
known here stays as it is; a slave that has the log from its first byte on asks nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from node.broker.introspection import QUEUE_ENDS
from node.message_client.link import Link
from node.message_store.dispatch import Dispatcher
from node.message_store.errors import MessageStoreError
from node.message_store.local_log import LocalCommitLog
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Handler
from node.rocketmq.java_json import BodyError
from node.rocketmq.whole_tables import WholeTable

WITHIN_S: Final = 5.0
BYTES_MAX: Final = 16 << 20
IN_A_TURN: Final = 32  # queues that are placed in one turn of the loop: each is a file
_INT64: Final = 1 << 63
Queue = tuple[str, int]


class Store(Protocol):
    """A broker's, master or slave."""

    @property
    def log(self) -> LocalCommitLog: ...
    @property
    def dispatcher(self) -> Dispatcher: ...
    @property
    def end_position(self) -> int: ...
    @property
    def is_cutting(self) -> bool: ...


class _Said(NamedTuple):
    """`end`: up to where the master had dispatched then; `cuts`: of the slave's own log."""

    ends: dict[Queue, int]
    end: int
    cuts: int


def queue_ends(store: Store) -> Handler:
    """Answers a slave."""

    def take() -> Callable[[], bytes]:
        return partial(_encoded, store.end_position, store.dispatcher.next_offsets)

    return WholeTable(lambda: len(store.dispatcher.next_offsets), take).handle


class QueueEnds:
    """A slave's part. See the module's docstring."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._said: _Said | None = None
        self._is_known = self._says_none = False

    def forget(self) -> None:
        """Another master is followed."""
        self._said, self._says_none = None, False

    async def follow(self, link: Link) -> None:
        """Raises Unavailable, BodyError, OSError."""
        store = self._store
        if self._is_known or self._says_none or not store.log.min_offset:
            return
        if self._said is None or self._said.cuts != store.log.cuts:
            cuts = store.log.cuts
            answer = await link.ask(QUEUE_ENDS, {}, b"", WITHIN_S)
            if answer.code != Answer.SUCCESS:  # RocketMQ's, or of an earlier release: it does not say it
                self._says_none = True
                return
            self._said = _Said(*_decoded(bytes(answer.body)), cuts)
        if store.end_position >= self._said.end:
            await self._place(self._said)

    async def _place(self, said: _Said) -> None:
        store = self._store
        for number, (queue, end) in enumerate(said.ends.items()):
            if not number % IN_A_TURN:
                await asyncio.sleep(0)
            if store.is_cutting or store.log.cuts != said.cuts:
                return
            if not store.dispatcher.queue_end(queue):
                try:
                    store.dispatcher.keep_place(queue, end, store.log.min_offset)
                except MessageStoreError as error:
                    raise BodyError(f"the master's queues: {error}") from error
        self._is_known = True


def _encoded(end: int, ends: Mapping[Queue, int]) -> bytes:
    queues: dict[str, dict[int, int]] = {}
    for (topic, queue_id), next_offset in ends.items():
        queues.setdefault(topic, {})[queue_id] = next_offset
    return json.dumps({"end": end, "queues": queues}, separators=(",", ":")).encode()


def _decoded(data: bytes) -> tuple[dict[Queue, int], int]:
    """Raises BodyError."""
    try:
        if len(data) > BYTES_MAX:
            raise ValueError(f"{len(data)} bytes")
        said: Any = json.loads(data)
        ends = {(topic, int(one)): at for topic, queues in said["queues"].items() for one, at in queues.items()}
        if not all(type(one) is int and 0 <= one < _INT64 for one in (said["end"], *ends.values())):
            raise ValueError("a place or an offset is none")
        return ends, said["end"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BodyError(f"the ends of the master's queues cannot be read: {error}") from error
