"""The half of FileStore that makes the log shorter: cuts at its end (SAFETY S4), a prefix that is not needed any more.

Invariants: what is cut was archived before, and both checkpoint slots are lowered before a byte goes; `cuts` moves
before and after a cut, so that a reader sees that the ground moved; a base is durable before what lies below it goes.
Cuts run in the writing thread, while the loop appends nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from node.protocol.entry import BLANK_BYTES, INDEX_UNIT, INDEX_UNIT_BYTES, BytesLike, EntryError
from node.store.disk_log import find_record, read_raw_slab
from node.store.faults.healing import HealingLog
from node.store.faults.ranges import cut, next_fault
from node.store.files.cache_window import CacheWindow
from node.store.files.checkpoint import Checkpoint, Slot
from node.store.files.identity import Base, write_base
from node.store.files.layout import place
from node.store.files.retention import whole_files_below
from node.store.log_store import StoreCorrupt, StoreFull, StoreIOError, TruncationRecord
from node.store.recovery.unsealed import UnsealedChains
from node.store.recovery.walk import SEALED_NEVER, Cursor
from node.store.slab_pieces import slab_meta
from node.store.sync_ticket import Mark

_COPY_BYTES = 1024 * 1024


class CuttingLog(HealingLog):
    """Truncation and trimming of a log on disk; `FileStore` adds appends, look-ups and durability."""

    _checkpoint: Checkpoint
    _unsealed: UnsealedChains
    _end_pos: int
    _index_durable: int
    _cutting: bool
    _data_window: CacheWindow
    _index_window: CacheWindow

    @abstractmethod
    def _slot(self, mark: Mark, *, index_durable: int | None = None, clean: bool = False) -> Slot: ...

    def _begin_cursor(self) -> Cursor:
        return Cursor(self._begin_pos, self.begin_index, self.base.term, self.base.chain)

    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        self._refuse_after_failure()
        if not self.begin_index <= cut_index <= self.end_index:
            raise EntryError(f"a cut at {cut_index} is outside {self.begin_index}..{self.end_index}")
        last = self._mark_before(cut_index)
        self._drop_stage()
        order = replace(record, from_index=cut_index, to_index=self.end_index)
        self._archive.add(order, self._raw(cut_index, last.end_pos))
        self._cutting = True  # until this returns, no group commit may name what is being cut
        self.cuts += 1
        try:
            self._cut(last, cut_index)
        finally:
            self.cuts += 1
            self._cutting = False

    def _cut(self, last: Mark, cut_index: int) -> None:
        """Lowers the slots, zeroes, syncs; then the log ends at `last`."""
        self._durable = last if last.index < self._durable.index else self._durable
        self.durable_index = self._durable.index
        self._index_durable = min(self._index_durable, last.index)
        self._checkpoint.write_both(self._slot(self._durable))
        self._clear(last.end_pos, self._end_pos, cut_index, self.end_index + 1)
        self._data.sync()
        self._index.sync()
        self._ring = self._ring.cut(cut_index)
        self._terms = self._terms.cut(cut_index)
        self._unsealed.cut(cut_index)
        self.end_index, self.end_term, self.end_chain, self._end_pos = last.index, last.term, last.chain, last.end_pos
        self._data_window.cut(last.end_pos)
        self._index_window.cut((last.index + 1) * INDEX_UNIT_BYTES)
        self.recovered_commit_index = min(self.recovered_commit_index, last.index)
        if SEALED_NEVER > self.sealed_from > self.end_index + 1:
            self.sealed_from = self.end_index + 1
        with self._faults_lock:
            self._set_faults(cut(self.faults, cut_index))
        self._end_at_open = min(self._end_at_open, last, key=lambda mark: mark.index)

    def _mark_before(self, cut_index: int) -> Mark:
        if cut_index == self.begin_index:
            return Mark(self.base.index, self._begin_pos, self.base.term, self.base.chain)
        known = self._ring.holding(cut_index - 1)
        if known is not None:  # also where it rotted on the disk since
            meta = slab_meta(known, cut_index - 1)
            _, pos, size, _, _ = INDEX_UNIT.unpack_from(
                known.index_records, (cut_index - 1 - known.first_index) * INDEX_UNIT_BYTES
            )
            return Mark(meta.index, pos + size, meta.term, meta.chain)
        self._refuse_damaged(cut_index - 1)
        unit, _ = find_record(self._data, self._index, cut_index - 1)
        return Mark(cut_index - 1, unit.pos + unit.size, unit.term, self._stored_meta(cut_index - 1).chain)

    def _raw(self, first_index: int, pos: int) -> Iterator[BytesLike]:
        """The records from `first_index` to the end, in slabs; from a fault on just the bytes that lie there."""
        fault = next_fault(self.faults, first_index)
        last_index = self.end_index if fault is None else fault.first_index - 1
        while first_index <= last_index:
            try:
                slab = read_raw_slab(self._data, self._index, first_index, last_index, _COPY_BYTES)
            except StoreCorrupt:  # nobody knew: what is cut anyway need not be sound
                break
            if slab.pos not in (pos, place(pos, self.data_file_size, self.data_file_size)):
                break
            yield slab.data
            first_index, pos = slab.last_index + 1, slab.end_pos
        if first_index <= self.end_index:
            yield from self._data.chunks(pos, self._end_pos, _COPY_BYTES)

    def _clear(self, from_pos: int, to_pos: int, from_index: int, to_index: int) -> None:
        """Zeroes what lies behind an end, and removes the files that held nothing else."""
        try:
            last = self._data.find(from_pos if from_pos == self._begin_pos else from_pos - 1)
            self._data.zero(from_pos, max(to_pos, from_pos + BLANK_BYTES))  # also for readers that hold the files open
            if last is not None:
                self._data.drop_from(last.end)
            self._index.zero(from_index * INDEX_UNIT_BYTES, to_index * INDEX_UNIT_BYTES)
            self._index.drop_from(from_index * INDEX_UNIT_BYTES)
        except (StoreIOError, StoreFull) as error:
            self.failed = True
            raise StoreIOError(f"clearing what was written beyond entry {from_index - 1}: {error}") from error

    def remove_prefix(self, through_index: int) -> None:
        through = min(through_index, self.applied_index, self.end_index)  # an applier reads what it lacks from here
        begin_pos, begin_index = whole_files_below(
            self._data, self._begin_pos, self.begin_index, self._end_pos, through
        )
        if begin_index == self.begin_index:
            return
        try:
            base = self.meta(begin_index - 1)
        except StoreCorrupt:
            return  # it is damaged: the prefix goes once it is mended, and until then nothing is made up
        if base is None:
            raise StoreCorrupt(f"entry {begin_index - 1} cannot become the base: it is not found")
        write_base(self.directory, Base(base, begin_pos, self.hard_state.group_id), self._platform)
        self.base, self.begin_index, self._begin_pos = base, begin_index, begin_pos
        self._data.drop_before(begin_pos)
        self._index.drop_before(begin_index * INDEX_UNIT_BYTES)
        self._unsealed.restart(self._begin_cursor())
        self.note_faults(())
