"""The engine's threads in simulated time: one that writes in order, two that read.

A piece of work happens at one moment between its start and its end; before and after that moment the loop goes on, as
beside a real thread. `Threads` says which of them is at work, so that the disk knows who calls it. Invariants: writes
are done one at a time and in order; nothing is reported on a loop that is dead; a crash in the middle of a piece of
work ends the process then and there.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from node.engine.writer import Ended
from tests.simulation.disk_faults import SimulatedCrash
from tests.simulation.driver.loop import SimulatedLoop

READERS = 2
SLOW_FACTOR = 20
Pace = Callable[[], int]  # how long one piece of work takes, in nanoseconds
Crashed = Callable[[], None]


class Threads:
    """Of one process: who is at work at this moment, "writer", "reader" or "" for neither."""

    def __init__(self, crashed: Crashed) -> None:
        self._crashed = crashed
        self.at_work = ""
        self.is_writer_idle = True

    def outcome(self, who: str, work: Callable[[], Any]) -> Ended[Any] | None:
        """None: the process ended in it."""
        before, self.at_work = self.at_work, who
        try:
            return Ended(work(), None)
        except SimulatedCrash:
            self._crashed()
            return None
        except Exception as error:
            return Ended(None, error)
        finally:
            self.at_work = before


class SimulatedWriter:
    """As `node.engine.writer.Writer`."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, pace: Pace, threads: Threads) -> None:
        self._loop, self._rng, self._pace, self._threads = loop, rng, pace, threads
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Ended[Any]], Any]]] = deque()
        self._busy = False  # a piece of work was begun and is not reported yet
        self._begun: tuple[Callable[[], Any], Callable[[Ended[Any]], Any]] | None = None
        self._closed = False

    def run(self, work: Callable[[], Any], done: Callable[[Ended[Any]], Any]) -> None:
        if not self._closed:
            self._waiting.append((work, done))
            self._threads.is_writer_idle = False
            self._next()

    def _next(self) -> None:
        if self._waiting and not self._busy and not self._closed:
            self._busy = True
            self._begun = self._waiting.popleft()
            before = self._rng.randrange(took := max(2, self._pace()))
            self._loop.timeline.schedule(before, self._do, took - before)

    def _do(self, left_ns: int) -> bool:
        if not self._loop.alive or self._begun is None:
            return False
        (work, done), self._begun = self._begun, None
        self._loop.touch()
        ended = self._threads.outcome("writer", work)
        if ended is not None:
            self._loop.timeline.schedule(left_ns, self._report, done, ended)
        return True

    def _report(self, done: Callable[[Ended[Any]], Any], ended: Ended[Any]) -> bool:
        self._busy = False
        if not self._loop.alive or self._closed:
            return False
        self._loop.call_soon_threadsafe(self._tell, done, ended)
        self._next()
        return True

    def _tell(self, done: Callable[[Ended[Any]], Any], ended: Ended[Any]) -> None:
        if not self._closed:
            done(ended)
        if not self._waiting and not self._busy:
            self._threads.is_writer_idle = True

    def close(self) -> None:
        """What was given is done; nothing is reported any more."""
        self._closed = True
        left = ([self._begun] if self._begun is not None else []) + list(self._waiting)
        self._begun = None
        self._waiting.clear()
        for work, _done in left:
            if self._loop.alive and self._threads.outcome("writer", work) is None:
                return


class SimulatedReaders(Executor):
    """As a ThreadPoolExecutor of two threads."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, pace: Pace, threads: Threads) -> None:
        self._loop, self._rng, self._pace, self._threads = loop, rng, pace, threads
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._free = READERS

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((lambda: fn(*args, **options), future))
        self._next()
        return future

    def _next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            work, future = self._waiting.popleft()
            before = self._rng.randrange(took := max(2, self._pace() // 4))
            self._loop.timeline.schedule(before, self._do, work, future, took - before)

    def _do(self, work: Callable[[], Any], future: Future[Any], left_ns: int) -> bool:
        if not self._loop.alive or not future.set_running_or_notify_cancel():
            self._free += 1
            return False
        self._loop.touch()
        ended = self._threads.outcome("reader", work)
        if ended is not None:
            self._loop.timeline.schedule(left_ns, self._report, future, ended)
        return True

    def _report(self, future: Future[Any], ended: Ended[Any]) -> bool:
        self._free += 1
        if not self._loop.alive:
            return False
        self._loop.touch()
        if ended.error is None:
            future.set_result(ended.value)
        else:
            future.set_exception(ended.error)
        self._next()
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _work, future in self._waiting:
            future.cancel()
        self._waiting.clear()
