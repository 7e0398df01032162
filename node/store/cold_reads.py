"""Reading a log on disk beside its damage: look-ups, cold slabs, steps of the scrub (SAFETY S6, S7).

Memory answers first where it can. Invariants: an entry inside a fault is never given away from the disk, and its term
and chain are never made up; what is cut or trimmed while a thread reads it is no damage; nothing is written.
"""

from __future__ import annotations

from dataclasses import replace

from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES, Entry, EntryError, Slab, crc32, unpack_record
from node.protocol.slab_verify import verify_slab
from node.store.disk_log import find_record, read_raw_slab
from node.store.durability import Durability
from node.store.errors import ColdEntry, StoreCorrupt
from node.store.faults.fault_set import FaultSet
from node.store.faults.ranges import fault_at, next_fault
from node.store.faults.results import Fault, Scrubbed
from node.store.faults.scrub import cursor_behind_fault, position_faults, scrub_range
from node.store.files.identity import UNKNOWN_TERM
from node.store.log_files import LogFiles
from node.store.log_store import EntryMeta
from node.store.recovery.walk import Cursor


class ColdReads:
    """All that is read from one log."""

    def __init__(self, files: LogFiles, faults: FaultSet, durability: Durability) -> None:
        self._files = files
        self._faults = faults
        self._durability = durability

    # --- one entry -------------------------------------------------------------------------------------------------

    def meta(self, index: int) -> EntryMeta | None:
        """See LogStore."""
        try:
            return self.meta_at_hand(index)
        except ColdEntry:
            return self._stored_meta(index)

    def meta_at_hand(self, index: int) -> EntryMeta | None:
        """See LogStore."""
        files = self._files
        end, base = files.end, files.base
        if index == end.index and index >= files.begin_index:
            return EntryMeta(index, end.term, end.chain)
        if index == base.index:
            return base if index < 0 or base.term != UNKNOWN_TERM else None
        if not files.begin_index <= index <= end.index:
            return None
        known = files.ring.meta(index)
        if known is None:
            self._faults.refuse(index)
            raise ColdEntry(index)
        return known

    def read_meta(self, index: int) -> EntryMeta:
        """See LogStore."""
        files = self._files
        cuts = files.cuts
        if not files.holds(index):
            raise KeyError(index)
        self._faults.refuse(index)
        try:
            found = self._stored_meta(index)
        except StoreCorrupt as error:
            if cuts == files.cuts and not files.is_cutting and index >= files.begin_index:
                raise
            raise KeyError(index) from error  # it was cut or trimmed while this read: no damage
        if cuts != files.cuts or files.is_cutting:
            raise KeyError(index)
        return found

    def _stored_meta(self, index: int) -> EntryMeta:
        """Held against the two entries before, where these agree: a chain that rotted is damage, and is not to be taken
        for another history. Raises StoreCorrupt."""
        files = self._files
        found = files.stored_meta(index)
        if self._continues(index) is False and (index - 1 == files.base.index or self._continues(index - 1)):
            text = f"entry {index}: its chain does not continue"
            raise StoreCorrupt(text, [Fault(index, index, "crc_invalid", text)])
        return found

    def _continues(self, index: int) -> bool | None:
        """None where nobody can tell: the entry before is damaged, or has no chain."""
        if self._faults.at(index - 1) is not None:
            return None
        try:
            return self._files.continues(index)
        except StoreCorrupt:
            return None

    def position_at_hand(self, index: int) -> int | None:
        """See LogStore."""
        slab = self._files.ring.holding(index)
        if slab is None or not self._files.holds(index):
            return None
        pos: int = INDEX_UNIT.unpack_from(slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES)[1]
        return pos

    def get(self, index: int) -> Entry | None:
        """See LogStore."""
        files = self._files
        if not files.holds(index):
            return None
        slab = files.ring.holding(index)
        if slab is not None:
            unit = INDEX_UNIT.unpack_from(slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES)
            return unpack_record(slab.data, unit[1] - slab.pos)
        self._faults.refuse(index)
        found, entry = find_record(files.data, files.index, index)
        if entry.pos != found.pos and index >= files.straight_from:  # the next scrub writes it anew
            entry = replace(entry, pos=found.pos)
        if (entry.body_crc or entry.chain_crc) and crc32(entry.body) != entry.body_crc:
            text = f"entry {index}: its body does not match its CRC"
            raise StoreCorrupt(text, [Fault(index, index, "crc_invalid", text)])
        return entry

    # --- runs of entries -------------------------------------------------------------------------------------------

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        """See LogStore."""
        files = self._files
        if not files.holds(first_index):
            raise KeyError(first_index)
        self._faults.refuse(first_index)
        cuts = files.cuts
        following = self._faults.after(first_index)
        end_index = files.end.index
        last_index = end_index if following is None else min(end_index, following.first_index - 1)
        try:
            slab = read_raw_slab(files.data, files.index, first_index, last_index, max_bytes)
            prev_chain = self._chain_before(first_index)
            last_chain = verify_slab(slab, prev_chain, bodies=True)
            for fault in position_faults(slab, files.straight_from):  # put right on this disk before anybody gets it
                raise StoreCorrupt(fault.detail, [fault])
        except (EntryError, StoreCorrupt) as error:
            sound = self._sound_part(first_index, last_index, max_bytes, cuts, error)
            if sound is None:
                raise KeyError(first_index) from error  # it was cut or trimmed while this read: no damage
            return sound
        return replace(slab, prev_chain=prev_chain, last_chain=last_chain)

    def _chain_before(self, index: int) -> int | None:
        """None where the entry before is damaged: what follows is sound for all that."""
        if index == self._files.begin_index:
            return self._files.base.chain
        if self._faults.at(index - 1) is not None:
            return None
        try:
            return self._files.stored_meta(index - 1).chain
        except StoreCorrupt:
            return None

    def _sound_part(self, first: int, last: int, max_bytes: int, cuts: int, error: Exception) -> Slab | None:
        """What is before the damage that a read met; raises StoreCorrupt with the entries where that is nothing."""
        files = self._files
        if cuts != files.cuts or first < files.begin_index:
            return None
        found: tuple[Fault, ...] = ()
        slab: Slab | None = None
        cursor = self._cursor_at(first)
        if cursor is not None:
            _, found, _ = self._scrub_range(cursor, last, max_bytes)
        if found and found[0].first_index > first:
            slab = read_raw_slab(files.data, files.index, first, found[0].first_index - 1, max_bytes)
            chain = self._chain_before(first)
            slab = replace(slab, prev_chain=chain, last_chain=verify_slab(slab, chain, bodies=True))
        if cuts != files.cuts or first < files.begin_index:
            return None
        if slab is None:
            named = found or getattr(error, "faults", ()) or (Fault(first, first, "record_invalid", str(error)),)
            raise StoreCorrupt(f"read from entry {first} on: {error}", named) from error
        return slab

    def _cursor_at(self, index: int) -> Cursor | None:
        """Where a walk to this entry may begin; None where neither the entry before nor the index file tells."""
        files = self._files
        if index == files.begin_index:
            return replace(files.begin_cursor(), sealed_from=files.sealed_from)
        if self._faults.at(index - 1) is None:
            try:
                before = files.stored_mark(index - 1)
            except StoreCorrupt:
                pass
            else:
                return Cursor(before.end_pos, index, before.term, before.chain, files.sealed_from)
        return cursor_behind_fault(files.index, index, 0, files.sealed_from)

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        """See LogStore."""
        files = self._files
        cuts, faults, durable = files.cuts, self._faults.now, self._durability.durable.index
        files.data.unreadable.clear()
        files.index.unreadable.clear()
        index = max(from_index, files.begin_index)
        fault = fault_at(faults, index)
        if fault is not None:
            index = fault.last_index + 1
        if index > durable:
            return Scrubbed(files.end.index + 1)
        following = next_fault(faults, index)
        last = durable if following is None else min(durable, following.first_index - 1)
        cursor = self._cursor_at(index)
        if cursor is None:
            next_index, size = index + 1, 0
            found: tuple[Fault, ...] = (Fault(index, index, "index_record_mismatch", "its index record is broken"),)
        else:
            next_index, found, size = self._scrub_range(cursor, last, max_bytes)
        if cuts != files.cuts or index < files.begin_index:
            return Scrubbed(index)  # cut or trimmed while this read
        if next_index > self._durability.durable.index:
            next_index = files.end.index + 1
        return Scrubbed(next_index, self._with_reason(found), size)

    def _scrub_range(self, start: Cursor, last_index: int, max_bytes: int) -> tuple[int, tuple[Fault, ...], int]:
        files = self._files
        synced = self._durability.synced()  # as late as can be: the loop goes on appending
        return scrub_range(files.data, files.index, start, last_index, max_bytes, files.straight_from, synced)

    def _with_reason(self, found: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """Where the disk itself said that it cannot read, that is why the bytes are not those that were written."""
        said = [*self._files.data.unreadable, *self._files.index.unreadable]
        return tuple(replace(one, detail=f"{one.detail}; {said[0]}") for one in found) if said else found
