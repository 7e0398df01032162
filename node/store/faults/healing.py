"""Healing the faults of a log with a peer's entries, or with what is on this very disk (SAFETY S6).

Invariants: one stage of entries at a time; a fault stays one until its entries are written, linked on both sides and
read back; work is the writing thread's, beside the loop's appends at the log's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from node.protocol.entry import INDEX_UNIT, EntryError, Slab
from node.store.disk_log import find_record
from node.store.durability import Durability
from node.store.errors import StoreCorrupt, StoreFull, StoreIOError
from node.store.faults.fault_set import FaultSet
from node.store.faults.mending import Mending, NoLinkError, RightLinkError, Stage
from node.store.faults.results import Fault, Mended
from node.store.log_files import LogFiles
from node.store.log_store import EntryMeta
from node.store.recovery.walk import Cursor, Walk
from node.store.sync_ticket import Mark

_WIDEN_MOST = 8  # records behind a fault that may turn out to be damaged as well


class Healer:
    """Heals one log. A fault at the end that the log had when it was opened has to lead to that very end."""

    def __init__(self, files: LogFiles, faults: FaultSet, durability: Durability) -> None:
        self._files = files
        self._faults = faults
        self._durability = durability
        self._end_at_open = files.end
        self._stage: Stage | None = None

    def mend(self, slab: Slab, vouched: EntryMeta | None = None) -> Mended:
        """See LogStore."""
        files, faults = self._files, self._faults
        files.refuse_after_failure()
        mending = Mending(files.data, files.index, files.archive, files.node_id, files.sealed_from)
        try:
            stage = self._stage_for(slab, vouched)
            stage.add(slab, files.data_file_size, files.sealed_from, files.straight_from)
            link = self._right_link(mending, stage, vouched)
            if link is None:
                return Mended(slab.last_index, (), faults.now, wanted_through=stage.last_index)
            right_pos, sound = link
            mending.write(stage, right_pos)
        except NoLinkError as error:
            first_index = slab.first_index if self._stage is None else self._stage.fault.first_index
            self.drop_stage()
            return Mended(first_index - 1, (), faults.now, str(error))
        except StoreFull:
            self.drop_stage()
            raise
        except StoreIOError:
            files.failed = True
            raise
        return self._healed(stage, sound)

    def mend_alone(self, first_index: int) -> Mended:
        """See LogStore."""
        fault = self._faults.at(first_index)
        if fault is None or fault.first_index != first_index:
            raise EntryError(f"no fault begins at entry {first_index}")
        result = Mended(first_index - 1, (), self._faults.now)
        try:
            left = self._left_of(fault)
        except NoLinkError as error:
            return replace(result, detail=str(error))
        cursor = Cursor(left.end_pos, first_index, left.term, left.chain, self._files.sealed_from)
        walk = Walk(self._files.data, cursor, last_index=fault.last_index)
        for slab in walk.slabs():
            result = self.mend(slab)
            if result.healed or result.mended_through < slab.last_index:
                return result
        self.drop_stage()
        return Mended(first_index - 1, (), self._faults.now, walk.stop.detail)

    def drop_stage(self) -> None:
        """What was staged is not needed any more: a cut comes, or the log is closed."""
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def end_at(self, last: Mark) -> None:
        """The log has been cut behind `last`."""
        self._end_at_open = min(self._end_at_open, last, key=lambda mark: mark.index)

    def _stage_for(self, slab: Slab, vouched: EntryMeta | None) -> Stage:
        """What was staged, where `slab` continues it; else a new one. Raises EntryError, NoLinkError."""
        stage = self._find_stage(slab)
        if vouched is not None:
            if not slab.last_index <= vouched.index <= stage.fault.last_index:
                raise EntryError(f"entry {vouched.index} is not behind this slab in the fault")
            stage.last_index = vouched.index
        return stage

    def _find_stage(self, slab: Slab) -> Stage:
        stage = self._stage
        if stage is not None and slab.first_index == stage.end.index + 1 > stage.fault.first_index:
            now = self._faults.at(stage.fault.first_index)
            if now is not None and now.first_index == stage.fault.first_index:
                stage.grow(now)
                if slab.last_index <= stage.last_index:
                    return stage
        fault = self._faults.at(slab.first_index)
        if fault is None or slab.last_index > fault.last_index:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} fits no fault")
        if slab.first_index != fault.first_index:
            raise EntryError(f"slab {slab.first_index} neither begins the fault nor continues what was mended")
        self.drop_stage()
        self._stage = Stage(self._files.directory, fault, self._left_of(fault), self._files.platform)
        return self._stage

    def _left_of(self, fault: Fault) -> Mark:
        """The intact entry before a fault. Raises NoLinkError where it is not intact after all."""
        if fault.first_index == self._files.begin_index:
            return self._files.begin_mark()
        try:
            mark = self._files.stored_mark(fault.first_index - 1)
            self._check_chain(mark.index)
        except StoreCorrupt as error:
            self._faults.note(error.faults)
            raise NoLinkError(f"the entry before the fault is damaged too: {error}") from error
        return mark

    def _check_chain(self, index: int) -> None:
        """No member's entries continue a chain that rotted: a read that began behind it took the next one for damaged.
        Raises StoreCorrupt."""
        if self._faults.at(index - 1) is None and self._files.continues(index) is False:
            text = f"entry {index}: its chain does not continue"
            raise StoreCorrupt(text, [Fault(index, index, "crc_invalid", text)])

    def _vouched_pos(self, stage: Stage, vouched: EntryMeta) -> int:
        """Where the last entry ends, which is the one that was vouched for. Raises NoLinkError."""
        end, fault = stage.end, stage.fault
        if (end.chain, end.term) != (vouched.chain, vouched.term):
            known = "unknown" if vouched.chain is None else f"{vouched.chain:08x}"
            raise NoLinkError(
                f"after entry {end.index} the chain is {end.chain:08x} in term {end.term}, the leader has {known} in"
                f" term {vouched.term}"
            )
        room = self._begin_of(fault.last_index + 1)
        if end.end_pos > room:
            raise NoLinkError(
                f"entry {end.index} would end at {end.end_pos}, entry {fault.last_index + 1} is at {room}"
            )
        return end.end_pos

    def _begin_of(self, index: int) -> int:
        """Where the sound entry behind a fault lies, or the log ends. Raises NoLinkError where it is not sound."""
        if index > self._files.end.index:
            return self._files.end.end_pos
        try:
            return find_record(self._files.data, self._files.index, index)[0].pos
        except StoreCorrupt as error:
            self._faults.note(error.faults)
            raise NoLinkError(f"the entry behind the fault is damaged too: {error}") from error

    def _right_link(self, mending: Mending, stage: Stage, vouched: EntryMeta | None) -> tuple[int, Slab | None] | None:
        """Where what is staged ends on this disk, and what of the fault behind it is sound; None: more is needed.

        Raises NoLinkError.
        """
        if stage.end.index < stage.last_index:
            sound = mending.sound_inside(stage) if vouched is None else None
            if sound is None:
                return None
            stage.last_index = stage.end.index
            return sound.pos, sound
        if vouched is not None:
            return self._vouched_pos(stage, vouched), None
        try:
            return mending.right_pos(stage, [self._end_at_open, self._durability.durable]), None
        except RightLinkError:
            if not self._widen(stage):
                raise
            return None

    def _widen(self, stage: Stage) -> bool:
        """Asks for the first record behind what is staged, too, and for the fault behind that; False: no more.

        If what follows fits the peer's chain, that record was the corrupt one; if nothing does, the peer has another
        history.
        """
        following = self._faults.at(stage.last_index + 1)
        last_index = stage.last_index + 1 if following is None else following.last_index
        if stage.widened == _WIDEN_MOST or last_index > self._durability.durable.index:
            return False
        stage.widened += 1
        stage.last_index = last_index
        return True

    def _healed(self, stage: Stage, sound: Slab | None) -> Mended:
        last_index = stage.last_index if sound is None else sound.last_index
        runs = _runs(chain(stage.slabs(), () if sound is None else (sound,)))
        self.drop_stage()
        self._files.mended(runs, last_index)
        healed = replace(stage.fault, last_index=last_index)
        self._faults.heal(healed)
        return Mended(last_index, (healed,), self._faults.now)


def _runs(slabs: Iterable[Slab]) -> list[tuple[int, int]]:
    """The runs of equal terms in these: (first index, term)."""
    runs: list[tuple[int, int]] = []
    for slab in slabs:
        for _, _, _, index, term in INDEX_UNIT.iter_unpack(slab.index_records):
            if not runs or term != runs[-1][1]:
                runs.append((index, term))
    return runs
