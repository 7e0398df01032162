"""Puts that have no answer yet, from the moment their offsets are given out: sent, placed, or unknown.

Invariants: every put is answered exactly once; a put is answered as stored when it is committed and dispatched, never
before; what is not known is looked for in the log by its bytes, but for the place that the engine wrote into them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from node.client.errors import Unreachable
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.message_store.record_building import BuiltPut

_BEHIND_PLACE: Final = PHYSICAL_OFFSET_AT + 8
LOOK_AGAIN_S: Final = 0.05
Answer = asyncio.Future[PutResult]
LookThrough = Callable[[int, int, Callable[[int, bytes], None]], Awaitable[None]]  # from, up to, who sees them


class Places(Protocol):
    """Where dispatched entries lie."""

    @property
    def dispatched_index(self) -> int: ...
    def offsets_of(self, first_index: int, count: int) -> tuple[int, ...]: ...


class OpenPut(Protocol):
    """One put. `indexes` are its entries', once they are known; `due_at`: it is over then at last."""

    records: Sequence[bytes]
    size_bytes: int
    due_at: float
    indexes: Sequence[int]

    def is_over(self) -> bool:
        """Whether it was answered, or nobody waits for it any more."""

    def placed(self, offsets: tuple[int, ...]) -> None:
        """It is dispatched, and its records lie there; none: it was dispatched long ago."""

    def end(self, result: PutResult) -> None:
        """Another outcome; nothing where it is over."""

    def stored(self, status: PutStatus, places: tuple[int, ...]) -> None:
        """It lies there, and that is how it ended."""


class MessagePut:
    """One whose outcome is a future's."""

    __slots__ = ("answer", "built", "due_at", "first", "indexes", "records", "size_bytes")

    def __init__(self, built: BuiltPut, first: NewMessage, answer: Answer, size_bytes: int, due_at: float) -> None:
        self.records: Sequence[bytes] = built.records
        self.size_bytes, self.due_at = size_bytes, due_at
        self.indexes: Sequence[int] = ()
        self.built, self.first, self.answer = built, first, answer

    def is_over(self) -> bool:
        return self.answer.done()

    def placed(self, offsets: tuple[int, ...]) -> None:
        self.stored(PutStatus.PUT_OK, offsets)

    def end(self, result: PutResult) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def stored(self, status: PutStatus, places: tuple[int, ...]) -> None:
        built, first = self.built, self.first
        self.end(
            PutResult(
                status, "", first.topic, first.queue_id, built.first_offset, places, built.store_timestamp_ms,
                first.store_host,
            )
        )  # fmt: skip


def offsets_of(put: OpenPut, places: Places) -> tuple[int, ...]:
    """The physical offsets of a put's records, once they are dispatched."""
    indexes = put.indexes
    if indexes[-1] - indexes[0] == len(indexes) - 1:
        return places.offsets_of(indexes[0], len(indexes))
    return tuple(one for index in indexes for one in places.offsets_of(index, 1))


@dataclass(slots=True)
class SentPuts:
    """What left as one append. `behind_index`: none of it is at or below that index of the log."""

    puts: list[OpenPut]
    behind_index: int
    is_settled: bool = False


class PlacedPuts:
    """Committed, and waiting for their dispatch: in the order of the log, but for those that were looked for."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._waiting: deque[OpenPut] = deque()

    def add(self, put: OpenPut) -> None:
        if put.indexes[-1] <= self._places.dispatched_index:
            put.placed(offsets_of(put, self._places))
        else:
            self._waiting.append(put)

    def dispatched(self) -> None:
        """More of the log is: those that lie one behind the other are looked up together."""
        upto = self._places.dispatched_index
        waiting = self._waiting
        while waiting and waiting[0].indexes[-1] <= upto:
            first, due = waiting[0].indexes[0], waiting[0].indexes[0]
            run: list[OpenPut] = []
            while waiting and due <= upto and waiting[0].indexes[0] == due and waiting[0].indexes[-1] <= upto:
                put = waiting[0]
                if put.indexes[-1] - due != len(put.indexes) - 1:
                    break
                due += len(put.indexes)
                run.append(waiting.popleft())
            if run:
                offsets, at = self._places.offsets_of(first, due - first), 0
                for put in run:
                    if not put.is_over():
                        put.placed(offsets[at : at + len(put.indexes)])
                    at += len(put.indexes)
            else:  # its entries are apart
                put = waiting.popleft()
                if not put.is_over():
                    put.placed(offsets_of(put, self._places))

    def __len__(self) -> int:
        return len(self._waiting)

    def late(self, now: float) -> list[OpenPut]:
        """Those that have waited too long, which are dropped here."""
        found = [put for put in self._waiting if put.due_at <= now or put.is_over()]
        if found:
            self._waiting = deque(put for put in self._waiting if put.due_at > now and not put.is_over())
        return found


def as_sent(record: bytes) -> bytes:
    """A record without its physical offset: what the broker sent, before the engine wrote its place into it."""
    return record[:PHYSICAL_OFFSET_AT] + record[_BEHIND_PLACE:]


class Search:
    """Which puts are in the log after all."""

    def __init__(self, unknown: Iterable[SentPuts]) -> None:
        self._sought: dict[bytes, deque[list[int]]] = defaultdict(deque)
        self.puts: list[OpenPut] = []
        for sent in unknown:
            for put in sent.puts:
                if not put.is_over():
                    found: list[int] = []
                    put.indexes = found
                    self.puts.append(put)
                    for record in put.records:
                        self._sought[as_sent(record)].append(found)

    def see(self, index: int, record: bytes) -> None:
        """An entry of the log, each once and in order."""
        found = self._sought.get(as_sent(record))
        if found:
            found.popleft().append(index)

    def stored(self) -> list[OpenPut]:
        """Those that are there whole, in the log's order."""
        whole = [put for put in self.puts if len(put.indexes) == len(put.records)]
        return sorted(whole, key=lambda put: put.indexes[-1])

    def partly(self) -> list[OpenPut]:
        return [put for put in self.puts if 0 < len(put.indexes) < len(put.records)]

    def absent(self) -> list[OpenPut]:
        return [put for put in self.puts if not put.indexes]


async def look_for(sent: Sequence[SentPuts], look_through: LookThrough, upto_index: int) -> Search:
    """Which of them are in the log up to there, tried until the engine can be asked.

    Raises LedgerError, MessageFormatError: a part of it cannot be read.
    """
    while True:
        search = Search(sent)
        try:
            if search.puts:
                await look_through(min(one.behind_index for one in sent) + 1, upto_index, search.see)
            return search
        except Unreachable:
            await asyncio.sleep(LOOK_AGAIN_S)
