"""A member's broker as a process of a simulated machine, beside its engine: as `node.broker.__main__` runs it.

Each start is an incarnation with a loop of its own. It can crash alone, also within a call of its disk, be paused, and
be cut off from its engine, for its sockets are those of a machine of its own (`b0` beside `n0`). They lose their power
together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import TYPE_CHECKING, Any

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.broker.derived_files import remove_derived
from node.broker.host import BrokerHost
from node.client import Lane
from node.consensus.api import MS
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutResult, PutStatus
from node.protocol.broker_state import Tables, encode_metadata
from node.protocol.group_kind import NO_PATCH, Channel
from tests.simulation.broker.disk import BrokerDisk
from tests.simulation.disk_faults import SimulatedCrash
from tests.simulation.driver.callers import DriverPlatform
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.driver.sockets import listen
from tests.simulation.observer import Violation, of_exception

if TYPE_CHECKING:
    from tests.simulation.broker.world import BrokerMachine, BrokerWorld

BROKER_PORT = 30911
RESTART_NS = 40 * MS
LOOK_AGAIN_NS = 20 * MS
SIZES = DerivedSizes(queue_file_bytes=320, index_slots=20, index_entries=60)
FAILED = ("task_failed", "schedule_failed", "transactions_failed")


class BrokerLoop(SimulatedLoop):
    """Its threads end with it, and stand still with it."""

    crashed: Callable[[], None]
    pace: Callable[[], int]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        work: ThreadFuture[Any] = ThreadFuture()

        def run() -> bool:
            if not self.alive:
                return False
            if self.paused:
                self.timeline.schedule(MS, run)
                return False
            if not work.set_running_or_notify_cancel():
                return False
            try:
                result = func(*args)
            except SimulatedCrash:
                self.crashed()
            except Exception as error:
                self.timeline.schedule(self.pace(), work.set_exception, error)
            else:
                self.timeline.schedule(self.pace(), work.set_result, result)
            return True

        self.timeline.schedule(self.pace(), run)
        return asyncio.wrap_future(work, loop=self)


class Port(ClientPort):
    """Without `config/*.json`, which nothing reads again."""

    async def _save_now_and_then(self) -> None:
        await asyncio.Event().wait()


class WatchedLane:
    """A lane, and what went over it, for `LaneBook`."""

    def __init__(self, lane: Lane, sent: Callable[[Lane, Sequence[bytes]], None]) -> None:
        self._lane, self._tell = lane, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def append(self, bodies: Sequence[bytes], *, patch_at: int = NO_PATCH, channel: Channel = Channel.MESSAGE) -> Any:
        self._tell(self._lane, bodies)
        return self._lane.append(bodies, patch_at=patch_at, channel=channel)


class BrokerProcess:
    """See the module's docstring."""

    def __init__(self, machine: BrokerMachine, rng: random.Random) -> None:
        self.machine, self.world, self._rng = machine, machine.world, rng
        self.id = "b" + machine.id[1:]
        self.port = BROKER_PORT + int(machine.id[1:])
        self.platform = DriverPlatform(random.Random(rng.getrandbits(64)), machine.clock.now, self.id)
        self.platform.on_crash, self.platform.violate = self._crashed_at_io, machine.world.violate
        self.loop: BrokerLoop | None = None
        self.broker: Broker | None = None
        self.clients: Port | None = None
        self.paused = self.is_wiped = False
        self.incarnation = 0
        self.notes: list[tuple[str, str, dict[str, Any]]] = []
        self._serving: Any = None

    @property
    def up(self) -> bool:
        return self.loop is not None

    @property
    def name(self) -> str:
        """Of this incarnation."""
        return f"{self.id}.{self.incarnation}"

    # --- life -----------------------------------------------------------------------------------------------------
    def boot(self) -> bool:
        """False where there is nothing to start, or nothing to start with."""
        machine, world = self.machine, self.world
        if self.up or not machine.powered:
            return False
        if not machine.platform.exists(machine.directory):
            world.timeline.schedule(LOOK_AGAIN_NS, self.boot)
            return False
        self.incarnation += 1
        self.paused, self.platform.taken_from = False, False
        if self.is_wiped and not self._is_wiped_now():
            self.end_at_start()
            return False
        rng = random.Random(self._rng.getrandbits(64))
        loop = BrokerLoop(world.timeline, self.id, machine.clock, world.network, rng, self._loop_error)
        loop.crashed, loop.pace = lambda: self._crashed_in(loop), lambda: 2 + rng.randrange(machine.pace() + 1)
        self.loop = loop
        self._serving = loop.run_here(loop.create_task, self._serve(loop))
        return True

    def _is_wiped_now(self) -> bool:
        """False: it was killed at a call, and starts again with what is left."""
        self.is_wiped = False
        try:
            if self.platform.exists(self.machine.settings.node.data):
                remove_derived(self.machine.settings.node.data, self.host())
        except SimulatedCrash:
            return False
        return True

    def host(self) -> BrokerHost:
        machine = self.machine
        return BrokerHost(self.disk, self.disk(), machine.wall_ms, listen)

    def disk(self) -> BrokerDisk:
        return BrokerDisk(self.platform, self.machine.platform, self.machine.directory)

    async def _serve(self, loop: BrokerLoop) -> None:
        """As `node.broker.__main__.serve`."""
        broker = Broker(self.machine.settings, self._note, SIZES, self.host())
        clients = Port(broker)
        self._watch(broker)
        self.broker, self.clients = broker, clients
        try:
            await clients.open("127.0.0.1", self.port)
            await broker.run()
        except (SimulatedCrash, asyncio.CancelledError):
            raise
        except Exception as error:
            if loop.alive:
                self.world.violate(of_exception(f"{self.id} ends", error))
        finally:
            if loop.alive:
                clients.close()
                self.world.timeline.schedule(0, self._ended_by_itself, loop)

    def _watch(self, broker: Broker) -> None:
        lane, opened = broker.lane, broker.lane._open_lane
        book = self.world.lane_book

        async def open_lane() -> Any:
            found = await opened()
            book.opened(self.name, found)
            return WatchedLane(found, lambda one, bodies: book.sent(self.name, one, bodies))

        lane._open_lane = open_lane
        put_own = lane.put_own

        def own_put(message: NewMessage, **given: Any) -> asyncio.Future[PutResult]:
            under_way = put_own(message, **given)
            under_way.add_done_callback(lambda done: self._heard(message.body, done, lane.is_master))
            return under_way

        lane.put_own = own_put  # type: ignore[assignment,method-assign]
        metadata, change = broker.metadata, broker.metadata.change

        def changed(asked: Tables) -> Any:
            done = change(asked)
            book.asked(encode_metadata(part) for part in metadata._parts(asked))
            return done

        metadata.change = changed  # type: ignore[method-assign]

    def _heard(self, word: bytes, done: asyncio.Future[PutResult], is_master: bool) -> None:
        """Of what the broker itself put: once another one is master, it may put again what may or may not be stored."""
        if not done.cancelled() and done.result().status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH and not is_master:
            self.world.book.unknown.add(word)

    def _note(self, kind: str, severity: str, fields: dict[str, Any]) -> None:
        self.notes.append((kind, severity, fields))
        self.world.workload.count(f"note {kind}")
        if kind in FAILED:
            self.world.violate(Violation("no_exception", f"{self.id}: {kind}: {fields}"))

    # --- its end --------------------------------------------------------------------------------------------------
    def crash(self) -> None:
        """SIGKILL, or a machine without power: nothing of it does anything any more."""
        self.platform.taken_from = True
        self.platform.crash_process()
        if self.loop is not None:
            self.loop.kill()
            self.world.graveyard.append((self.loop, self.broker, self.clients, self._serving))
        self.loop = self.broker = self.clients = None
        self.paused = False

    def end(self) -> None:
        """It crashes, and is started again."""
        if self.up:
            self.end_at_start()

    def end_at_start(self) -> None:
        """Killed before it serves anybody, and started again."""
        self.crash()
        self._restart_later()

    def stop(self) -> None:
        """SIGTERM."""
        if self.loop is not None and self._serving is not None:
            self.loop.socket_ready(self._serving.cancel)

    def pause(self) -> None:
        if self.loop is not None:
            self.paused = True
            self.loop.pause()

    def resume(self) -> None:
        if self.paused and self.loop is not None:
            self.paused = False
            self.loop.resume()

    def _ended_by_itself(self, loop: SimulatedLoop) -> None:
        if loop is self.loop and loop.alive:
            self.end()

    def _restart_later(self) -> None:
        wait_ns = RESTART_NS * self._rng.randrange(50, 151) // 100
        self.world.timeline.schedule(wait_ns, self.boot)

    def _crashed_at_io(self) -> None:
        if self.loop is not None:
            self._crashed_in(self.loop)

    def _crashed_in(self, loop: SimulatedLoop) -> None:
        if loop is self.loop and loop.alive:
            self.world.workload.count("broker crashed at a call")
            self.end()

    def _loop_error(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, SimulatedCrash):
            self._crashed_in(loop)
        elif loop.alive:
            where = f"{self.id}: {context.get('message')}"
            self.world.violate(Violation("no_exception", where) if error is None else of_exception(where, error))


def brokers_of(world: BrokerWorld) -> list[BrokerProcess]:
    return [world.members[one].broker for one in world.ids]
