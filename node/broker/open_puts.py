"""Puts that have no answer yet, from the moment their offsets are given out: sent, placed, or unknown.

Invariants: every put is answered exactly once; a put is answered as stored when it is committed and dispatched, never
before; what is not known is looked for in the log by its bytes, but for the place that the engine wrote into them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult, PutStatus
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.message_store.record_building import BuiltPut

_BEHIND_PLACE: Final = PHYSICAL_OFFSET_AT + 8
Answer = asyncio.Future[PutResult]


class Places(Protocol):
    """Where dispatched entries lie."""

    @property
    def dispatched_index(self) -> int: ...
    def offsets_of(self, first_index: int, count: int) -> tuple[int, ...]: ...


@dataclass(slots=True)
class OpenPut:
    """One put. `indexes` are its entries', once they are known."""

    built: BuiltPut
    first: NewMessage
    answer: Answer
    due_at: float
    indexes: list[int] = field(default_factory=list)

    def result(self, places: Places) -> PutResult:
        """Of one that is dispatched."""
        built, first, indexes = self.built, self.first, self.indexes
        if indexes[-1] - indexes[0] == len(indexes) - 1:
            offsets = places.offsets_of(indexes[0], len(indexes))
        else:
            offsets = tuple(one for index in indexes for one in places.offsets_of(index, 1))
        return PutResult(
            PutStatus.PUT_OK, "", first.topic, first.queue_id, built.first_offset, offsets, built.store_timestamp_ms,
            first.store_host,
        )  # fmt: skip

    def end(self, result: PutResult) -> None:
        if not self.answer.done():
            self.answer.set_result(result)


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
            put.end(put.result(self._places))
        else:
            self._waiting.append(put)

    def dispatched(self) -> None:
        """More of the log is."""
        upto = self._places.dispatched_index
        while self._waiting and self._waiting[0].indexes[-1] <= upto:
            put = self._waiting.popleft()
            if not put.answer.done():
                put.end(put.result(self._places))

    def __len__(self) -> int:
        return len(self._waiting)

    def late(self, now: float) -> list[OpenPut]:
        """Those that have waited too long, which are dropped here."""
        found = []
        while self._waiting and (self._waiting[0].due_at <= now or self._waiting[0].answer.done()):
            found.append(self._waiting.popleft())
        return found


def as_sent(record: bytes) -> bytes:
    """A record without its place."""
    return record[:PHYSICAL_OFFSET_AT] + record[_BEHIND_PLACE:]


class Search:
    """Which puts are in the log after all."""

    def __init__(self, unknown: Iterable[SentPuts]) -> None:
        self._sought: dict[bytes, deque[OpenPut]] = defaultdict(deque)
        self.puts: list[OpenPut] = []
        for sent in unknown:
            for put in sent.puts:
                if not put.answer.done():
                    put.indexes = []
                    self.puts.append(put)
                    for record in put.built.records:
                        self._sought[as_sent(record)].append(put)

    def see(self, index: int, record: bytes) -> None:
        """An entry of the log, each once and in order."""
        found = self._sought.get(as_sent(record))
        if found:
            found.popleft().indexes.append(index)

    def stored(self) -> list[OpenPut]:
        """Those that are there whole, in the log's order."""
        whole = [put for put in self.puts if len(put.indexes) == len(put.built.records)]
        return sorted(whole, key=lambda put: put.indexes[-1])

    def partly(self) -> list[OpenPut]:
        return [put for put in self.puts if 0 < len(put.indexes) < len(put.built.records)]

    def absent(self) -> list[OpenPut]:
        return [put for put in self.puts if not put.indexes]
