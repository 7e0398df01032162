"""Healing a fault with a peer's entries (SAFETY S6): staged, linked on both sides, written, synced and read back.

A peer's entries are kept aside until the whole fault is covered and the chain links the intact log on its right too:
only then they are proven to be what was written here once, and only then the damaged bytes (archived before) are
overwritten. So a crash at any point leaves a fault or healed entries, never another history that looks sound.

Invariants: nothing outside [end of the entry before, begin of the entry behind) is touched; the bytes that go are in
the archive first; a mended entry has been read from the disk again before it counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from node.protocol.entry import BLANK_BYTES, INDEX_UNIT_BYTES, BytesLike, EntryError, Slab, crc32, pack_blank
from node.protocol.slab_verify import verify_slab
from node.store.errors import StoreIOError, wrap
from node.store.faults.results import Fault
from node.store.files.layout import place
from node.store.files.os_files import write_all
from node.store.files.platform import Platform
from node.store.files.segment import Segment
from node.store.files.segment_list import SegmentList
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import TruncationRecord
from node.store.recovery.resync import read_head
from node.store.recovery.unsealed import is_unsealed
from node.store.recovery.walk import Cursor, Walk
from node.store.slab_pieces import settle, straightened
from node.store.sync_ticket import Mark

STAGE = "mending"
_COPY_BYTES = 1024 * 1024


class NoLinkError(Exception):
    """These entries do not belong here, or not provably; the message says on which side."""


class RightLinkError(NoLinkError):
    """The entries continue the log on the left; the first record behind the fault does not continue them.

    That record is no witness by itself: with the chain before it unknown, its head was vouched for by nothing.
    """


@dataclass(slots=True, frozen=True)
class _Piece:
    """A staged slab; its bytes and index records lie in the stage file from `offset` on."""

    slab: Slab  # without its bytes
    offset: int
    data_bytes: int
    crc: int


class Stage:
    """Entries of a peer that wait for the right link, in a file of their own: a fault may be a whole data file."""

    def __init__(self, directory: Path, fault: Fault, left: Mark, platform: Platform) -> None:
        self.fault = fault
        self.last_index = fault.last_index  # what has to be staged; records behind the fault may turn out to lie
        self.widened = 0  # how often that was found
        self.left = left  # the intact entry before the fault
        self.end = left  # the last entry staged
        self.pieces: list[_Piece] = []
        self._path = directory / STAGE
        self._platform = platform
        self._length = 0
        try:
            self._fd = platform.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise wrap(error, f"creating {self._path}") from error

    def grow(self, fault: Fault) -> None:
        """The same fault, which may end later by now."""
        self.fault = fault
        self.last_index = max(self.last_index, fault.last_index)

    def add(self, slab: Slab, file_bytes: int, sealed_from: int, straight_from: int) -> None:
        """The next entries. Raises NoLinkError where they do not continue what is here.

        Where the layout was never shifted, from `straight_from` on, a head with another position is put right (S6).
        """
        end = self.end
        if end.chain is None:
            raise NoLinkError(f"the chain before entry {slab.first_index} is not known")
        if slab.first_term < end.term:
            raise NoLinkError(f"entry {slab.first_index} is of term {slab.first_term}, the one before of {end.term}")
        if is_unsealed(slab) and slab.last_index >= sealed_from:
            raise NoLinkError(f"entry {slab.last_index} is unsealed, seals began at {sealed_from}")
        try:
            chain = verify_slab(slab, end.chain, bodies=True)
            settled = settle(replace(slab, prev_chain=end.chain, last_chain=chain), end.end_pos, file_bytes)
        except EntryError as error:
            raise NoLinkError(str(error)) from error
        for piece in [straightened(one, straight_from) for one in settled]:
            raw = bytes(piece.data) + piece.index_records
            write_all(self._fd, raw, self._length, f"writing {self._path}", self._platform)
            kept = replace(piece, data=b"", index_records=b"")
            self.pieces.append(_Piece(kept, self._length, len(piece.data), crc32(raw)))
            self._length += len(raw)
        self.end = Mark(slab.last_index, settled[-1].end_pos, slab.last_term, chain)

    def slabs(self) -> Iterator[Slab]:
        """What was staged, at the positions where it goes. Raises NoLinkError, StoreIOError."""
        for piece in self.pieces:
            length = piece.data_bytes + piece.slab.count * INDEX_UNIT_BYTES
            try:
                raw = self._platform.pread(self._fd, length, piece.offset)
            except OSError as error:
                raise StoreIOError(f"reading {self._path}: {error.strerror}") from error
            if crc32(raw) != piece.crc:
                raise NoLinkError(f"{self._path} does not read back as it was written")
            yield replace(piece.slab, data=raw[: piece.data_bytes], index_records=raw[piece.data_bytes :])

    def close(self) -> None:
        """Removes the file; idempotent."""
        if self._fd >= 0:
            self._platform.close(self._fd)
            self._platform.unlink(self._path)
            self._fd = -1


class Mending:
    """Writes staged entries into one log. One at a time, in a writer's thread, beside appends at the log's end."""

    def __init__(
        self, data: SegmentList, index: SegmentList, archive: TruncationArchive, node_id: str, sealed_from: int
    ) -> None:
        self._data = data
        self._index = index
        self._archive = archive
        self._node_id = node_id
        self._sealed_from = sealed_from

    # --- the right link --------------------------------------------------------------------------------------------

    def right_pos(self, stage: Stage, anchors: list[Mark]) -> int:
        """Where the fault ends on the disk, once the chain links there. Raises NoLinkError."""
        end, last_index = stage.end, stage.last_index
        for anchor in anchors:
            if anchor.index == last_index:
                self._check_anchor(end, anchor)
                return anchor.end_pos
        pos = self._next_pos(end)
        if pos is not None:
            self._walk_on(Cursor(pos, last_index + 1, end.term, end.chain, self._sealed_from), anchors)
            return pos
        raise RightLinkError(f"entry {last_index + 1} does not lie where these entries end ({end.end_pos})")

    def sound_inside(self, stage: Stage) -> Slab | None:
        """Entries inside the fault, right behind what is staged, that lie here as they were written; None: no such.

        An entry between two damaged heads is taken for damaged until the chain before it is known. It may be the
        only copy of what another member has damaged, and whoever gives the entries before may have none behind.
        """
        end, first_index = stage.end, stage.end.index + 1
        pos = self._next_pos(end) if stage.widened == 0 and first_index < stage.fault.last_index else None
        if pos is None:
            return None
        cursor = Cursor(pos, first_index, end.term, end.chain, self._sealed_from)
        walk = Walk(self._data, cursor, last_index=stage.fault.last_index - 1)
        slab = next(walk.slabs(), None)
        if slab is None or walk.sealed_count < slab.count:
            return None
        records = self._index.read_across(first_index * INDEX_UNIT_BYTES, len(slab.index_records))
        return slab if records == slab.index_records else None

    def _next_pos(self, end: Mark) -> int | None:
        """Where the record behind `end` lies by its head, which nothing has checked yet."""
        file_bytes = self._data.file_bytes
        for pos in (end.end_pos, place(end.end_pos, file_bytes, file_bytes)):
            head = read_head(self._data, pos)
            if head is not None and head.index == end.index + 1 and place(end.end_pos, head.size, file_bytes) == pos:
                return pos
        return None

    @staticmethod
    def _check_anchor(end: Mark, anchor: Mark) -> None:
        if anchor.chain is None:
            raise NoLinkError(f"the chain at the log's end, entry {anchor.index}, is not known")
        if (end.chain, end.term, end.end_pos) != (anchor.chain, anchor.term, anchor.end_pos):
            raise NoLinkError(
                f"after entry {anchor.index} the chain is {end.chain:08x} in term {end.term} at {end.end_pos}, "
                f"this log had {anchor.chain:08x} in term {anchor.term} at {anchor.end_pos}"
            )

    def _walk_on(self, cursor: Cursor, anchors: list[Mark]) -> None:
        """The next sealed record has to continue the chain; where none follows, the chain at the end has to agree."""
        following = cursor.index
        last_index = max(following, min(self._sealed_from, max(anchor.index for anchor in anchors)))
        walk = Walk(self._data, cursor, last_index=following)
        for last in (following, last_index):
            walk = Walk(self._data, cursor, last_index=last)
            for _ in walk.slabs():
                if walk.sealed_count:
                    return
            if walk.cursor.index <= last:
                break
        known = [anchor.chain for anchor in anchors if anchor.index == walk.cursor.index - 1 >= following]
        if walk.cursor.chain is None or walk.cursor.chain not in known:
            raise RightLinkError(f"the chain does not lead on to entry {following}: {walk.stop.detail}")

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, stage: Stage, right_pos: int) -> None:
        """Archives, writes, syncs, reads back. Raises StoreFull, StoreIOError, NoLinkError (it does not read back)."""
        fault, left_pos = stage.fault, stage.left.end_pos
        record = TruncationRecord(
            self._node_id, None, stage.end.term, fault.first_index, stage.last_index, f"repair: {fault.kind}", -1
        )
        if any(any(chunk) for chunk in self._data.chunks(left_pos, right_pos, _COPY_BYTES)):
            self._archive.add(record, self._data.chunks(left_pos, right_pos, _COPY_BYTES))
        touched: list[Segment] = []
        pos = left_pos
        for slab in stage.slabs():
            pos = self._fill(pos, slab.pos, touched)
            self._put(self._data, slab.pos, slab.data, touched)
            self._put(self._index, slab.first_index * INDEX_UNIT_BYTES, slab.index_records, touched)
            pos = slab.end_pos
        self._fill(pos, right_pos, touched)
        for segment in dict.fromkeys(touched):
            segment.sync()
        self._read_back(stage)

    def _fill(self, pos: int, to_pos: int, touched: list[Segment]) -> int:
        """The filler at a file's end, where the next record opens another file."""
        if pos != to_pos:
            segment = self._data.ensure(pos)
            segment.zero(pos, to_pos - pos)
            segment.write(pos, pack_blank(to_pos - pos)[:BLANK_BYTES])
            touched.append(segment)
        return to_pos

    @staticmethod
    def _put(segments: SegmentList, pos: int, data: BytesLike, touched: list[Segment]) -> None:
        """Over file borders, and past `dirty`: that belongs to the loop, which goes on appending."""
        while data:
            segment = segments.ensure(pos)
            part = data[: segment.end - pos]
            segment.write(pos, part)
            touched.append(segment)
            pos, data = pos + len(part), data[len(part) :]

    def _read_back(self, stage: Stage) -> None:
        left, last = stage.left, stage.last_index
        self._data.drop_cache(left.end_pos, stage.end.end_pos - left.end_pos)
        walk = Walk(
            self._data, Cursor(left.end_pos, left.index + 1, left.term, left.chain, self._sealed_from), last_index=last
        )
        for slab in walk.slabs():
            at = slab.first_index * INDEX_UNIT_BYTES
            self._index.drop_cache(at, len(slab.index_records))
            if self._index.read_across(at, len(slab.index_records)) != slab.index_records:
                raise NoLinkError(f"the index records of {slab.first_index}..{slab.last_index} do not read back")
        if walk.cursor.index != last + 1 or walk.cursor.chain != stage.end.chain:
            raise NoLinkError(f"entry {walk.cursor.index} does not read back as it was written: {walk.stop.detail}")
