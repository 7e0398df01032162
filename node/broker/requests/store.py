"""What the handlers need of a message store. `Broker` is one; tests have one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol

from node.message_store.live_reads import Got
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult
from node.protocol.entry import BytesLike


class Puts(Protocol):
    """The future has a result always, also where nothing was stored."""

    def put(self, message: NewMessage, *, patient: bool = False) -> asyncio.Future[PutResult]: ...
    def put_own(
        self, message: NewMessage, *, spare_bytes: int = 0, patient: bool = False
    ) -> asyncio.Future[PutResult]: ...
    def put_batch(self, batch: NewMessage) -> asyncio.Future[PutResult]: ...


class Reads(Protocol):
    """Reads of what is committed and dispatched; `node/message_store/live_reads.py` says what each means."""

    def max_offset(self, topic: str, queue_id: int) -> int: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int: ...
    def units(self, topic: str, queue_id: int, first: int, count: int) -> list[tuple[int, int, int]]: ...
    def offset_at(self, topic: str, queue_id: int, time_ms: int) -> int: ...
    def message_at(self, offset: int) -> BytesLike: ...
    def get(
        self, topic: str, queue_id: int, offset: int, count: int = 32, *, tags: frozenset[str] | None = None,
        bytes_max: int = 262_144, corrects: bool = True,
    ) -> Got: ...  # fmt: skip
    def index_end(self) -> tuple[int, int]: ...
    def query(
        self, topic: str, key: str, limit: int = 64, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[BytesLike | None]: ...


class Store(Protocol):
    """A broker's messages. What only a master may answer rests on `may_answer` (its lease), or waits for `confirm`."""

    @property
    def is_master(self) -> bool: ...
    def may_answer(self) -> bool: ...
    def confirm(self) -> asyncio.Future[bool]: ...
    @property
    def lane(self) -> Puts: ...
    @property
    def reads(self) -> Reads: ...
