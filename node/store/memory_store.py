"""A LogStore in memory, for the core's tests, the scenarios and the simulator: same layout, same answers as FileStore.

What a disk would lose follows from `durable_index`: `lose_unsynced` drops everything above it, as a power cut would.
Invariants: those of LogStore; `_records[i]` is entry `begin_index + i`, at the position that the layout gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from node.protocol.codes import VoterState
from node.protocol.entry import (
    SLAB_BYTES_MAX,
    Entry,
    EntryError,
    Magic,
    Seal,
    Slab,
    chain_of,
    iter_bodies,
    seal_of,
    slab_of,
    unpack_record,
)
from node.protocol.group_entries import about_group
from node.protocol.group_kind import NO_PATCH, PLAIN_NAME
from node.protocol.messages import MemberMark
from node.protocol.position_patch import patched
from node.protocol.slab_encode import encode_slab
from node.protocol.slab_verify import verify_slab
from node.store.errors import ColdEntry, StoreCorrupt, StoreFull
from node.store.faults.ranges import cut, fault_at, in_words, merged, without
from node.store.faults.results import Fault, Mended, Scrubbed
from node.store.files.identity import Base
from node.store.files.layout import place, plan_bodies
from node.store.log_store import ORIGIN, EntryMeta, HardState, LogStore, SyncTicket, TruncationRecord
from node.store.memory_parts import MemoryTicket, Record
from node.store.pins import Pins
from node.store.retention import DataFile, Survey
from node.store.term_table import TermTable


class MemoryStore(LogStore):
    """See the module's docstring. Test hooks: `full`, `on_sync`, `recent_from`, `archive`, `lose_unsynced`, `rot`."""

    kind: str = PLAIN_NAME
    store_id: str = "memory"
    hard_state: HardState = HardState()
    base: EntryMeta = ORIGIN
    begin_index: int = 0
    end_index: int = -1
    end_term: int = -1
    end_chain: int | None = None
    durable_index: int = -1
    sealed_from: int = 0
    recovered_commit_index: int = -1
    applied_index: int = -1
    recovered_marks: tuple[MemberMark, ...] = ()
    data_file_size: int = 0
    index_file_size: int = 0
    faults: tuple[Fault, ...] = ()
    mends_alone: bool = False
    pins: Pins = Pins()  # each store makes its own

    def __init__(
        self,
        *,
        store_id: str = "memory",
        kind: str = PLAIN_NAME,
        hard_state: HardState | None = None,
        base: EntryMeta = ORIGIN,
        base_pos: int = 0,
        data_file_size: int = 1024 * 1024 * 1024,
        index_file_size: int = 32 * 5 * 1024 * 1024,
    ) -> None:
        self.store_id, self.kind = store_id, kind
        self.hard_state = hard_state or HardState(voter_state=VoterState.VOTER)
        self.base = base
        self.begin_index = base.index + 1
        self.end_index = base.index
        self.end_term = base.term
        self.end_chain = base.chain
        self.durable_index = base.index
        self.sealed_from = base.index + 1
        self.recovered_commit_index = -1
        self.data_file_size = data_file_size
        self.index_file_size = index_file_size
        self.committed_index = -1
        self.applied_index = -1
        self.archive: list[tuple[TruncationRecord, list[Entry]]] = []
        self.full = False  # appends and archives raise StoreFull while True
        self.on_sync: Callable[[], None] | None = None
        self.recent_from = 0  # `recent_slab` answers None below this index
        self._records: list[Record] = []
        self._terms = TermTable()
        self._end_pos = base_pos
        self._begin_pos = base_pos
        self._members_at_base: tuple[int, str] | None = None
        self._cuts = 0
        self.pins = Pins()
        self._rotten: set[int] = set()  # what a disk would return wrong, known or not
        self._mending: tuple[int, int, int | None] | None = None  # a fault's first index, the next to come, its chain
        self._durable_state = (self.hard_state, -1)

    # --- loop half ---------------------------------------------------------------------------------------------

    def append_as_leader(
        self, bodies: Sequence[bytes], term: int, magic: int = Magic.NORMAL, channel: int = 0, patch_at: int = NO_PATCH,
    ) -> list[Slab]:  # fmt: skip
        if term < self.end_term:
            raise EntryError(f"term {term} after term {self.end_term}")
        if self.end_chain is None:
            raise EntryError("the chain at the end of this log is unknown")
        runs = plan_bodies(bodies, self._end_pos, self.data_file_size)
        if self.full:
            raise StoreFull("no space for the append (a test said so)")
        slabs: list[Slab] = []
        for run in runs:
            chain = self.end_chain
            part = bodies[run.first : run.stop]
            if patch_at >= 0:
                part = patched(part, run.pos, patch_at)
            slab = encode_slab(part, self.end_index + 1, term, run.pos, chain, magic, channel)
            self._extend(slab)
            slabs.append(slab)
        return slabs

    def append_slab(self, slab: Slab) -> None:
        if slab.first_index != self.end_index + 1:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} does not continue {self.end_index}")
        if slab.first_term < self.end_term:
            raise EntryError(f"slab {slab.first_index}: term {slab.first_term} after term {self.end_term}")
        verify_slab(slab, self.end_chain)
        if self.full:
            raise StoreFull("no space for the append (a test said so)")
        self._extend(slab)

    def _extend(self, slab: Slab) -> None:
        offset = 0
        chain = self.end_chain or 0
        for body in iter_bodies(slab):
            entry = unpack_record(slab.data, offset)
            chain = chain_of(entry, chain)
            pos = place(self._end_pos, entry.size, self.data_file_size)
            self._records.append(Record(bytes(slab.data[offset : offset + 48]) + bytes(body), pos, entry.term, chain))
            self._terms.extend(entry.index, entry.term)
            offset += entry.size
            self._end_pos = pos + entry.size
        self.end_index, self.end_term, self.end_chain = slab.last_index, slab.last_term, chain

    def meta(self, index: int) -> EntryMeta | None:
        if index == self.base.index:
            return self.base
        if not self.begin_index <= index <= self.end_index:
            return None
        if index != self.end_index:
            self._refuse_rot(index)
        record = self._records[index - self.begin_index]
        return EntryMeta(index, record.term, record.chain)

    def meta_at_hand(self, index: int) -> EntryMeta | None:
        if self.base.index < index < min(self.recent_from, self.end_index):
            if fault_at(self.faults, index) is not None:
                self._refuse_rot(index)
            raise ColdEntry(index)
        return self.meta(index)

    def position_at_hand(self, index: int) -> int | None:
        if not max(self.begin_index, self.recent_from) <= index <= self.end_index:
            return None
        return self._records[index - self.begin_index].pos

    def get(self, index: int) -> Entry | None:
        if not self.begin_index <= index <= self.end_index:
            return None
        self._refuse_rot(index)
        return unpack_record(self._records[index - self.begin_index].data)

    def _refuse_rot(self, index: int) -> None:
        fault = fault_at(self.faults, index)
        if fault is not None or index in self._rotten:
            found = fault or Fault(index, index, "crc_invalid", f"entry {index} is not what was written")
            raise StoreCorrupt(f"{in_words([found])}: {found.detail}", [found])

    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        if first_index < self.recent_from or not self.begin_index <= first_index <= self.end_index:
            return None
        if first_index in self._rotten or fault_at(self.faults, first_index) is not None:
            return None
        return self._slab(first_index, max_bytes)

    def _slab(self, first_index: int, max_bytes: int) -> Slab:
        first = self._records[first_index - self.begin_index]
        parts: list[bytes] = []
        limit = min(max_bytes, SLAB_BYTES_MAX)
        next_pos, size = first.pos, 0
        chain = first.chain
        for number, record in enumerate(self._records[first_index - self.begin_index :], first_index):
            if parts and (size + len(record.data) > limit or record.pos != next_pos or number in self._rotten):
                break
            parts.append(record.data)
            size += len(record.data)
            next_pos += len(record.data)
            chain = record.chain
        damaged = first_index - 1 in self._rotten or fault_at(self.faults, first_index - 1) is not None
        before = None if damaged else self.meta(first_index - 1)
        return slab_of(b"".join(parts), first.pos, before.chain if before else None, chain)

    def term_at(self, index: int) -> int:
        return self._terms.term_at(index)

    def term_start(self, index: int) -> int:
        return self._terms.start_of(index, self.begin_index)

    def last_index_of_term(self, term: int) -> int:
        return self._terms.last_index_of(term, self.begin_index, self.end_index)

    def note_faults(self, faults: Sequence[Fault]) -> None:
        self.faults = merged([*self.faults, *faults], self.begin_index, self.end_index)

    def save_faults(self) -> None:
        """There is no disk to keep them on."""

    def save_hard_state(self, state: HardState) -> None:
        self.hard_state = state

    def note_progress(self, committed_index: int, applied_index: int) -> None:
        self.committed_index, self.applied_index = committed_index, applied_index

    def note_marks(self, marks: tuple[MemberMark, ...]) -> None:
        self.recovered_marks = marks

    def prepare_sync(self) -> SyncTicket | None:
        if self.durable_index >= self.end_index:
            return None
        return MemoryTicket(self.end_index, self._cuts, self.on_sync)

    def finish_sync(self, ticket: SyncTicket) -> int:
        if isinstance(ticket, MemoryTicket) and ticket.cuts == self._cuts:
            self.durable_index = max(self.durable_index, ticket.end_index)
            self.recovered_commit_index = max(self.recovered_commit_index, min(self.committed_index, ticket.end_index))
        return self.durable_index

    # --- thread half -------------------------------------------------------------------------------------------

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        if not self.begin_index <= first_index <= self.end_index:
            raise KeyError(first_index)
        self._refuse_rot(first_index)
        return self._slab(first_index, max_bytes)

    def mend(self, slab: Slab, vouched: EntryMeta | None = None) -> Mended:
        fault = fault_at(self.faults, slab.first_index)
        if fault is not None and vouched is not None and vouched.index <= fault.last_index:
            fault = replace(fault, last_index=vouched.index)
        if fault is None or slab.last_index > fault.last_index:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} fits no fault")
        if self.full:
            raise StoreFull("no space for the archive of a repair (a test said so)")
        if slab.first_index == fault.first_index:
            chain = None if (before := self.meta(slab.first_index - 1)) is None else before.chain
        elif self._mending is not None and self._mending[:2] == (fault.first_index, slab.first_index):
            chain = self._mending[2]
        else:
            raise EntryError(f"slab {slab.first_index} neither begins the fault nor continues what was mended")
        self._mending = None
        try:
            if chain is None:
                raise EntryError("the chain on the left is not known")
            chain = verify_slab(slab, chain, bodies=True)
        except EntryError as error:
            return Mended(fault.first_index - 1, (), self.faults, str(error))
        if slab.last_index < fault.last_index:
            self._mending = (fault.first_index, slab.last_index + 1, chain)
            return Mended(slab.last_index, (), self.faults)
        if chain != (vouched or self._records[fault.last_index - self.begin_index]).chain:
            return Mended(fault.first_index - 1, (), self.faults, f"another chain after entry {fault.last_index}")
        self._rotten -= set(range(fault.first_index, fault.last_index + 1))
        self.faults = without(self.faults, fault)
        return Mended(slab.last_index, (fault,), self.faults)

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        size, index = 0, max(from_index, self.begin_index)
        found: list[Fault] = []
        while index <= self.end_index and size < max_bytes:
            size += len(self._records[index - self.begin_index].data)
            if index in self._rotten:
                found.append(Fault(index, index, "crc_invalid", f"entry {index} is not what was written"))
            index += 1
        return Scrubbed(index, merged(found, self.begin_index, self.end_index), size)

    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        if not self.begin_index <= cut_index <= self.end_index:
            raise EntryError(f"cut at {cut_index} outside {self.begin_index}..{self.end_index}")
        if self.full:
            raise StoreFull("the truncation archive cannot be written (a test said so)")
        entries = [unpack_record(one.data) for one in self._records[cut_index - self.begin_index :]]
        self.archive.append((replace(record, to_index=self.end_index, seq=len(self.archive) + 1), entries))
        self._cut(cut_index)

    def _cut(self, cut_index: int) -> None:
        del self._records[cut_index - self.begin_index :]
        self._terms = self._terms.cut(cut_index)
        self.faults = cut(self.faults, cut_index)
        last = self._records[-1] if self._records else None
        self.end_index = cut_index - 1
        self.end_term, self.end_chain = (last or self.base).term, (last or self.base).chain
        self._rotten = {index for index in self._rotten if index < cut_index}
        self._mending = None
        self._end_pos = self._records[-1].pos + len(self._records[-1].data) if self._records else self._begin_pos
        self.durable_index = min(self.durable_index, self.end_index)
        self.recovered_commit_index = min(self.recovered_commit_index, self.end_index)
        self._cuts += 1

    @property
    def base_on_record(self) -> Base:
        return Base(self.base, self._begin_pos, self.hard_state.group_id, self._members_at_base)

    def begin_behind(self, base: Base, record: TruncationRecord) -> None:
        if base.meta.chain is None or base.meta.index <= self.base.index:
            raise EntryError(f"a log that begins behind entry {self.base.index} cannot begin behind {base}")
        if self.full:
            raise StoreFull("no space to begin another log (a test said so)")
        if self._records:
            kept = replace(record, from_index=self.begin_index, to_index=self.end_index, seq=len(self.archive) + 1)
            self.archive.append((kept, [unpack_record(one.data) for one in self._records]))
        self._cut(self.begin_index)
        self.base, self._members_at_base = base.meta, base.members
        self.begin_index, self._begin_pos = base.meta.index + 1, base.pos
        self._cut(self.begin_index)
        self.durable_index = self.committed_index = self.applied_index = self.recovered_commit_index = base.meta.index

    def survey(self, files_max: int) -> Survey:
        starts = [(self.begin_index, self._begin_pos)]
        starts += [(index, self._records[index - self.begin_index].pos) for index in self._file_starts()]
        files = [DataFile(one, after - 1, upto - pos, 0.0) for (one, pos), (after, upto) in pairwise(starts)]
        return Survey(tuple(files[:files_max]), self._end_pos - self._begin_pos, 0.0, 0)

    def _file_starts(self) -> list[int]:
        """The first entries of files, without the log's own first one."""
        size = self.data_file_size
        numbered = enumerate(pairwise(self._records), start=self.begin_index + 1)
        return [index for index, (last, one) in numbered if one.pos // size != last.pos // size]

    def remove_prefix(self, through_index: int, *, forced: bool = False) -> None:
        if not forced:
            self.pins.refuse(through_index)
        upto = min(through_index + 1, self.applied_index, self.durable_index)
        keep_from = max((index for index in self._file_starts() if index <= upto), default=self.begin_index)
        if keep_from == self.begin_index:
            return
        base = self.meta(keep_from - 1)
        if base is None:
            raise AssertionError(f"no entry before {keep_from}")
        named = [record for record in self.hard_state.configurations if record[0] < keep_from]
        held = [(self.get(index), body.encode()) for index, body in named]
        if any(entry is not None and about_group(self.kind, entry) != body for entry, body in held):
            return  # it never came
        del self._records[: keep_from - self.begin_index]
        self._members_at_base = named[-1] if named else self._members_at_base
        self.base, self.begin_index = base, keep_from
        self._begin_pos = self._records[0].pos

    def close(self) -> None:
        self.durable_index = self.end_index

    # --- what tests ask for --------------------------------------------------------------------------------------

    def rot(self, first_index: int, last_index: int | None = None, *, known: bool = False) -> None:
        """These entries are not any more what was written; nobody knows until they are read, unless `known`."""
        last = first_index if last_index is None else last_index
        self._rotten |= set(range(first_index, last + 1))
        if known:
            self.note_faults([Fault(first_index, last, "crc_invalid", "a test said so")])

    def lose_unsynced(self) -> None:
        """A power cut: what was not durable is gone, and the committed index is what the last sync recorded."""
        if self.durable_index < self.end_index:
            self._cut(self.durable_index + 1)
        self.committed_index = self.applied_index = self.recovered_commit_index

    def written(self, index: int) -> EntryMeta:
        """Term and chain of what was written at `index`, whatever rotted since; also of the base."""
        if index == self.base.index:
            return self.base
        record = self._records[index - self.begin_index]
        return EntryMeta(index, record.term, record.chain)

    def seals(self) -> list[Seal]:
        """The seal of every entry, in order."""
        chain = self.base.chain or 0
        seals: list[Seal] = []
        for record in self._records:
            entry = unpack_record(record.data)
            seals.append(seal_of(entry, chain))
            chain = record.chain
        return seals
