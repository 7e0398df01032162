"""Silence, counted in ticks (SAFETY E6).

Theory. A member that stood still (a busy machine, a stopped virtual machine, a slow disk) cannot tell by the clock
whether the others were silent or it was deaf itself; and where all stood still alike, nobody was there to speak. So
silence is counted in moments at which this member looked and had heard nothing, half a heartbeat apart. What makes a
promise to others (leases, votes, reads) uses the clock and nothing of this.

Invariants: a tick counts once, however late it comes; two ticks are at least a period apart, so that a count never runs
ahead of the clock.
"""

from __future__ import annotations


class Ticks:
    """How many ticks passed since `begin`. Whoever looks does so after it has taken in all that had arrived."""

    __slots__ = ("count", "due_at", "period_ns")

    def __init__(self, period_ns: int, now: int) -> None:
        self.period_ns = period_ns
        self.count = 0
        self.due_at = now + period_ns

    def begin(self, now: int, first_ns: int) -> None:
        """Counts anew; the first tick is due in `first_ns`."""
        self.count = 0
        self.due_at = now + first_ns

    def passed(self, now: int) -> bool:
        """Whether a tick was due; it is counted then, and the next one is due a period from now."""
        if now < self.due_at:
            return False
        self.count += 1
        self.due_at = now + self.period_ns
        return True

    def split(self, wait_ns: int) -> tuple[int, int]:
        """A wait in ticks: how many, and when the first is due, so that undisturbed they take exactly `wait_ns`."""
        needed = max(1, -(-wait_ns // self.period_ns))
        return needed, wait_ns - (needed - 1) * self.period_ns
