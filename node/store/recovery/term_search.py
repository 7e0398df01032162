"""The runs of equal terms in a part of the log that nobody walks, found by bisection over its index records.

Invariant: the records that are read are a few for each term, however long the log is (a start stays short).
"""

from __future__ import annotations

from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit


class BrokenIndexError(Exception):
    """An index record is broken, or its term cannot be where it stands; the message names it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"index record {number} is broken")


def term_runs(index_file: SegmentList, first_index: int, last_index: int, last_term: int) -> list[tuple[int, int]]:
    """(first index, term) of each run in [first_index, last_index], where the last entry is of `last_term`.

    What one bisection met narrows those that follow. Raises BrokenIndexError.
    """
    runs: list[tuple[int, int]] = []
    index = first_index
    ahead = [(last_index, last_term)]  # probed once and used again: (index, term), the nearest one last
    while index <= last_index:
        unit = read_unit(index_file, index)
        if unit is None or (runs and unit.term < runs[-1][1]) or unit.term > last_term:
            raise BrokenIndexError(index)
        runs.append((index, unit.term))
        while ahead and (ahead[-1][0] <= index or ahead[-1][1] == unit.term):
            index, _ = ahead.pop()
        if not ahead:
            break  # all that is left is of this term
        while ahead[-1][0] - index > 1:  # `index` is of this term, the nearest one ahead is of a later one
            middle = (index + ahead[-1][0]) // 2
            other = read_unit(index_file, middle)
            if other is None or not unit.term <= other.term <= ahead[-1][1]:
                raise BrokenIndexError(middle)
            if other.term == unit.term:
                index = middle
            else:
                ahead.append((middle, other.term))
        index += 1
    return runs
