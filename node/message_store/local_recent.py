"""What was written to a log of RocketMQ's own and is not in its queues yet, in memory, with where its records begin.

Dispatch takes it from here, so that nothing is read back and judged again that was just built, or judged when it came.

Invariants: pieces follow each other without a gap; at most `bytes_max` are kept, the newest; what is not here is read
from the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from node.message_store.dispatch_batch import Batch
from node.message_store.heads import Heads
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

BYTES_MAX: Final = 64 << 20
ALONE_BYTES: Final = 128 << 10


@value_class(slots=True, frozen=True)
class Piece:
    """Whole records and blanks. `starts` and `sizes`: of its records, within `data`, whose byte 0 lies at `place`;
    `heads`: their fields, where they were read."""

    place: int
    data: BytesLike
    starts: Sequence[int]
    sizes: Sequence[int]
    heads: Heads | None

    @property
    def end(self) -> int:
        return self.place + len(self.data)

    @property
    def is_large(self) -> bool:
        """It is dispatched alone, as it lies."""
        return self.heads is not None and len(self.data) >= ALONE_BYTES

    def batch(self) -> Batch:
        heads = self.heads
        assert heads is not None
        return Batch(self.data, heads.starts, heads.ends - heads.starts, heads.starts + self.place, heads)


class RecentPieces:
    """See the module's docstring."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._pieces: deque[Piece] = deque()

    def add(
        self, place: int, data: BytesLike, starts: Sequence[int] = (), sizes: Sequence[int] = (),
        heads: Heads | None = None,
    ) -> None:  # fmt: skip
        if self._pieces and self._pieces[-1].end != place:
            self.clear()
        self._pieces.append(Piece(place, data, starts, sizes, heads))
        self._bytes += len(data)
        while self._bytes > self._bytes_max:
            self._drop()

    def clear(self) -> None:
        self._pieces.clear()
        self._bytes = 0

    def _drop(self) -> Piece:
        piece = self._pieces.popleft()
        self._bytes -= len(piece.data)
        return piece

    def take(self, place: int, upto: int, bytes_max: int) -> tuple[Batch, int] | None:
        """Records from `place` on, and where they end; what lies before is let go. None: they are not here, or reach
        behind `upto`."""
        pieces = self._pieces
        while pieces and pieces[0].place < place:
            self._drop()
        taken: list[Piece] = []
        size = 0
        while pieces and pieces[0].place == place + size and pieces[0].end <= upto and size < bytes_max:
            if pieces[0].is_large:
                if taken:
                    break
                piece = self._drop()
                return piece.batch(), piece.end
            taken.append(self._drop())
            size += len(taken[-1].data)
        if not taken:
            return None
        starts = np.array([piece.place - place + start for piece in taken for start in piece.starts], "i8")
        sizes = np.array([one for piece in taken for one in piece.sizes], "i8")
        return Batch(b"".join(piece.data for piece in taken), starts, sizes, starts + place), place + size
