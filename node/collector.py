"""Python's garbage collector, run in small steps from the loop instead of whenever its count says so.

That count is of objects made less objects freed. Beside a flood of connections, of which each new one ends an old one,
it stays near zero while the young objects become hundreds of thousands; the collection that came at last held an
engine's loop for 30 to 230 ms. So it is off, and runs here: over the young objects after a pause that shortens while
that takes long, so that each step is short whatever others do with their connections; over all objects rarely, at a
quiet moment, since that takes longer the more there are. What was there at the start is frozen and never looked at.

An idle process has next to nothing to look at, and its own timer would wake it six times a second. Where something else
wakes it all the same, and says so (`ticked`), the timer rests, until the processor's time shows that there was work.

Invariants: the young objects are looked at after PAUSE_S_MAX at the latest; while the timer rests, after REST_S and at
the first tick behind WORK_NS of the processor's time. What became garbage in cycles later in its life is freed after
FULL_WITHIN_S at the latest, and once private memory has grown by GROWTH_BYTES_MAX (by more, where the looks before
found it to be no garbage), though only every FULL_APART_S.
"""

from __future__ import annotations

import gc
import os
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from pathlib import Path
from typing import Final

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.16
LONG_NS: Final = 1_000_000  # of the processor, for the young objects: the next step comes sooner ...
SHORT_NS: Final = 250_000  # ... or later
QUIET_STEPS: Final = 10  # short ones, one after the other
REST_S: Final = 2.5
WORK_NS: Final = 8_000_000  # a twentieth of PAUSE_S_MAX
FULL_QUIET_S: Final = 60.0  # from one look at all objects to the next one at a quiet moment
FULL_WITHIN_S: Final = 600.0
FULL_APART_S: Final = 20.0
GROWTH_BYTES_MAX: Final = 48 * 1024 * 1024
GROWTH_BYTES_FRUITLESS: Final = 192 * 1024 * 1024  # twice as much each time that only FRUITLESS objects were garbage
FRUITLESS: Final = 1000
YOUNG: Final = 0
ALL: Final = 2
STATM: Final = Path("/proc/self/statm")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


_SIZES: list[int] = []  # the opened file, kept: opening it again each time cost more than reading it


def private_bytes() -> int:
    """This process's memory that no file backs; 0 where the system does not say."""
    try:
        if not _SIZES:
            _SIZES.append(os.open(STATM, os.O_RDONLY | os.O_CLOEXEC))
        _size, resident, of_files, *_others = os.pread(_SIZES[0], 256, 0).split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(of_files)) * PAGE_BYTES


class Collector:
    """One per process. `collect(generation)`, `cpu_ns` and `memory_bytes` are the process's own."""

    def __init__(
        self, loop: AbstractEventLoop, collect: Callable[[int], int] = gc.collect,
        cpu_ns: Callable[[], int] = time.thread_time_ns, memory_bytes: Callable[[], int] = private_bytes,
    ) -> None:  # fmt: skip
        self._loop, self._collect, self._cpu_ns, self._memory_bytes = loop, collect, cpu_ns, memory_bytes
        self._timer: TimerHandle | None = None
        self.pause_s = PAUSE_S_MAX
        self._quiet_steps = 0
        self._all_at_s, self._all_at_bytes, self._growth_bytes_max = 0.0, 0, GROWTH_BYTES_MAX
        self._is_ticked = self._rests = False
        self._stepped_at_ns = 0  # of the processor

    def start(self) -> None:
        """From now on nothing is collected but here."""
        self._collect(ALL)
        gc.freeze()
        gc.disable()
        self._all_at_s, self._all_at_bytes = self._loop.time(), self._memory_bytes()
        self._later()

    def stop(self) -> None:
        """The interpreter's own way again."""
        if self._timer is not None:
            self._timer.cancel()
        gc.enable()

    def _later(self) -> None:
        self._timer = self._loop.call_later(REST_S if self._rests else self.pause_s, self._step)

    def _step(self) -> None:
        worked_ns = self._cpu_ns() - self._stepped_at_ns
        self.step()
        self._stepped_at_ns = self._cpu_ns()
        self._rests = self._is_ticked and self._quiet_steps >= QUIET_STEPS and worked_ns < WORK_NS
        self._is_ticked = False
        self._later()

    def ticked(self) -> None:
        """The loop was woken anyway, as it is several times a second: the timer need not wake it as often, too."""
        self._is_ticked = True
        if self._rests and self._cpu_ns() - self._stepped_at_ns >= WORK_NS:
            if self._timer is not None:
                self._timer.cancel()
            self._step()

    def step(self) -> None:
        """Looks at the young objects, and at all of them where it is time for that."""
        if self._is_time_for_all():
            fruitless = self._collect(ALL) <= FRUITLESS
            self._growth_bytes_max = (
                min(2 * self._growth_bytes_max, GROWTH_BYTES_FRUITLESS) if fruitless else GROWTH_BYTES_MAX
            )
            self._quiet_steps = 0
            self._all_at_s, self._all_at_bytes = self._loop.time(), self._memory_bytes()
            return
        began_ns = self._cpu_ns()
        self._collect(YOUNG)
        took_ns = self._cpu_ns() - began_ns
        if took_ns > LONG_NS:
            self.pause_s = max(PAUSE_S_MIN, self.pause_s / 2)
        elif took_ns < SHORT_NS:
            self.pause_s = min(PAUSE_S_MAX, self.pause_s * 2)
        quiet = took_ns < SHORT_NS and self.pause_s == PAUSE_S_MAX
        self._quiet_steps = self._quiet_steps + 1 if quiet else 0

    def _is_time_for_all(self) -> bool:
        since_s = self._loop.time() - self._all_at_s
        if since_s < FULL_APART_S:
            return False
        if since_s >= FULL_WITHIN_S or (since_s >= FULL_QUIET_S and self._quiet_steps >= QUIET_STEPS):
            return True
        return self._memory_bytes() - self._all_at_bytes > self._growth_bytes_max
