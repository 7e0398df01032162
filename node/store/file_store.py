"""The log on disk: DLedger's files, and beside them what makes them safe (DESIGN 4, SAFETY S1 to S9).

One append is one pwrite of data and one of index; nothing per entry happens in Python besides encoding. Memory does not
grow with the log: the term table and the ring of recent slabs are all it keeps.

Invariants: `_end_pos` is the position right after the last record, never behind a filler; what lies behind it is zero;
`_durable` never passes a cut; after an I/O error nothing more is promised, not even at close.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from node.protocol.codes import FlushMode
from node.protocol.entry import (
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    Entry,
    EntryError,
    Magic,
    Slab,
    crc32,
    pack_blank,
    unpack_record,
)
from node.protocol.packed_bodies import encode_bodies
from node.protocol.slab_check import check_slab
from node.store.cutting import CuttingLog
from node.store.disk_log import find_head, find_record
from node.store.files.cache_window import CacheWindow
from node.store.files.checkpoint import Slot
from node.store.files.hard_state import save_hard_state
from node.store.files.identity import UNKNOWN_TERM
from node.store.files.layout import plan_bodies
from node.store.files.platform import OS, Platform
from node.store.files.straight import NOWHERE, write_straight_from
from node.store.log_store import (
    ColdEntry,
    EntryMeta,
    Fault,
    HardState,
    StoreCorrupt,
    StoreFull,
    StoreIOError,
    SyncTicket,
)
from node.store.recent_slabs import RecentSlabs
from node.store.recovery.opening import Opened, open_directory
from node.store.recovery.unsealed import UnsealedChains, is_unsealed, strip_seals
from node.store.slab_pieces import settle, straightened
from node.store.sync_ticket import FileTicket, Mark

_SLOT_INTERVAL_NS = 20_000_000
_INDEX_UNSYNCED_BYTES_MAX = 4 * 1024 * 1024


class FileStore(CuttingLog):
    """See the module's docstring; made by `open`."""

    def __init__(self, opened: Opened, page_cache_bytes: int = 0) -> None:
        found = opened.recovered
        self.directory = opened.directory
        self.store_id = opened.hard_state.store_id or opened.identity.store_id
        self.data_file_size = opened.identity.data_file_size
        self.index_file_size = opened.identity.index_file_size
        self.sealed_from = opened.sealed_from
        self.straight_from = opened.straight_from
        self._layout_unsaved = False
        self.hard_state = opened.hard_state
        self.alarms = tuple(found.alarms)
        self.begin_index = found.begin_index
        self.base = found.base
        self.end_index = found.end.index - 1
        self.end_term = found.end.term
        self.end_chain = found.end.chain
        self.durable_index = self.end_index
        self.recovered_commit_index = found.committed_index
        self.cuts = 0
        self._cutting = False
        self.failed = False
        self._data = opened.data
        self._index = opened.index
        self._archive = opened.archive
        self._checkpoint = opened.checkpoint
        self._lock = opened.lock
        self._boot_id = opened.boot_id
        self._node_id = opened.identity.node_id
        self._platform = opened.platform
        self._begin_pos = found.begin_pos
        self._end_pos = found.end.pos
        self._terms = found.terms
        self._data_window = CacheWindow(self._data, page_cache_bytes, self._end_pos)
        index_end = (self.end_index + 1) * INDEX_UNIT_BYTES
        self._index_window = CacheWindow(self._index, page_cache_bytes // 8, index_end)
        self._ring = RecentSlabs()
        if found.newest is not None:
            self._ring.add(found.newest)
        self._unsealed = UnsealedChains(self._data, self._begin_cursor())
        self._durable = Mark(self.end_index, self._end_pos, self.end_term, self.end_chain)
        self._index_durable = self.end_index
        self._committed = found.committed_index
        self.applied_index = found.applied_index
        self._slot_at_ns = 0
        self._closed = False
        self.recovered_marks = opened.checkpoint.last.marks if opened.checkpoint.last is not None else ()
        self._checkpoint.write_both(self._slot(self._durable))
        self._start_healing(found.faults, self._durable)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        group: str,
        node_id: str,
        data_file_size: int = 1024 * 1024 * 1024,
        index_file_size: int = 32 * 5 * 1024 * 1024,
        init: bool = False,
        flush: FlushMode = FlushMode.SYNC,
        boot_id: str | None = None,
        page_cache_bytes: int = 0,
        platform: Platform = OS,
        serving: bool = False,
        group_id: str | None = None,
    ) -> FileStore:
        """Recovers and opens. Raises StoreRefused, StoreCorrupt, StoreFull, StoreIOError; then nothing is held."""
        opened = open_directory(
            Path(directory), group, node_id, data_file_size, index_file_size, init, flush, boot_id, platform,
            serving, group_id,
        )  # fmt: skip
        return cls.made_of(opened, page_cache_bytes)

    @classmethod
    def made_of(cls, opened: Opened, page_cache_bytes: int = 0) -> Self:
        """Raises StoreFull, StoreIOError; then nothing is held."""
        try:
            return cls(opened, page_cache_bytes)
        except BaseException:
            for held in (opened.data, opened.index, opened.checkpoint):
                held.close()
            opened.lock.release()
            raise

    # --- appending -----------------------------------------------------------------------------------------------

    def append_as_leader(self, bodies: Sequence[bytes], term: int, magic: int = Magic.NORMAL) -> list[Slab]:
        if not bodies or term < self.end_term:
            raise EntryError(f"{len(bodies)} bodies of term {term} after term {self.end_term}")
        runs = plan_bodies(bodies, self._end_pos, self.data_file_size)
        slabs: list[Slab] = []
        index, chain = self.end_index + 1, self.end_chain
        for run in runs:
            part = bodies if len(runs) == 1 else bodies[run.first : run.stop]
            slab = encode_bodies(part, index, term, run.pos, chain or 0, magic)
            if chain is None:
                slab = strip_seals(slab)
            slabs.append(slab)
            index, chain = index + slab.count, slab.last_chain
        self._write(slabs)
        return slabs

    def append_slab(self, slab: Slab) -> None:
        if slab.first_index != self.end_index + 1:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} does not continue {self.end_index}")
        if slab.first_term < self.end_term:
            raise EntryError(f"slab {slab.first_index}: term {slab.first_term} after term {self.end_term}")
        chain, plain = check_slab(slab, self.end_chain)
        if not plain and is_unsealed(slab):
            if self.sealed_from < slab.first_index and self.end_index >= self.begin_index:
                raise EntryError(f"slab {slab.first_index} is unsealed, seals began at {self.sealed_from}")
            self._layout_unsaved |= self.sealed_from == 0  # a heritage from now on
            self.sealed_from = max(self.sealed_from, slab.last_index + 1)
        elif chain is None:  # no anchor here: the sender's seals are one
            chain = slab.last_chain
        if slab.prev_chain != self.end_chain or slab.last_chain != chain:
            slab = replace(slab, prev_chain=self.end_chain, last_chain=chain)
        pieces = settle(slab, self._end_pos, self.data_file_size)
        if self.sealed_from and pieces[0] is not slab and self.straight_from != NOWHERE:
            self.straight_from, self._layout_unsaved = NOWHERE, True  # elsewhere on the leader's disk: layouts differ
        if not (plain and pieces[0] is slab):  # S6
            pieces = [straightened(piece, self.straight_from) for piece in pieces]
        self._write(pieces)

    def _write(self, slabs: list[Slab]) -> None:
        """All or nothing: what was written before the disk was full is zeroed again (SAFETY S8)."""
        end_pos = self._end_pos
        try:
            for slab in slabs:
                if slab.pos != end_pos:
                    self._data.ensure(slab.pos)
                    self._data.write(end_pos, pack_blank(slab.pos - end_pos))
                end_pos = slab.pos + len(slab.data)
                self._data.write(slab.pos, slab.data)
                self._index.write(slab.first_index * INDEX_UNIT_BYTES, slab.index_records)
        except StoreFull:
            self._clear(self._end_pos, end_pos, self.end_index + 1, slabs[-1].last_index + 1)
            raise
        except StoreIOError:
            self.failed = True
            raise
        for slab in slabs:
            self._ring.add(slab)
            if slab.last_term != self.end_term or self.end_index < self.begin_index:  # terms never decrease
                self._note_terms(slab)
            self.end_index += slab.count
            self.end_term, self.end_chain = slab.last_term, slab.last_chain
        self._end_pos = end_pos

    def _note_terms(self, slab: Slab) -> None:
        with self._terms_lock:
            for _, _, _, index, term in INDEX_UNIT.iter_unpack(slab.index_records):
                self._terms.extend(index, term)
                if term == slab.last_term:
                    break

    # --- looking up ----------------------------------------------------------------------------------------------

    def meta(self, index: int) -> EntryMeta | None:
        try:
            return self.meta_at_hand(index)
        except ColdEntry:
            return self._stored_meta(index)

    def meta_at_hand(self, index: int) -> EntryMeta | None:
        if index == self.end_index and index >= self.begin_index:
            return EntryMeta(index, self.end_term, self.end_chain)
        if index == self.base.index:
            return self.base if index < 0 or self.base.term != UNKNOWN_TERM else None
        if not self.begin_index <= index <= self.end_index:
            return None
        known = self._ring.meta(index)
        if known is None:
            self._refuse_damaged(index)
            raise ColdEntry(index)
        return known

    def read_meta(self, index: int) -> EntryMeta:
        cuts = self.cuts
        if not self.begin_index <= index <= self.end_index:
            raise KeyError(index)
        self._refuse_damaged(index)
        try:
            found = self._stored_meta(index)
        except StoreCorrupt as error:
            if cuts == self.cuts and not self._cutting and index >= self.begin_index:
                raise
            raise KeyError(index) from error  # it was cut or trimmed while this read: no damage
        if cuts != self.cuts or self._cutting:
            raise KeyError(index)
        return found

    def position_at_hand(self, index: int) -> int | None:
        slab = self._ring.holding(index)
        if slab is None or not self.begin_index <= index <= self.end_index:
            return None
        pos: int = INDEX_UNIT.unpack_from(slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES)[1]
        return pos

    def _stored_meta(self, index: int) -> EntryMeta:
        """From the files alone, so that a thread may ask: 80 bytes, however long the entry is."""
        head = find_head(self._data, self._index, index)
        if head.chain_crc or head.body_crc:
            return EntryMeta(index, head.term, head.chain_crc)
        return EntryMeta(index, head.term, self._unsealed.chain_at(index))

    def get(self, index: int) -> Entry | None:
        if not self.begin_index <= index <= self.end_index:
            return None
        slab = self._ring.holding(index)
        if slab is not None:
            unit = INDEX_UNIT.unpack_from(slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES)
            return unpack_record(slab.data, unit[1] - slab.pos)
        self._refuse_damaged(index)
        found, entry = find_record(self._data, self._index, index)
        if entry.pos != found.pos and index >= self.straight_from:  # the next scrub writes it anew
            entry = replace(entry, pos=found.pos)
        if (entry.body_crc or entry.chain_crc) and crc32(entry.body) != entry.body_crc:
            text = f"entry {index}: its body does not match its CRC"
            raise StoreCorrupt(text, [Fault(index, index, "crc_invalid", text)])
        return entry

    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        return self._ring.piece_of(first_index, max_bytes) if first_index >= self.begin_index else None

    def term_at(self, index: int) -> int:
        return self._terms.term_at(index)

    def term_start(self, index: int) -> int:
        return self._terms.start_of(index, self.begin_index)

    def last_index_of_term(self, term: int) -> int:
        return self._terms.last_index_of(term, self.begin_index, self.end_index)

    # --- durability ----------------------------------------------------------------------------------------------

    def save_hard_state(self, state: HardState) -> None:
        self._refuse_after_failure()
        try:
            save_hard_state(self.directory, state, self._platform)
        except StoreIOError:
            self.failed = True
            raise
        self.hard_state = state

    def has_space(self) -> bool:
        free = self._platform.space_left_bytes(self.directory)
        return free is None or free >= self._data.ahead_bytes

    def keep_layout(self) -> None:
        """Keeps the border on disk where it moved: a writer's work, before what follows counts as durable."""
        if self._layout_unsaved:
            self._layout_unsaved = False
            write_straight_from(self.directory, self.straight_from, self._platform)

    def note_progress(self, committed_index: int, applied_index: int) -> None:
        self._committed, self.applied_index = committed_index, applied_index

    def prepare_sync(self) -> SyncTicket | None:
        if self._cutting or (self.durable_index >= self.end_index and not self._data.dirty):
            return None
        unsynced_index_bytes = (self.end_index - self._index_durable) * INDEX_UNIT_BYTES
        return self._ticket(with_index=unsynced_index_bytes > _INDEX_UNSYNCED_BYTES_MAX, force_slot=False)

    def prepare_checkpoint(self) -> SyncTicket | None:
        """For an idle driver (20 ms without a sync): syncs the index too and writes a slot; None if nothing is new."""
        last = self._checkpoint.last
        end = self.end_index
        known = (end, min(self._committed, end), min(self.applied_index, end), end, self.recovered_marks)
        said = (
            (last.durable_index, last.committed_index, last.applied_index, last.index_durable, last.marks)
            if last
            else None
        )
        if self._cutting or known == said:
            return None
        return self._ticket(with_index=True, force_slot=True)

    def _ticket(self, *, with_index: bool, force_slot: bool) -> FileTicket:
        mark = Mark(self.end_index, self._end_pos, self.end_term, self.end_chain)
        slot = self._slot(mark, index_durable=mark.index if with_index else self._index_durable)
        index = self._index.take_dirty() if with_index else None
        stale = self._data_window.move_to(mark.end_pos)
        if with_index:
            stale += self._index_window.move_to((mark.index + 1) * INDEX_UNIT_BYTES)
        return FileTicket(self, mark, self._data.take_dirty(), index, slot, force_slot, stale)

    def _slot(self, mark: Mark, *, index_durable: int | None = None, clean: bool = False) -> Slot:
        in_index = self._index_durable if index_durable is None else index_durable
        return Slot(
            mark.index, self.begin_index, mark.end_pos, mark.term, mark.chain, min(self._committed, mark.index),
            min(self.applied_index, mark.index), min(mark.index, in_index), self.sealed_from, clean, self._boot_id,
            marks=self.recovered_marks,
        )  # fmt: skip

    def write_slot(self, slot: Slot, *, force: bool) -> None:
        """At most every 20 ms under load: a slot costs a sync of its own (SAFETY S2)."""
        now_ns = self._platform.monotonic_ns()
        if force or now_ns - self._slot_at_ns >= _SLOT_INTERVAL_NS:
            self._slot_at_ns = now_ns
            self._checkpoint.write(slot)

    def finish_sync(self, ticket: SyncTicket) -> int:
        if isinstance(ticket, FileTicket) and ticket.cuts == self.cuts and ticket.mark.index >= self.durable_index:
            self._durable = ticket.mark
            self.durable_index = ticket.mark.index
            if ticket.syncs_index:
                self._index_durable = ticket.mark.index
        return self.durable_index

    @property
    def durable_position(self) -> int:
        """The position right after the last durable record."""
        return self._durable.end_pos

    @property
    def size_bytes(self) -> int:
        """From the first record to the end of the last one, fillers included."""
        return self._end_pos - self._begin_pos

    @property
    def truncation_count(self) -> int:
        """How many cuts this store has seen."""
        return self._archive.count

    # --- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not self.failed:
                self._data.sync()
                self._index.sync()
                self.keep_layout()
                mark = Mark(self.end_index, self._end_pos, self.end_term, self.end_chain)
                self._durable, self.durable_index = mark, mark.index
                with suppress(StoreFull):  # without a slot that says "clean" the next start reads more, and finds it
                    self._checkpoint.write_both(self._slot(mark, index_durable=mark.index, clean=True))
                if self.faults_unsaved:
                    self.save_faults()
        finally:
            self._drop_stage()
            self._data.close()
            self._index.close()
            self._checkpoint.close()
            self._lock.release()
