"""The newest entries of the log, as they were dispatched: in memory, found by index and by place.

Readers mostly want what was written a moment ago; and what is committed may not have reached this member's disk yet.

Invariants: pieces lie one behind the other, in the log's order, without a gap; at most `bytes_max` are kept, but one
piece always is.
"""

from __future__ import annotations

import bisect
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.dispatch_batch import Batch
from node.message_store.dispatch_mark import LogPoint
from node.message_store.errors import MessageFormatError
from node.protocol.entry import HEAD, HEAD_BYTES, BytesLike
from node.protocol.value_class import value_class

RECENT_BYTES: Final = 96 << 20
RECENT_PIECES: Final = 50_000
_DROP_AT_ONCE: Final = 64
Ints = npt.NDArray[Any]


@value_class(slots=True, frozen=True)
class Piece:
    """Consecutive entries of one data file. `starts`: of each within `data`, whose byte 0 lies at `position`."""

    first_index: int
    position: int
    data: memoryview
    starts: list[int]
    channels: list[int]
    end: LogPoint

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.starts) - 1

    def record_offset(self, index: int) -> int:
        """Where in the commit log the record of that entry begins."""
        return self.position + self.starts[index - self.first_index] + HEAD_BYTES

    def messages(self) -> Batch:
        """What clients have put, for the dispatcher."""
        chosen = [start for start, channel in zip(self.starts, self.channels, strict=True) if not channel]
        if len(chosen) == len(self.starts):
            borders = np.array([*chosen, len(self.data)], "i8")
            starts, sizes = borders[:-1], borders[1:] - borders[:-1]
        else:
            starts = np.array(chosen, "i8")
            ends = dict(zip(self.starts, [*self.starts[1:], len(self.data)], strict=True))
            sizes = np.array([ends[start] for start in chosen], "i8") - starts
        return Batch(self.data, starts + HEAD_BYTES, sizes - HEAD_BYTES, starts + HEAD_BYTES + self.position)


def pieces_of(data: BytesLike, first_index: int) -> list[Piece]:
    """Entries as a read answers them: a piece for each data file that they lie in. Raises MessageFormatError."""
    view = memoryview(data)
    found: list[Piece] = []
    starts: list[int] = []
    channels: list[int] = []
    at = begin = 0
    position = next_position = term = chain = -1
    index = first_index
    while at < len(view):
        if len(view) - at < HEAD_BYTES:
            raise MessageFormatError(f"{len(view) - at} bytes behind entry {index - 1} are no whole entry")
        _magic, size, said, term_, pos, channel, chain_, _crc, _body_bytes = HEAD.unpack_from(view, at)
        if said != index or not HEAD_BYTES <= size <= len(view) - at:
            raise MessageFormatError(f"entry {said} of {size} bytes where entry {index} is due")
        if pos != next_position and starts:
            end = LogPoint(next_position, index - 1, term, chain)
            found.append(Piece(index - len(starts), position, view[begin:at], starts, channels, end))
            begin, starts, channels = at, [], []
        if not starts:
            position = pos
        starts.append(at - begin)
        channels.append(channel)
        term, chain, next_position = term_, chain_, pos + size
        at += size
        index += 1
    if starts:
        end = LogPoint(next_position, index - 1, term, chain)
        found.append(Piece(index - len(starts), position, view[begin:at], starts, channels, end))
    return found


class RecentEntries:
    """See the module's docstring."""

    def __init__(self, bytes_max: int = RECENT_BYTES, pieces_max: int = RECENT_PIECES) -> None:
        self._bytes_max, self._pieces_max = bytes_max, pieces_max
        self._pieces: list[Piece] = []
        self._indexes: list[int] = []  # of the first entry of each piece
        self._positions: list[int] = []  # and where it lies
        self._begin = 0  # what lies before it is dropped, and goes with many others
        self.size_bytes = 0

    def add(self, piece: Piece) -> None:
        pieces = self._pieces
        if pieces and piece.first_index != pieces[-1].last_index + 1:
            for row in (pieces, self._indexes, self._positions):
                row.clear()
            self._begin = self.size_bytes = 0
        pieces.append(piece)
        self._indexes.append(piece.first_index)
        self._positions.append(piece.position)
        self.size_bytes += len(piece.data)
        while len(pieces) - self._begin > 1 and (
            self.size_bytes > self._bytes_max or len(pieces) - self._begin > self._pieces_max
        ):
            self.size_bytes -= len(pieces[self._begin].data)
            self._begin += 1
        if self._begin > _DROP_AT_ONCE:
            for row in (pieces, self._indexes, self._positions):
                del row[: self._begin]
            self._begin = 0

    def offsets_of(self, first_index: int, count: int) -> tuple[int, ...] | None:
        """Where the records of these entries begin; None where they are not here."""
        found: list[int] = []
        index, last = first_index, first_index + count - 1
        while index <= last:
            piece = self._by_index(index)
            if piece is None:
                return None
            upto = min(last, piece.last_index)
            found += [piece.record_offset(one) for one in range(index, upto + 1)]
            index = upto + 1
        return tuple(found)

    def _by_index(self, index: int) -> Piece | None:
        at = bisect.bisect_right(self._indexes, index, self._begin) - 1
        if at < self._begin or index > self._pieces[at].last_index:
            return None
        return self._pieces[at]

    def read(self, offset: int, size_bytes: int) -> memoryview | None:
        """Bytes of the log from that place on, all of one entry; None where they are not here."""
        at = bisect.bisect_right(self._positions, offset, self._begin) - 1
        if at < self._begin:
            return None
        piece = self._pieces[at]
        begin = offset - piece.position
        return piece.data[begin : begin + size_bytes] if begin + size_bytes <= len(piece.data) else None

    def record_at(self, offset: int) -> memoryview | None:
        """The whole record of the message that begins there; None where none does in what is kept."""
        at = bisect.bisect_right(self._positions, offset, self._begin) - 1
        if at < self._begin:
            return None
        piece = self._pieces[at]
        start = offset - HEAD_BYTES - piece.position
        number = bisect.bisect_left(piece.starts, start)
        if number >= len(piece.starts) or piece.starts[number] != start or piece.channels[number]:
            return None
        end = piece.starts[number + 1] if number + 1 < len(piece.starts) else len(piece.data)
        return piece.data[start + HEAD_BYTES : end]
