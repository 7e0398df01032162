"""Counts the bytes that were written and not yet synced (SAFETY S9); one item per slab."""

from __future__ import annotations

from collections import deque


class UnsyncedBytes:
    """One member's."""

    def __init__(self) -> None:
        self.total = 0
        self._slabs: deque[tuple[int, int]] = deque()

    def written(self, last_index: int, size_bytes: int) -> None:
        """A slab that ends at `last_index` went to the page cache."""
        self._slabs.append((last_index, size_bytes))
        self.total += size_bytes

    def durable(self, index: int) -> None:
        """A sync covered everything up to `index`."""
        while self._slabs and self._slabs[0][0] <= index:
            self.total -= self._slabs.popleft()[1]

    def cut(self, cut_index: int) -> None:
        """Everything from `cut_index` on is gone."""
        while self._slabs and self._slabs[-1][0] >= cut_index:
            self.total -= self._slabs.pop()[1]
