"""The part of a log that stays in the page cache: its newest bytes.

A log is written once and read mostly while it is new, yet the kernel keeps all of it for as long as there is memory,
and then takes pages back at the writers' cost. And every page that a log keeps there is one more that is touched for
the first time: in a virtual machine whose host takes free memory back, that made batches of 1 KiB 2.3 times slower
within ten seconds (docs/performance.md). So what is before the window is dropped from the page cache, in steps, once
it is on the disk; who reads it makes the kernel fetch it again.

Invariants: only what a group commit has synced is dropped; dropping changes no byte and never fails.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from node.store.files.segment import Segment
from node.store.files.segment_list import SegmentList

FOLIO_BYTES_MAX: Final = 2 * 1024 * 1024  # the kernel drops nothing of what is only partly in a range
STEPS: Final = 64  # in so many parts a window moves on: one takes some 100 us of the writing thread with 4 MiB


class Stale(NamedTuple):
    """A part of a file that has left the window; `pos` is absolute."""

    segment: Segment
    pos: int
    size_bytes: int

    def drop_from_page_cache(self) -> None:
        """From any thread."""
        self.segment.drop_cache(self.pos, self.size_bytes)


class CacheWindow:
    """Of one row of files. `keep_bytes` 0: everything stays as long as the kernel likes."""

    def __init__(self, segments: SegmentList, keep_bytes: int, end_pos: int) -> None:
        self._segments, self._keep_bytes = segments, keep_bytes
        self._step_bytes = max(1, keep_bytes // STEPS)
        self._begin_pos = max(0, end_pos - keep_bytes)  # what an earlier process left behind is not looked for

    def cut(self, end_pos: int) -> None:
        """The log ends there now; what is written anew will leave the window anew."""
        self._begin_pos = min(self._begin_pos, end_pos)

    def move_to(self, end_pos: int) -> list[Stale]:
        """The window's end is `end_pos` once a commit up to there is on the disk: what leaves it then."""
        begin_pos = end_pos - self._keep_bytes
        if not self._keep_bytes or begin_pos - self._begin_pos < self._step_bytes:
            return []
        first_pos, self._begin_pos = max(0, self._begin_pos - FOLIO_BYTES_MAX), begin_pos
        return [
            Stale(segment, first_pos, begin_pos - first_pos)
            for segment in self._segments
            if segment.start < begin_pos and first_pos < segment.end
        ]
