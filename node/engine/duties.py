"""Carries out the core's effects in their order of duty, and reports each result to the core.

An order and its report stand side by side here, so that one file says how each effect runs. What speaks of a hard state
that is being saved waits for it (`held_back`); everything else goes on.

Invariants: no message and no completion overtakes the hard state that it depends on; each report enters the core
through the engine, which ends if that raises; a disk error ends the engine and is never retried (SAFETY S1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, ParamSpec, Protocol

from node.config import Settings
from node.consensus.effects import (
    BeginBehind,
    Effects,
    FetchLog,
    LookUp,
    MendLog,
    OpenSnapshot,
    ReadSlab,
    ReadSnapshot,
    Send,
    TakePart,
    TruncateLog,
)
from node.consensus.replica import Replica
from node.engine.applier import Applier, Machine
from node.engine.client_requests import ClientRequests
from node.engine.disk import Disk
from node.engine.feeder import Feeder
from node.engine.held_back import HeldBack
from node.engine.log_reads import LogReads
from node.engine.machine_requests import MachineRequests
from node.engine.peer_links import PeerLinks
from node.engine.process import Process
from node.engine.proposals import Done
from node.engine.retention import Retention
from node.engine.scrubber import Scrubber
from node.engine.snapshot_scrub import SnapshotScrubs
from node.engine.snapshot_transfer import SnapshotTransfer
from node.protocol.entry import Slab
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault, Mended
from node.store.log_store import EntryMeta, HardState, LogStore

DISK_FULL_RETRY_S: Final = 2.0
P = ParamSpec("P")


class Driver(Protocol):
    """What the duties need of the engine."""

    replica: Replica
    client_requests: ClientRequests
    machine_requests: MachineRequests | None
    now_ns: Callable[[], int]

    def guarded(self, step: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None: ...
    def step(self, step: Callable[[], object]) -> None: ...
    def turn_if_wanted(self) -> None: ...
    def fail(self, reason: str) -> None: ...
    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None: ...


class Duties:
    """One per engine: the disk, the scrub, the state machine's feeder, and what waits for a hard state."""

    def __init__(
        self,
        driver: Driver,
        store: LogStore,
        settings: Settings,
        links: PeerLinks,
        done: Done,
        process: Process,
        applier: Applier | None,
        machine: Machine | None = None,
    ) -> None:
        """`done` holds the outcomes that the core has handed on, and their receivers."""
        self._driver, self._store, self._links, self._done = driver, store, links, done
        self._loop = process.loop
        self._member = driver.replica.member
        self.held: HeldBack[Send] = HeldBack()
        self.disk = Disk(
            store, driver.replica.config.flush, log_epoch=lambda: driver.replica.log_epoch,
            flushed=self._flushed, truncated=self._truncated, begun=self._begun, mended=self._mended,
            damaged=self._damaged, fail=driver.fail, process=process,
        )  # fmt: skip
        self.reads = LogReads(store, self.disk)
        self.retention = Retention(driver, store, self.disk, settings.retention)
        self.feeder = Feeder(driver.replica, self.reads, applier, driver.now_ns, driver.step)
        self.snapshots: SnapshotTransfer | None = None
        self.snapshot_scrubs: SnapshotScrubs | None = None
        if machine is not None:
            directory, save, readers = settings.store_directory, self._save_snapshot, process.readers
            self.snapshots = SnapshotTransfer(store, directory, readers, self, driver.fail, save)
            self.snapshot_scrubs = SnapshotScrubs(directory, readers, machine, self._snapshots_damaged, driver.note)
        self.scrubber = Scrubber(
            store, self.disk, bytes_per_s=settings.store.scrub_bytes_per_s, pause_s=settings.store.scrub_pause_s,
            found=self._scrub_found, finished=self._scrub_finished, snapshots=self.snapshot_scrubs,
        )  # fmt: skip
        self._space_timer: asyncio.TimerHandle | None = None

    def _save_snapshot(self, index: int) -> None:
        if self._driver.machine_requests is not None:
            self._driver.machine_requests.save_upto(index)

    def start(self) -> None:
        self.disk.watch_place()
        self.scrubber.start()
        self.retention.start()
        self.feeder.start()

    def stop(self) -> None:
        """Begins nothing any more; the disk is closed later, once nobody sends."""
        if self._space_timer is not None:
            self._space_timer.cancel()
        self.scrubber.stop()
        self.retention.stop()
        self.feeder.stop()
        if self.snapshots is not None:
            self.snapshots.close()
        if self.snapshot_scrubs is not None:
            self.snapshot_scrubs.close()

    # --- orders -------------------------------------------------------------------------------------------------
    def carry_out(self) -> bool:
        """The batch, top to bottom; whether there was something out of the ordinary (an event) in it."""
        driver = self._driver
        effects = driver.replica.take_effects()
        unusual = effects.is_unusual
        if unusual and effects.hard_state is not None:
            number = self.held.ordered(spoken_of=effects.spoken_of)
            self.disk.save(effects.hard_state, partial(self.saved, number, effects.hard_state))
        if self._store.faults_unsaved:
            self.disk.save_faults()
        closed = self.held.closed
        for to, message in effects.sends:
            if closed:
                self.held.hold(Send(to, message))
            else:
                self._links.send(to, message)
        if self._done and not closed:
            done = self._done.copy()
            self._done.clear()
            for deliver, outcome in done:
                deliver(outcome)
            driver.client_requests.release()
        if unusual:
            self._order_unusual(effects)
        if effects.sync_wanted:
            self.disk.want_sync()
        if unusual:
            if effects.apply is not None:
                self.feeder.carry_out(effects.apply)
            for event in effects.events:
                driver.note(event.kind, event.severity, event.detail)
        if self._member.short_of_space and self._space_timer is None:
            self._space_timer = self._loop.call_later(DISK_FULL_RETRY_S, self._try_space)
            self.retention.look()
        return unusual and bool(effects.events)

    def _order_unusual(self, effects: Effects) -> None:
        """What stands between the completions and the sync."""
        disk = self.disk
        if effects.truncate is not None:
            disk.truncate(effects.truncate)
        if effects.begin_behind is not None:
            disk.begin_behind(effects.begin_behind)
        for read in effects.reads:
            disk.read(read, self._slab_read)
        for look in effects.looks:
            disk.look(look, self._looked)
        if self.snapshots is not None:
            for snapshot in effects.snapshots:
                self.snapshots.carry_out(snapshot)
        for fetch in effects.fetches:
            disk.fetch(fetch, self._fetched)
        if effects.mend is not None:
            disk.mend(effects.mend)
        if effects.scrub_wanted:
            self.scrubber.ask("fork")

    # --- reports ------------------------------------------------------------------------------------------------
    def _flushed(self, log_epoch: int, end_index: int) -> None:
        driver = self._driver
        driver.guarded(driver.replica.disk.flushed, log_epoch, end_index, driver.now_ns())
        driver.turn_if_wanted()

    def saved(self, number: int, state: HardState) -> None:
        """The hard state of that save is durable: what waited for it leaves, unless it is stale by now."""
        driver, replica = self._driver, self._driver.replica
        now = driver.now_ns()
        for send in self.held.durable(number):
            if (message := replica.as_it_leaves(send.message, now)) is not None:
                self._links.send(send.to, message)
        driver.step(lambda: replica.disk.hard_state_saved(state, driver.now_ns()))

    def _truncated(self, order: TruncateLog, cut: bool) -> None:
        epoch, now, reports = order.log_epoch, self._driver.now_ns(), self._driver.replica.disk
        if cut:
            self._driver.step(lambda: reports.truncated(epoch, order.cut_index, now))
        else:
            self._driver.step(lambda: reports.truncate_failed(epoch, now))

    def _begun(self, order: BeginBehind, error: str | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.begun_behind(order, error, driver.now_ns()))
        if error is None:
            self.feeder.reload()

    def snapshot_opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.snapshot_opened(order, meta, why, driver.now_ns()))

    def snapshot_read(self, order: ReadSnapshot, piece: bytes | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.snapshot_read(order, piece, driver.now_ns()))

    def part_taken(self, order: TakePart, taken: Taken | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.part_taken(order, taken, driver.now_ns()))
        if order.keeps and taken is not None and taken.is_whole:
            self.feeder.reload()

    def _slab_read(self, request: ReadSlab, slab: Slab | None) -> None:
        driver = self._driver
        if slab is None:
            driver.note("read_failed", "warning", {"peer": request.peer_id, "index": request.first_index})
        driver.step(lambda: driver.replica.disk.slab_read(request, slab, driver.now_ns()))

    def _looked(self, order: LookUp, meta: EntryMeta | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.looked(order, meta, driver.now_ns()))

    def _damaged(self, error: StoreCorrupt, first_index: int) -> None:
        """Bytes that were durable cannot be read as they were written (S6): others lead, and serve that range."""
        self._scrub_found(error.faults or [Fault(first_index, first_index, "record_invalid", str(error))])

    def _scrub_found(self, faults: Sequence[Fault]) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.log_damaged(faults, driver.now_ns()))

    def _scrub_finished(self) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.scrubbed(driver.now_ns()))

    def _snapshots_damaged(self, text: str | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.snapshots_damaged(text, driver.now_ns()))

    def _fetched(self, order: FetchLog, slab: Slab | None) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.fetched(order, slab, driver.now_ns()))

    def _mended(self, order: MendLog, result: Mended | None, error: str) -> None:
        driver = self._driver
        driver.step(lambda: driver.replica.disk.mended(order.log_epoch, result, error, driver.now_ns()))

    def _try_space(self) -> None:
        """Lets the next append find out whether there is space again; the alarm ends with what the disk itself says."""
        self._space_timer = None
        self.retention.look()
        self.disk.ask_space(self._space_known)

    def _space_known(self, is_there: bool) -> None:
        driver = self._driver
        if self.retention.refuses_writes:  # by the configured ratio: no write finds out
            self._space_timer = self._loop.call_later(DISK_FULL_RETRY_S, self._try_space)
            return
        driver.step(lambda: driver.replica.disk.disk_full(False, driver.now_ns(), still_short=not is_there))
