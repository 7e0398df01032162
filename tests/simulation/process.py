"""One simulated process: the real replica and the real store, driven as `node/engine/engine.py` drives them.

Whatever arrives enters the core, then one turn carries out its effects in their order of duty. A turn sometimes
begins a little later, with everything that arrived until then.

Invariants: hard state is durable before anything that speaks of it leaves; an error of the store ends the process;
nothing of a process that ended is ever called again; any other exception out of the product is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS, Proposal, ReadOutcome, ReplicaConfig, TransferOutcome
from node.consensus.effects import (
    BeginBehind,
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
from node.consensus.lanes import LaneOpened
from node.consensus.member_changes import ChangeOutcome, MemberChange
from node.consensus.replica import Replica
from node.engine.feeder import Feeder
from node.engine.held_back import HeldBack
from node.engine.log_reads import LogReads
from node.engine.proposals import Done, Proposals
from node.protocol.entry import Slab
from node.protocol.messages import Message, ReadWay
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken
from node.store.errors import StoreError
from node.store.faults.results import Fault, Mended
from node.store.file_store import FileStore
from node.store.log_store import EntryMeta, HardState
from tests.simulation.applier import Attachment
from tests.simulation.disk import SimulatedCrash
from tests.simulation.jobs import Jobs
from tests.simulation.links import Links
from tests.simulation.observer import Violation, of_exception
from tests.simulation.transfers import Transfers

if TYPE_CHECKING:
    from tests.simulation.member import Member

BATCHED = 0.15  # share of turns that begin a little later


class Origin:
    """A client's connection to one process, as far as the order of its appends needs it (SAFETY C4)."""

    __slots__ = ("order_broken",)

    def __init__(self) -> None:
        self.order_broken = False


class Process:
    """One incarnation of a member; see the module's docstring."""

    def __init__(self, member: Member, store: FileStore, rng: random.Random) -> None:
        self.member, self.store, self._rng = member, store, rng
        self.world, self.id, self.config, self.clock = member.world, member.id, member.config, member.clock
        self.timing = member.config.timing
        self.alive = True
        self.paused = False
        self._backlog: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._done: Done = []
        self._turn_due = False
        self._tick_at: int | None = None
        self._tick_owed = False
        self._held: HeldBack[Send] = HeldBack()
        self._seq = 0
        self._space_due = False
        self.replica = Replica(self.config, store, random.Random(rng.getrandbits(64)), self.clock.now())
        self._proposals = Proposals(self.replica, self._done)
        self.jobs = Jobs(self, store, random.Random(rng.getrandbits(64)))
        self.reads = LogReads(store, self.jobs)  # type: ignore[arg-type]
        machine = member.state_machine
        applier = None if machine is None else Attachment(machine, self.later)
        self.feeder = Feeder(self.replica, self.reads, applier, self.clock.now, self._step)
        self.snapshots = Transfers(self, random.Random(f"snapshots {self.id} {member.incarnation} {self.world.seed}"))
        self.links = Links(self, random.Random(rng.getrandbits(64)))
        self._followed = self.replica.configuration, frozenset[str]()

    def start(self) -> None:
        """The first turn, and the first connections."""
        self.links.start()
        self.feeder.start()
        self.guarded(self._turn)

    # --- events of this process -----------------------------------------------------------------------------------
    def later(self, delay_ns: int, call: Callable[..., Any], *args: Any) -> None:
        """Calls after some time, unless this process is gone by then; a paused one hears of it when it goes on."""
        self.world.schedule(delay_ns, self._fire, call, args)

    def _fire(self, call: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        if self.alive:
            self.when_awake(call, *args)
        return self.alive

    def when_awake(self, call: Callable[..., Any], *args: Any) -> None:
        """Now, or when the process goes on."""
        if self.paused:
            self._backlog.append((call, args))
        else:
            self.guarded(call, *args)

    def guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """What ends this process ends here: a crash, an error of the store."""
        self.member.touched = True
        try:
            call(*args)
        except SimulatedCrash:
            self.member.crash("io_boundary")
        except StoreError as error:
            self.fail(f"{type(error).__name__}: {error}")
        except Violation:
            raise
        except Exception as error:
            raise of_exception(self.id, error) from error

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = self.member.touched = True

    def resume(self) -> None:
        """SIGCONT: everything at once."""
        self.paused, self.member.touched = False, True
        while self._backlog and self.alive and not self.paused:
            call, args = self._backlog.pop(0)
            self.guarded(call, *args)

    # --- who belongs to the group -----------------------------------------------------------------------------------
    def tell_of_learner(self, learner: str, address: str, joined: bool) -> None:
        """As the engine does it: the core first, then the connections; perhaps after another change to the same."""
        known = learner in self.replica.configuration.learners
        if joined and not known:
            self.replica.reconfiguration.add_learner(learner, address, self.clock.now())
            self.links.add(learner)
        elif known and not joined:
            self.replica.reconfiguration.remove_learner(learner, self.clock.now())
            self.links.remove(learner)
        self._turn()

    def change_settings(self, wanted: ReplicaConfig) -> None:
        """SIGHUP: as the engine does it."""
        refused = self.replica.change_settings(wanted, self.clock.now())
        if refused is not None:
            raise Violation("settings_change", f"{self.id} refuses what is safe: {refused}")
        self._turn()

    def _follow_members(self) -> None:
        """The connections are those of the configuration in effect, as the engine keeps them."""
        replica = self.replica
        seen = replica.configuration, frozenset(replica.guests)
        if seen[0] is not self._followed[0] or seen[1] != self._followed[1]:
            self._followed = seen
            self.links.follow(seen[0].members, seen[1])

    # --- the end --------------------------------------------------------------------------------------------------
    def fail(self, reason: str) -> None:
        """As the engine ends on an error of its store: what waits is unknown, the store closes as well as it can."""
        if not self.alive:
            return
        self.member.last_error = StoreError(reason)
        try:
            with suppress(StoreError):
                self.replica.stop(self.clock.now())
            self.jobs.drain()
            with suppress(StoreError):
                self.store.close()
        except SimulatedCrash:
            self.member.crash("io_boundary")
        else:
            self.member.crash("store_error")

    def stop(self) -> None:
        """SIGTERM: a clean end."""
        self.replica.stop(self.clock.now())
        self._carry_out()
        self.jobs.drain()
        self.store.close()
        self.member.crash("stopped")

    # --- one turn -------------------------------------------------------------------------------------------------
    def _schedule_turn(self) -> None:
        if self._turn_due:
            return
        if self._rng.random() < BATCHED:
            self._turn_due = True
            self.later(self._rng.randrange(2 * MS), self._turn)
        else:
            self._turn()

    def _step(self, step: Callable[[], object]) -> None:
        """Something of the state machine's enters the core; perhaps in the middle of a turn."""
        step()
        self.later(0, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._proposals.waiting and not self._tick_owed:
            self._proposals.propose(self.clock.now())
            if self._proposals.waiting:
                self._schedule_turn()
        self._carry_out()
        if self.world.spare_ids:
            self._follow_members()
        self._arm()

    def _carry_out(self) -> None:
        """The batch, top to bottom."""
        tell = self.world.tell
        effects = self.replica.take_effects()
        tell.effects(self.member, effects)
        if effects.hard_state is not None:
            number = self._held.ordered(spoken_of=effects.spoken_of)
            self.jobs.save(effects.hard_state, partial(self._saved, number, effects.hard_state))
        if self.store.faults_unsaved:
            self.jobs.save_faults()
        closed = self._held.closed
        for send in effects.sends:
            if closed:
                self._held.hold(send)
            else:
                self.links.send(send.to, send.message)
        if not closed:
            done = self._done.copy()
            self._done.clear()
            for deliver, outcome in done:
                deliver(outcome)
        if effects.truncate is not None:
            self.jobs.truncate(effects.truncate)
        if effects.begin_behind is not None:
            self.jobs.begin_behind(effects.begin_behind)
        for read in effects.reads:
            self.jobs.read(read)
        for look in effects.looks:
            self.jobs.look(look)
        for snapshot in effects.snapshots:
            self.snapshots.carry_out(snapshot)
        for fetch in effects.fetches:
            self.jobs.fetch(fetch)
        if effects.mend is not None:
            self.jobs.mend(effects.mend)
        if effects.apply is not None:
            self.feeder.carry_out(effects.apply)
        if effects.scrub_wanted:
            self.jobs.scrub()
        if effects.sync_wanted:
            self.jobs.want_sync()
        for event in effects.events:
            tell.event(self.member, event)
        if self.replica.member.short_of_space and not self._space_due:
            self._space_due = True
            self.later(2 * self.timing.election_max_ns, self._try_space)

    def _arm(self) -> None:
        """One timer; an earlier one than needed is left alone, a tick too many does no harm."""
        if self._tick_owed:
            return
        at = self.replica.next_deadline()
        if self._tick_at is not None and self._tick_at <= at:
            return
        self._tick_at = at
        self.world.schedule(max(0, self.clock.true_at(at) - self.world.now), self._timer, at)

    def _timer(self, armed_for: int) -> bool:
        """No step of the world by itself: the tick that follows is."""
        if self.alive:
            self.when_awake(self._tick, armed_for)
        return False

    def _tick(self, armed_for: int) -> None:
        if armed_for != self._tick_at:
            return
        self._tick_at = None
        self._tick_owed = True
        self.later(0, self._judge)  # behind all that has arrived until now, as behind one poll of every socket

    def _judge(self) -> None:
        self._tick_owed = False
        self.replica.tick(self.clock.now())
        self._turn()

    # --- what arrives ---------------------------------------------------------------------------------------------
    @property
    def log_epoch(self) -> int:
        return self.replica.log_epoch

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def receive(self, sender: str, message: Message) -> None:
        self.world.tell.delivered(sender, self.id, message)
        self.replica.receive(sender, message, self.clock.now())
        self._schedule_turn()

    def peer_connected(self, peer_id: str) -> None:
        if self.alive:
            self.replica.links.connected(peer_id, self.clock.now())
            self._schedule_turn()

    def peer_lost(self, peer_id: str) -> None:
        if self.alive:
            self.replica.links.lost(peer_id, self.clock.now())
            self._schedule_turn()

    def flushed(self, log_epoch: int, end_index: int) -> None:
        if self.alive:
            self.replica.disk.flushed(log_epoch, end_index, self.clock.now())
            self._schedule_turn()

    def _saved(self, number: int, state: HardState) -> None:
        now = self.clock.now()
        for send in self._held.durable(number):
            if (message := self.replica.as_it_leaves(send.message, now)) is not None:
                self.links.send(send.to, message)
        self.replica.disk.hard_state_saved(state, self.clock.now())
        self._schedule_turn()

    def truncated(self, order: TruncateLog, cut: bool) -> None:
        if cut:
            self.replica.disk.truncated(order.log_epoch, order.cut_index, self.clock.now())
        else:
            self.replica.disk.truncate_failed(order.log_epoch, self.clock.now())
        self._schedule_turn()

    def begun_behind(self, order: BeginBehind, error: str | None) -> None:
        self.replica.disk.begun_behind(order, error, self.clock.now())
        if error is None:
            self.feeder.reload()
        self._schedule_turn()

    def snapshot_opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str) -> None:
        self.replica.disk.snapshot_opened(order, meta, why, self.clock.now())
        self._schedule_turn()

    def snapshot_read(self, order: ReadSnapshot, piece: bytes | None) -> None:
        self.replica.disk.snapshot_read(order, piece, self.clock.now())
        self._schedule_turn()

    def part_taken(self, order: TakePart, taken: Taken | None) -> None:
        self.replica.disk.part_taken(order, taken, self.clock.now())
        if order.keeps and taken is not None and taken.is_whole:
            self.feeder.reload()
        self._schedule_turn()

    def slab_read(self, request: ReadSlab, slab: Slab | None) -> None:
        self.replica.disk.slab_read(request, slab, self.clock.now())
        self._schedule_turn()

    def looked(self, order: LookUp, meta: EntryMeta | None) -> None:
        self.replica.disk.looked(order, meta, self.clock.now())
        self._schedule_turn()

    def damaged(self, faults: Sequence[Fault]) -> None:
        """Bytes that were durable cannot be read as they were written (S6)."""
        self.replica.disk.log_damaged(faults, self.clock.now())
        self._schedule_turn()

    def fetched(self, order: FetchLog, slab: Slab | None) -> None:
        self.replica.disk.fetched(order, slab, self.clock.now())
        self._schedule_turn()

    def mended(self, order: MendLog, mended: Mended | None, error: str) -> None:
        self.replica.disk.mended(order.log_epoch, mended, error, self.clock.now())
        self._schedule_turn()

    def scrubbed(self) -> None:
        self.replica.disk.scrubbed(self.clock.now())
        self._schedule_turn()

    def _try_space(self) -> None:
        self._space_due = False
        self.replica.disk.disk_full(False, self.clock.now(), still_short=not self.replica.store.has_space())
        self._schedule_turn()

    # --- for clients ----------------------------------------------------------------------------------------------
    def propose(self, origin: Origin, proposal: Proposal, ordered: bool) -> None:
        self._proposals.add(origin, proposal, ordered)
        self._schedule_turn()

    def open_lane(self, origin: Origin) -> LaneOpened:
        opened = self.replica.open_lane(origin, self.clock.now())
        self._schedule_turn()
        return opened

    def propose_over_lane(self, origin: Origin, proposal: Proposal) -> None:
        self.propose(origin, proposal, ordered=False)
        self.replica.lanes.watch(proposal)

    def read_index(self, done: Callable[[ReadOutcome], None], way: ReadWay = ReadWay.USUAL) -> None:
        self.replica.read_index(self._queued(done), self.clock.now(), way)
        self._schedule_turn()

    def transfer(self, to: str | None, deadline_ns: int, done: Callable[[TransferOutcome], None]) -> None:
        self.replica.transfer(to, self.clock.now(), on_done=self._queued(done), deadline_ns=deadline_ns)
        self._schedule_turn()

    def change_members(self, change: MemberChange, done: Callable[[ChangeOutcome], None]) -> None:
        self.replica.change_members(change, self._queued(done))
        self._schedule_turn()

    def _queued(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda outcome: self._done.append((done, outcome))
