"""One member's CLOCK_BOOTTIME against the world's true time: an offset, a rate that is a little off, jumps forward.

Invariants: a running machine's clock never goes back (SAFETY C6); only integers, so that every run is exact.
"""

from __future__ import annotations

from collections.abc import Callable

PPM = 1_000_000


class MemberClock:
    """`now` reads it; `true_at` says when it will show a moment."""

    def __init__(self, true_now: Callable[[], int], offset_ns: int = 0, drift_ppm: int = 0) -> None:
        self._true_now = true_now
        self._true_base = true_now()
        self._local_base = self._true_base + offset_ns
        self._rate = PPM + drift_ppm

    def now(self) -> int:
        """Nanoseconds."""
        return self._local_base + (self._true_now() - self._true_base) * self._rate // PPM

    def true_at(self, local_ns: int) -> int:
        """The first true time at which `now` is at least `local_ns`; may lie in the past."""
        return self._true_base - (self._local_base - local_ns) * PPM // self._rate + 1

    def jump(self, forward_ns: int) -> None:
        """Suddenly later: the machine was suspended, or its clock is broken."""
        assert forward_ns >= 0
        self._local_base += forward_ns

    def reboot(self, offset_ns: int) -> None:
        """CLOCK_BOOTTIME starts anew with the machine."""
        self._true_base = self._true_now()
        self._local_base = self._true_base + offset_ns
