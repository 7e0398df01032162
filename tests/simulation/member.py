"""One simulated member: the real replica and the real store, driven as `node/engine/engine.py` drives them.

A member outlives its processes: each boot is an incarnation with a new replica, and nothing of an older one is ever
called. Whatever arrives enters the core, then one turn carries out its effects in their order of duty.

Invariants: hard state is durable before anything of its batch leaves; an error of the store ends the process, a
refusal keeps it down; any other exception out of the product is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS, Appended, Outcome, Proposal, ReadOutcome, ReplicaConfig, TransferOutcome
from node.consensus.effects import ReadSlab, TruncateLog
from node.consensus.replica import Replica
from node.engine.log_reads import LogReads
from node.protocol.codes import FlushMode, ResponseCode, VoterState
from node.protocol.entry import Slab
from node.protocol.messages import Message
from node.store.file_store import FileStore
from node.store.log_store import HardState, StoreCorrupt, StoreError, StoreRefused
from node.store.recent_slabs import RecentSlabs
from tests.simulation.clock import MemberClock
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.simulation.jobs import Jobs
from tests.simulation.links import Links
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTART_NS_MIN = 20 * MS
BATCHED = 0.15  # share of turns that begin a little later, with everything that arrives until then
ROTTING_FILES = ("checkpoint", "currterm", "hardstate", "quorumscope.json")
OPERATOR_ERRORS = (StoreRefused, StoreCorrupt)


class Origin:
    """A client's connection to one process, as far as the order of its appends needs it (SAFETY C4)."""

    __slots__ = ("order_broken",)

    def __init__(self) -> None:
        self.order_broken = False


class Member:
    """See the module's docstring. `faults` of its machine are in `platform.faults`."""

    def __init__(self, world: World, member_id: str, rng: random.Random) -> None:
        self.world, self.id = world, member_id
        self._rng = rng
        config = world.config
        self.timing = config.timing()
        peers = {peer: f"127.0.0.1:{20911 + number}" for number, peer in enumerate(world.ids)}
        preferred = (world.ids[0],) if config.preferred_leader else ()
        self.config = ReplicaConfig(
            "g", member_id, peers, flush=FlushMode.SYNC if config.flush_sync else FlushMode.ASYNC,
            timing=self.timing, lease_reads=config.lease_reads, preferred_leaders=preferred,
            push_window_slabs=config.push_window_slabs,
        )  # fmt: skip
        self.clock = MemberClock(lambda: world.now, self._boot_offset(), self._drift_ppm())
        self.platform = SimulatedPlatform(random.Random(rng.getrandbits(64)), self.clock.now, member_id)
        self.directory = Path(f"/sim/{member_id}")
        self.init = True  # the supervisor's command line; an operator who replaces a disk starts without it
        self.up = False
        self.powered = True
        self.paused = False
        self.incarnation = 0
        self.replica: Replica | None = None
        self.store: FileStore | None = None
        self.last_error: BaseException | None = None
        self.is_refused = False
        self.last_voter_state: VoterState | None = None
        self.lost_memory = False  # history may be gone: no fault that takes another one's, before it is a voter again
        self.damaged_entries = False
        self.links = Links(self, random.Random(rng.getrandbits(64)))
        self._backlog: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._crash_loops = 0
        self._reset_process()

    def _boot_offset(self) -> int:
        return self._rng.randrange(10_000 * MS) if self.world.config.clock_offset else 0

    def _drift_ppm(self) -> int:
        most = int(self.world.config.clock_drift * 1_000_000)
        return self._rng.randrange(-most, most + 1) if most else 0

    def _reset_process(self) -> None:
        self._done: list[Callable[[], None]] = []
        self._proposals: list[tuple[Origin, Proposal, bool]] = []
        self._backlog.clear()
        self._turn_due = False
        self._tick_at: int | None = None
        self._seq = 0
        self._space_due = False
        self.paused = False

    # --- events of this incarnation -------------------------------------------------------------------------------
    def later(self, delay_ns: int, call: Callable[..., Any], *args: Any) -> None:
        """Calls after some time, unless this process is gone by then; a paused process waits with it."""
        self.world.schedule(delay_ns, self._fire, self.incarnation, call, args)

    def _fire(self, incarnation: int, call: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        if incarnation != self.incarnation or not self.up:
            return False
        self.when_awake(call, *args)
        return True

    def when_awake(self, call: Callable[..., Any], *args: Any) -> None:
        """Now, or when the process goes on."""
        if self.paused:
            self._backlog.append((call, args))
        else:
            self._guarded(call, *args)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """What ends this process ends here: a crash, an error of the store."""
        try:
            call(*args)
        except SimulatedCrash:
            self.crash("io_boundary")
        except StoreError as error:
            self.fail(f"{type(error).__name__}: {error}")
        except (Violation, KeyboardInterrupt):
            raise
        except Exception as error:
            raise Violation("no_exception", f"{self.id}: {type(error).__name__}: {error}") from error

    # --- life -----------------------------------------------------------------------------------------------------
    def boot(self) -> None:
        """The process starts."""
        if self.up or not self.powered:
            return
        self.incarnation += 1
        self.is_refused = False
        self._reset_process()
        try:
            self.store = self._open()
        except SimulatedCrash:
            self.crash("io_boundary")
        except OPERATOR_ERRORS as error:
            self.last_error, self.is_refused = error, True
            self.platform.crash_process()
            self.world.tell.refused(self, error)
            self.world.nemesis.refused(self)
        except StoreError as error:
            self.last_error = error
            self.platform.crash_process()
            self._ended("store_error", notice=True)
        except Exception as error:
            raise Violation("no_exception", f"opening {self.id}: {type(error).__name__}: {error}") from error
        else:
            self.up = True
            self._guarded(self._start)

    def _open(self) -> FileStore:
        config = self.world.config
        store = FileStore.open(
            self.directory, group="g", node_id=self.id, data_file_size=config.data_file_size,
            index_file_size=config.index_file_size, init=self.init, flush=self.config.flush, platform=self.platform,
        )  # fmt: skip
        if config.ring_bytes:
            store._ring = RecentSlabs(config.ring_bytes)  # what is cold in earnest is cold here
        return store

    def _start(self) -> None:
        assert self.store is not None
        self.replica = Replica(self.config, self.store, random.Random(self._rng.getrandbits(64)), self.clock.now())
        self._crash_loops = 0
        self.jobs = Jobs(self, self.store, random.Random(self._rng.getrandbits(64)))
        self.reads = LogReads(self.store, self.jobs)  # type: ignore[arg-type]
        self.links = Links(self, random.Random(self._rng.getrandbits(64)))
        self._note_voter_state(self.store.hard_state)
        self.world.tell.booted(self)
        self.links.start()
        self._turn()

    def _note_voter_state(self, state: HardState) -> None:
        """A voter holds all that it ever acknowledged, whatever happened to it before (E8)."""
        self.last_voter_state = state.voter_state
        if state.voter_state is VoterState.VOTER:
            self.lost_memory = False

    def _gone(self) -> None:
        """Nothing of this process is called any more."""
        self.up = False
        self.replica = None
        self.store = None
        self.incarnation += 1
        self._reset_process()
        self.world.workload.member_gone(self.id)

    def crash(self, how: str = "process") -> None:
        """The process dies between two instructions; the page cache stays, the supervisor starts it again."""
        if how == "io_boundary" and self.world.nemesis.boundary_takes_power(self):
            self.lose_power()
            return
        self.platform.crash_process()
        self._ended(how, notice=True)

    def lose_power(self) -> None:
        """The machine goes dark: nobody is told, the page cache is gone, the clock starts anew."""
        self.powered = False
        self.lost_memory |= not self.world.config.flush_sync
        self.platform.lose_power()
        self._ended("power_loss", notice=False)
        self.world.nemesis.lights_out(self)

    def power_on(self) -> None:
        """The machine starts, and its supervisor with it."""
        if not self.powered:
            self.powered = True
            self.clock.reboot(self._boot_offset())
            self.world.network.machine_back(self.id)
            self.boot()

    def fail(self, reason: str) -> None:
        """As the engine ends on an error of its store: what waits is unknown, the store closes as well as it can."""
        store, replica = self.store, self.replica
        assert store is not None and replica is not None
        self.last_error = StoreError(reason)
        try:
            with suppress(StoreError):
                replica.stop(self.clock.now())
            with suppress(StoreError):
                store.close()
        except SimulatedCrash:
            self.crash("io_boundary")
            return
        self.platform.crash_process()
        self._ended("store_error", notice=True)

    def stop(self) -> None:
        """SIGTERM: a clean end, and the supervisor starts it again."""
        self._guarded(self._stop)

    def _stop(self) -> None:
        assert self.replica is not None and self.store is not None
        self.replica.stop(self.clock.now())
        self._carry_out()
        self.jobs.drain()
        self.store.close()
        self.platform.crash_process()  # closes what a process leaves open
        self._ended("stopped", notice=True)

    def _ended(self, how: str, *, notice: bool) -> None:
        self.world.network.member_gone(self.id, notice=notice)
        self._gone()
        self.world.tell.crashed(self, how)
        if self.powered:
            self._restart_later()

    def _restart_later(self) -> None:
        self._crash_loops += 1
        wait_ns = min(RESTART_NS_MIN << min(self._crash_loops, 6), 4 * self.timing.election_max_ns)
        incarnation = self.incarnation
        self.world.schedule(wait_ns * self._rng.randrange(50, 151) // 100, self._restart, incarnation)

    def _restart(self, incarnation: int) -> bool:
        if incarnation != self.incarnation or self.up:
            return False
        self.boot()
        return True

    def pause(self) -> None:
        """SIGSTOP: everything that comes waits."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT: everything at once."""
        self.paused = False
        while self._backlog and self.up and not self.paused:
            call, args = self._backlog.pop(0)
            self._guarded(call, *args)

    def wipe(self) -> None:
        """An operator replaces the disk and starts the member without --init: it joins through the leader (E8)."""
        assert not self.up
        self.lost_memory, self.damaged_entries, self.is_refused = True, False, False
        self.init = False
        self.platform.remove_tree(self.directory)
        self.boot()

    def rot_spot(self, rng: random.Random) -> tuple[Path, int] | None:
        """A byte of this member's files that is not zero: where a flipped bit may matter."""
        platform, places = self.platform, []
        for folder, weight in (("data", 5), ("index", 2), ("", 1)):
            directory = self.directory / folder if folder else self.directory
            names = [name for name in platform.names(directory) if folder or name in ROTTING_FILES]
            places += [directory / name for name in names] * weight
        if not places:
            return None
        path = places[rng.randrange(len(places))]
        content = platform.read_bytes(path)
        spots = [at for at in (rng.randrange(len(content)) for _ in range(40)) if content[at]] if content else []
        return (path, spots[0]) if spots else None

    # --- one turn -------------------------------------------------------------------------------------------------
    def _schedule_turn(self) -> None:
        if self._turn_due:
            return
        if self._rng.random() < BATCHED:
            self._turn_due = True
            self.later(self._rng.randrange(2 * MS), self._turn)
        else:
            self._turn()

    def _turn(self) -> None:
        self._turn_due = False
        if self.replica is None:
            return
        if self._proposals:
            self._propose_all()
        self._carry_out()
        self._arm()

    def _propose_all(self) -> None:
        """As the engine: all at once, except what follows an ordered append of its connection."""
        assert self.replica is not None
        waiting, self._proposals = self._proposals, []
        while waiting:
            batch: list[Proposal] = []
            later: list[tuple[Origin, Proposal, bool]] = []
            held: list[Origin] = []
            for item in waiting:
                origin, proposal, ordered = item
                if origin in held:
                    later.append(item)
                elif ordered and origin.order_broken:
                    refused = ResponseCode.INCONSISTENT_INDEX
                    proposal.on_done(Outcome(refused, -1, -1, -1, Appended.NOT_APPENDED, self.replica.leader_id))
                else:
                    batch.append(proposal)
                    if ordered:
                        held.append(origin)
            self.replica.propose_many(batch, self.clock.now())
            waiting = later

    def _carry_out(self) -> None:
        """The batch, top to bottom."""
        assert self.replica is not None and self.store is not None
        tell = self.world.tell
        effects = self.replica.take_effects()
        tell.effects(self, effects)
        done, self._done = self._done, []
        if effects.hard_state is not None:
            self.store.save_hard_state(effects.hard_state)
            self._note_voter_state(effects.hard_state)
            tell.persisted(self, effects.hard_state)
        for send in effects.sends:
            self.links.send(send.to, send.message)
        for complete in done:
            complete()
        if effects.truncate is not None:
            self.jobs.truncate(effects.truncate)
        for read in effects.reads:
            self.jobs.read(read)
        if effects.sync_wanted:
            self.jobs.want_sync()
        for event in effects.events:
            tell.event(self, event)
        if self.replica.member.disk_full and not self._space_due:
            self._space_due = True
            self.later(2 * self.timing.election_max_ns, self._try_space)

    def _arm(self) -> None:
        """One timer; an earlier one than needed is left alone, a tick too many does no harm."""
        assert self.replica is not None
        at = self.replica.next_deadline()
        if self._tick_at is not None and self._tick_at <= at:
            return
        self._tick_at = at
        self.later(max(0, self.clock.true_at(at) - self.world.now), self._tick, at)

    def _tick(self, armed_for: int) -> None:
        if armed_for != self._tick_at or self.replica is None:
            return
        self._tick_at = None
        self.replica.tick(self.clock.now())
        self._turn()

    # --- what arrives ---------------------------------------------------------------------------------------------
    @property
    def log_epoch(self) -> int:
        return self.replica.log_epoch if self.replica is not None else -1

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def receive(self, sender: str, message: Message) -> None:
        assert self.replica is not None
        self.world.tell.delivered(sender, self.id, message)
        self.replica.receive(sender, message, self.clock.now())
        self._schedule_turn()

    def peer_connected(self, peer_id: str) -> None:
        if self.replica is not None:
            self.replica.peer_connected(peer_id, self.clock.now())
            self._schedule_turn()

    def peer_lost(self, peer_id: str) -> None:
        if self.replica is not None:
            self.replica.peer_lost(peer_id, self.clock.now())
            self._schedule_turn()

    def flushed(self, log_epoch: int, end_index: int) -> None:
        if self.replica is not None:
            self.replica.flushed(log_epoch, end_index, self.clock.now())
            self._schedule_turn()

    def truncated(self, order: TruncateLog, cut: bool) -> None:
        assert self.replica is not None
        if cut:
            self.replica.truncated(order.log_epoch, order.cut_index, self.clock.now())
        else:
            self.replica.truncate_failed(order.log_epoch, self.clock.now())
        self._schedule_turn()

    def slab_read(self, request: ReadSlab, slab: Slab | None) -> None:
        assert self.replica is not None
        self.replica.slab_read(request, slab, self.clock.now())
        self._schedule_turn()

    def damaged(self, error: StoreCorrupt) -> None:
        """Bytes that were durable cannot be read as they were written (S6)."""
        assert self.replica is not None
        self.replica.log_damaged(str(error), self.clock.now(), end_known=True)
        self._schedule_turn()

    def _try_space(self) -> None:
        assert self.replica is not None
        self._space_due = False
        self.replica.disk_full(False, self.clock.now())
        self._schedule_turn()

    # --- for clients ----------------------------------------------------------------------------------------------
    def propose(self, origin: Origin, proposal: Proposal, ordered: bool) -> None:
        deliver = proposal.on_done

        def queue(outcome: Outcome) -> None:
            if ordered and outcome.appended is not Appended.YES:
                origin.order_broken = True
            self._done.append(partial(deliver, outcome))

        proposal.on_done = queue
        self._proposals.append((origin, proposal, ordered))
        self._schedule_turn()

    def read_index(self, done: Callable[[ReadOutcome], None]) -> None:
        assert self.replica is not None
        self.replica.read_index(self._queued(done), self.clock.now())
        self._schedule_turn()

    def transfer(self, to: str | None, deadline_ns: int, done: Callable[[TransferOutcome], None]) -> None:
        assert self.replica is not None
        self.replica.transfer(to, self.clock.now(), on_done=self._queued(done), deadline_ns=deadline_ns)
        self._schedule_turn()

    def _queued(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda outcome: self._done.append(partial(done, outcome))
