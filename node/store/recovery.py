"""Opening a log: where it begins and ends, what a crash left, and what must be made durable before anyone is answered.

Invariants (SAFETY S1, S3, S5, S7, E8): nothing at or below the checkpoint's durable index is ever cut; every cut is
archived first; after an unclean stop under the same boot id all that lies above the recorded durable index is rewritten
and synced; when `recover` returns, everything the log holds is durable and nothing stale lies behind its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from node.protocol.entry import (
    HEAD,
    HEAD_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    Magic,
    Slab,
)
from node.store.checkpoint import Slot
from node.store.damage import Ending, judge, read_unit
from node.store.identity import UNKNOWN_TERM, Base
from node.store.log_store import ORIGIN, EntryMeta, StoreCorrupt, TruncationRecord
from node.store.segment_list import SegmentList
from node.store.slab_pieces import slab_meta
from node.store.term_table import TermTable
from node.store.truncation_archive import TruncationArchive
from node.store.walk import Cursor, Walk, find_begin

# Below the durable index so much is read again at every start, with all CRCs: rot shows early, a start stays short.
RECHECK_BYTES = 16 * 1024 * 1024
_COPY_BYTES = 1024 * 1024


@dataclass(slots=True)
class Recovered:
    """What `recover` found. `end` is the cursor for the next entry."""

    begin_index: int
    begin_pos: int
    base: EntryMeta
    end: Cursor
    terms: TermTable
    newest: Slab | None
    committed_index: int = -1
    applied_index: int = -1
    lost_history: str = ""  # why this store may not vote (SAFETY E8), "" where nothing was lost
    alarms: list[str] = field(default_factory=list)
    archived_bytes: int = 0


@dataclass(slots=True, frozen=True)
class Circumstances:
    """What recovery has to know besides the files."""

    node_id: str
    boot_id: str
    java: bool  # no quorumscope.json: only the Java node wrote here
    sealed_from: int
    base: Base | None
    java_base_term: int | None = None  # from the Java node's snapshot, where there is one


class Recovery:
    """One recovery of one directory."""

    def __init__(
        self,
        data: SegmentList,
        index: SegmentList,
        archive: TruncationArchive,
        slot: Slot | None,
        circumstances: Circumstances,
    ) -> None:
        self._data = data
        self._index = index
        self._archive = archive
        self._slot = slot
        self._case = circumstances
        self._alarms: list[str] = []
        self._newest: Slab | None = None
        self._terms = TermTable()
        self._end_pos = 0

    def recover(self) -> Recovered:
        """Raises StoreCorrupt, naming the entries, where bytes are not what was written."""
        begin_pos, begin_index, base = self._find_begin()
        full = Cursor(begin_pos, begin_index, base.term, base.chain, self._case.sealed_from)
        start = self._start_near_checkpoint(full)
        walk = self._walk(start)
        if not self._agrees(walk.stop.cursor):
            self._alarm("the checkpoint does not agree with the log: everything was scanned")
            self._slot = None if start == full else self._slot
            if start != full:
                start = full
                walk = self._walk(start)
        archived = self._settle_end(walk, start)
        end = walk.stop.cursor
        end = Cursor(self._end_pos, end.index, end.term, end.chain, end.sealed_from)
        self._collect_terms(begin_index, start, end.index)
        self._clean_index(begin_index, end.index)
        self._make_durable(begin_pos, begin_index, end)
        lost, committed, applied = self._compare_with_slot(end.index - 1)
        return Recovered(
            begin_index, begin_pos, base, end, self._terms, self._newest, committed, applied, lost,
            self._alarms, archived,
        )  # fmt: skip

    def _alarm(self, text: str) -> None:
        self._alarms.append(text)

    # --- where it begins -----------------------------------------------------------------------------------------

    def _find_begin(self) -> tuple[int, int, EntryMeta]:
        saved = self._case.base
        if saved is not None:
            self._data.drop_before(saved.pos)  # a crash between saving the base and removing the files
            return saved.pos, saved.meta.index + 1, saved.meta
        begin_pos, begin_index = find_begin(self._data)
        if begin_index is None or begin_index == 0:
            return begin_pos, 0, ORIGIN
        term = self._case.java_base_term
        return begin_pos, begin_index, EntryMeta(begin_index - 1, UNKNOWN_TERM if term is None else term, None)

    def _start_near_checkpoint(self, full: Cursor) -> Cursor:
        """A cursor some way below the durable index, so that a start does not read the whole log."""
        slot = self._slot
        if self._case.java or slot is None or slot.durable_index <= full.index:
            return full
        low, high = full.index, min(slot.durable_index, slot.index_durable)
        target_pos = slot.end_pos - RECHECK_BYTES
        if high <= low or target_pos <= full.pos:
            return full
        while low < high:  # the first entry at or behind target_pos
            middle = (low + high) // 2
            unit = read_unit(self._index, middle)
            if unit is None:
                self._alarm(f"index record {middle} is broken: everything was scanned")
                return full
            low, high = (low, middle) if unit.pos >= target_pos else (middle + 1, high)
        unit, before = read_unit(self._index, low), read_unit(self._index, low - 1)
        raw = self._data.read(before.pos, HEAD_BYTES) if before is not None else b""
        if unit is None or before is None or len(raw) < HEAD_BYTES:
            return full
        _, size, index, term, _, _, chain, _, _ = HEAD.unpack(raw)
        if (size, index, term) != (before.size, before.index, before.term) or chain == 0:
            return full
        return Cursor(unit.pos, low, term, chain, full.sealed_from)

    # --- the walk ------------------------------------------------------------------------------------------------

    def _walk(self, start: Cursor) -> Walk:
        """Walks to the end; repairs the index file and collects terms on the way."""
        self._terms.clear()
        self._end_pos = start.pos
        self._newest = None
        self._seen: EntryMeta | None = None
        self._seen_pos = -1
        walk = Walk(self._data, start)
        for slab in walk.slabs():
            self._repair_index(slab)
            self._note_terms(slab)
            slot = self._slot
            if slot is not None and slab.first_index <= slot.durable_index <= slab.last_index:
                self._seen = slab_meta(slab, slot.durable_index)
            self._newest = slab
            self._end_pos = slab.end_pos
        return walk

    def _note_terms(self, slab: Slab) -> None:
        if slab.first_term == slab.last_term:
            self._terms.extend(slab.first_index, slab.first_term)
            return
        for _, _, _, index, term in INDEX_UNIT.iter_unpack(slab.index_records):
            self._terms.extend(index, term)

    def _repair_index(self, slab: Slab) -> None:
        at = slab.first_index * INDEX_UNIT_BYTES
        stored = self._index.read_across(at, len(slab.index_records))
        if stored == slab.index_records:
            return
        kept = [_keep_java_magic(old, new) for old, new in zip(_units(stored), _units(slab.index_records), strict=True)]
        wanted = b"".join(kept)
        if wanted == stored:
            return
        index_durable = self._slot.index_durable if self._slot is not None else -1
        broken = [
            slab.first_index + number
            for number, (old, new) in enumerate(zip(_units(stored), kept, strict=True))
            if old != new and slab.first_index + number <= index_durable
        ]
        if broken:
            self._alarm(f"index records {broken[0]}..{broken[-1]} did not match their entries and were rebuilt")
        self._index.write(at, wanted)

    def _agrees(self, end: Cursor) -> bool:
        """Whether the slot names the entry that the log holds there. A log that ends earlier is another matter."""
        slot = self._slot
        if slot is None or slot.durable_index < 0 or self._seen is None or slot.durable_index >= end.index:
            return True
        known = slot.chain is not None and self._seen.chain is not None
        return self._seen.term == slot.term and (not known or self._seen.chain == slot.chain)

    # --- where it ends -------------------------------------------------------------------------------------------

    def _settle_end(self, walk: Walk, start: Cursor) -> int:
        """Decides what lies behind the last sound record; archives and clears what may go. Returns archived bytes."""
        at = walk.stop.cursor
        ending, last_used = judge(self._data, self._index, walk.stop, java=self._case.java)
        durable = self._slot.durable_index if self._slot is not None and not self._case.java else -1
        if ending is Ending.CORRUPT or (ending is Ending.TORN and at.index <= durable):
            file = self._data.find(at.pos)
            raise StoreCorrupt(
                f"entry {at.index} at position {at.pos} ({file.path if file else 'no file'}) is corrupt: "
                f"{walk.stop.detail}; durable index {durable}. "
                "Restore the file from a peer, or empty the directory and let the node rejoin"
            )
        archived = 0
        if ending is not Ending.CLEAN:
            archived = last_used + 1 - at.pos
            why = f"{ending.value} found at start: {walk.stop.detail}"
            self._archive.add(
                TruncationRecord(self._case.node_id, None, at.term, at.index, at.index, why, -1),
                _raw(self._data, at.pos, last_used + 1),
            )
            if ending is Ending.TORN:
                self._alarm(f"entry {at.index} was torn: {archived} bytes were cut and archived")
        # Also the filler behind the last kept record goes: the layout is a pure function of the entries (SAFETY S5).
        end_pos = self._end_pos
        segment = self._data.find(end_pos - 1) if end_pos > start.pos else self._data.find(end_pos)
        if segment is not None:
            self._data.drop_from(segment.end)
            span = segment.used_span(min(end_pos, segment.end)) if end_pos < segment.end else None
            if span is not None:
                self._data.zero(end_pos, span[1] + 1)
        return archived

    def _collect_terms(self, begin_index: int, start: Cursor, stop_index: int) -> None:
        """The runs of equal terms below the walk's start, by bisection over the index file."""
        if start.index == begin_index:
            return
        starts: list[tuple[int, int]] = []
        index = begin_index
        while index < start.index:
            term = self._unit_term(index)
            starts.append((index, term))
            low, high = index + 1, start.index
            while low < high:  # the first entry of a later term
                middle = (low + high) // 2
                low, high = (low, middle) if self._unit_term(middle) > term else (middle + 1, high)
            index = low
        walked = list(zip(self._terms.starts, self._terms.terms, strict=True))
        self._terms.clear()
        for first, term in [*starts, *walked]:
            self._terms.extend(first, term)

    def _unit_term(self, index: int) -> int:
        unit = read_unit(self._index, index)
        if unit is None:
            raise StoreCorrupt(f"index record {index} is broken, see `store verify`")
        return unit.term

    def _clean_index(self, begin_index: int, stop_index: int) -> None:
        """Nothing stale behind the last index record; whole files of entries that are gone are removed."""
        stop_pos = stop_index * INDEX_UNIT_BYTES
        self._index.drop_before(begin_index * INDEX_UNIT_BYTES)
        span = self._index.used_span(stop_pos)
        if span is not None:
            self._index.drop_from(stop_pos)
            self._index.zero(stop_pos, span[1] + 1)

    # --- durability ----------------------------------------------------------------------------------------------

    def _make_durable(self, begin_pos: int, begin_index: int, end: Cursor) -> None:
        """SAFETY S1: pages that look written may not be; after a reboot what is read is on the disk."""
        slot = self._slot
        if slot is None or (not slot.clean and slot.boot_id == self._case.boot_id):
            known = slot is not None and begin_pos <= slot.end_pos <= end.pos and slot.durable_index >= begin_index
            from_pos = slot.end_pos if slot is not None and known else begin_pos
            from_index = min(slot.durable_index, slot.index_durable) + 1 if slot is not None and known else begin_index
            _rewrite(self._data, from_pos, end.pos)
            _rewrite(self._index, from_index * INDEX_UNIT_BYTES, end.index * INDEX_UNIT_BYTES)
        self._data.sync()
        self._index.sync()

    def _compare_with_slot(self, end_index: int) -> tuple[str, int, int]:
        """Whether history was lost (SAFETY E8), and the checkpoint's indexes, never above what the log holds."""
        slot = self._slot
        if slot is None:
            return "", -1, -1
        lost = ""
        if end_index < max(slot.durable_index, slot.committed_index):
            lost = (
                f"the log ends at {end_index}, its checkpoint says durable {slot.durable_index} "
                f"and committed {slot.committed_index}"
            )
        return lost, min(slot.committed_index, end_index), min(slot.applied_index, end_index)


def _units(raw: bytes) -> list[bytes]:
    return [raw[at : at + INDEX_UNIT_BYTES] for at in range(0, len(raw), INDEX_UNIT_BYTES)]


def _keep_java_magic(stored: bytes, wanted: bytes) -> bytes:
    """A Java leader writes NORMAL for its own NOOP (FORMATS 3): that is no reason to rewrite its index."""
    return stored if stored[4:] == wanted[4:] and stored[:4] == Magic.NORMAL.to_bytes(4, "big") else wanted


def _raw(segments: SegmentList, pos: int, end: int) -> Iterator[bytes]:
    while pos < end:
        chunk = segments.read(pos, min(_COPY_BYTES, end - pos))
        if not chunk:
            return
        yield chunk
        pos += len(chunk)


def _rewrite(segments: SegmentList, pos: int, end: int) -> None:
    for segment in segments:
        low, high = max(pos, segment.start), min(end, segment.end)
        while low < high:
            chunk = segment.read(low, min(_COPY_BYTES, high - low))
            segments.write(low, chunk)
            low += len(chunk)
