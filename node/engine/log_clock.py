"""The time that a leader stamps commands with: its wall clock's, but it neither goes back nor stands still.

Behind a wall clock that was set back, or a former leader's that was ahead, it goes on by CLOCK_BOOTTIME from the last
time that was given, or that is known of the log. If it stood still, what is to last for seconds would last until the
clock has come so far. A follower learns the log's time as it applies, so that what has passed since then counts when it
leads; its own wall clock, which may be ahead for a while, says nothing until it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MS_NS: Final = 1_000_000


class LogClock:
    """See the module's docstring. `steady_ns`: a clock that nobody sets."""

    def __init__(self, wall_ms: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        self._wall_ms, self._steady_ns = wall_ms, steady_ns
        self._from_ms, self._from_ns = -1, steady_ns()

    def learn(self, time_ms: int) -> None:
        """The log has come to that time."""
        at_ns = self._steady_ns()
        if time_ms > self._by_steady_ms(at_ns):
            self._from_ms, self._from_ns = time_ms, at_ns

    def now_ms(self) -> int:
        self.learn(self._wall_ms())
        return self._by_steady_ms(self._steady_ns())

    def _by_steady_ms(self, at_ns: int) -> int:
        return self._from_ms + (at_ns - self._from_ns) // MS_NS
