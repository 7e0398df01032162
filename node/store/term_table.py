"""The runs of equal terms along a log: how COMPARE finds `xIndex` without touching a record.

Invariants: starts ascend strictly, terms ascend strictly; runs of entries that were removed from the front stay, so
what is asked for is clamped to `begin_index`. The memory depends on the number of terms, never on that of entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


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

    def cut(self, cut_index: int) -> TermTable:
        """Another table without the entries from `cut_index` on: a cut runs in a thread while this is being read."""
        kept = TermTable()
        number = bisect_left(self.starts, cut_index)
        kept.starts, kept.terms = self.starts[:number], self.terms[:number]
        return kept

    def mended(self, runs: list[tuple[int, int]], last_index: int) -> TermTable:
        """Another table in which the entries up to `last_index` have these runs: what was damaged is known again.

        `runs`: (first index, term) inside what was mended. The entry behind keeps the term that it had here;
        one that is damaged itself counted with the term before the damage, and terms do not fall.
        """
        following = self.term_at(last_index + 1) if self.starts and last_index + 1 >= self.starts[0] else None
        kept = self.cut(runs[0][0])
        for index, term in runs:
            kept.extend(index, term)
        if following is not None:
            kept.extend(last_index + 1, max(following, runs[-1][1]))
        for index, term in zip(self.starts, self.terms, strict=True):
            if index > last_index + 1:
                kept.extend(index, term)
        return kept

    def clear(self) -> None:
        """The log is empty."""
        self.starts.clear()
        self.terms.clear()

    def term_at(self, index: int) -> int:
        """The term of an entry inside the log."""
        return self.terms[bisect_right(self.starts, index) - 1]

    def start_of(self, index: int, begin_index: int) -> int:
        """The first index held of the run that `index` is in."""
        return max(self.starts[bisect_right(self.starts, index) - 1], begin_index)

    def last_index_of(self, term: int, begin_index: int, end_index: int) -> int:
        """The last index whose term is <= `term`, or begin_index - 1."""
        number = bisect_right(self.terms, term)
        if number == len(self.terms):
            return end_index
        return max(self.starts[number], begin_index) - 1 if number else begin_index - 1
