"""Memory that a connection's bytes are read into: it grows with what has arrived, never by what a length claims.

What takes frames out of it works on `data`, `view`, `start` and `end` themselves, and says, by `left` or in them, what
it did not take. Invariants: `view` is of `data`; what is not taken lies between `start` and `end`, both 0 where all
was; one long frame holds no memory for ever.
"""

from __future__ import annotations

from typing import Final

FIRST_BYTES: Final = 1024  # made with the first byte: most of those who only connect send none
FULL_BYTES: Final = 64 * 1024  # to which it grows while reads fill it


class ReceiveBuffer:
    """Fill (part of) `room()`, then `filled(n)` says where what arrived ends. `kept_bytes`: larger ones are freed
    once they are empty; `bytes_max`: the largest that a frame may need."""

    __slots__ = ("_bytes_max", "_kept_bytes", "data", "end", "start", "view", "wanted_bytes")

    def __init__(self, kept_bytes: int, bytes_max: int) -> None:
        self._kept_bytes, self._bytes_max = kept_bytes, bytes_max
        self.data = bytearray()
        self.view = memoryview(self.data)
        self.start = 0  # of the first byte that is not taken
        self.end = 0  # of what has arrived
        self.wanted_bytes = FIRST_BYTES  # of memory, at its next change

    def room(self) -> memoryview:
        """For the next bytes; never empty."""
        size_bytes = len(self.data)
        if not self.end:
            if not self.wanted_bytes <= size_bytes <= self._kept_bytes:
                self._resize(self.wanted_bytes)
            return self.view
        if size_bytes - self.end < FULL_BYTES // 8:
            held = self.end - self.start
            # Twice what arrived, whatever the frame claims; a frame is bounded, so this is too.
            if held > size_bytes // 2:
                self._resize(min(2 * size_bytes, self._bytes_max + FULL_BYTES))
            elif size_bytes < self.wanted_bytes:
                self._resize(self.wanted_bytes)
            else:
                self.view[:held] = bytes(self.view[self.start : self.end])
                self.start, self.end = 0, held
        return self.view[self.end :]

    def filled(self, count: int) -> int:
        """`count` bytes were put into the last `room()`; where they end. The next read is larger if they filled it."""
        end = self.end + count
        if end == len(self.data) and self.wanted_bytes < FULL_BYTES:
            self.wanted_bytes *= 2
        return end

    def left(self, start: int, end: int) -> None:
        """What was not taken lies there."""
        if start == end:
            start = end = 0
        self.start, self.end = start, end

    def _resize(self, size_bytes: int) -> None:
        held = self.end - self.start
        fresh = bytearray(size_bytes)
        fresh[:held] = self.view[self.start : self.end]
        self.data, self.view = fresh, memoryview(fresh)
        self.start, self.end = 0, held

    def read_little(self) -> None:
        """Reads grow anew from the first size, once the memory is made anew."""
        self.wanted_bytes = FIRST_BYTES

    def spare(self) -> None:
        """Frees the memory, where nothing is in it, until more comes."""
        if not self.end and self.data:
            self._resize(0)
            self.read_little()

    def drop_large(self) -> None:
        """Nothing is in it: what is larger than what is kept goes."""
        if len(self.data) > self._kept_bytes:
            self._resize(0)

    def drop(self) -> None:
        """Nothing more comes: what is in it, and its memory."""
        self.start = self.end = 0
        self._resize(0)
