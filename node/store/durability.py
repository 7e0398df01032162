"""Durability of a log: group commits, checkpoint slots, what stays in the page cache (SAFETY S1, S2).

Invariants: `durable` never passes a cut; a slot is written only for what was durable before; under load at most one
slot in 20 ms, because each costs a sync of its own.
"""

from __future__ import annotations

from contextlib import suppress

from node.protocol.entry import INDEX_UNIT_BYTES
from node.protocol.messages import MemberMark
from node.store.errors import StoreFull
from node.store.files.cache_window import CacheWindow
from node.store.files.checkpoint import Checkpoint, Slot
from node.store.files.next_file import NextFile
from node.store.log_files import LogFiles
from node.store.log_store import SyncTicket
from node.store.recovery.circumstances import Recovered
from node.store.sync_ticket import FileTicket, Mark, Synced

_SLOT_INTERVAL_NS = 20_000_000
_INDEX_UNSYNCED_BYTES_MAX = 4 * 1024 * 1024
_ALL = 2**63 - 1


class Durability:
    """What is durable of one log, and what its checkpoint says of it."""

    def __init__(
        self, files: LogFiles, checkpoint: Checkpoint, found: Recovered, boot_id: str, page_cache_bytes: int
    ) -> None:
        self.files = files
        self.checkpoint = checkpoint
        self.boot_id = boot_id
        self.may_say_clean = True  # False: the evidence of an unclean stop is not this process's to remove
        self.durable = files.end  # recovery has synced all of it
        self.recovered_commit_index = found.committed_index
        self.marks = checkpoint.last.marks if checkpoint.last is not None else ()
        self._index_durable = files.end.index
        self._committed = found.committed_index
        self.applied_index = found.applied_index
        self._slot_at_ns = 0
        self._page_cache_bytes = page_cache_bytes
        self._look_through(files.end)
        checkpoint.write_both(self._slot(self.durable))
        for next_file in self._next_files(files.end):
            next_file.make()

    def _look_through(self, end: Mark) -> None:
        """The windows of what stays in the page cache, of a log that ends there."""
        files = self.files
        self._data_window = CacheWindow(files.data, self._page_cache_bytes, end.end_pos)
        index_end = (end.index + 1) * INDEX_UNIT_BYTES
        self._index_window = CacheWindow(files.index, self._page_cache_bytes // 8, index_end)

    def note_progress(self, committed_index: int, applied_index: int) -> None:
        """What the next slot will say."""
        self._committed, self.applied_index = committed_index, applied_index

    def note_marks(self, marks: tuple[MemberMark, ...]) -> None:
        """The same for what peers are known to hold (E8)."""
        self.marks = marks

    # --- group commits -------------------------------------------------------------------------------------------

    def prepare_sync(self) -> SyncTicket | None:
        """See LogStore."""
        files = self.files
        cuts = files.cuts  # first: what is looked up below may be of before a cut that a thread makes meanwhile
        if files.is_cutting or (self.durable.index >= files.end.index and not files.data.dirty):
            return None
        unsynced_index_bytes = (files.end.index - self._index_durable) * INDEX_UNIT_BYTES
        return self._ticket(cuts, with_index=unsynced_index_bytes > _INDEX_UNSYNCED_BYTES_MAX, force_slot=False)

    def prepare_checkpoint(self) -> SyncTicket | None:
        """For an idle driver (20 ms without a sync): syncs the index too and writes a slot; None if nothing is new."""
        cuts = self.files.cuts
        last = self.checkpoint.last
        end = self.files.end.index
        known = (end, min(self._committed, end), min(self.applied_index, end), end, self.marks)
        said = (
            (last.durable_index, last.committed_index, last.applied_index, last.index_durable, last.marks)
            if last
            else None
        )
        if self.files.is_cutting or known == said:
            return None
        return self._ticket(cuts, with_index=True, force_slot=True)

    def _ticket(self, cuts: int, *, with_index: bool, force_slot: bool) -> FileTicket:
        files = self.files
        mark = files.end
        slot = None
        if force_slot or files.platform.monotonic_ns() - self._slot_at_ns >= _SLOT_INTERVAL_NS:
            slot = self._slot(mark, index_durable=mark.index if with_index else self._index_durable)
        index = files.index.take_dirty() if with_index else None
        stale = self._data_window.move_to(mark.end_pos)
        if with_index:
            stale += self._index_window.move_to((mark.index + 1) * INDEX_UNIT_BYTES)
        return FileTicket(self, cuts, mark, files.data.take_dirty(), index, slot, stale, self._next_files(mark))

    def _next_files(self, mark: Mark) -> list[NextFile]:
        """What is to be made ahead by somebody who may wait: see `next_file`."""
        data, index, files = self.files.data, self.files.index, []
        if data.needs_next(mark.end_pos):
            files.append(data.next_file)
        if index.needs_next((mark.index + 1) * INDEX_UNIT_BYTES):
            files.append(index.next_file)
        return files

    def _slot(self, mark: Mark, *, index_durable: int | None = None, clean: bool = False) -> Slot:
        in_index = self._index_durable if index_durable is None else index_durable
        return Slot(
            mark.index, self.files.begin_index, mark.end_pos, mark.term, mark.chain, min(self._committed, mark.index),
            min(self.applied_index, mark.index), min(mark.index, in_index), self.files.sealed_from, clean, self.boot_id,
            marks=self.marks,
        )  # fmt: skip

    def write_slot(self, slot: Slot) -> None:
        """The next one under load is due in 20 ms (SAFETY S2)."""
        self._slot_at_ns = self.files.platform.monotonic_ns()
        self.checkpoint.write(slot)

    def finish_sync(self, ticket: SyncTicket) -> int:
        """See LogStore."""
        if (
            isinstance(ticket, FileTicket)
            and ticket.cuts == self.files.cuts
            and ticket.mark.index >= self.durable.index
        ):
            self.durable = ticket.mark
            if ticket.syncs_index:
                self._index_durable = ticket.mark.index
        return self.durable.index

    def synced(self) -> Synced:
        """How far nothing is in memory alone; the last page included where all of it is durable. For any thread."""
        files, durable, in_index = self.files, self.durable, self._index_durable
        if files.failed or files.end.index > durable.index:
            return Synced(durable.end_pos, (in_index + 1) * INDEX_UNIT_BYTES)
        return Synced(_ALL, _ALL if in_index == durable.index else (in_index + 1) * INDEX_UNIT_BYTES)

    # --- cuts and the end ----------------------------------------------------------------------------------------

    def lower_to(self, last: Mark) -> None:
        """Before a cut behind `last`: nothing says any more that what follows is durable (SAFETY S4)."""
        self.durable = last if last.index < self.durable.index else self.durable
        self._index_durable = min(self._index_durable, last.index)
        self.checkpoint.write_both(self._slot(self.durable))

    def end_at(self, last: Mark) -> None:
        """The log ends at `last` now."""
        self._data_window.cut(last.end_pos)
        self._index_window.cut((last.index + 1) * INDEX_UNIT_BYTES)
        self.recovered_commit_index = min(self.recovered_commit_index, last.index)

    def replaced(self) -> None:
        """Another log began, which ends at its base: committed, applied and durable. Its slot is the caller's."""
        base = self.files.end
        self.durable = base
        self._committed = self.applied_index = self._index_durable = base.index
        self.recovered_commit_index = base.index
        self._look_through(base)

    @property
    def committed_index(self) -> int:
        """Known to be committed and held here."""
        return min(self._committed, self.files.end.index)

    @property
    def says_clean(self) -> bool:
        """Whether the newest slot says that the stop was a clean one."""
        return self.checkpoint.last is not None and self.checkpoint.last.clean

    def sync_all(self) -> None:
        """Syncs everything, and says that the stop was a clean one. Raises StoreIOError."""
        files = self.files
        with suppress(StoreFull):
            if files.left_behind is not None:
                files.take_back(*files.left_behind)
            files.clear(files.end)
        left = files.left_behind is not None or files.half_cut is not None
        files.data.sync()
        files.index.sync()
        files.check_place()
        files.keep_layout()
        self.durable = files.end
        with suppress(StoreFull):  # without a slot that says "clean" the next start reads more, and finds it
            slot = self._slot(self.durable, index_durable=self.durable.index, clean=self.may_say_clean and not left)
            self.checkpoint.write_both(slot)
