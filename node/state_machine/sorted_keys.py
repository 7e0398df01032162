"""Keys in order, for ranges: chunks of some hundred keys each, so that adding one moves a chunk and not everything.

Invariants: keys ascend within a chunk and from one chunk to the next; no chunk is empty; a key is there once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

CHUNK_MAX: Final = 1024


class SortedKeys:
    """See the module's docstring."""

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        """`keys` ascend."""
        every = list(keys)
        half = CHUNK_MAX // 2
        self._chunks = [every[at : at + half] for at in range(0, len(every), half)]
        self._firsts = [chunk[0] for chunk in self._chunks]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def add(self, key: bytes) -> None:
        """One that is not there yet."""
        if not self._chunks:
            self._chunks, self._firsts = [[key]], [key]
            return
        number = max(0, bisect_right(self._firsts, key) - 1)
        chunk = self._chunks[number]
        chunk.insert(bisect_left(chunk, key), key)
        self._firsts[number] = chunk[0]
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[number : number + 1] = [chunk[:half], chunk[half:]]
            self._firsts[number : number + 1] = [chunk[0], chunk[half]]

    def remove(self, key: bytes) -> None:
        """One that is there."""
        number = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[number]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._firsts[number] = chunk[0]
        else:
            del self._chunks[number], self._firsts[number]

    def from_key(self, key: bytes) -> Iterator[bytes]:
        """That key and what comes behind it; nothing may be added or removed meanwhile."""
        number = max(0, bisect_right(self._firsts, key) - 1)
        for at in range(number, len(self._chunks)):
            chunk = self._chunks[at]
            yield from chunk[bisect_left(chunk, key) if at == number else 0 :]

    def __iter__(self) -> Iterator[bytes]:
        return self.from_key(b"")
