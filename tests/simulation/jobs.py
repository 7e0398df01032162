"""What a simulated member does to its disk beside its loop, as `node/engine/disk.py` does: syncs, cuts, reads.

One writer does one thing at a time; readers work beside it. A job has three moments: it is asked for, its work happens
(all at once: that is as fine as this simulation gets), and the loop hears of it.

Invariants: nothing of a job survives its process; an I/O error ends the process and is never retried (SAFETY S1).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from node.consensus.api import MS
from node.consensus.effects import BeginBehind, FetchLog, LookUp, MendLog, ReadSlab, TruncateLog
from node.engine.disk import BACKGROUND_SYNC_S, IDLE_SLOT_S
from node.protocol.codes import FlushMode
from node.protocol.entry import EntryError, Slab
from node.store.errors import StoreCorrupt, StoreError, StoreFull, StoreIOError
from node.store.faults.results import Mended, Scrubbed
from node.store.log_store import EntryMeta, HardState, LogStore, SyncTicket
from node.store.pins import PinnedError
from tests.simulation.observer import Removal, Violation

if TYPE_CHECKING:
    from tests.simulation.process import Process

BACKGROUND_SYNC_NS = int(BACKGROUND_SYNC_S * 1e9)
IDLE_SLOT_NS = int(IDLE_SLOT_S * 1e9)
SLOW_FACTOR = 20
SCRUB_BYTES = 4096

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]  # the work's result, or why there is none


class Jobs:
    """One per incarnation."""

    def __init__(self, process: Process, store: LogStore, rng: random.Random) -> None:
        self._process, self._store, self._rng = process, store, rng
        config = process.world.config
        self._sync_ns = max(1, int(config.sync_ms * MS))
        self._slow = config.slow_disk
        self._writes: deque[tuple[Callable[[], Any], Done]] = deque()
        self._writing = False
        self._under_way: Callable[[], Any] | None = None  # what the writer took up and has not done yet
        self._syncing = False
        self._saving_faults = False
        self._again = False
        self._background_due = False
        self._scrubbing = False
        self.scrubs = 0  # whole passes that ended
        self._scrubbed_through = self._count_through = -1  # what a pass has read, and what it has to
        self._idle_due = False
        self._quiet_since = 0

    # --- group commit ---------------------------------------------------------------------------------------------
    def want_sync(self) -> None:
        """Starts a group commit; while one runs, the next one follows it and takes everything that came meanwhile."""
        if self._syncing:
            self._again = True
        elif self._process.replica.config.flush is FlushMode.SYNC:
            self._start_sync()
        elif not self._background_due:
            self._background_due = True
            self._process.later(BACKGROUND_SYNC_NS, self._background)

    def _background(self) -> None:
        self._background_due = False
        if not self._syncing:
            self._start_sync()

    def _start_sync(self) -> None:
        ticket = self._store.prepare_sync()
        if ticket is not None:
            self._run_ticket(ticket, slot_owed=True)

    def _run_ticket(self, ticket: SyncTicket, *, slot_owed: bool) -> None:
        self._syncing = True
        self._write(ticket.run, partial(self._synced, ticket, self._process.log_epoch, slot_owed))

    def _synced(self, ticket: SyncTicket, log_epoch: int, slot_owed: bool, _: None, error: Exception | None) -> None:
        self._syncing = False
        if error is not None:
            self._process.fail(f"fsync failed, and a failed fsync is never tried again: {error}")
            return
        end_index = self._store.finish_sync(ticket)
        self._process.world.tell.synced(self._process.member, end_index)
        again, self._again = self._again, False
        if again:
            self.want_sync()
        elif slot_owed:
            self._quiet_since = self._process.world.now
            if not self._idle_due:
                self._idle_due = True
                self._process.later(IDLE_SLOT_NS, self._idle_slot)
        self._process.flushed(log_epoch, end_index)

    def _idle_slot(self) -> None:
        """After the last sync of a burst, a checkpoint slot is written in any case."""
        self._idle_due = False
        if self._syncing:
            return
        left_ns = self._quiet_since + IDLE_SLOT_NS - self._process.world.now
        if left_ns > MS:
            self._idle_due = True
            self._process.later(left_ns, self._idle_slot)
            return
        ticket = self._store.prepare_checkpoint()
        if ticket is not None:
            self._run_ticket(ticket, slot_owed=False)

    # --- term and vote, known faults ------------------------------------------------------------------------------
    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Makes the hard state durable, in the order in which it was asked for."""
        member = self._process.member

        def work() -> None:
            self._store.save_hard_state(state)
            member.note_voter_state(state)
            self._process.world.tell.persisted(member, state)

        def finished(_: None, error: Exception | None) -> None:
            if error is not None:
                self._process.fail(f"term and vote could not be saved: {error}")
            else:
                done()

        self._write(work, finished)

    def save_faults(self) -> None:
        """Keeps what is known to be damaged; nobody waits for it."""

        def finished(_: None, error: Exception | None) -> None:
            self._saving_faults = False
            if error is not None:
                self._process.fail(f"what is damaged could not be kept: {error}")

        if not self._saving_faults:
            self._saving_faults = True
            self._write(self._store.save_faults, finished)

    # --- truncation -----------------------------------------------------------------------------------------------
    def truncate(self, order: TruncateLog) -> None:
        """Archives and cuts; the core appends nothing meanwhile."""
        self._process.member.damage.cutting()
        self._write(partial(self._store.truncate, order.cut_index, order.record), partial(self._cut, order))

    def _cut(self, order: TruncateLog, _: None, error: Exception | None) -> None:
        if error is None:
            self._process.world.tell.cut(self._process.member, order.record)
        if error is None or isinstance(error, StoreFull):
            self._process.truncated(order, error is None)
        else:
            self._process.fail(f"the log could not be cut at {order.cut_index}: {error}")

    def begin_behind(self, order: BeginBehind) -> None:
        """Archives the whole log and begins it behind a base; the core appends nothing meanwhile."""
        member = self._process.member
        member.damage.cutting()

        def work() -> None:
            self._store.begin_behind(order.base, order.record)
            self._process.world.tell.begun_behind(member, order)

        def finished(_: None, error: Exception | None) -> None:
            if error is None or isinstance(error, StoreFull | EntryError):
                self._process.begun_behind(order, None if error is None else str(error))
            else:
                self._process.fail(f"the log could not begin behind entry {order.base.meta.index}: {error}")

        self._write(work, finished)

    # --- the front of the log -------------------------------------------------------------------------------------
    def remove_prefix(self, through_index: int, *, forced: bool) -> None:
        """Whole files; a pin may have come meanwhile."""
        member, removal = self._process.member, Removal(through_index, forced)
        self._process.world.tell.to_be_trimmed(member, removal)

        def work() -> None:
            begin = self._store.begin_index  # by now: it may have begun anew since this was asked for
            self._store.remove_prefix(through_index, forced=forced)
            self._process.world.tell.trimmed(member, begin, removal)

        def finished(_: None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, PinnedError | StoreFull | StoreCorrupt):
                self._process.fail(f"removing entries up to {through_index} failed: {error}")

        self._write(work, finished)

    # --- reads ----------------------------------------------------------------------------------------------------
    def read(self, request: ReadSlab) -> None:
        """Reads for a lagging peer; None where that range cannot be served."""

        def work() -> None:
            self.read_slab(
                request.first_index, request.max_bytes, lambda slab, _error: self._process.slab_read(request, slab)
            )

        if request.pause_ns:
            self._process.later(request.pause_ns, work)
        else:
            work()

    def read_slab(self, first_index: int, max_bytes: int, done: Callable[[Slab | None, str], None]) -> None:
        """A slab from disk, and why there is none. Memory was asked before: this is for what is cold."""
        self._read(partial(self._store.read_slab, first_index, max_bytes), first_index, done)

    def look(self, order: LookUp) -> None:
        """An entry's head; None where it is not there any more, or damaged."""

        def finished(meta: EntryMeta | None, _error: str) -> None:
            self._process.looked(order, meta)

        self._read(partial(self._store.read_meta, order.index), order.index, finished)

    def _read(self, work: Callable[[], T], first_index: int, done: Callable[[T | None, str], None]) -> None:
        def finished(found: T | None, error: Exception | None) -> None:
            if error is None:
                done(found, "")
            elif isinstance(error, StoreIOError):
                self._process.fail(f"reading at index {first_index} failed: {error}")
            elif isinstance(error, StoreCorrupt):
                self._process.damaged(error.faults)
                done(None, str(error))
            elif isinstance(error, KeyError):
                done(None, str(error))
            else:
                raise error

        self._process.later(self._pace(self._sync_ns // 4), self._work, work, finished)

    def beside(self, work: Callable[[], T], done: Callable[[T | None, Exception | None], None]) -> None:
        """Whatever else the readers do; the caller judges what went wrong."""
        self._process.later(self._pace(self._sync_ns // 4), self._work, work, done)

    # --- repair ---------------------------------------------------------------------------------------------------
    def fetch(self, order: FetchLog) -> None:
        """Reads for a damaged peer."""

        def finished(slab: Slab | None, _error: str) -> None:
            self._process.fetched(order, slab)

        self.read_slab(order.first_index, order.max_bytes, finished)

    def mend(self, order: MendLog) -> None:
        """Writes a peer's entries into a fault."""
        self._write(partial(order.carry_out, self._store), partial(self._mended, order))

    def _mended(self, order: MendLog, mended: Mended | None, error: Exception | None) -> None:
        if error is None or isinstance(error, (StoreFull, EntryError)):
            self._process.mended(order, mended, "" if error is None else str(error))
        else:
            self._process.fail(f"entry {order.first_index} could not be mended: {error}")

    def scrub(self) -> None:
        """Reads the whole log from the disk once, step by step, and reports what is damaged."""
        if not self._scrubbing:
            self._scrubbing = True
            self._scrub_from(self._store.begin_index)

    def count_scrubs_anew(self) -> None:
        """Only passes count that begin from now on and read all that is written by now: what is not durable yet is
        left to a later one."""
        self.scrubs = -1 if self._scrubbing else 0
        self._count_through = self._store.end_index

    def _scrub_from(self, index: int) -> None:
        self._scrubbed_through = self._store.durable_index
        work = partial(self._store.scrub, index, SCRUB_BYTES)
        self._process.later(self._pace(self._sync_ns), self._work, work, self._scrubbed)

    def _scrubbed(self, step: Scrubbed | None, error: Exception | None) -> None:
        if error is not None:
            raise error
        assert step is not None
        if step.faults:
            self._process.damaged(step.faults)
        if step.next_index <= self._store.end_index:
            self._scrub_from(step.next_index)
        else:
            self._scrubbing = False
            if self.scrubs < 0 or self._scrubbed_through >= min(self._count_through, self._store.end_index):
                self.scrubs += 1
            self._process.scrubbed()

    # --- the two kinds of threads ---------------------------------------------------------------------------------
    def _pace(self, usual_ns: int) -> int:
        slow = self._slow and self._process.world.faulty and self._rng.random() < self._slow
        return (usual_ns // 2 + self._rng.randrange(usual_ns + 1)) * (SLOW_FACTOR if slow else 1)

    def _write(self, work: Callable[[], Any], done: Done) -> None:
        self._writes.append((work, done))
        if not self._writing:
            self._next_write()

    def _next_write(self) -> None:
        self._writing = bool(self._writes)
        if self._writing:
            self._under_way, done = self._writes.popleft()
            self._process.later(self._pace(self._sync_ns), self._write_now, partial(self._written, done))

    def _write_now(self, done: Done) -> None:
        work, self._under_way = self._under_way, None
        assert work is not None
        self._work(work, done)

    def _written(self, done: Done, result: Any, error: Exception | None) -> None:
        self._next_write()
        done(result, error)

    def _work(self, work: Callable[[], Any], done: Done) -> None:
        """In its thread; a crash in the middle of it ends the process."""
        result, failure = None, None
        try:
            result = work()
        except Violation:
            raise
        except Exception as error:
            failure = error
        if self._rng.random() < 0.3:  # the loop is busy with something else first
            self._process.later(self._rng.randrange(MS), done, result, failure)
        else:
            done(result, failure)

    def drain(self) -> None:
        """A clean end: what runs and what waits is done, and nobody hears of it."""
        if self._under_way is not None:
            self._writes.appendleft((self._under_way, lambda _result, _error: None))
            self._under_way = None
        while self._writes:
            work, _ = self._writes.popleft()
            with suppress(StoreError, EntryError):  # the store itself remembers what failed
                work()
