"""The engine's disk work, off the loop: group commits, truncations, reads for lagging peers.

Invariants: one thread writes (syncs and truncations never overlap), others read; everything that comes back is handed
to `done` on the loop. An error of the disk is never retried: it goes to `fail`, which ends the engine (SAFETY S1).
Measured: a sync on the loop when idle (144 us here) was no faster than one in the thread, and slower on a busy machine:
there is no such path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from node.consensus.effects import BeginBehind, FetchLog, LookUp, MendLog, ReadSlab, TruncateLog
from node.engine.process import Process
from node.engine.writer import Ended
from node.protocol.codes import FlushMode
from node.protocol.entry import EntryError, Slab
from node.store.errors import StoreCorrupt, StoreFull, StoreIOError, StoreMoved
from node.store.faults.results import Mended, Scrubbed
from node.store.log_store import EntryMeta, HardState, LogStore, SyncTicket
from node.store.pins import PinnedError
from node.store.retention import Survey

T = TypeVar("T")
BACKGROUND_SYNC_S: Final = 0.01  # flush async: DLedger's interval
PLACE_LOOK_S: Final = 1.0  # so often an engine that syncs nothing looks whether its directory is still there
IDLE_SLOT_S: Final = 0.02  # after this much quiet a checkpoint slot is written (SAFETY S2)


class Disk:
    """One per engine. The callbacks run on the loop."""

    def __init__(
        self,
        store: LogStore,
        flush: FlushMode,
        *,
        log_epoch: Callable[[], int],
        flushed: Callable[[int, int], None],
        truncated: Callable[[TruncateLog, bool], None],
        begun: Callable[[BeginBehind, str | None], None],
        mended: Callable[[MendLog, Mended | None, str], None],
        damaged: Callable[[StoreCorrupt, int], None],
        fail: Callable[[str], None],
        process: Process,
    ) -> None:
        self._store, self.flush = store, flush
        self._log_epoch, self._flushed, self._truncated = log_epoch, flushed, truncated
        self._begun, self._mended, self._damaged, self._fail = begun, mended, damaged, fail
        self._loop, self._writer, self._readers = process.loop, process.writer, process.readers
        self._reading: set[Future[Any]] = set()
        # By peer: the slab that it will most likely need next (its first index, the log's epoch, the read under way).
        self._ahead: dict[str, tuple[int, int, Future[Slab]]] = {}
        self._syncing = False
        self._saving_faults = False
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._quiet_since = 0.0
        self._closed = False

    # --- group commit -------------------------------------------------------------------------------------------
    def want_sync(self) -> None:
        """Starts a group commit; while one runs, the next one follows it and takes everything that came meanwhile."""
        if self._syncing:
            self._again = True
        elif self.flush is FlushMode.SYNC:
            self._start_sync()
        elif self._timer is None:
            self._timer = self._loop.call_later(BACKGROUND_SYNC_S, self._background)

    def _background(self) -> None:
        self._timer = None
        if not self._syncing and not self._closed:
            self._start_sync()

    def _start_sync(self) -> None:
        ticket = self._store.prepare_sync()
        if ticket is None:
            return
        self._syncing = True
        self._writer.run(ticket.run, partial(self._synced, ticket, self._log_epoch(), True))

    def _synced(self, ticket: SyncTicket, log_epoch: int, slot_owed: bool, outcome: Ended[None]) -> None:
        if self._closed:
            return
        if outcome.error is not None:  # and none follows, however long the engine takes to end
            moved = isinstance(outcome.error, StoreMoved)
            why = "" if moved else "fsync failed, and a failed fsync is never tried again: "
            self._fail(f"{why}{outcome.error}")
            return
        self._syncing = False
        end_index = self._store.finish_sync(ticket)
        again, self._again = self._again, False
        if again:
            self.want_sync()
        self._flushed(log_epoch, end_index)  # somebody waits for it; for what follows nobody does
        if slot_owed and not self._syncing and not self._closed:
            self._quiet_since = self._loop.time()
            if self._idle is None:
                self._idle = self._loop.call_later(IDLE_SLOT_S, self._idle_slot)

    def _idle_slot(self) -> None:
        """After the last sync of a burst, a checkpoint slot is written in any case."""
        self._idle = None
        left_s = IDLE_SLOT_S - (self._loop.time() - self._quiet_since)
        if self._closed or self._syncing:
            return
        if left_s > 0.001:
            self._idle = self._loop.call_later(left_s, self._idle_slot)
            return
        ticket = self._store.prepare_checkpoint()
        if ticket is not None:
            self._syncing = True
            self._writer.run(ticket.run, partial(self._synced, ticket, self._log_epoch(), False))

    # --- term and vote, known faults ----------------------------------------------------------------------------
    def save(self, state: HardState, done: Callable[[], None]) -> None:
        """Makes the hard state durable, in the order in which it was asked for."""

        def finished(outcome: Ended[None]) -> None:
            if self._closed:
                return
            if outcome.error is not None:
                self._fail(f"term and vote could not be saved: {outcome.error}")
            else:
                done()

        self._writer.run(partial(self._store.save_hard_state, state), finished)

    def save_faults(self) -> None:
        """Keeps what is known to be damaged; nobody waits for it."""

        def finished(outcome: Ended[None]) -> None:
            self._saving_faults = False
            if outcome.error is not None and not self._closed:
                self._fail(f"what is damaged could not be kept: {outcome.error}")

        if not self._saving_faults:
            self._saving_faults = True
            self._writer.run(self._store.save_faults, finished)

    # --- the place of it all ------------------------------------------------------------------------------------
    def watch_place(self) -> None:
        """Each sync looks by itself; what was confirmed before, without one since, is not there any more either."""

        def looked(outcome: Ended[bool]) -> None:
            if self._closed:
                return
            if outcome.value:
                self._look = self._loop.call_later(PLACE_LOOK_S, self.watch_place)
            else:
                self._fail("the data directory is not the one any more that was opened")

        self._writer.run(self._store.is_in_place, looked)

    # --- space --------------------------------------------------------------------------------------------------
    def ask_space(self, done: Callable[[bool], None]) -> None:
        """Reports to `done` whether the disk has space; False where it does not even answer."""

        def finished(outcome: Ended[bool]) -> None:
            if self._closed:
                return
            if isinstance(outcome.error, StoreIOError):
                self._fail(f"zeroing what was cut failed: {outcome.error}")
            else:
                self.want_sync()  # while zeros were written none could begin, and who wanted one asks no more
                done(outcome.value is True)

        self._writer.run(self._store.has_space, finished)

    # --- the front of the log -----------------------------------------------------------------------------------
    def survey(self, files_max: int, done: Callable[[Survey], None]) -> None:
        """How old, large and full everything is."""

        def finished(outcome: Future[Survey]) -> None:
            error = outcome.exception()
            if error is None:
                done(outcome.result())
            else:
                self._fail(f"looking at the oldest files failed: {error!r}")

        if not self._closed:
            self._report(self._readers.submit(self._store.survey, files_max), finished)

    def remove_prefix(self, through_index: int, forced: bool, done: Callable[[str], None]) -> None:
        """Removes files from the front; then why it could not be done, or nothing. A writer's work."""

        def finished(outcome: Ended[None]) -> None:
            error = outcome.error
            if self._closed:
                return
            if error is None or isinstance(error, PinnedError | StoreFull | StoreCorrupt):
                done("" if error is None else str(error))
            else:
                self._fail(f"removing entries up to {through_index} failed: {error}")

        self._writer.run(partial(self._store.remove_prefix, through_index, forced=forced), finished)

    # --- truncation ---------------------------------------------------------------------------------------------
    def truncate(self, order: TruncateLog) -> None:
        """Archives and cuts; the core appends nothing meanwhile."""
        work = partial(self._store.truncate, order.cut_index, order.record)
        self._writer.run(work, partial(self._cut, order))

    def _cut(self, order: TruncateLog, outcome: Ended[None]) -> None:
        error = outcome.error
        if self._closed:
            return
        if error is None or isinstance(error, StoreFull):
            self._truncated(order, error is None)
        else:
            self._fail(f"the log could not be cut at {order.cut_index}: {error}")

    def begin_behind(self, order: BeginBehind) -> None:
        """Archives the whole log and begins it behind a base; the core appends nothing meanwhile."""

        def finished(outcome: Ended[None]) -> None:
            error = outcome.error
            if self._closed:
                return
            self._ahead.clear()
            if error is None or isinstance(error, StoreFull | EntryError):
                self._begun(order, None if error is None else str(error))
            else:
                self._fail(f"the log could not begin behind entry {order.base.meta.index}: {error}")

        self._writer.run(partial(self._store.begin_behind, order.base, order.record), finished)

    # --- reads --------------------------------------------------------------------------------------------------
    def read(self, request: ReadSlab, done: Callable[[ReadSlab, Slab | None], None]) -> None:
        """Reads for a lagging peer; None where that range cannot be served.

        What comes behind is read while this is being sent: the next request mostly finds it done.
        """
        if request.pause_ns > 0:
            now = replace(request, pause_ns=0)
            self._loop.call_later(request.pause_ns / 1e9, self.read, now, lambda _, slab: done(request, slab))
            return

        def finished(slab: Slab | None, _error: str) -> None:
            if slab is not None and slab.last_index < self._store.end_index:
                self._read_ahead(request, slab.last_index + 1)
            done(request, slab)

        ahead = self._ahead.pop(request.peer_id, None)
        wanted = ahead is not None and ahead[:2] == (request.first_index, request.log_epoch)
        if ahead is not None and wanted and not _failed(ahead[2]):
            self._take(ahead[2], request.first_index, finished)
        else:
            self.read_slab(request.first_index, request.max_bytes, finished)

    def _read_ahead(self, request: ReadSlab, index: int) -> None:
        if not self._closed and self._store.recent_slab(index, 1) is None:
            work = self._readers.submit(self._store.read_slab, index, request.max_bytes)
            self._under_way(work)
            self._ahead[request.peer_id] = (index, request.log_epoch, work)

    def read_slab(self, first_index: int, max_bytes: int, done: Callable[[Slab | None, str], None]) -> None:
        """A slab from disk, and why there is none. Memory was asked before: this is for what is cold."""
        if not self._closed:
            self._take(self._readers.submit(self._store.read_slab, first_index, max_bytes), first_index, done)

    def look(self, order: LookUp, done: Callable[[LookUp, EntryMeta | None], None]) -> None:
        """Reads an entry's head; None where it is not there any more, or damaged."""
        if not self._closed:
            work = self._readers.submit(self._store.read_meta, order.index)
            self._take(work, order.index, lambda meta, _error: done(order, meta))

    def _take(self, work: Future[T], first_index: int, done: Callable[[T | None, str], None]) -> None:
        def finished(outcome: Future[T]) -> None:
            error = outcome.exception()
            if error is None:
                done(outcome.result(), "")
            elif isinstance(error, StoreIOError):
                self._fail(f"reading at index {first_index} failed: {error}")
            elif isinstance(error, StoreCorrupt):
                self._damaged(error, first_index)
                done(None, str(error))
            elif isinstance(error, KeyError):
                done(None, str(error))
            else:
                self._fail(f"reading at index {first_index} failed: {error!r}")

        self._report(work, finished)

    def fetch(self, order: FetchLog, done: Callable[[FetchLog, Slab | None], None]) -> None:
        """Reads for a damaged peer; None where that range cannot be given."""
        self.read_slab(order.first_index, order.max_bytes, lambda slab, _error: done(order, slab))

    # --- damage -------------------------------------------------------------------------------------------------
    def mend(self, order: MendLog) -> None:
        """Writes a peer's entries into a fault: the writer's work, like a cut."""

        def finished(outcome: Ended[Mended]) -> None:
            error = outcome.error
            if self._closed:
                return
            self._ahead.clear()  # what was read ahead may be from before
            if error is None:
                self._mended(order, outcome.value, "")
            elif isinstance(error, StoreFull | EntryError):
                self._mended(order, None, str(error))
            else:
                self._fail(f"mending from entry {order.first_index} on failed: {error}")

        self._writer.run(partial(order.carry_out, self._store), finished)

    def scrub(self, from_index: int, max_bytes: int, done: Callable[[Scrubbed | None, str], None]) -> None:
        """One step of a scrub; None where the log was cut or trimmed meanwhile: then nothing it met counts."""
        log_epoch = self._log_epoch()

        def finished(outcome: Future[Scrubbed]) -> None:
            error = outcome.exception()
            if isinstance(error, StoreIOError):
                self._fail(f"scrubbing from entry {from_index} on failed: {error}")
            elif log_epoch != self._log_epoch() or isinstance(error, KeyError):
                done(None, "the log was cut meanwhile")
            elif isinstance(error, StoreCorrupt):
                self._damaged(error, from_index)
                done(Scrubbed(from_index + 1), str(error))
            elif error is not None:
                self._fail(f"scrubbing from entry {from_index} on failed: {error!r}")
            else:
                done(outcome.result(), "")

        if not self._closed:
            self._report(self._readers.submit(self._store.scrub, from_index, max_bytes), finished)

    # --- threads ------------------------------------------------------------------------------------------------
    def _report(self, work: Future[T], done: Callable[[Future[T]], Any]) -> None:
        def back_to_loop(outcome: Future[T]) -> None:
            if not self._closed:
                self._loop.call_soon_threadsafe(done, outcome)

        self._under_way(work)
        work.add_done_callback(back_to_loop)

    def _under_way(self, work: Future[Any]) -> None:
        self._reading.add(work)
        work.add_done_callback(self._reading.discard)

    def close(self) -> None:
        """No callback comes afterwards. The store may be closed once the process is, or `drained` has returned."""
        self._closed = True
        for timer in (self._timer, self._idle, self._look):
            if timer is not None:
                timer.cancel()

    async def drained(self) -> None:
        """What was given before is done: the store of a group that ended may be closed, while other groups go on."""
        written = asyncio.Event()
        self._writer.run(lambda: None, lambda _ended: written.set())
        await written.wait()
        for work in list(self._reading):
            work.cancel()
        await asyncio.gather(*map(asyncio.wrap_future, list(self._reading)), return_exceptions=True)


def _failed(work: Future[Slab]) -> bool:
    """Whether it met an error, perhaps long ago: what was damaged then may be healed now."""
    return work.done() and work.exception() is not None
