"""Walking a whole log *past* its damage: what `store verify` reports, and where a damaged log truly ends.

Invariants: reads only; every bad record is reported once, with its index and file; a torn tail above the durable index
and a Java node's remnants are no damage; after damage the walk goes on as soon as a record can be placed again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from node.protocol.entry import HEAD, HEAD_BYTES, Magic, Slab, chain_next
from node.store.damage import Ending, judge, read_unit
from node.store.segment_list import SegmentList
from node.store.walk import Cursor, Stop, Walk, first_index_in

_SEARCH_BYTES = 64 * 1024 * 1024
_SKIPPED_INDEXES_MAX = 1024


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that is wrong. `kind` is a class of DESIGN 8; `index` None: no single entry."""

    kind: str
    index: int | None
    file: str
    detail: str


class Survey:
    """One pass over a log from `start`; `durable_index` -1: unknown, so nothing is above it."""

    def __init__(
        self, data: SegmentList, index: SegmentList, start: Cursor, *, java: bool, durable_index: int = -1
    ) -> None:
        self._data = data
        self._index = index
        self._java = java
        self._durable_index = durable_index
        self.end = start  # the cursor behind the last entry seen
        self.sealed_count = 0

    def run(self) -> Iterator[Slab | Finding]:
        """Sound slabs and findings, in the log's order."""
        cursor: Cursor | None = self.end
        while cursor is not None:
            walk = Walk(self._data, cursor)
            for slab in walk.slabs():
                self.end = replace(walk.cursor, pos=slab.end_pos)
                yield slab
            self.sealed_count += walk.sealed_count
            cursor, finding = self._after(walk.stop)
            if finding is not None:
                yield finding
            if cursor is not None:
                self.end = cursor

    def _after(self, stop: Stop) -> tuple[Cursor | None, Finding | None]:
        """Where to go on after a walk ended, and what to say about it."""
        at = stop.cursor
        ending, _ = judge(self._data, self._index, stop, java=self._java)
        if ending in (Ending.CLEAN, Ending.REMNANT):
            return None, None
        claimed = read_unit(self._index, at.index)
        claims = claimed is not None and claimed.pos == at.pos
        if ending is Ending.TORN and at.index > self._durable_index and not (self._java and claims):
            return None, None
        segment = self._data.find(at.pos)
        if segment is None:
            return self._after_gap(at)
        name = f"data/{segment.path.name}"
        kind = stop.problem or "record_invalid"
        finding = Finding(kind, at.index, name, f"{stop.detail} (at {at.pos - segment.start} of {name})")
        return self._next_place(stop), finding

    def _after_gap(self, at: Cursor) -> tuple[Cursor | None, Finding]:
        """A file is missing in the middle."""
        finding = Finding("missing", at.index, self._data.kind, f"there is no file for position {at.pos}")
        for segment in self._data:
            first_index = first_index_in(segment)
            if segment.start > at.pos and first_index is not None and first_index > at.index:
                return Cursor(segment.start, first_index, at.term, None, at.sealed_from), finding
        return None, finding

    def _next_place(self, stop: Stop) -> Cursor | None:
        """The record after a bad one: by its own head where that is sound, by the index file, or by searching."""
        at = stop.cursor
        segment = self._data.find(at.pos)
        raw = segment.read(at.pos, HEAD_BYTES) if segment is not None else b""
        if stop.problem == "crc_invalid" and len(raw) == HEAD_BYTES:
            magic, size, index, term, _, channel, chain_crc, body_crc, _ = HEAD.unpack(raw)
            chain = None if at.chain is None else chain_next(at.chain, magic, size, index, term, channel, body_crc)
            if chain != chain_crc:  # the head itself may lie: trust the place that it gives, nothing else
                return Cursor(at.pos + size, at.index + 1, at.term, None, at.sealed_from)
            return Cursor(at.pos + size, index + 1, term, chain, at.sealed_from)
        unit = read_unit(self._index, at.index)
        if unit is not None and unit.pos == at.pos and segment is not None and at.pos + unit.size <= segment.end:
            following = at.pos + unit.size
            head = segment.read(following, HEAD_BYTES)
            if following == segment.end or _head_index(head) == at.index + 1 or head[:4] in (bytes(4), b"\xff" * 4):
                return Cursor(following, at.index + 1, at.term, None, at.sealed_from)
        return self._search(at)

    def _search(self, at: Cursor) -> Cursor | None:
        """Looks for the head of a following entry in the rest of the file, then in the next file."""
        segment = self._data.find(at.pos)
        if segment is None:
            return None
        raw = segment.read(at.pos + 1, _SEARCH_BYTES)
        for index in range(at.index + 1, at.index + 1 + _SKIPPED_INDEXES_MAX):
            found = raw.find(struct.pack(">q", index), 8)
            while found >= 8:
                if _head_index(raw[found - 8 : found - 8 + HEAD_BYTES]) == index:
                    return Cursor(at.pos + 1 + found - 8, index, at.term, None, at.sealed_from)
                found = raw.find(struct.pack(">q", index), found + 1)
        following = self._data.find(segment.end)
        first_index = first_index_in(following) if following is not None else None
        if following is not None and first_index is not None and first_index > at.index:
            return Cursor(following.start, first_index, at.term, None, at.sealed_from)
        return None


def _head_index(raw: bytes) -> int | None:
    """The index in a well-formed head; None where it is none."""
    if len(raw) < HEAD_BYTES:
        return None
    magic, size, index, _, _, _, _, _, body_len = HEAD.unpack(raw)
    sound = magic in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE) and body_len >= 0 and size == HEAD_BYTES + body_len
    return int(index) if sound else None
