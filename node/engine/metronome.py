"""The engine's one timer: a tick runs after one poll of every socket, however late its timer fires (SAFETY E6).

A loop that stood still runs its due timers before it reads what arrived meanwhile (libuv does; after an interrupted
poll asyncio's would, too), and a judgement about silence made there takes waiting answers for none. So the timer only
asks for the tick: a callback that is due "soon" runs before the next poll, and one that is asked for in there after it.

Invariants: between a timer and its tick is one whole poll; while a tick is `owed`, what clients asked for in that
poll waits for it; a loop that runs arms its timer for `longest_ns` ahead at most, and puts off a tick that is armed for
PUT_OFF_TIMES as long at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from node.lateness import Lateness

MS: Final = 1_000_000
WORTH_NS: Final = 20 * MS  # another timer costs less than a tick that comes so much too soon
PUT_OFF_TIMES: Final = 10


class Metronome:
    """One per engine, made on its loop. `gap_max_ns` is the longest time in which nothing showed that the loop runs."""

    def __init__(
        self, tick: Callable[[int], None], now_ns: Callable[[], int], longest_ns: int,
        woken: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`woken`: called with each tick, for whoever needs no timer of his own then."""
        self._tick, self._now_ns, self.longest_ns, self._woken = tick, now_ns, longest_ns, woken
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._ticked_at = self._ran_at = now_ns()  # the second: when it ticked last, or armed its timer
        self._stopped = False
        self.owed = False
        self.gap_ns = self.gap_max_ns = 0  # the first: the longest one between the last two ticks
        self._gap_ns = 0  # the longest one since the last tick
        self._lateness = Lateness()

    def arm(self, at: int, now: int) -> None:
        """A tick at `at`. One that is armed for a little sooner is left alone, and does no harm."""
        at = min(at, now + self.longest_ns)
        self._runs(now)
        if self.owed or self._stopped:
            return  # its turn arms the next one
        if self._timer is not None:
            if self._timer_at <= at and not self._is_put_off(at):
                return
            self._timer.cancel()
            self._lateness.came(self._timer_at, now)
        self._timer_at = at
        # In whole milliseconds, as the loop counts them, and never too soon: it would tick until the time has come.
        self._timer = self._loop.call_later(max(0, -(-(at - now) // MS)) / 1000, self._fired)

    def _is_put_off(self, at: int) -> bool:
        """Whether the tick that is armed gives way to a later one."""
        latest = self._ticked_at + PUT_OFF_TIMES * self.longest_ns
        return at - self._timer_at >= WORTH_NS and at <= latest

    def _runs(self, now: int) -> None:
        self._gap_ns = max(self._gap_ns, now - self._ran_at)
        self.gap_max_ns = max(self.gap_max_ns, self._gap_ns)
        self._ran_at = now

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
        self._runs(now)
        self.gap_ns, self._gap_ns = self._gap_ns, 0
        self._ticked_at = now
        self._woken()
        self._tick(now)

    def late_ns(self, since_ns: int, now_ns: int) -> int:
        """For how long, since then, this loop came too late at most: ticks that came, and one that is still due."""
        waits = self.owed or self._timer is not None
        return self._lateness.longest_ns(since_ns, now_ns, self._timer_at if waits else None)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
