"""A list whose first element has an index of its own: a log that begins anywhere.

Invariant: an index below `begin` is an error, never the list's other end, which is what a plain list would give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class EntryList(Generic[T]):
    """By index, from `begin` on."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self._items: list[T] = []

    @property
    def end(self) -> int:
        """The index behind the last one."""
        return self.begin + len(self._items)

    @property
    def last(self) -> T | None:
        return self._items[-1] if self._items else None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def _at(self, index: int) -> int:
        at = index - self.begin
        if not 0 <= at < len(self._items):
            raise IndexError(f"{index} is not in [{self.begin}, {self.end})")
        return at

    def get(self, index: int) -> T | None:
        """None where there is no such index."""
        at = index - self.begin
        return self._items[at] if 0 <= at < len(self._items) else None

    def __getitem__(self, index: int) -> T:
        return self._items[self._at(index)]

    def __setitem__(self, index: int, item: T) -> None:
        self._items[self._at(index)] = item

    def append(self, item: T) -> None:
        self._items.append(item)

    def since(self, index: int) -> list[T]:
        """From `index` on."""
        return self._items[max(0, index - self.begin) :]

    def cut(self, index: int) -> None:
        """From `index` on, all goes."""
        del self._items[max(0, index - self.begin) :]
