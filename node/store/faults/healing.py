"""The half of FileStore that lives with damage: reading beside it, finding it, healing it (SAFETY S6).

Invariants: `faults` and the term table change under locks, because the loop notes what reads met, and appends, while a
thread mends; what is known is on disk as a hint (`known_faults`); an entry inside a fault is never given away from the
disk, and its term and chain are never made up.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from node.protocol.entry import INDEX_UNIT, EntryError, Slab
from node.protocol.slab_verify import verify_slab
from node.store.disk_log import find_record, read_raw_slab
from node.store.faults.known_faults import save_known_faults
from node.store.faults.mending import Mending, NoLinkError, RightLinkError, Stage
from node.store.faults.ranges import fault_at, in_words, merged, next_fault, without
from node.store.faults.scrub import cursor_behind_fault, position_faults, scrub_range
from node.store.files.platform import Platform
from node.store.files.segment_list import SegmentList
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import EntryMeta, Fault, LogStore, Mended, Scrubbed, StoreCorrupt, StoreFull, StoreIOError
from node.store.recent_slabs import RecentSlabs
from node.store.recovery.walk import Cursor, Walk
from node.store.sync_ticket import Mark
from node.store.term_table import TermTable

_WIDEN_MOST = 8  # records behind a fault that may turn out to be damaged as well


class HealingLog(LogStore):
    """Reads, scrub and repair of a log on disk; `FileStore` adds all the rest."""

    directory: Path
    cuts: int
    failed: bool
    _data: SegmentList
    _index: SegmentList
    _archive: TruncationArchive
    _platform: Platform
    _node_id: str
    mends_alone = True
    _begin_pos: int
    straight_from: int  # from here on every head says where its record lies: see `files/straight`
    _terms: TermTable
    _ring: RecentSlabs
    _durable: Mark

    def _start_healing(self, faults: tuple[Fault, ...], end: Mark) -> None:
        """What opening found; `end` is the log's end then, which a fault there has to lead to."""
        self.faults = faults
        self._end_at_open = end
        self._stage: Stage | None = None
        self._faults_lock = threading.Lock()
        self._terms_lock = threading.Lock()
        save_known_faults(self.directory, faults, self._platform)

    @abstractmethod
    def _stored_meta(self, index: int) -> EntryMeta: ...

    def _refuse_after_failure(self) -> None:
        """Work is queued for the writer, and each piece relies on those before it: none is done after one failed (S1).

        Raises StoreIOError.
        """
        if self.failed:
            raise StoreIOError("a write failed before: nothing is written any more")

    # --- what is known ---------------------------------------------------------------------------------------------

    def note_faults(self, faults: Sequence[Fault]) -> None:
        with self._faults_lock:
            self._set_faults(merged([*self.faults, *faults], self.begin_index, self.end_index))

    def _set_faults(self, faults: tuple[Fault, ...]) -> None:
        """Under the lock."""
        if faults == self.faults:
            return
        self.faults = faults
        self.faults_unsaved = True

    def save_faults(self) -> None:
        with self._faults_lock:
            faults, self.faults_unsaved = self.faults, False
        try:
            save_known_faults(self.directory, faults, self._platform)
        except StoreIOError:
            self.failed = True
            raise

    def _refuse_damaged(self, index: int) -> None:
        """Raises StoreCorrupt for an entry that is known to be damaged."""
        fault = fault_at(self.faults, index)
        if fault is not None:
            raise StoreCorrupt(f"{in_words([fault])}: {fault.detail}", [fault])

    # --- reading ---------------------------------------------------------------------------------------------------

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        if not self.begin_index <= first_index <= self.end_index:
            raise KeyError(first_index)
        self._refuse_damaged(first_index)
        cuts = self.cuts
        following = next_fault(self.faults, first_index)
        last_index = self.end_index if following is None else min(self.end_index, following.first_index - 1)
        try:
            slab = read_raw_slab(self._data, self._index, first_index, last_index, max_bytes)
            prev_chain = self._chain_before(first_index)
            last_chain = verify_slab(slab, prev_chain, bodies=True)
            for fault in position_faults(slab, self.straight_from):  # put right on this disk before anybody gets it
                raise StoreCorrupt(fault.detail, [fault])
        except (EntryError, StoreCorrupt) as error:
            sound = self._sound_part(first_index, last_index, max_bytes, cuts, error)
            if sound is None:
                raise KeyError(first_index) from error  # it was cut or trimmed while this read: no damage
            return sound
        return replace(slab, prev_chain=prev_chain, last_chain=last_chain)

    def _chain_before(self, index: int) -> int | None:
        """None where the entry before is damaged: what follows is sound for all that."""
        if index == self.begin_index:
            return self.base.chain
        if fault_at(self.faults, index - 1) is not None:
            return None
        try:
            return self._stored_meta(index - 1).chain
        except StoreCorrupt:
            return None

    def _sound_part(self, first: int, last: int, max_bytes: int, cuts: int, error: Exception) -> Slab | None:
        """What lies before the damage that a read met; raises StoreCorrupt with the entries where that is nothing."""
        if cuts != self.cuts or first < self.begin_index:
            return None
        found: tuple[Fault, ...] = ()
        slab: Slab | None = None
        cursor = self._cursor_at(first)
        if cursor is not None:
            _, found, _ = scrub_range(self._data, self._index, cursor, last, max_bytes, self.straight_from)
        if found and found[0].first_index > first:
            slab = read_raw_slab(self._data, self._index, first, found[0].first_index - 1, max_bytes)
            chain = self._chain_before(first)
            slab = replace(slab, prev_chain=chain, last_chain=verify_slab(slab, chain, bodies=True))
        if cuts != self.cuts or first < self.begin_index:
            return None
        if slab is None:
            named = found or getattr(error, "faults", ()) or (Fault(first, first, "record_invalid", str(error)),)
            raise StoreCorrupt(f"read from entry {first} on: {error}", named) from error
        return slab

    def _cursor_at(self, index: int) -> Cursor | None:
        """Where a walk to this entry may begin; None where neither the entry before nor the index file tells."""
        if index == self.begin_index:
            return Cursor(self._begin_pos, index, self.base.term, self.base.chain, self.sealed_from)
        if fault_at(self.faults, index - 1) is None:
            try:
                unit, _ = find_record(self._data, self._index, index - 1)
                chain = self._stored_meta(index - 1).chain
            except StoreCorrupt:
                pass
            else:
                return Cursor(unit.pos + unit.size, index, unit.term, chain, self.sealed_from)
        return cursor_behind_fault(self._index, index, 0, self.sealed_from)

    # --- finding ---------------------------------------------------------------------------------------------------

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        cuts, faults, durable = self.cuts, self.faults, self.durable_index
        index = max(from_index, self.begin_index)
        fault = fault_at(faults, index)
        if fault is not None:
            index = fault.last_index + 1
        if index > durable:
            return Scrubbed(self.end_index + 1)
        following = next_fault(faults, index)
        last = durable if following is None else min(durable, following.first_index - 1)
        cursor = self._cursor_at(index)
        if cursor is None:
            next_index, size = index + 1, 0
            found: tuple[Fault, ...] = (Fault(index, index, "index_record_mismatch", "its index record is broken"),)
        else:
            next_index, found, size = scrub_range(self._data, self._index, cursor, last, max_bytes, self.straight_from)
        if cuts != self.cuts or index < self.begin_index:
            return Scrubbed(index)  # cut or trimmed while this read
        if next_index > self.durable_index:
            next_index = self.end_index + 1
        return Scrubbed(next_index, found, size)

    # --- healing ---------------------------------------------------------------------------------------------------

    def mend(self, slab: Slab) -> Mended:
        self._refuse_after_failure()
        mending = Mending(self._data, self._index, self._archive, self._node_id, self.sealed_from)
        try:
            stage = self._stage_for(slab)
            stage.add(slab, self.data_file_size, self.sealed_from, self.straight_from)
            if slab.last_index < stage.last_index:
                return Mended(slab.last_index, (), self.faults, wanted_through=stage.last_index)
            try:
                right_pos = mending.right_pos(stage, [self._end_at_open, self._durable])
            except RightLinkError:
                if not self._widen(stage):
                    raise
                return Mended(slab.last_index, (), self.faults, wanted_through=stage.last_index)
            mending.write(stage, right_pos)
        except NoLinkError as error:
            first_index = slab.first_index if self._stage is None else self._stage.fault.first_index
            self._drop_stage()
            return Mended(first_index - 1, (), self.faults, str(error))
        except StoreFull:
            self._drop_stage()
            raise
        except StoreIOError:
            self.failed = True
            raise
        return self._healed(stage)

    def mend_alone(self, first_index: int) -> Mended:
        fault = fault_at(self.faults, first_index)
        if fault is None or fault.first_index != first_index:
            raise EntryError(f"no fault begins at entry {first_index}")
        result = Mended(first_index - 1, (), self.faults)
        try:
            left = self._left_of(fault)
        except NoLinkError as error:
            return replace(result, detail=str(error))
        cursor = Cursor(left.end_pos, first_index, left.term, left.chain, self.sealed_from)
        walk = Walk(self._data, cursor, last_index=fault.last_index)
        for slab in walk.slabs():
            result = self.mend(slab)
            if result.healed or result.mended_through < slab.last_index:
                return result
        self._drop_stage()
        return Mended(first_index - 1, (), self.faults, walk.stop.detail)

    def _stage_for(self, slab: Slab) -> Stage:
        """What was staged, where `slab` continues it; else a new one. Raises EntryError, NoLinkError."""
        stage = self._stage
        if stage is not None and slab.first_index == stage.end.index + 1 > stage.fault.first_index:
            now = fault_at(self.faults, stage.fault.first_index)
            if now is not None and now.first_index == stage.fault.first_index:
                stage.grow(now)
                if slab.last_index <= stage.last_index:
                    return stage
        fault = fault_at(self.faults, slab.first_index)
        if fault is None or slab.last_index > fault.last_index:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} fits no fault")
        if slab.first_index != fault.first_index:
            raise EntryError(f"slab {slab.first_index} neither begins the fault nor continues what was mended")
        self._drop_stage()
        self._stage = Stage(self.directory, fault, self._left_of(fault), self._platform)
        return self._stage

    def _left_of(self, fault: Fault) -> Mark:
        """The intact entry before a fault. Raises NoLinkError where it is not intact after all."""
        if fault.first_index == self.begin_index:
            return Mark(self.base.index, self._begin_pos, self.base.term, self.base.chain)
        try:
            unit, _ = find_record(self._data, self._index, fault.first_index - 1)
            meta = self._stored_meta(fault.first_index - 1)
        except StoreCorrupt as error:
            self.note_faults(error.faults)
            raise NoLinkError(f"the entry before the fault is damaged too: {error}") from error
        return Mark(meta.index, unit.pos + unit.size, meta.term, meta.chain)

    def _widen(self, stage: Stage) -> bool:
        """Asks for the first record behind what is staged, too, and for the fault behind that; False: no more.

        If what follows fits the peer's chain, that record was the liar; if nothing does, the peer has another history.
        """
        following = fault_at(self.faults, stage.last_index + 1)
        last_index = stage.last_index + 1 if following is None else following.last_index
        if stage.widened == _WIDEN_MOST or last_index > self._durable.index:
            return False
        stage.widened += 1
        stage.last_index = last_index
        return True

    def _drop_stage(self) -> None:
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def _healed(self, stage: Stage) -> Mended:
        runs = _runs(stage)
        self._drop_stage()
        with self._terms_lock:  # the loop may be appending the first entry of a new term
            self._terms = self._terms.mended(runs, stage.last_index)
        healed = replace(stage.fault, last_index=stage.last_index)
        self._ring.forget_through(stage.last_index)  # what memory holds of it may be from before
        with self._faults_lock:
            left = without(self.faults, healed)  # a fault may have grown while this was written
            self._set_faults(merged(left, self.begin_index, self.end_index))
            return Mended(stage.last_index, (healed,), self.faults)


def _runs(stage: Stage) -> list[tuple[int, int]]:
    """The runs of equal terms in what was staged: (first index, term)."""
    runs: list[tuple[int, int]] = []
    for slab in stage.slabs():
        for _, _, _, index, term in INDEX_UNIT.iter_unpack(slab.index_records):
            if not runs or term != runs[-1][1]:
                runs.append((index, term))
    return runs
