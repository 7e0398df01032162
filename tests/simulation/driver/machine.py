"""One member's machine: its disk, its clock, and the supervisor that keeps a real engine on it.

Each engine that starts is an incarnation with a loop of its own. To the invariants it is what `tests/simulation/member`
is to them. Invariants: at most one engine runs; nothing of an engine that crashed touches the disk any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from node.config import Settings, load
from node.consensus.api import MS
from node.consensus.replica import Replica
from node.engine.engine import EXIT_CRASHED, Engine
from node.engine.host import Host
from node.engine.process import Process
from node.protocol.codes import VoterState
from node.protocol.group_kind import GroupKind
from node.server import open_store
from node.store.errors import StoreError
from node.store.file_store import FileStore
from node.store.log_store import HardState
from node.store.recent_slabs import RecentSlabs
from tests.simulation.applier import Attachment, StateMachine
from tests.simulation.broker_records import kind_of
from tests.simulation.clock import MemberClock
from tests.simulation.damage import Damage
from tests.simulation.disk import SimulatedCrash
from tests.simulation.driver.callers import DriverPlatform
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.driver.sockets import listen
from tests.simulation.driver.threads import SLOW_FACTOR, SimulatedReaders, SimulatedWriter, Threads
from tests.simulation.driver.watch import watch
from tests.simulation.member import OPERATOR_ERRORS
from tests.simulation.observer import Violation, of_exception

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

FIRST_PORT = 20911
RESTART_NS = 40 * MS


class Machine:
    """See the module's docstring."""

    def __init__(self, world: DriverWorld, member_id: str, rng: random.Random) -> None:
        self.world, self.id, self._rng = world, member_id, rng
        config = world.config
        self.clock = MemberClock(lambda: world.now, self._boot_offset())
        self.platform = DriverPlatform(random.Random(rng.getrandbits(64)), self.clock.now, member_id)
        self.settings = self._settings()
        self.directory = self.settings.store_directory
        self.sync_ns = int(config.sync_ms * MS)
        self.slow_until = 0  # when its last slow disk job is done
        self.powered, self.paused, self.is_refused, self.lost_memory = True, False, False, False
        self.is_old_copy = False  # nobody puts a copy back in this world
        self.touched = True  # something of it may be another thing than after the step before (`touched.py`)
        self.incarnation = 0
        self.loop: SimulatedLoop | None = None
        self.engine: Engine | None = None
        self.replica: Replica | None = None
        self.store: FileStore | None = None
        self.last_error: BaseException | None = None
        self.last_voter_state: VoterState | None = None
        self.damage = Damage(self.platform, self.directory)
        self.excused = False  # a fault of its disk may end its engine with an error
        self.state_machine: StateMachine | None = None
        if config.applier:
            beside = random.Random(f"state machine {member_id} {world.seed}")
            self.state_machine = StateMachine(self, beside, world.timeline.schedule, lambda: world.now)
        self._crash_loops = 0
        self.platform.on_crash, self.platform.violate = self._crashed_at_io, world.violate
        self.platform.observed = lambda: world.observing
        self._threads: Threads | None = None

    def _boot_offset(self) -> int:
        return self._rng.randrange(10_000 * MS) if self.world.config.clock_offset else 0

    def _settings(self) -> Settings:
        return load(self._values(), None, {})

    def _values(self) -> dict[str, Any]:
        """As its configuration says them."""
        config, election = self.world.config, self.world.config.election_ms
        return {
            "node.id": self.id,
            "node.group": "g",
            "node.data": f"/sim/{self.id}",
            "node.init": True,
            "broker.address": "127.0.0.1:10911" if config.broker else "",
            "node.flush": "sync" if config.flush_sync else "async",
            "node.lease_reads": config.lease_reads,
            "peers": ";".join(f"{one}-127.0.0.1:{FIRST_PORT + n}" for n, one in enumerate(self.world.ids)),
            "store.mapped_file_size_for_entry_data_bytes": config.data_file_size,
            "store.mapped_file_size_for_entry_index_bytes": config.index_file_size,
            "store.scrub_pause_s": 2,
            "store.page_cache_bytes": config.ring_bytes,
            "timing.heart_beat_time_interval_ms": election // 4,
            "timing.election_timeout_min_ms": election,
            "timing.election_timeout_max_ms": 2 * election,
            "timing.max_push_time_out_ms": 2 * election,
            "timing.max_wait_ack_time_ms": config.ack_within_ms,
            "timing.leadership_transfer_wait_timeout_ms": 4 * election,
        }

    def _kind(self) -> GroupKind:
        return kind_of(self.world.config.broker, self.clock.now)

    @property
    def up(self) -> bool:
        return self.engine is not None

    @property
    def is_writer_idle(self) -> bool:
        """Whether its engine's writing thread has nothing to do."""
        return self._threads is not None and self._threads.is_writer_idle

    @property
    def disk_id(self) -> str:
        """No disk is replaced in this world."""
        return self.id

    @property
    def process(self) -> Engine | None:
        """As the invariants know it."""
        return self.engine

    # --- life -----------------------------------------------------------------------------------------------------
    def boot(self) -> bool:
        """The supervisor starts an engine; False where there is nothing to start."""
        self.touched = True
        if self.up or not self.powered:
            return False
        self.incarnation += 1
        self.is_refused, self.paused = False, False
        self.platform.taken_from = False
        self.platform.serve_no_more()
        self.excused = self.platform.faults.enospc or self.platform.faults.fsync_error_next
        world = self.world
        loop = SimulatedLoop(
            world.timeline,
            self.id,
            self.clock,
            world.network,
            random.Random(self._rng.getrandbits(64)),
            self._loop_error,
        )
        self.loop, loop.engine_of = loop, self
        try:
            store = self._open()
            self.note_voter_state(store.hard_state)
            engine = loop.run_here(self._engine, store, loop)
        except SimulatedCrash:
            self.crash("io_boundary")
        except OPERATOR_ERRORS as error:
            self.last_error, self.is_refused = error, True
            self.platform.crash_process()
            world.tell.refused(self, error)
        except StoreError as error:
            self.last_error = error
            self._not_excused("opening its store", error)
            self.crash("store_error")
        except Exception as error:
            world.violate(of_exception(f"starting {self.id}", error))
            self.crash("store_error")
        else:
            self.engine, self.store, self.replica = engine, store, engine.replica
            assert self._threads is not None
            self.platform.serve(loop, self._threads, lambda: store.files_made_late)
            # In proportion to the election time-out, as all the others; the product has no setting for it.
            timing, read_timeout_ns = engine.replica.config.timing, 4 * self.world.config.election_ms * MS
            object.__setattr__(timing, "read_timeout_ns", read_timeout_ns)
            watch(self, engine, store)
            world.tell.booted(self)
            loop.run_here(loop.create_task, self._run(engine, store, loop))
        return True

    def _open(self) -> FileStore:
        config = self.world.config
        store = open_store(self.settings, self.platform, born_at=self.world.born_at)
        if config.ring_bytes:  # what is cold in earnest is cold here
            store.files.ring = RecentSlabs(config.ring_bytes)
        return store

    def _engine(self, store: FileStore, loop: SimulatedLoop) -> Engine:
        rng = random.Random(self._rng.getrandbits(64))

        self._threads = threads = Threads(lambda: self._crashed_in(loop))

        def later(delay_ns: int, call: Callable[..., Any], *args: Any) -> None:
            loop.call_later(delay_ns / 1e9, call, *args)

        host = Host(
            now_ns=self.clock.now,
            random=random.Random(self._rng.getrandbits(64)),
            writer=lambda: SimulatedWriter(loop, rng, self._pace, threads),
            readers=lambda: SimulatedReaders(loop, rng, self._pace, threads),
            listen=listen,
        )
        applier = None if self.state_machine is None else Attachment(self.state_machine, later)
        return Engine(self.settings, store, Process(host), applier=applier, kind=self._kind())

    def _pace(self) -> int:
        config, rng = self.world.config, self._rng
        slow = config.slow_disk and self.world.faulty and rng.random() < config.slow_disk
        took = self.sync_ns // 2 + rng.randrange(self.sync_ns + 1)
        if slow:
            took *= SLOW_FACTOR
            self.slow_until = max(self.slow_until, self.world.now + took)
        return took

    async def _run(self, engine: Engine, store: FileStore, loop: SimulatedLoop) -> None:
        """As `node.server` does it."""
        code = await engine.run(lambda _port: None)
        engine.process.close()
        self.platform.serve_no_more()
        try:
            store.close()
        except StoreError as error:
            self._not_excused("closing its store", error)
            code = code or EXIT_CRASHED
        if code:
            self._not_excused("running", engine.reason)
        self.world.timeline.schedule(0, self._ended_by_itself, loop, code)

    def _not_excused(self, doing: str, error: object) -> None:
        if not self.excused:
            self.world.violate(Violation("no_exception", f"{self.id}, {doing}: {error!s}"))

    def _ended_by_itself(self, loop: SimulatedLoop, code: int) -> None:
        if loop is self.loop and loop.alive:
            self.platform.crash_process()
            self._ended("stopped" if code == 0 else "store_error")
            self._restart_later()

    def _loop_error(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, SimulatedCrash):
            self._crashed_in(loop)
        elif loop.alive and not isinstance(error, Violation):
            if isinstance(error, (StoreError, OSError)) and self.excused:
                return
            where = f"{self.id}: {context.get('message')}"
            self.world.violate(Violation("no_exception", where) if error is None else of_exception(where, error))

    def _crashed_at_io(self) -> None:
        if self.engine is not None and self.loop is not None:
            self._crashed_in(self.loop)

    def _crashed_in(self, loop: SimulatedLoop) -> None:
        if loop is self.loop and loop.alive:
            self.crash("io_boundary")

    # --- its end --------------------------------------------------------------------------------------------------
    def crash(self, how: str = "process") -> None:
        """SIGKILL: the page cache stays, the supervisor starts it again."""
        self.platform.taken_from = True
        self.platform.crash_process()
        self._ended(how)
        self._restart_later()

    def lose_power(self) -> None:
        """Nobody is told, the page cache is gone."""
        self.powered = False
        self.lost_memory |= not self.world.config.flush_sync
        self.world.network.dark.add(self.id)
        self.platform.taken_from = True
        self.platform.lose_power()
        self._ended("power_loss")

    def power_on(self) -> bool:
        if self.powered:
            return False
        self.powered = True
        self.clock.reboot(self._boot_offset())
        self.world.network.machine_back(self.id)
        return self.boot()

    def stop(self) -> None:
        """SIGTERM."""
        if self.engine is not None and self.loop is not None:
            self.loop.socket_ready(self.engine.stop)

    def pause(self) -> None:
        if self.up and self.loop is not None:
            self.paused = self.touched = True
            self.loop.pause()

    def resume(self) -> None:
        if self.paused and self.loop is not None:
            self.paused, self.touched = False, True
            self.loop.resume()

    def _ended(self, how: str) -> None:
        self.touched = True
        if self.loop is not None:
            self.loop.kill()
            self.world.graveyard.append((self.loop, self.engine, self.store))
        self.loop = None
        self.engine = self.replica = self.store = None
        self.paused = False
        self.incarnation += 1
        if self.state_machine is not None:
            self.state_machine.engine_ended(power=how == "power_loss")
        self.world.tell.crashed(self, how)

    def _restart_later(self) -> None:
        self._crash_loops += 1
        wait_ns = RESTART_NS * self._rng.randrange(50, 151) // 100
        self.world.timeline.schedule(wait_ns, self._restart, self.incarnation)

    def _restart(self, incarnation: int) -> bool:
        return incarnation == self.incarnation and self.boot()

    def note_voter_state(self, state: HardState) -> None:
        self.last_voter_state = state.voter_state
        if state.voter_state is VoterState.VOTER:
            self.lost_memory = False
