"""The data files in front of a log: which may be removed when a prefix is not needed any more (`store/retention.py`).

Invariants: only whole data files go, from the front, and never the one that the next entry goes into; which entry a
file begins with is believed where its record and the index file say the same, for the log may begin there.
"""

from __future__ import annotations

from contextlib import suppress

from node.store.files.platform import Platform
from node.store.files.segment import Segment
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit
from node.store.recovery.walk import first_index_in
from node.store.retention import DataFile


def whole_files_below(
    data: SegmentList, index: SegmentList, begin_pos: int, begin_index: int, end_pos: int, through_index: int,
    settled_index: int,
) -> tuple[int, int]:  # fmt: skip
    """Position and index of the new first entry once all files that hold only entries <= `through_index` are gone.

    Up to `settled_index` entries are where they stay. One that may be cut yet does not become the first: where another
    one would lie follows from what is before it, and that would be gone (SAFETY S5).
    """
    for segment in data:
        if not begin_pos < segment.start < end_pos:
            continue
        first_index = _begins_with(segment, index)
        if first_index is None or first_index > through_index + 1 or first_index > settled_index:
            break
        begin_pos, begin_index = segment.start, first_index
    return begin_pos, begin_index


def _begins_with(segment: Segment, index: SegmentList) -> int | None:
    """Its first entry; None where that is damaged. A head has no checksum that covers it alone."""
    first_index = first_index_in(segment)
    unit = None if first_index is None else read_unit(index, first_index)
    return first_index if unit is not None and unit.pos == segment.start else None


def front_files(
    data: SegmentList, index: SegmentList, begin_pos: int, begin_index: int, end_pos: int, platform: Platform,
    files_max: int,
) -> tuple[DataFile, ...]:  # fmt: skip
    """The oldest files, without the one that the log ends in; it ends before a file whose first record is damaged."""
    found: list[DataFile] = []
    at = data.find(begin_pos)
    for segment in data:
        if not begin_pos < segment.start < end_pos:
            continue
        first_index = _begins_with(segment, index)
        if first_index is None or first_index <= begin_index or len(found) == files_max:
            break
        modified_s = 0.0
        if at is not None:
            with suppress(OSError):  # it is missing: nothing keeps what it held
                modified_s = platform.modified_s(at.path)
        found.append(DataFile(begin_index, first_index - 1, segment.start - begin_pos, modified_s))
        begin_pos, begin_index, at = segment.start, first_index, segment
    return tuple(found)
