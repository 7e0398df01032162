"""Reading a store from another process, beside a running engine or without one: the read-only half.

Invariants: nothing is written, not even a lock; files that roll, are cut or expire while this reads end a read or are
followed by `refresh`, and never crash it; a look-up never returns another entry than the one asked for.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.protocol.entry import INDEX_UNIT_BYTES, SLAB_BYTES_MAX, Entry, Slab, decode_slab
from node.store.disk_log import find_record, read_raw_slab
from node.store.errors import StoreCorrupt, StoreError, StoreRefused
from node.store.faults.verify import Verification, VerifyReport
from node.store.files.checkpoint import CHECKPOINT, Slot
from node.store.files.hard_state import load_hard_state, read_currterm, read_hard_state, term_leap
from node.store.files.identity import UNKNOWN_TERM, Base, read_base, read_identity
from node.store.files.java_files import checkpoint_slot
from node.store.files.platform import OS, Platform
from node.store.files.segment_list import SegmentList
from node.store.files.straight import NOWHERE, read_straight_from
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import ORIGIN, EntryMeta, TruncationRecord
from node.store.recovery.plain_files import refuse_what_never_answers
from node.store.recovery.survey import Finding, Survey, Trust
from node.store.recovery.walk import SEALED_NEVER, Cursor, Walk, find_begin, first_index_in

_DIGEST_HEAD = struct.Struct(">iqqi")
_DEFAULT_BYTES = {"data": 1024 * 1024 * 1024, "index": 32 * 5 * 1024 * 1024}


@dataclass(slots=True, frozen=True)
class SegmentInfo:
    """One file. Indexes None: it holds no entry (yet)."""

    kind: str  # "data" or "index"
    name: str
    start: int
    size_bytes: int
    first_index: int | None
    last_index: int | None


class StoreReader:
    """See the module's docstring. Attributes are what the last `refresh` saw; None = this store does not say."""

    begin_index: int
    end_index: int
    end_term: int
    durable_index: int | None
    committed_index: int | None
    base: EntryMeta
    unsealed_from: int | None
    """Where a Java node went on with a directory of ours, which its engine does not open before it is adopted."""

    def __init__(
        self,
        directory: Path | str,
        *,
        data_file_size: int | None = None,
        index_file_size: int | None = None,
        platform: Platform = OS,
    ) -> None:
        self.directory = Path(directory)
        self.platform = platform
        if not (platform.names(self.directory) or platform.exists(self.directory)):
            raise StoreRefused(f"{self.directory} is no directory")
        refuse_what_never_answers(self.directory, platform)
        self.identity = known = read_identity(self.directory, platform)
        self.data_file_size = data_file_size or (known.data_file_size if known else self._length("data"))
        self.index_file_size = index_file_size or (known.index_file_size if known else self._length("index"))
        self._data = SegmentList(self.directory, "data", self.data_file_size, writable=False, platform=platform)
        self._index = SegmentList(self.directory, "index", self.index_file_size, writable=False, platform=platform)
        self.archive = TruncationArchive(self.directory, platform=platform)
        self._end: Cursor | None = None
        self.refresh()

    def _length(self, kind: str) -> int:
        folder = self.directory / kind
        for name in self.platform.names(folder):
            size = self.platform.path_size(folder / name) if name.isdigit() else 0
            if size:
                return size
        return _DEFAULT_BYTES[kind]

    @property
    def is_java(self) -> bool:
        """Only the Java node wrote here."""
        return self.identity is None

    @property
    def sealed_from(self) -> int | None:
        """From which entry on all have to be sealed; None in a directory that only the Java node wrote."""
        return None if self.is_java else self._begin.sealed_from

    # --- following the engine --------------------------------------------------------------------------------------

    def refresh(self, upto_index: int | None = None) -> None:
        """Looks again: at most up to `upto_index` (the caller knows that the engine is there), else to the end."""
        self._data.rescan()
        self._index.rescan()
        slot = checkpoint_slot(self.directory, self.platform) if self.identity is not None else None
        base = self._saved_base()
        begin_pos, begin_index = (base.pos, base.meta.index + 1) if base is not None else find_begin(self._data)
        if base is not None:
            self.base = base.meta
        elif begin_index:
            self.base = EntryMeta(begin_index - 1, UNKNOWN_TERM, None)
        else:
            self.base = ORIGIN
            begin_pos = max(begin_pos, 0 if self.identity is None else self.identity.origin_pos)
        self.begin_index = begin_index or 0
        self._begin = Cursor(begin_pos, self.begin_index, self.base.term, self.base.chain, self._sealed_from(slot))
        self._slot = slot
        self._end = self._find_end(slot, upto_index)
        self.end_index, self.end_term = self._end.index - 1, self._end.term
        self.durable_index = min(slot.durable_index, self.end_index) if slot is not None else None
        self.committed_index = min(slot.committed_index, self.end_index) if slot is not None else None

    def _saved_base(self) -> Base | None:
        try:
            return read_base(self.directory, self.platform)
        except StoreRefused:
            return None

    def _sealed_from(self, slot: Slot | None) -> int:
        if self.identity is None:
            return SEALED_NEVER
        return max(self.identity.sealed_from, slot.sealed_from if slot is not None else 0)

    def _straight_from(self) -> int:
        """From where on positions are held against places (S6)."""
        border = None if self.is_java else read_straight_from(self.directory, self._begin.sealed_from, self.platform)
        return NOWHERE if border is None else border

    def _find_end(self, slot: Slot | None, upto_index: int | None) -> Cursor:
        """The end of the log: walked from the checkpoint on, or surveyed where there is none or a Java node went on."""
        begin, self.unsealed_from = self._begin, None
        known = slot is not None and slot.durable_index >= begin.index and slot.end_pos >= begin.pos
        if known and slot is not None and self._holds(slot.durable_index):
            walk = Walk(self._data, self._vouched(slot), last_index=upto_index)
            for _ in walk.slabs():
                pass
            if upto_index is not None or not (walk.stop.is_alien or self.java_was_here()):
                return walk.cursor
            start = walk.cursor if walk.stop.is_alien else begin
            return self._surveyed(start)
        previous = self._end
        if previous is not None and previous.index > begin.index and self._same(previous):
            begin = previous
        return self._surveyed(begin)

    def _surveyed(self, start: Cursor) -> Cursor:
        survey = Survey(self._data, self._index, start, java=self.is_java, into_java=True)
        for _ in survey.run():
            pass
        self.unsealed_from = survey.unsealed_from
        return survey.end

    def java_was_here(self) -> bool:
        """Whether a Java node had this directory since: our engines write both term files alike."""
        ours, java = read_hard_state(self.directory, self.platform), read_currterm(self.directory, self.platform)
        return ours is not None and java is not None and java != (ours.term, ours.voted_for)

    def _vouched(self, slot: Slot) -> Cursor:
        """Where the entry after the durable one goes, as the checkpoint says."""
        return Cursor(slot.end_pos, slot.durable_index + 1, slot.term, slot.chain, self._begin.sealed_from)

    def _holds(self, index: int) -> bool:
        """Whether an index record is there for an entry; its content is for `verify` to judge."""
        return any(self._index.read(index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES))

    def _same(self, end: Cursor) -> bool:
        """Whether the entry before an earlier end is still the one that was seen."""
        try:
            unit, entry = find_record(self._data, self._index, end.index - 1)
        except StoreError:
            return False
        return entry.term == end.term and unit.pos + unit.size == end.pos

    # --- entries ---------------------------------------------------------------------------------------------------

    def entry(self, index: int) -> Entry | None:
        """None outside the log. Raises StoreCorrupt where the record is damaged."""
        if not self.begin_index <= index <= self.end_index:
            return None
        try:
            return find_record(self._data, self._index, index)[1]
        except StoreError as error:
            self.refresh()
            if not self.begin_index <= index <= self.end_index:
                return None
            found = self._search(index)
            if found is None:
                raise StoreCorrupt(str(error)) from error
            return found

    def _search(self, index: int) -> Entry | None:
        """Finds an entry without its index record, by walking its file."""
        start = self._begin
        for segment in self._data:
            first_index = first_index_in(segment)
            if first_index is not None and start.index < first_index <= index:
                start = Cursor(segment.start, first_index, -1, None)
        survey = Survey(self._data, self._index, start, java=self.is_java, trust=Trust(self.end_index))
        for item in survey.run():
            if isinstance(item, Slab) and item.last_index >= index:
                return decode_slab(item)[index - item.first_index] if item.first_index <= index else None
        return None

    def slabs(self, from_index: int, to_index: int, max_bytes: int = SLAB_BYTES_MAX) -> Iterator[Slab]:
        """The raw records of [from_index, to_index] inside the log, bodies not verified. Raises StoreCorrupt."""
        index = max(from_index, self.begin_index)
        while index <= min(to_index, self.end_index):
            try:
                slab = read_raw_slab(self._data, self._index, index, min(to_index, self.end_index), max_bytes)
            except StoreError:
                self.refresh()
                if index > self.end_index or index < self.begin_index:
                    return
                slab = read_raw_slab(self._data, self._index, index, min(to_index, self.end_index), max_bytes)
            yield slab
            index = slab.last_index + 1

    def digests(self, from_index: int, to_index: int, block: int) -> list[dict[str, Any]]:
        """One SHA-256 per block of `block` entries, over what is on the disk now (INTERFACES `GET digests`)."""
        items: list[dict[str, Any]] = []
        first = max(from_index, self.begin_index)
        last = min(to_index, self.end_index)
        while first <= last:
            stop = min(last, (first // block + 1) * block - 1)
            items.append(self._digest(first, stop))
            first = stop + 1
        return items

    def _digest(self, first: int, last: int) -> dict[str, Any]:
        sha, count, problem = hashlib.sha256(), 0, None
        try:
            for slab in self.slabs(first, last):
                for entry in decode_slab(slab):
                    sha.update(_DIGEST_HEAD.pack(entry.magic, entry.index, entry.term, len(entry.body)))
                    sha.update(entry.body)
                    count += 1
        except (StoreError, ValueError) as error:
            problem = str(error)
        now = self.platform.wall_time().isoformat().replace("+00:00", "Z")
        digest = sha.hexdigest() if problem is None else None
        item = {"from_index": first, "to_index": last, "count": count, "digest": digest, "read_at": now}
        return item if problem is None else {**item, "problem": problem}

    # --- files -----------------------------------------------------------------------------------------------------

    def segments(self) -> list[SegmentInfo]:
        """Data files, then index files."""
        found: list[SegmentInfo] = []
        data = list(self._data)
        firsts = [first_index_in(segment) for segment in data]
        if data and firsts[0] is None and self.end_index >= self.begin_index:
            firsts[0] = self.begin_index
        for number, segment in enumerate(data):
            first = firsts[number]
            if first is not None and not self.begin_index <= first <= self.end_index:
                first = None
            later = [one for one in firsts[number + 1 :] if one is not None and one <= self.end_index]
            last = None if first is None else (later[0] - 1 if later else self.end_index)
            found.append(SegmentInfo("data", segment.path.name, segment.start, segment.size_bytes, first, last))
        per_file = self.index_file_size // INDEX_UNIT_BYTES
        for segment in self._index:
            low = max(self.begin_index, segment.start // INDEX_UNIT_BYTES)
            high = min(self.end_index, segment.start // INDEX_UNIT_BYTES + per_file - 1)
            span = (low, high) if low <= high else (None, None)
            found.append(SegmentInfo("index", segment.path.name, segment.start, segment.size_bytes, *span))
        return found

    def read_segment(self, kind: str, name: str, offset: int, length: int) -> bytes:
        """Raw bytes of a file, shorter at its end. Raises KeyError where there is no such file."""
        segments = {"data": self._data, "index": self._index}[kind]
        segment = segments.find(int(name)) if name.isdigit() else None
        if segment is None or segment.path.name != name:
            segments.rescan()
            segment = segments.find(int(name)) if name.isdigit() else None
            if segment is None or segment.path.name != name:
                raise KeyError(f"{kind}/{name}")
        return segment.read(segment.start + offset, length)

    def truncations(self) -> list[TruncationRecord]:
        """The truncation archive, oldest first."""
        return self.archive.records()

    def truncation_entries(self, seq: int) -> Iterator[Entry]:
        """The entries of one archive, which may be a whole log; KeyError where there is none."""
        if self.archive.record(seq) is None:
            raise KeyError(seq)
        return self.archive.each_entry(seq)

    # --- the whole -------------------------------------------------------------------------------------------------

    def verify(self, progress: Callable[[int], None] | None = None) -> VerifyReport:
        """Reads every byte and checks every record; `progress` is called with how many entries are done."""
        self.refresh()
        slot = self._slot
        durable = slot.durable_index if slot is not None else -1
        vouched = self._vouched(slot) if slot is not None and durable >= self._begin.index else None
        survey = Survey(
            self._data, self._index, self._begin, java=self.is_java, trust=Trust(durable, vouched), into_java=True
        )
        index_durable = slot.index_durable if slot is not None else None
        run = Verification(
            self._data, self._index, survey, index_durable=index_durable, straight_from=self._straight_from(),
            progress=progress,
        )  # fmt: skip
        report = run.run()
        unread = self._unread_files(report.begin_index)
        lengths = {finding.file: finding.detail for finding in unread if finding.index is None}
        report.problems[:] = [replace(one, detail=lengths.get(one.file, one.detail)) for one in report.problems]
        named = {one.file for one in report.problems}  # a file that the walk ran into is named once, with its entry
        report.problems[:0] = [one for one in unread if one.index is not None or one.file not in named]
        if report.end_index < durable:
            detail = f"the log ends at {report.end_index}, its checkpoint says durable up to {durable}"
            report.problems.append(Finding("missing", report.end_index + 1, CHECKPOINT, detail, durable))
        if self.identity is not None:
            try:
                held, own = report.entries > 0, self.identity.node_id
                load_hard_state(self.directory, has_entries=held, platform=self.platform, node_id=own)
            except StoreError as error:
                report.problems.append(Finding("hard_state_invalid", None, "hardstate", str(error)))
            if (leap := term_leap(self.directory, report.end_term, self.platform)) is not None:
                report.problems.append(Finding("term_leap", None, "hardstate", leap))
        return report

    def _unread_files(self, begin_index: int) -> list[Finding]:
        """Files that no walk sees because of their length, and a beginning that the checkpoint knew better."""
        found: list[Finding] = []
        for kind, size_bytes in (("data", self.data_file_size), ("index", self.index_file_size)):
            names = [name for name in self.platform.names(self.directory / kind) if name.isascii() and name.isdigit()]
            for name in names:
                has = self.platform.path_size(self.directory / kind / name)
                if has != size_bytes and (has or name != names[-1]):  # a new file gets its length a moment later
                    detail = f"the file has {has} bytes, {size_bytes} are configured: nothing was read in it"
                    found.append(Finding("missing", None, f"{kind}/{name}", detail))
        begin, end = self.begin_index * INDEX_UNIT_BYTES, (self.end_index + 1) * INDEX_UNIT_BYTES
        named = {finding.file for finding in found}
        gap = self._index.first_gap(begin, end)
        while gap is not None:
            name = self._index.name_at(gap)
            if name not in named:
                stop = min(end, gap - gap % self.index_file_size + self.index_file_size) // INDEX_UNIT_BYTES
                found.append(Finding("missing", gap // INDEX_UNIT_BYTES, name, "the file is missing", stop - 1))
            gap = self._index.first_gap(gap + self.index_file_size, end)
        slot = self._slot
        if slot is not None and self._saved_base() is None and slot.begin_index < begin_index:
            detail = f"the log begins at {begin_index}, its checkpoint says {slot.begin_index}"
            found.append(Finding("missing", slot.begin_index, "data", detail, begin_index - 1))
        return found

    def inspect(self) -> dict[str, Any]:
        """What this store is and holds, for people."""
        self.refresh()
        java = read_currterm(self.directory, self.platform)
        slot = self._slot
        writer = "DLedger (Java)" if self.identity is None else "quorumscope"
        if self.unsealed_from is not None:
            writer += f"; DLedger (Java) from entry {self.unsealed_from} on"
        return {
            "directory": str(self.directory),
            "written_by": writer,
            "group": self.identity.group if self.identity else None,
            "node_id": self.identity.node_id if self.identity else None,
            "store_id": self.identity.store_id if self.identity else None,
            "sealed_from": self.identity.sealed_from if self.identity else None,
            "data_file_size_bytes": self.data_file_size,
            "index_file_size_bytes": self.index_file_size,
            "term": java[0] if java is not None else None,
            "voted_for": java[1] if java is not None else None,
            "log": {
                "begin_index": self.begin_index,
                "end_index": self.end_index,
                "end_term": self.end_term,
                "durable_index": self.durable_index,
                "committed_index": self.committed_index,
                "unsealed_from": 0 if self.is_java else self.unsealed_from,
            },
            "clean_stop": slot.clean if slot is not None else None,
            "truncations": len(self.truncations()),
            "segments": [
                {
                    "kind": one.kind,
                    "name": one.name,
                    "size_bytes": one.size_bytes,
                    "first_index": one.first_index,
                    "last_index": one.last_index,
                }
                for one in self.segments()
            ],
        }
