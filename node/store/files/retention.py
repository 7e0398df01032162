"""Retention: which files may be removed when a prefix of the log is not needed any more.

Invariants: only whole data files go, from the front, and never the one that the next entry goes into.
"""

from __future__ import annotations

from node.store.files.segment_list import SegmentList
from node.store.recovery.walk import first_index_in


def whole_files_below(
    data: SegmentList, begin_pos: int, begin_index: int, end_pos: int, through_index: int
) -> tuple[int, int]:
    """Position and index of the new first entry once all files that hold only entries <= `through_index` are gone."""
    for segment in data:
        if not begin_pos < segment.start < end_pos:
            continue
        first_index = first_index_in(segment)
        if first_index is None or first_index > through_index + 1:
            break
        begin_pos, begin_index = segment.start, first_index
    return begin_pos, begin_index
