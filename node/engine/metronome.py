"""The engine's one timer: a tick runs after one poll of every socket, however late its timer fires (SAFETY E6).

A loop that stood still runs its due timers before it reads what arrived meanwhile (libuv does; after an interrupted
poll asyncio's would, too), and a judgement about silence made there takes waiting answers for none. So the timer only
asks for the tick: a callback that is due "soon" runs before the next poll, and one that is asked for in there after it.

Invariants: between a timer and its tick is one whole poll; while a tick is `owed`, what clients asked for in that
poll waits for it; two ticks of a loop that runs are at most `longest_ns` apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from node.lateness import Lateness

MS: Final = 1_000_000


class Metronome:
    """One per engine, made on its loop. `gap_max_ns` is the longest time between two ticks so far."""

    def __init__(self, tick: Callable[[int], None], now_ns: Callable[[], int], longest_ns: int) -> None:
        self._tick, self._now_ns, self.longest_ns = tick, now_ns, longest_ns
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._ticked_at: int | None = None
        self._stopped = False
        self.owed = False
        self.gap_ns = 0  # before the last tick
        self.gap_max_ns = 0
        self._lateness = Lateness()

    def arm(self, at: int, now: int) -> None:
        """A tick at `at` or earlier: one that is armed for sooner is left alone, a tick too many does no harm."""
        at = min(at, now + self.longest_ns)
        if self.owed or self._stopped:
            return  # its turn arms the next one
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        # In whole milliseconds, as the loop counts them, and never too soon: it would tick until the time has come.
        self._timer = self._loop.call_later(max(0, -(-(at - now) // MS)) / 1000, self._fired)

    def _fired(self) -> None:
        self._timer = None
        self.owed = True
        self._loop.call_soon(self._before_poll)

    def _before_poll(self) -> None:
        self._loop.call_soon(self._after_poll)

    def _after_poll(self) -> None:
        self.owed = False
        if self._stopped:
            return
        now = self._now_ns()
        self._lateness.came(self._timer_at, now)
        if self._ticked_at is not None:
            self.gap_ns = now - self._ticked_at
            self.gap_max_ns = max(self.gap_max_ns, self.gap_ns)
        self._ticked_at = now
        self._tick(now)

    def late_ns(self, since_ns: int, now_ns: int) -> int:
        """For how long, since then, this loop came too late at most: ticks that came, and one that is still due."""
        waits = self.owed or self._timer is not None
        return self._lateness.longest_ns(since_ns, now_ns, self._timer_at if waits else None)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
