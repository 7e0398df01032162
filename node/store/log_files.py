"""The files of one log and the index over them in memory: where the log begins and ends, its terms.

The parts of a `FileStore` (writer, reads, durability, truncation, healing) share this one object and change it only
through its methods; memory does not grow with the log: the term table and the ring of recent slabs are all it keeps.

Invariants: `end.end_pos` is the position right after the last record, never behind a filler; what is behind it is
zero; `cuts` moves before and after a cut, so that a reader sees that the ground moved; once `failed`, nothing more is
written and nothing more is promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from node.protocol.entry import BLANK_BYTES, INDEX_UNIT, INDEX_UNIT_BYTES, Slab
from node.protocol.group_kind import BROKER_NAME
from node.store.disk_log import find_head, find_place, find_record
from node.store.errors import StoreError, StoreFull, StoreIOError, StoreMoved
from node.store.files.hard_state import keep_reserve, with_reserve
from node.store.files.identity import Base
from node.store.files.old_log import OldLog
from node.store.files.straight import NOWHERE, write_straight_from
from node.store.log_store import EntryMeta
from node.store.recent_slabs import RecentSlabs
from node.store.recovery.opening import Opened
from node.store.recovery.resync import read_head
from node.store.recovery.unsealed import UnsealedChains
from node.store.recovery.walk import SEALED_NEVER, Cursor
from node.store.slab_pieces import slab_meta
from node.store.snapshot_marks import SnapshotMarks
from node.store.sync_ticket import Mark
from node.store.term_table import TermTable


class LogFiles:
    """See the module's docstring. `end` is replaced whole, so a thread that reads it sees one entry's values."""

    def __init__(self, opened: Opened) -> None:
        found = opened.recovered
        self.directory = opened.directory
        self.platform = opened.platform
        self.node_id = opened.identity.node_id
        self.kind = opened.identity.kind
        self._lock = opened.lock
        self.old_log = OldLog(opened.directory, opened.identity.origin_pos, opened.platform)
        self.snapshots = SnapshotMarks() if self.kind == BROKER_NAME else None
        self.data_file_size = opened.identity.data_file_size
        self.index_file_size = opened.identity.index_file_size
        self.data = opened.data
        self.index = opened.index
        self.archive = opened.archive
        self.sealed_from = opened.sealed_from
        self.straight_from = opened.straight_from  # from here on every head says where its record is: `files/straight`
        self._layout_unsaved = False
        self.base = found.base
        self.begin_index = found.begin_index
        self.begin_pos = found.begin_pos
        self.members_at_base = found.members_at_base  # where the entry that says who belonged to the group there was
        self.end = Mark(found.end.index - 1, found.end.pos, found.end.term, found.end.chain)
        self.on_end: Callable[[int], None] = lambda _index: None  # called at once, with where the log ends now
        self.terms = found.terms
        self.ring = RecentSlabs()
        if found.newest is not None:
            self.ring.add(found.newest)
        self.unsealed = UnsealedChains(self.data, self.begin_cursor())
        self.cuts = 0
        self.is_cutting = False  # while one runs, no group commit may name what is being cut
        self.failed = False
        self.left_behind: tuple[int, int] | None = None  # see `take_back`
        self.half_cut: tuple[int, int] | None = None  # see `clear`
        self._terms_lock = threading.Lock()  # a thread mends while the loop appends the first entry of a new term

    # --- looking up ----------------------------------------------------------------------------------------------

    def begin_cursor(self) -> Cursor:
        """Where a walk along the whole log begins."""
        return Cursor(self.begin_pos, self.begin_index, self.base.term, self.base.chain)

    def begin_mark(self) -> Mark:
        """The base, as the end of what is before the first entry."""
        return Mark(self.base.index, self.begin_pos, self.base.term, self.base.chain)

    def holds(self, index: int) -> bool:
        """Whether `index` is inside the log."""
        return self.begin_index <= index <= self.end.index

    def stored_meta(self, index: int) -> EntryMeta:
        """From the files alone, so that a thread may ask: 80 bytes, however long the entry is. Raises StoreCorrupt."""
        head = find_head(self.data, self.index, index)
        if head.chain_crc or head.body_crc:
            return EntryMeta(index, head.term, head.chain_crc)
        return EntryMeta(index, head.term, self.unsealed.chain_at(index))

    def stored_mark(self, index: int) -> Mark:
        """An entry's end, from the files alone. Raises StoreCorrupt."""
        unit, _ = find_record(self.data, self.index, index)
        return Mark(index, unit.pos + unit.size, unit.term, self.stored_meta(index).chain)

    def continues(self, index: int) -> bool | None:
        """Whether an entry's seal continues the chain of the entry before; None where one of the two has none. From the
        files alone. Raises StoreCorrupt."""
        head = read_head(self.data, find_place(self.index, index).pos)
        base = self.base
        before = base.chain if index == base.index + 1 else self.stored_meta(index - 1).chain
        return None if head is None or not head.chain_crc or before is None else head.continues(before)

    def mark_in_ring(self, index: int) -> Mark | None:
        """An entry's end, from memory alone: also of one that rotted on the disk since."""
        slab = self.ring.holding(index)
        if slab is None:
            return None
        meta = slab_meta(slab, index)
        _, pos, size, _, _ = INDEX_UNIT.unpack_from(slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES)
        return Mark(index, pos + size, meta.term, meta.chain)

    # --- changing ------------------------------------------------------------------------------------------------

    def refuse_after_failure(self) -> None:
        """Work is queued for the writer, and each piece relies on those before it: none is done after one failed (S1),
        and none in a directory that is another one. Raises StoreIOError.
        """
        if self.failed:
            raise StoreIOError("a write failed before: nothing is written any more")
        self.check_place()

    def check_place(self) -> None:
        """Before anything is said to be durable: it lies where the next start looks for it. Raises StoreMoved."""
        if not self.is_in_place:
            self.failed = True
            raise StoreMoved(f"{self.directory} is not the directory any more that was opened")

    @property
    def is_in_place(self) -> bool:
        """Whether paths still lead to what was opened: the directory's lock, and the file that is written to. An older
        copy may come without the one, and over the other."""
        return self._lock.is_in_place() and self.data.is_in_place

    def extend(self, slabs: list[Slab]) -> None:
        """These slabs have been written: the log ends behind them."""
        for slab in slabs:
            self.ring.add(slab)
            if self.snapshots is not None:
                self.snapshots.note(slab)
            if slab.last_term != self.end.term or self.end.index < self.begin_index:  # terms never decrease
                self._note_terms(slab)
            last_index = slab.last_index
            self.end = Mark(last_index, slab.pos + len(slab.data), slab.last_term, slab.last_chain)
            self.on_end(last_index)

    def note_unsealed(self, last_index: int) -> None:
        """Entries up to `last_index` carry no seal: a heritage, from now on at the latest."""
        self._layout_unsaved |= self.sealed_from == 0
        self.sealed_from = max(self.sealed_from, last_index + 1)

    def note_layouts_differ(self) -> None:
        """What the leader's heads say of positions is not true here: nothing is compared any more."""
        if self.straight_from != NOWHERE:
            self.straight_from, self._layout_unsaved = NOWHERE, True

    def keep_layout(self) -> None:
        """Keeps the border on disk where it moved: a writer's work, before what follows counts as durable."""
        if self._layout_unsaved:
            self._layout_unsaved = False  # first: the loop may move it once more meanwhile
            try:
                written = partial(write_straight_from, self.directory, self.straight_from, self.platform)
                with_reserve(self.directory, written, self.platform)
            except StoreError:
                self._layout_unsaved = True
                raise
            keep_reserve(self.directory, self.platform)

    def _note_terms(self, slab: Slab) -> None:
        with self._terms_lock:
            for _, _, _, index, term in INDEX_UNIT.iter_unpack(slab.index_records):
                self.terms.extend(index, term)
                if term == slab.last_term:
                    break

    def mended(self, runs: list[tuple[int, int]], last_index: int) -> None:
        """Entries up to `last_index` were healed, and have these runs of terms: (first index, term)."""
        with self._terms_lock:
            self.terms = self.terms.mended(runs, last_index)
        self.ring.forget_through(last_index)  # what memory holds of it may be from before

    def end_at(self, last: Mark) -> None:
        """What lay behind `last` has been cut, also on the disk."""
        cut_index = last.index + 1
        self.ring = self.ring.cut(cut_index)
        self.terms = self.terms.cut(cut_index)
        self.unsealed.cut(cut_index)
        if self.snapshots is not None:
            self.snapshots.cut(cut_index)
        self.end = last
        self.on_end(last.index)
        if SEALED_NEVER > self.sealed_from > cut_index:
            self.sealed_from = cut_index

    def begin_at(self, kept: Base) -> None:
        """The log begins behind that entry, which is durable as its base: whole files before it are removed."""
        base, begin_pos = kept.meta, kept.pos
        self.base, self.begin_index, self.begin_pos = base, base.index + 1, begin_pos
        self.members_at_base = kept.members
        self.data.drop_before(begin_pos)
        self.index.drop_before(self.begin_index * INDEX_UNIT_BYTES)
        self.unsealed.restart(self.begin_cursor())

    def replaced(self, base: Base) -> None:
        """The log begins behind that entry from now on, and ends there: nothing of what it held is in it any more.

        A thread's work beside the loop: first nothing is held, then it ends elsewhere, so that no moment shows an entry
        that is not there.
        """
        self.begin_index = base.meta.index + 1
        self.base, self.begin_pos, self.members_at_base = base.meta, base.pos, base.members
        self.data.forget_all()
        self.index.forget_all()
        self.ring, self.terms = RecentSlabs(), TermTable()
        self.sealed_from = base.meta.index + 1
        self.snapshots = None if self.snapshots is None else SnapshotMarks()
        self.left_behind = self.half_cut = None  # with the files
        self.unsealed.restart(self.begin_cursor())
        self.end = self.begin_mark()
        self.on_end(self.end.index)

    def take_back(self, written_pos: int, last_index: int) -> None:
        """What an append wrote behind the end, up to there, before the disk was full: it is zeroed, and the files that
        were made for it go (SAFETY S8). On the loop, which waits for no disk and reads no file: the next sync makes
        all of it durable.

        Where there is no space for zeros either, the place is kept in `left_behind`: nothing is appended before they
        are written. Until then a start may find these entries, and take them for its log's. Raises StoreFull, which
        says so, and StoreIOError.
        """
        end = self.end
        self.left_behind = written_pos, last_index
        from_unit = (end.index + 1) * INDEX_UNIT_BYTES
        try:
            last = self.data.find(end.end_pos if end.end_pos == self.begin_pos else end.end_pos - 1)
            if last is not None:
                self.data.drop_from(last.end, sync_later=True)
            self.index.drop_from(from_unit, sync_later=True)
            self.data.zero(end.end_pos, written_pos, unread=True)
            self.index.zero(from_unit, (last_index + 1) * INDEX_UNIT_BYTES, unread=True)
        except StoreFull as error:
            error.leaves_bytes = True
            raise
        except StoreIOError as error:
            self.failed = True
            raise StoreIOError(f"clearing what was written beyond entry {end.index}: {error}") from error
        self.left_behind = None

    def begin_cut(self) -> None:
        """Whatever is on the disk is behind the end soon, and to be cleared: what could not be taken back, too."""
        places = [(self.end.end_pos, self.end.index), self.left_behind, self.half_cut]
        known = [place for place in places if place is not None]
        self.half_cut = max(pos for pos, _ in known), max(index for _, index in known)
        self.left_behind = None

    def clear(self, last: Mark) -> None:
        """Zeroes what was cut behind `last`, removes the files that held nothing else, and syncs. A writer's work.

        Where there is no space for the zeros, `half_cut` goes on saying how far they are wanted, and nothing is
        appended before they are there. Until then a start finds a part of what was cut, from its front on, in the log
        again: entries that nobody counts on, and their leader has them cut once more. Raises StoreFull, StoreIOError.
        """
        if self.half_cut is None:
            return
        to_pos, last_index = self.half_cut
        from_unit = (last.index + 1) * INDEX_UNIT_BYTES
        try:
            last_file = self.data.find(last.end_pos if last.end_pos == self.begin_pos else last.end_pos - 1)
            # Also for readers that hold the files open; and the filler behind the last entry goes.
            self.data.zero(last.end_pos, max(to_pos, last.end_pos + BLANK_BYTES))
            if last_file is not None:
                self.data.drop_from(last_file.end)
            self.index.zero(from_unit, (last_index + 1) * INDEX_UNIT_BYTES)
            self.index.drop_from(from_unit)
            self.data.sync()
            self.index.sync()
        except StoreIOError as error:
            self.failed = True
            raise StoreIOError(f"clearing what was cut behind entry {last.index}: {error}") from error
        self.half_cut = None

    def finish_cut(self) -> None:
        """What a cut found no space for. A writer's work. Raises StoreFull, StoreIOError."""
        self.refuse_after_failure()
        self.is_cutting = True
        try:
            self.clear(self.end)
        finally:
            self.is_cutting = False

    def close(self) -> None:
        """Closes every file; nothing is synced here."""
        self.data.close()
        self.index.close()
