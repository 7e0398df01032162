"""A snapshot in the log of a broker group: its content cut into parts, an entry each (channel 4).

A snapshot stands for everything up to its as-of index; whoever starts takes the newest complete one and goes on with
the entries behind that index. It lies among the messages that were appended meanwhile. It counts once its last part is
committed; one that was broken off (its master lost the lane) is void as soon as another one begins.

A part is: u8 format, i64 snapshot id, u32 part (from 1), u32 parts, i64 as-of index, u32 CRC-32 and i64 bytes of the
whole content, then its piece of the content; all big-endian, PART_BYTES_MAX with the head.

Invariants: a complete snapshot has every part once, in order, all with the same numbers, and its content has that CRC;
anything else is none. `keep_from` is what retention must not remove: neither a part, nor an entry to go on with.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from node.protocol.broker_state import INT64_MAX, BodyInvalid
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

FORMAT: Final = 1
PART_BYTES_MAX: Final = 512 * 1024
CONTENT_BYTES_MAX: Final = 1 << 30
HEAD: Final = struct.Struct(">BqIIqIq")


@value_class(slots=True, frozen=True)
class SnapshotPart:
    """One part."""

    snapshot_id: int
    part: int
    parts: int
    as_of_index: int
    crc: int
    size_bytes: int
    piece: bytes

    @property
    def of(self) -> tuple[int, int, int, int, int]:
        """What all parts of one snapshot have in common."""
        return self.snapshot_id, self.parts, self.as_of_index, self.crc, self.size_bytes


@dataclass(slots=True, frozen=True)
class FoundSnapshot:
    """A complete one: where its parts lie, and its content (empty where only its place was asked for)."""

    snapshot_id: int
    as_of_index: int
    first_index: int
    last_index: int
    content: bytes = b""

    @property
    def keep_from(self) -> int:
        return min(self.as_of_index, self.first_index)


def split_snapshot(content: bytes, snapshot_id: int, as_of_index: int, part_bytes: int = PART_BYTES_MAX) -> list[bytes]:
    """The parts' bodies, in order; `part_bytes`: of each at most. Raises BodyInvalid for what is too large."""
    room = min(part_bytes, PART_BYTES_MAX) - HEAD.size
    if len(content) > CONTENT_BYTES_MAX or room < 1:
        raise BodyInvalid(f"a snapshot of {len(content)} bytes in parts of {part_bytes}")
    count = max(1, -(-len(content) // room))
    crc = crc32(content)
    return [
        HEAD.pack(FORMAT, snapshot_id, number + 1, count, as_of_index, crc, len(content))
        + content[number * room : (number + 1) * room]
        for number in range(count)
    ]


def decode_part(body: BytesLike) -> SnapshotPart:
    """Raises BodyInvalid."""
    if not HEAD.size <= len(body) <= PART_BYTES_MAX:
        raise BodyInvalid(f"a part of a snapshot has {len(body)} bytes")
    form, snapshot_id, part, parts, as_of_index, crc, size_bytes = HEAD.unpack_from(body)
    if form != FORMAT:
        raise BodyInvalid(f"a part of a snapshot in format {form}, this version knows {FORMAT}")
    if not 1 <= part <= parts or not -1 <= as_of_index < INT64_MAX or not 0 <= size_bytes <= CONTENT_BYTES_MAX:
        raise BodyInvalid(f"part {part} of {parts} of a snapshot of {size_bytes} bytes as of {as_of_index}")
    return SnapshotPart(snapshot_id, part, parts, as_of_index, crc, size_bytes, bytes(body[HEAD.size :]))


class SnapshotFinder:
    """Given the parts of a log in its order, finds the complete snapshots. `keep`: their content, too."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self.newest: FoundSnapshot | None = None
        self._void()

    def _void(self) -> None:
        self._of: tuple[int, int, int, int, int] | None = None
        self._next = 1
        self._first_index = self._last_index = -1
        self._crc = self._size_bytes = 0
        self._pieces: list[bytes] = []

    def add(self, index: int, body: BytesLike) -> FoundSnapshot | None:
        """The next part, which entry `index` holds; what became complete with it. Raises BodyInvalid.

        What makes no snapshot is passed over: parts whose beginning is not there, or was broken off.
        """
        part = decode_part(body)
        if part.part == 1:
            self._void()
            self._of, self._first_index = part.of, index
        if part.of != self._of or part.part != self._next or index <= max(self._last_index, part.as_of_index):
            self._void()
            return None
        self._next, self._last_index = self._next + 1, index
        self._crc, self._size_bytes = crc32(part.piece, self._crc), self._size_bytes + len(part.piece)
        if self._size_bytes > part.size_bytes:
            self._void()
            raise BodyInvalid(f"snapshot {part.snapshot_id} has more than the {part.size_bytes} bytes that it says")
        if self._keep:
            self._pieces.append(part.piece)
        if part.part < part.parts:
            return None
        found = FoundSnapshot(part.snapshot_id, part.as_of_index, self._first_index, index, b"".join(self._pieces))
        is_whole = self._crc == part.crc and self._size_bytes == part.size_bytes
        self._void()
        if not is_whole:
            raise BodyInvalid(f"snapshot {part.snapshot_id} as of {part.as_of_index} does not have its CRC")
        self.newest = found
        return found
