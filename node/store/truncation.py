"""Making a log shorter: cuts at its end (SAFETY S4), and a prefix that is not needed any more.

Invariants: what is cut was archived before, and both checkpoint slots are lowered before a byte goes; nothing is
appended before what was cut is zeroed, durably; a base is durable before what is below it goes. Cuts run in the writing
thread, while the loop appends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from node.protocol.entry import BytesLike, EntryError, Magic
from node.protocol.group_entries import about_group
from node.protocol.group_kind import PLAIN_NAME
from node.protocol.group_members import members_in
from node.store.cold_reads import ColdReads
from node.store.disk_log import find_record, read_raw_slab
from node.store.durability import Durability
from node.store.errors import StoreCorrupt, StoreFull
from node.store.faults.fault_set import FaultSet
from node.store.faults.healing import Healer
from node.store.files.hard_state import keep_reserve, with_reserve
from node.store.files.identity import Base, write_base
from node.store.files.layout import place
from node.store.files.retention import front_files, whole_files_below
from node.store.log_files import LogFiles
from node.store.log_store import HardState, TruncationRecord
from node.store.recovery.damage import read_unit
from node.store.recovery.resync import read_head
from node.store.retention import Survey
from node.store.sync_ticket import Mark

_COPY_BYTES = 1024 * 1024


class Truncation:
    """Cuts and trims one log."""

    def __init__(
        self, files: LogFiles, reads: ColdReads, durability: Durability, faults: FaultSet, healer: Healer
    ) -> None:
        self._files = files
        self._reads = reads
        self._durability = durability
        self._faults = faults
        self._healer = healer

    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        """See LogStore."""
        files = self._files
        files.refuse_after_failure()
        if not files.holds(cut_index):
            raise EntryError(f"a cut at {cut_index} is outside {files.begin_index}..{files.end.index}")
        last = self._mark_before(cut_index)
        self._healer.drop_stage()
        order = replace(record, from_index=cut_index, to_index=files.end.index)
        files.archive.add(order, self._raw(cut_index, last.end_pos))
        files.is_cutting = True
        files.cuts += 1
        try:
            self._cut(last, cut_index)
        finally:
            files.cuts += 1
            files.is_cutting = False

    def _cut(self, last: Mark, cut_index: int) -> None:
        """Lowers the slots, zeroes, syncs; then the log ends at `last`, also where the zeros found no space yet."""
        files = self._files
        self._durability.lower_to(last)
        files.begin_cut()
        with suppress(StoreFull):  # the next append says so
            files.clear(last)
        files.end_at(last)
        self._durability.end_at(last)
        self._faults.cut(cut_index)
        self._healer.end_at(last)

    def _mark_before(self, cut_index: int) -> Mark:
        if cut_index == self._files.begin_index:
            return self._files.begin_mark()
        known = self._files.mark_in_ring(cut_index - 1)
        if known is not None:
            return known
        self._faults.refuse(cut_index - 1)
        return self._files.stored_mark(cut_index - 1)

    def _raw(self, first_index: int, pos: int) -> Iterator[BytesLike]:
        """The records from `first_index` to the end, in slabs; from a fault on just the bytes that lie there."""
        files = self._files
        fault = self._faults.after(first_index)
        last_index = files.end.index if fault is None else fault.first_index - 1
        while first_index <= last_index:
            try:
                slab = read_raw_slab(files.data, files.index, first_index, last_index, _COPY_BYTES)
            except StoreCorrupt:  # nobody knew: what is cut anyway need not be sound
                break
            if slab.pos not in (pos, place(pos, files.data_file_size, files.data_file_size)):
                break
            yield slab.data
            first_index, pos = slab.last_index + 1, slab.end_pos
        if first_index <= files.end.index:
            yield from files.data.chunks(pos, files.end.end_pos, _COPY_BYTES)

    def survey(self, files_max: int) -> Survey:
        """See LogStore."""
        files = self._files
        platform, end = files.platform, files.end
        begin_pos, begin_index = files.begin_pos, files.begin_index
        now = platform.wall_time()
        left = platform.space_left_bytes(files.directory)
        left = None if left is None else left + platform.space_coming_bytes()  # else more would go than has to
        old = files.old_log.files()
        front = (
            files.old_log.front(old, files_max)
            if old
            else front_files(files.data, files.index, begin_pos, begin_index, end.end_pos, platform, files_max)
        )
        return Survey(
            front, end.end_pos - (old[0].start if old else begin_pos), now.timestamp(), now.astimezone().hour,
            platform.space_total_bytes(files.directory), left,
        )  # fmt: skip

    def remove_prefix(self, through_index: int, hard: HardState) -> None:
        """See LogStore. `hard`: what the base keeps of entries that may be removed (SAFETY C9, M1)."""
        files = self._files
        files.refuse_after_failure()
        # An applier reads what it lacks from here; and a base must not name what is not durable yet.
        settled = min(self._durability.applied_index, self._durability.durable.index)
        begin_pos, begin_index = whole_files_below(
            files.data, files.index, files.begin_pos, files.begin_index, files.end.end_pos,
            min(through_index, settled), settled,
        )  # fmt: skip
        if begin_index == files.begin_index:
            return
        try:
            if not self._holds_what_is_named(begin_index, hard):
                return  # the next hard state says so no more; below the base nothing would contradict it
            base = self._reads.meta(begin_index - 1)
        except StoreCorrupt:
            return  # it is damaged: the prefix goes once it is mended, and until then nothing is made up
        if base is None:
            raise StoreCorrupt(f"entry {begin_index - 1} cannot become the base: it is not found")
        first = read_head(files.data, begin_pos)
        if first is None or (base.chain is not None and first.chain_crc and not first.continues(base.chain)):
            return  # one of the two is damaged: behind a chain that is not the log's nothing could ever be mended
        kept = Base(base, begin_pos, hard.group_id, self._members_before(begin_index, hard))
        written = partial(write_base, files.directory, kept, files.platform)
        with_reserve(files.directory, written, files.platform)
        files.begin_at(kept)
        keep_reserve(files.directory, files.platform)
        self._faults.note(())

    def _holds_what_is_named(self, begin_index: int, hard: HardState) -> bool:
        """Whether the entries about the members that the hard state names are there, of those that would go.

        It names an entry before the log holds it: one that never came, or that its leader appended further on, must
        not become what the base says of the members, nor count as committed because its place is below the base (M1).
        """
        files = self._files
        return all(
            about_group(files.kind, find_record(files.data, files.index, index)[1]) == body.encode()
            for index, body in hard.configurations
            if files.begin_index <= index < begin_index
        )

    def _members_before(self, begin_index: int, hard: HardState) -> tuple[int, str] | None:
        """Where the newest entry about the members before `begin_index` is, and its body (M1).

        The hard state names the newest committed one, and those behind it: one before that is found in the log. In a
        log that is not plain it names those before, too, whose entries nobody would find without reading all of it.
        """
        named = [record for record in hard.configurations if record[0] < begin_index]
        files = self._files
        if named or not hard.configurations or files.kind != PLAIN_NAME:
            return named[-1] if named else files.members_at_base
        for index in range(begin_index - 1, files.begin_index - 1, -1):
            unit = read_unit(files.index, index)
            if unit is not None and unit.magic == Magic.CONFIG_CHANGE:
                entry = find_record(files.data, files.index, index)[1]
                if members_in(bytes(entry.body)) is not None:
                    return index, bytes(entry.body).decode()
        return files.members_at_base
