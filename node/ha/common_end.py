"""Where two logs that differ still agree: found by a slave, with CRCs of ranges that it asks its master for.

Seventeen parts a round down to a block of 64 KiB, then record by record. What lies before a block that agrees is taken
to agree; should that be wrong, the next handshake says forked, and the search begins below.

Invariants: `end` is a border of the slave's own log at or below both ends; it reads only, and ends after a few rounds.
"""

from __future__ import annotations

from typing import Final

from node.ha.handshake import LogOf
from node.message_store.local_records import walk

BLOCK_BYTES: Final = 65_536
RANGES_MAX: Final = 64
_PARTS: Final = 17
Range = tuple[int, int]


class CommonEnd:
    """`ranges` is what to ask next; empty once `end` is known. `end` None then: nothing is common."""

    def __init__(self, log: LogOf, begin: int, end: int) -> None:
        """`begin`, `end`: of what both have."""
        self._log = log
        self._begin = begin
        self._low, self._high = begin, max(begin, end)  # up to low it agrees; the first difference is below high
        self._records: list[Range] = []
        self._blocks = True
        self.end: int | None = None
        self.is_done = False
        self.ranges: list[Range] = []
        self._plan()

    def answer(self, crcs: list[int]) -> None:
        """The master's, of `ranges`."""
        if self._blocks:
            self._narrow(crcs)
        else:
            self._count(crcs)
        if not self.is_done:
            self._plan()

    def _plan(self) -> None:
        if self._blocks and self._high - self._low > BLOCK_BYTES:
            step = max(BLOCK_BYTES, (self._high - self._low) // _PARTS)
            begins = range(self._low + step, self._high, step)
            self.ranges = [(max(self._low, at - BLOCK_BYTES), at) for at in begins][:RANGES_MAX]
            if self.ranges:
                return
        if self._blocks:
            self._blocks = False
            self._records = self._records_from(self._low)
        self.ranges = self._records[:RANGES_MAX]
        if not self.ranges:
            self._finish()

    def _narrow(self, crcs: list[int]) -> None:
        before = (self._low, self._high)
        for (begin, end), crc in zip(self.ranges, crcs, strict=False):
            if self._log.crc_of(begin, end) != crc:
                self._high = end
                break
            self._low = end
        if (self._low, self._high) == before or not crcs:
            self._blocks = False
            self._records = self._records_from(self._low)

    def _records_from(self, place: int) -> list[Range]:
        """Own records that reach behind `place`, up to the high end: ranges that end at a border."""
        file_bytes = self._log.file_bytes
        start = max(self._begin, place - place % file_bytes)
        found: list[Range] = []
        at = start
        while at < self._high:
            data = self._log.read(at, 1 << 20)
            walked = walk(data, at, file_bytes)
            if not walked.at and walked.needs:
                data = self._log.read(at, walked.needs)
                walked = walk(data, at, file_bytes)
            if not walked.at:
                break
            for begin, size in zip(walked.starts, walked.sizes, strict=True):
                if at + begin + size > place:
                    found.append((at + begin, at + begin + size))
            at += walked.at
            if at % file_bytes == 0 and found and found[-1][1] != at:
                found.append((found[-1][1], at))  # the blank
        return [one for one in found if one[1] <= self._high] or found[:1]

    def _count(self, crcs: list[int]) -> None:
        asked = self.ranges
        for (begin, end), crc in zip(asked, crcs, strict=False):
            if self._log.crc_of(begin, end) != crc:
                self._finish(begin)
                return
            self._low = end
        self._records = self._records[len(asked) :]
        if not self._records or len(crcs) < len(asked):
            self._finish(self._low)

    def _finish(self, end: int | None = None) -> None:
        self.is_done, self.ranges = True, []
        found = self._low if end is None else end
        self.end = found if found > self._begin and not self._log.border_flaw(found) else None
