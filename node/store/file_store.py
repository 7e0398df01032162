"""The log on disk: DLedger's files, and beside them what makes them safe (DESIGN 4, SAFETY S1 to S9).

A `FileStore` is the interface alone: it is composed of parts that own their fields, around one `LogFiles` (where the
log begins and ends, its files, what memory knows of them): `LogWriter` appends, `ColdReads` reads, `Durability` syncs
and keeps the checkpoint, `FaultSet` knows the damage, `Healer` heals it, `Truncation` cuts and trims.

Invariant: after an I/O error nothing more is promised, not even at close.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from node.protocol.codes import FlushMode
from node.protocol.entry import Entry, Magic, Slab
from node.protocol.group_kind import BROKER_NAME, NO_PATCH
from node.protocol.messages import MemberMark
from node.store.cold_reads import ColdReads
from node.store.durability import Durability
from node.store.errors import StoreFull, StoreIOError
from node.store.faults.fault_set import FaultSet
from node.store.faults.healing import Healer
from node.store.faults.results import Fault, Mended, Scrubbed
from node.store.files.hard_state import save_hard_state
from node.store.files.identity import Base
from node.store.files.java_files import leave_to_java
from node.store.files.old_log import BEFORE_ENTRY_0
from node.store.files.platform import OS, Platform
from node.store.log_files import LogFiles
from node.store.log_store import EntryMeta, HardState, LogStore, SyncTicket, TruncationRecord
from node.store.log_writer import LogWriter
from node.store.pins import Pins
from node.store.recovery.opening import Opened, open_directory
from node.store.replacement import Replacement
from node.store.retention import Survey
from node.store.truncation import Truncation


class FileStore(LogStore):
    """See the module's docstring; made by `open`."""

    mends_alone = True
    # Each append asks for these some thirty times: copies, renewed by the parts that own them.
    end_index: int = -1
    faults: tuple[Fault, ...] = ()
    faults_unsaved: bool = False

    def __init__(self, opened: Opened, page_cache_bytes: int = 0) -> None:
        found = opened.recovered
        self.directory = opened.directory
        self.alarms = tuple(found.alarms)
        self.files = LogFiles(opened)
        self.durability = Durability(self.files, opened.checkpoint, found, opened.boot_id, page_cache_bytes)
        self._kind = opened.identity.kind
        self.leaves_to_java = self._kind != BROKER_NAME  # which Java would take on as it is: by a hand-over only
        self._store_id = opened.hard_state.store_id or opened.identity.store_id
        self._hard_state = opened.hard_state
        self._lock = opened.lock
        self.files.on_end = self._ends_at
        self.end_index = self.files.end.index
        self._faults = FaultSet(self.files, found.faults, self._faults_are)
        self._writer = LogWriter(self.files)
        self._reads = ColdReads(self.files, self._faults, self.durability)
        self._healer = Healer(self.files, self._faults, self.durability)
        self._truncation = Truncation(self.files, self._reads, self.durability, self._faults, self._healer)
        self._replacement = Replacement(self.files, self.durability, self._faults, self._healer)
        self._pins = Pins()
        self._closed = False
        self._let_old_log_go()

    @staticmethod
    def open(
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
        born_at: Base | None = None,
        kind: str | None = None,
        adopting: bool = False,
        origin_pos: int = 0,
    ) -> FileStore:
        """Recovers and opens. Raises StoreRefused, StoreCorrupt, StoreFull, StoreIOError; then nothing is held."""
        opened = open_directory(
            Path(directory), group, node_id, data_file_size, index_file_size, init, flush, boot_id, platform,
            serving, group_id, born_at, kind, adopting, origin_pos,
        )  # fmt: skip
        return FileStore.made_of(opened, page_cache_bytes)

    @staticmethod
    def made_of(opened: Opened, page_cache_bytes: int = 0) -> FileStore:
        """Raises StoreFull, StoreIOError; then nothing is held."""
        try:
            return FileStore(opened, page_cache_bytes)
        except BaseException:
            for held in (opened.data, opened.index, opened.checkpoint):
                held.close()
            opened.lock.release()
            raise

    # --- identity and watermarks ---------------------------------------------------------------------------------

    @property
    def store_id(self) -> str:
        return self._store_id

    @property
    def kind(self) -> str:
        return self._kind

    def kept_for_snapshot(self, committed_index: int) -> int | None:
        return None if self.files.snapshots is None else self.files.snapshots.keep_from(committed_index)

    @property
    def begin_index(self) -> int:
        return self.files.begin_index

    @property
    def end_term(self) -> int:
        return self.files.end.term

    @property
    def end_chain(self) -> int | None:
        return self.files.end.chain

    @property
    def durable_index(self) -> int:
        return self.durability.durable.index

    @property
    def pins(self) -> Pins:
        return self._pins

    @property
    def base(self) -> EntryMeta:
        return self.files.base

    @property
    def sealed_from(self) -> int:
        return self.files.sealed_from

    @property
    def recovered_commit_index(self) -> int:
        return self.durability.recovered_commit_index

    @property
    def applied_index(self) -> int:
        return self.durability.applied_index

    @property
    def recovered_marks(self) -> tuple[MemberMark, ...]:
        return self.durability.marks

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def data_file_size(self) -> int:
        return self.files.data_file_size

    @property
    def index_file_size(self) -> int:
        return self.files.index_file_size

    def _ends_at(self, index: int) -> None:
        self.end_index = index

    def _faults_are(self, faults: tuple[Fault, ...], unsaved: bool) -> None:
        self.faults, self.faults_unsaved = faults, unsaved

    @property
    def failed(self) -> bool:
        """Whether a write failed: nothing is written any more."""
        return self.files.failed

    @property
    def durable_position(self) -> int:
        """The position right after the last durable record."""
        return self.durability.durable.end_pos

    @property
    def size_bytes(self) -> int:
        """From the first record to the end of the last one, fillers included."""
        return self.files.end.end_pos - self.files.begin_pos

    @property
    def truncation_count(self) -> int:
        """How many cuts this store has seen."""
        return self.files.archive.count

    @property
    def files_made_late(self) -> int:
        """How often an append had to wait for a new file, since the store was opened: none was made ahead (S9)."""
        return self.files.data.made_late + self.files.index.made_late

    # --- appending and looking up --------------------------------------------------------------------------------

    def append_as_leader(
        self,
        bodies: Sequence[bytes],
        term: int,
        magic: int = Magic.NORMAL,
        channel: int = 0,
        patch_at: int = NO_PATCH,
    ) -> list[Slab]:
        return self._writer.append_as_leader(bodies, term, magic, channel, patch_at)

    def append_slab(self, slab: Slab) -> None:
        self._writer.append_slab(slab)

    def meta(self, index: int) -> EntryMeta | None:
        return self._reads.meta(index)

    def meta_at_hand(self, index: int) -> EntryMeta | None:
        return self._reads.meta_at_hand(index)

    def read_meta(self, index: int) -> EntryMeta:
        return self._reads.read_meta(index)

    def position_at_hand(self, index: int) -> int | None:
        return self._reads.position_at_hand(index)

    def get(self, index: int) -> Entry | None:
        return self._reads.get(index)

    def recent_slab(self, first_index: int, max_bytes: int) -> Slab | None:
        return self.files.ring.piece_of(first_index, max_bytes) if first_index >= self.files.begin_index else None

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        return self._reads.read_slab(first_index, max_bytes)

    def term_at(self, index: int) -> int:
        return self.files.terms.term_at(index)

    def term_start(self, index: int) -> int:
        return self.files.terms.start_of(index, self.files.begin_index)

    def last_index_of_term(self, term: int) -> int:
        return self.files.terms.last_index_of(term, self.files.begin_index, self.files.end.index)

    # --- durability ----------------------------------------------------------------------------------------------

    def save_hard_state(self, state: HardState) -> None:
        self.files.refuse_after_failure()
        try:
            save_hard_state(self.directory, state, self.files.platform)
        except StoreIOError:
            self.files.failed = True
            raise
        self._hard_state = state

    def has_space(self) -> bool:
        if self.files.half_cut is not None:
            try:
                self.files.finish_cut()
            except StoreFull:
                return False
        free = self.files.platform.space_left_bytes(self.directory)
        return free is None or free >= self.files.data.ahead_bytes

    def is_in_place(self) -> bool:
        return self.files.is_in_place

    def note_progress(self, committed_index: int, applied_index: int) -> None:
        self.durability.note_progress(committed_index, applied_index)

    def note_marks(self, marks: tuple[MemberMark, ...]) -> None:
        self.durability.note_marks(marks)

    def prepare_sync(self) -> SyncTicket | None:
        return self.durability.prepare_sync()

    def prepare_checkpoint(self) -> SyncTicket | None:
        return self.durability.prepare_checkpoint()

    def finish_sync(self, ticket: SyncTicket) -> int:
        return self.durability.finish_sync(ticket)

    # --- damage --------------------------------------------------------------------------------------------------

    def note_faults(self, faults: Sequence[Fault]) -> None:
        self._faults.note(faults)

    def save_faults(self) -> None:
        self.files.check_place()  # a copy that was put there has its own
        self._faults.save()

    def scrub(self, from_index: int, max_bytes: int) -> Scrubbed:
        return self._reads.scrub(from_index, max_bytes)

    def mend(self, slab: Slab, vouched: EntryMeta | None = None) -> Mended:
        return self._healer.mend(slab, vouched)

    def mend_alone(self, first_index: int) -> Mended:
        return self._healer.mend_alone(first_index)

    # --- cuts and the end ----------------------------------------------------------------------------------------

    def truncate(self, cut_index: int, record: TruncationRecord) -> None:
        self._truncation.truncate(cut_index, record)

    @property
    def base_on_record(self) -> Base:
        files = self.files
        return Base(files.base, files.begin_pos, self._hard_state.group_id, files.members_at_base)

    def begin_behind(self, base: Base, record: TruncationRecord) -> None:
        self._replacement.begin_behind(base, record)
        self._let_old_log_go()

    def _let_old_log_go(self) -> None:
        """It went first where a log begins behind entry 0; one that was left here would end before a gap."""
        if self.files.begin_index:
            self.files.old_log.remove_all()

    def survey(self, files_max: int) -> Survey:
        return self._truncation.survey(files_max)

    def remove_prefix(self, through_index: int, *, forced: bool = False) -> None:
        if through_index == BEFORE_ENTRY_0:
            self.files.old_log.remove_first()
            return
        if not forced:
            self._pins.refuse(through_index)
        self._truncation.remove_prefix(through_index, self._hard_state)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not self.files.failed:
                self.durability.sync_all()
                if self._faults.unsaved:
                    self._faults.save()
                if self.leaves_to_java and self.durability.says_clean:
                    with suppress(StoreFull):  # then it stays ours until the next stop
                        leave_to_java(
                            self.directory, self.durability.committed_index, self.end_index, self.files.platform
                        )
        finally:
            self._healer.drop_stage()
            self.files.close()
            self.durability.checkpoint.close()
            self._lock.release()
