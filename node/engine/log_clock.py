"""The time that a leader stamps commands with: its wall clock's, but it neither goes back nor stands still.

Behind a wall clock that was set back, or a former leader's that was ahead, it goes on by CLOCK_BOOTTIME from the last
time that was given. If it stood still, what is to last for seconds would last until the clock has come so far.
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

    def begin(self, last_ms: int) -> None:
        """Not before the time of the log's last entry."""
        if last_ms > self.now_ms():
            self._from_ms, self._from_ns = last_ms, self._steady_ns()

    def now_ms(self) -> int:
        at_ns, wall_ms = self._steady_ns(), self._wall_ms()
        by_steady_ms = self._from_ms + (at_ns - self._from_ns) // MS_NS
        if wall_ms > by_steady_ms:
            self._from_ms, self._from_ns = wall_ms, at_ns
        return max(wall_ms, by_steady_ms)
