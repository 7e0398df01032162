"""The last records of a log of RocketMQ's own: by them two brokers of a pair find whether they hold the same one.

A log can only be walked forwards, and a file is 1 GiB: where the last few begin is kept as they are written, so that a
slave that connects again does not stand still for as long as its newest file takes to read.

Invariant: what is kept are the begins of the newest records, in order, without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from node.message_store.local_mark import LastRecord
from node.message_store.local_records import Stop, walk
from node.message_store.local_recovery import PIECE_BYTES
from node.protocol.entry import crc32

KEPT: Final = 8


class Tail:
    """See the module's docstring. `read`: of the log, its bytes at an offset, at most so many."""

    def __init__(self, read: Callable[[int, int], bytes], file_bytes: int) -> None:
        self._read, self._file_bytes = read, file_bytes
        self._begins: deque[int] = deque(maxlen=KEPT)

    def took(self, place: int, starts: Sequence[int]) -> None:
        """Records were written: where they begin, counted from `place`."""
        self._begins.extend(place + one for one in starts[-KEPT:])

    def clear(self) -> None:
        """Some of them are gone."""
        self._begins.clear()

    def last(self, count: int, upto: int, files: Sequence[int]) -> list[LastRecord]:
        """The last ones that end at or before `upto`, ascending. `files`: where each of the log's begins."""
        found: list[LastRecord] = []
        for start in reversed([one for one in files if one < upto]):
            found = (self._of_file(start, count, upto) + found)[-count:]
            if len(found) == count:
                break
        return found

    def _of_file(self, start: int, count: int, upto: int) -> list[LastRecord]:
        end, found = min(upto, start + self._file_bytes), list[LastRecord]()
        known = [one for one in self._begins if one < upto]
        place = known[0] if len(known) >= count and known[0] >= start else start
        while place < end:
            data = self._read(place, min(PIECE_BYTES, upto - place))
            walked = walk(data, place, self._file_bytes)
            if not walked.at and walked.stop is Stop.PARTIAL and walked.needs <= upto - place:
                data = self._read(place, walked.needs)
                walked = walk(data, place, self._file_bytes)
            found += [
                LastRecord(place + at, size, crc32(memoryview(data)[at : at + size]))
                for at, size in list(zip(walked.starts, walked.sizes, strict=True))[-count:]
            ]
            found = found[-count:]
            if not walked.at:
                break
            place += walked.at
        return found
