"""An event loop in simulated time: what asyncio asks of one, on the world's one queue of events.

Every process of the world (an engine, its control plane, a client) has a loop of its own, so that one can be paused or
killed while the others go on. An iteration does what uvloop's does: timers that are due, then what was called soon,
then sockets, and at its end what was written leaves. A loop that was paused finds all of that waiting, in this order.

Invariants: nothing runs on a loop that is dead or paused; one iteration at a time; all chance comes from `rng`. Tasks
and futures are hashed by number, so that a set of them has the same order in every run.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import inspect
import itertools
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from heapq import heappop, heappush
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS
from tests.simulation.clock import MemberClock
from tests.simulation.disk_faults import SimulatedCrash

if TYPE_CHECKING:
    from tests.simulation.driver.machine import Machine
    from tests.simulation.driver.sockets import Network

ITERATION_NS = 20_000  # how long a loop is busy with one iteration, about, unless it has other things to do
RESOLUTION_S = 1e-6


class Timeline:
    """The world's queue: what happens next, in true time. Made before anything else of a world is."""

    def __init__(self) -> None:
        # What is left of an earlier world of this process ends now. Its tasks' `finally` are product code: collected
        # in the middle of this world they would draw from its chance, when what ran before had it so.
        gc.collect()
        self.numbers = itertools.count()  # of futures and tasks: the order of a set of them is by these
        self.now = 0
        self._queue: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = 0
        self.loops: list[SimulatedLoop] = []

    def schedule(self, delay_ns: int, call: Callable[..., Any], *args: Any) -> None:
        """Calls in so many nanoseconds. A call that returns False was no step: nobody was there."""
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + max(0, delay_ns), self._numbers, call, args))

    def step(self) -> None:
        """The next thing that happens."""
        while True:
            self.now, _, call, args = heapq.heappop(self._queue)
            if call(*args) is not False:
                return

    def end(self) -> None:
        """The world is over: what its loops did not finish is not waited for, and says nothing at its collection."""
        for loop in self.loops:
            loop.drop_what_is_left()


class _NumberedFuture(asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = next(loop.timeline.numbers)

    def __hash__(self) -> int:
        return self._number


class _NumberedTask(asyncio.Task):  # type: ignore[type-arg]
    def __init__(self, coro: Any, *, loop: SimulatedLoop, **options: Any) -> None:
        self._number = next(loop.timeline.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """One process's. See the module's docstring."""

    def __init__(
        self,
        timeline: Timeline,
        machine: str,
        clock: MemberClock,
        network: Network,
        rng: random.Random,
        on_error: Callable[[SimulatedLoop, dict[str, Any]], None],
        busy_ns: int = ITERATION_NS,
    ) -> None:
        self.timeline, self.machine, self.clock, self.network, self.rng = timeline, machine, clock, network, rng
        self.alive, self.paused = True, False
        self.in_turn = False  # one of its callbacks runs
        self.engine_of: Machine | None = None  # whose engine runs on it, if one does
        self.iterations = 0
        self._on_error, self._busy_ns = on_error, busy_ns
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        self._sockets: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._at_end: list[Callable[[], None]] = []
        self._due = False
        self._busy_until = 0
        self._tasks: list[asyncio.Task[Any]] = []  # strongly held: what a crash left is never collected half way
        timeline.loops.append(self)

    # --- life -----------------------------------------------------------------------------------------------------
    def kill(self) -> None:
        """The process is gone: nothing of it runs any more, nothing it wrote and did not send leaves."""
        self.alive = False
        self._ready.clear()
        self._sockets.clear()
        self._timers.clear()
        self._at_end.clear()
        self.network.process_gone(self)

    def drop_what_is_left(self) -> None:
        """Ends the coroutines of its tasks. One that began runs its `finally`, as at its collection: with no loop, so
        what that raises says nothing of the product."""
        self.alive = False
        for task in self._tasks:
            work = task.get_coro()
            while isinstance(work, CoroutineType) and inspect.getcoroutinestate(work) != inspect.CORO_CLOSED:
                with suppress(Exception, SimulatedCrash):  # also where a `finally` waits: it goes on behind that
                    work.close()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake()

    def run_here(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls as if from this loop; for what makes a process before its first iteration."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return call(*args)
        finally:
            events._set_running_loop(before)

    def touch(self) -> None:
        """Something of its process ran."""
        if self.engine_of is not None:
            self.engine_of.touched = True

    # --- one iteration --------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        if self._due or not self.alive or self.paused:
            return
        self._due = True
        begin = max(self.timeline.now, self._busy_until) + self.rng.randrange(ITERATION_NS)
        self.timeline.schedule(begin - self.timeline.now, self._iterate)

    def _iterate(self) -> bool:
        self._due = False
        if not self.alive or self.paused:
            return False
        self.iterations += 1
        self.touch()
        self._busy_until = self.timeline.now + self.rng.randrange(2 * self._busy_ns)
        self.in_turn = True
        self.run_here(self._one_iteration)
        self.in_turn = False
        if self.alive and (self._ready or self._sockets or self._timer_due()):
            self._wake()
        return True

    def _timer_due(self) -> bool:
        return bool(self._timers) and self._timers[0].when() <= self.time() + RESOLUTION_S

    def _one_iteration(self) -> None:
        due = []
        while self._timer_due():
            due.append(heappop(self._timers))
        for timer in due:
            if self.alive and not timer.cancelled():
                timer._run()
        for _ in range(len(self._ready)):
            if not self.alive:
                return
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        for _ in range(len(self._sockets)):
            if not self.alive:
                return
            call, args = self._sockets.popleft()
            self._guarded(call, *args)
        at_end, self._at_end = self._at_end, []
        for flush in at_end:
            if self.alive:
                self._guarded(flush)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except (Exception, SimulatedCrash) as error:
            self.call_exception_handler({"message": "a protocol's callback failed", "exception": error})

    def socket_ready(self, call: Callable[..., Any], *args: Any) -> None:
        """A socket has something to tell: in the next iteration, behind timers and calls."""
        if self.alive:
            self._sockets.append((call, args))
            self._wake()

    def at_end(self, flush: Callable[[], None]) -> None:
        """At the end of this iteration (or of the next, if none runs)."""
        if self.alive:
            self._at_end.append(flush)
            self._wake()

    # --- what asyncio asks ----------------------------------------------------------------------------------------
    def time(self) -> float:
        return self.clock.now() / 1e9

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.alive:
            self._ready.append(handle)
            self._wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if self.alive:
            heappush(self._timers, timer)
            at = self.clock.true_at(int(when * 1e9))
            self.timeline.schedule(at - self.timeline.now, self._timer_wakes, timer)
        return timer

    def _timer_wakes(self, timer: asyncio.TimerHandle) -> bool:
        if not timer.cancelled():
            self._wake()
        return False

    def clock_changed(self) -> None:
        """The clock jumped: what is due now is."""
        self._wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None) -> Any:
        task = _NumberedTask(coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """A thread that is done after a while; what it does happens at one moment in between."""
        work: ThreadFuture[Any] = ThreadFuture()

        def run() -> None:
            if not work.set_running_or_notify_cancel():
                return
            self.touch()
            try:
                result = func(*args)
            except Exception as error:
                self.timeline.schedule(self.rng.randrange(MS), work.set_exception, error)
            else:
                self.timeline.schedule(self.rng.randrange(MS), work.set_result, result)

        self.timeline.schedule(self.rng.randrange(MS), run)
        return asyncio.wrap_future(work, loop=self)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert options.get("ssl") is None, "there is no TLS in this network"
        return self.network.listen(self, protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert options.get("ssl") is None, "there is no TLS in this network"
        return await self.network.connect(self, protocol_factory, host, port)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(self, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(self, context)
