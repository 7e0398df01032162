"""The runs of equal terms along a log: how COMPARE finds `xIndex` without touching a record.

Invariants: starts ascend strictly, terms ascend strictly, the first run starts at `begin_index` unless the log is
empty. The memory it takes depends on the number of terms, never on the number of entries.
"""

from __future__ import annotations

from bisect import bisect_right


class TermTable:
    """Runs as two parallel lists: the first index of each, and its term."""

    __slots__ = ("starts", "terms")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.terms: list[int] = []

    def extend(self, index: int, term: int) -> None:
        """The entry at `index`, the next of the log, has `term`."""
        if not self.terms or term != self.terms[-1]:
            if self.terms and (term < self.terms[-1] or index <= self.starts[-1]):
                raise AssertionError(f"term {term} at {index} after term {self.terms[-1]} from {self.starts[-1]} on")
            self.starts.append(index)
            self.terms.append(term)

    def cut(self, cut_index: int) -> None:
        """Entries from `cut_index` on are gone."""
        while self.starts and self.starts[-1] >= cut_index:
            self.starts.pop()
            self.terms.pop()

    def drop_before(self, begin_index: int) -> None:
        """Entries before `begin_index` are gone."""
        number = bisect_right(self.starts, begin_index) - 1
        if number >= 0:
            del self.starts[:number], self.terms[:number]
            self.starts[0] = begin_index

    def clear(self) -> None:
        """The log is empty."""
        self.starts.clear()
        self.terms.clear()

    def term_at(self, index: int) -> int:
        """The term of an entry inside the log."""
        return self.terms[bisect_right(self.starts, index) - 1]

    def start_of(self, index: int) -> int:
        """The first index of the run that `index` lies in."""
        return self.starts[bisect_right(self.starts, index) - 1]

    def last_index_of(self, term: int, begin_index: int, end_index: int) -> int:
        """The last index whose term is <= `term`, or begin_index - 1."""
        number = bisect_right(self.terms, term)
        if number == len(self.terms):
            return end_index
        return self.starts[number] - 1 if number else begin_index - 1
