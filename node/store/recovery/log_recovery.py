"""Opening a log: where it begins and ends, what a crash left, and what must be made durable before anyone is answered.

Invariants (SAFETY S1, S3, S5, S6, S7, E8): nothing at or below the checkpoint's durable index is ever cut; damage
there becomes faults, and the log's end stays known; a tail that may have held history is cut only after this store has
durably given up its vote; every cut is archived first; after an unclean stop under the same boot id all that is above
the recorded durable index is rewritten and synced; when `recover` returns, everything the log holds is durable and
nothing stale is behind its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES, Slab, pack_blank
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault
from node.store.files.checkpoint import Slot
from node.store.files.identity import UNKNOWN_TERM
from node.store.files.segment_list import SegmentList
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import ORIGIN, EntryMeta, TruncationRecord
from node.store.recovery.circumstances import Circumstances, Recovered
from node.store.recovery.damage import Ending, read_unit
from node.store.recovery.index_records import gone_without_checkpoint, keep_java_magic, units
from node.store.recovery.resync import Head, read_head
from node.store.recovery.survey import FaultCollector, Finding, Survey, Trust
from node.store.recovery.term_search import BrokenIndexError, term_runs
from node.store.recovery.walk import Cursor, Stop, find_begin
from node.store.slab_pieces import slab_meta, straightened, wrong_positions
from node.store.term_table import TermTable

# Below the durable index so much is read again at every start, with all CRCs: rot shows early, a start stays short.
RECHECK_BYTES = 16 * 1024 * 1024
_COPY_BYTES = 1024 * 1024


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
        self._rebuilt: tuple[int, int, int] | None = None  # how many index records, from which to which
        self._newest: Slab | None = None
        self._terms = TermTable()
        self._collector = FaultCollector()
        self._end_pos = 0
        self._straight_from = circumstances.straight_from

    def recover(self) -> Recovered:
        """Raises StoreCorrupt, naming the entries, where bytes are not what was written and nothing may mend them."""
        begin_pos, begin_index, base = self._find_begin()
        full = Cursor(begin_pos, begin_index, base.term, base.chain, self._case.sealed_from)
        start = self._start_near_checkpoint(full)
        survey = self._survey(start)
        if not self._agrees(survey.end):
            self._alarm("the checkpoint does not agree with the log: everything was scanned")
            self._slot = None if start == full else self._slot
            if start != full:
                start = full
                survey = self._survey(start)
        if not self._collect_terms(begin_index, start):
            start = full
            survey = self._survey(start)
        end, slot = survey.proven, self._slot
        if end.chain is None and slot is not None and slot.durable_index == end.index - 1:
            end = replace(end, chain=slot.chain)
        faults = self._collector.faults(begin_index, end.index - 1)
        self._end_pos = end.pos
        archived, lost_tail = self._settle_end(survey, start)
        if self._slot is None and not self._case.java and not lost_tail:
            lost_tail = gone_without_checkpoint(self._index, end.index)
            if lost_tail:
                self._case.rejoin_first(lost_tail)
        if faults and self._newest is not None and self._newest.prev_chain is None:
            self._newest = None  # its chain is not known in full until the fault before it is healed
        if faults and faults[-1].last_index == end.index - 1:
            self._newest = None  # memory holds only what is right before the end
            self._terms.extend(end.index - 1, end.term)
        self._clean_index(begin_index, end.index)
        if self._rebuilt is not None:  # one line, also for a whole file of them
            count, first, last = self._rebuilt
            self._alarm(f"{count} index records in {first}..{last} did not match their entries and were rebuilt")
        self._make_durable(begin_pos, begin_index, end)
        lost, committed, applied = self._compare_with_slot(end.index - 1)
        if self._case.base is not None:  # only what is applied ever becomes a base
            committed, applied = max(committed, base.index), max(applied, base.index)
        return Recovered(
            begin_index, begin_pos, base, end, self._terms, self._newest, committed, applied, lost_tail or lost,
            self._alarms, archived, faults, self._straight_from,
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
        slot = self._slot
        if self._case.sealed_from == 0 or (slot is not None and slot.begin_index == 0 <= slot.durable_index):
            return self._case.origin_pos, 0, ORIGIN  # nothing was ever removed: what is not there was lost
        if slot is not None and slot.begin_index != (begin_index or 0) and slot.begin_index <= slot.durable_index:
            raise StoreCorrupt(
                f"entry {slot.begin_index}, the first one, is not where it was, and its place is written nowhere: "
                "empty the directory and let the node rejoin"
            )
        if begin_index is None or begin_index == 0:
            return begin_pos, 0, ORIGIN
        term = self._case.java_base_term
        return begin_pos, begin_index, EntryMeta(begin_index - 1, UNKNOWN_TERM if term is None else term, None)

    def _start_near_checkpoint(self, full: Cursor) -> Cursor:
        """A cursor some way below the durable index, so that a start does not read the whole log.

        It is below the first fault that is known, too. A missing index file is written anew by a full scan.
        """
        slot = self._slot
        if self._case.java or slot is None or slot.durable_index <= full.index:
            return full
        low, high = full.index, min(slot.durable_index, slot.index_durable)
        target_pos = slot.end_pos - RECHECK_BYTES
        gap = self._name_gaps(full, slot)
        target_pos = target_pos if gap is None else min(target_pos, gap)
        if high <= low or target_pos <= full.pos or not self._index_reaches(low, high):
            return full
        while low < high:  # the first entry at or behind target_pos
            middle = (low + high) // 2
            unit = read_unit(self._index, middle)
            if unit is None:
                self._alarm(f"index record {middle} is broken: everything was scanned")
                return full
            low, high = (low, middle) if unit.pos >= target_pos else (middle + 1, high)
        if self._case.first_known_fault is not None:
            low = min(low, self._case.first_known_fault)
        head = self._indexed_head(low - 1) if low > full.index else None
        before = self._indexed_head(low - 2) if low - 1 > full.index else None
        chain = before.chain_crc if before is not None else full.chain if low - 1 == full.index else None
        if head is None or not head.chain_crc or chain is None or not head.continues(chain):
            return full
        return Cursor(head.pos + head.size, low, head.term, head.chain_crc, full.sealed_from)

    def _indexed_head(self, index: int) -> Head | None:
        """The head of an entry, where index record and head agree."""
        unit = read_unit(self._index, index)
        head = read_head(self._data, unit.pos) if unit is not None else None
        if unit is None or head is None or (head.size, head.index, head.term) != (unit.size, index, unit.term):
            return None
        return head

    def _index_reaches(self, first_index: int, last_index: int) -> bool:
        starts = self._index.starts
        ends = bool(starts) and starts[-1] + self._index.file_bytes > last_index * INDEX_UNIT_BYTES
        return ends and starts[0] <= first_index * INDEX_UNIT_BYTES and self._index.is_gapless

    def _name_gaps(self, full: Cursor, slot: Slot) -> int | None:
        """Says which file is missing; the position where the first data file is (SAFETY S6)."""
        units = (full.index * INDEX_UNIT_BYTES, (min(slot.durable_index, slot.index_durable) + 1) * INDEX_UNIT_BYTES)
        gap = self._index.first_gap(*units)
        if gap is not None:
            self._alarm(f"{self._index.name_at(gap)} is missing: it is written anew from the data files")
        gap = self._data.first_gap(full.pos, slot.end_pos)
        if gap is not None:
            self._alarm(f"{self._data.name_at(gap)} is missing: what it held is to be fetched from the peers")
        return gap

    # --- the walk ------------------------------------------------------------------------------------------------

    def _survey(self, start: Cursor) -> Survey:
        """Walks to the end, past damage; repairs the index file and collects terms on the way."""
        self._terms.clear()
        self._collector = FaultCollector()
        self._newest = None
        self._seen: EntryMeta | None = None
        survey = Survey(self._data, self._index, start, java=self._case.java, trust=self._trust())
        found_at: Cursor | None = None
        for item in survey.run():
            if isinstance(item, Finding) and (self._case.java or survey.stop.is_alien):
                self._refuse(survey.stop)
            self._collector.add(item)
            if isinstance(item, Finding):
                found_at = survey.stop.cursor
                continue
            if found_at is not None and found_at.index == item.first_index:
                self._rewrite_filler(found_at, item.pos)
            found_at = None
            item = self._straighten(item)
            self._repair_index(item)
            self._note_terms(item)
            slot = self._slot
            if slot is not None and item.first_index <= slot.durable_index <= item.last_index:
                self._seen = slab_meta(item, slot.durable_index)
            self._newest = item
        return survey

    def _straighten(self, slab: Slab) -> Slab:
        """No checksum covers the position in a head: where the layout was never shifted it is written anew (S6)."""
        if self._case.java:  # what is elsewhere than its head says was moved, by whoever wrote it
            moved = wrong_positions(slab, 0)
            self._straight_from = slab.first_index + moved[-1] + 1 if moved else self._straight_from
            return slab
        wrong = wrong_positions(slab, self._case.straight_from)
        if not wrong:
            return slab
        named = ", ".join(str(slab.first_index + at) for at in wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        self._alarm(f"the positions in the heads of entries {named} were wrong and have been written anew")
        right = straightened(slab, self._case.straight_from)
        self._data.write(right.pos, right.data, takes_ahead=False)
        return right

    def _rewrite_filler(self, at: Cursor, next_pos: int) -> None:
        """No entry was damaged, only what fills the file's end: that follows from the layout alone (S5)."""
        self._data.zero(at.pos, next_pos)
        self._data.write(at.pos, pack_blank(next_pos - at.pos), takes_ahead=False)
        self._alarm(f"the filler before entry {at.index} was damaged and has been written anew")

    def _trust(self) -> Trust:
        """What the checkpoint is good for (SAFETY S3).

        Zero sectors explain damage above the durable index only where a power cut may have left them: the machine's
        boot changed, and the slot is the newest one. Otherwise sound records behind it say that it was written.
        """
        slot = self._slot
        if slot is None or self._case.java:
            return Trust(torn_first=self._case.java)
        vouched = Cursor(slot.end_pos, slot.durable_index + 1, slot.term, slot.chain, self._case.sealed_from)
        return Trust(slot.durable_index, vouched, not self._case.slot_doubtful and slot.boot_id != self._case.boot_id)

    def _refuse(self, stop: Stop) -> NoReturn:
        at = stop.cursor
        file = self._data.find(at.pos)
        raise StoreCorrupt(
            f"entry {at.index} at position {at.pos} ({file.path if file else 'no file'}) is corrupt: {stop.detail}. "
            "`quorumscope store repair DIR` says what can be done",
            [Fault(at.index, at.index, stop.problem or "record_invalid", stop.detail)],
        )

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
        kept = [keep_java_magic(old, new) for old, new in zip(units(stored), units(slab.index_records), strict=True)]
        wanted = b"".join(kept)
        if wanted == stored:
            return
        index_durable = self._slot.index_durable if self._slot is not None else -1
        broken = [
            slab.first_index + number
            for number, (old, new) in enumerate(zip(units(stored), kept, strict=True))
            if old != new and slab.first_index + number <= index_durable
        ]
        if broken:
            count, first, _ = self._rebuilt or (0, broken[0], 0)
            self._rebuilt = count + len(broken), first, broken[-1]
        self._index.write(at, wanted, takes_ahead=False)

    def _agrees(self, end: Cursor) -> bool:
        """Whether the slot names the entry that the log holds there. A log that ends earlier is another matter."""
        slot = self._slot
        if slot is None or slot.durable_index < 0 or self._seen is None or slot.durable_index >= end.index:
            return True
        known = slot.chain is not None and self._seen.chain is not None
        return self._seen.term == slot.term and (not known or self._seen.chain == slot.chain)

    # --- where it ends -------------------------------------------------------------------------------------------

    def _settle_end(self, survey: Survey, start: Cursor) -> tuple[int, str]:
        """Decides what is behind the last entry that is known; archives and clears what may go.

        Returns the archived bytes, and why the tail that went may have held history ("" where it cannot have). In that
        case the store may not vote any more, and that is durable before anything goes (SAFETY E8, S6).
        """
        at, ending = survey.proven, survey.ending
        if survey.end.index == at.index == survey.stop.cursor.index:
            at = survey.stop.cursor  # behind the filler, where there is one
        used = self._data.used_span(at.pos) if ending is not Ending.CLEAN or survey.end.index > at.index else None
        archived, lost = 0, ""
        if used is not None:
            archived = used[1] + 1 - at.pos
            if survey.end.index > at.index or ending is Ending.CORRUPT:
                lost = f"behind entry {at.index - 1} the log is damaged to its end: {survey.stop.detail}"
            elif ending is Ending.TORN and not self._case.java and (self._slot is None or self._case.slot_doubtful):
                lost = f"behind entry {at.index - 1} the log is torn, and no checkpoint says that it ended there"
            if lost:
                self._case.rejoin_first(lost)
            why = f"{'damage' if lost else ending.value} found at start: {survey.stop.detail}"
            self._archive.add(
                TruncationRecord(self._case.node_id, None, at.term, at.index, survey.end.index, why, -1),
                self._data.chunks(at.pos, used[1] + 1, _COPY_BYTES),
            )
            if lost:
                self._alarm(f"{lost}: {archived} bytes were archived and cut")
            elif ending is Ending.TORN:
                self._alarm(f"entry {at.index} was torn: {archived} bytes were cut and archived")
        # Also the filler behind the last kept record goes: the layout is a pure function of the entries (SAFETY S5).
        end_pos = self._end_pos
        segment = self._data.find(end_pos - 1) if end_pos > start.pos else self._data.find(end_pos)
        if segment is not None:
            self._data.drop_from(segment.end)
            span = segment.used_span(min(end_pos, segment.end)) if end_pos < segment.end else None
            if span is not None:
                self._data.zero(end_pos, span[1] + 1)
        elif used is not None:
            self._data.drop_from(end_pos)
        return archived, lost

    def _collect_terms(self, begin_index: int, start: Cursor) -> bool:
        """Puts the runs of equal terms below the walk's start before those that were walked; False: look at all."""
        try:
            below = term_runs(self._index, begin_index, start.index - 1, start.term)
        except BrokenIndexError as error:
            self._alarm(f"{error}: everything was scanned")
            return False
        walked = list(zip(self._terms.starts, self._terms.terms, strict=True))
        self._terms.clear()
        for first, term in [*below, *walked]:  # they do not overlap: terms never decrease
            self._terms.extend(first, term)
        return True

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
        """SAFETY S1: pages that look written may not be.

        Nor after a reboot, of which the slot knows: a start under this boot may have ended before it wrote a slot of
        its own, and what it rebuilt or zeroed is in the page cache then.
        """
        slot = self._slot
        if slot is None or not slot.clean:
            known = slot is not None and begin_pos <= slot.end_pos <= end.pos and slot.durable_index >= begin_index
            from_pos = slot.end_pos if slot is not None and known else begin_pos
            from_index = min(slot.durable_index, slot.index_durable) + 1 if slot is not None and known else begin_index
            _rewrite(self._data, from_pos, end.pos)
            _rewrite(self._index, from_index * INDEX_UNIT_BYTES, end.index * INDEX_UNIT_BYTES)
            # Zeros that an interrupted cut wrote may not be on the disk either: stale entries would come back.
            self._data.zero_from(end.pos)
            self._index.zero_from(end.index * INDEX_UNIT_BYTES)
        self._data.sync()
        self._index.sync()

    def _compare_with_slot(self, end_index: int) -> tuple[str, int, int]:
        """Whether history was lost (SAFETY E8), and the checkpoint's indexes, never above what the log holds."""
        slot = self._slot
        if slot is None:
            hint = self._case.java_committed_index
            text = f"the log ends at {end_index}, DLedger's own checkpoint says committed {hint}"
            return (text if hint > end_index else ""), min(hint, end_index), -1
        lost = ""
        if end_index < max(slot.durable_index, slot.committed_index):
            lost = (
                f"the log ends at {end_index}, its checkpoint says durable {slot.durable_index} "
                f"and committed {slot.committed_index}"
            )
        return lost, min(slot.committed_index, end_index), min(slot.applied_index, end_index)


def _rewrite(segments: SegmentList, pos: int, end: int) -> None:
    for segment in segments:
        low, high = max(pos, segment.start), min(end, segment.end)
        while low < high:
            chunk = segment.read(low, min(_COPY_BYTES, high - low))
            segments.write(low, chunk, takes_ahead=False)
            low += len(chunk)
