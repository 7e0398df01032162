"""For how long this process's loop came too late, lately: its machine was busy, or it was stopped.

What a process times of others while it stands still itself says how late it was, and nothing of them: whoever measures
asks here how much of the time was its own. Invariants: bounded; only what happened within the asked time counts.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WORTH_NS: Final = 5_000_000  # a loop that does its work comes a little late all the time
KEPT: Final = 256
RECENT_NS: Final = 3_000_000_000  # what is shown: longer than two heartbeats and the age of a sample


class Lateness:
    """The moments at which a timer came too late, newest last, and by how much."""

    def __init__(self) -> None:
        self._late: deque[tuple[int, int]] = deque(maxlen=KEPT)

    def came(self, due_ns: int, now_ns: int) -> None:
        """What was due then comes now."""
        if now_ns - due_ns > WORTH_NS:
            self._late.append((due_ns, now_ns))

    def longest_ns(self, since_ns: int, now_ns: int, overdue_ns: int | None = None) -> int:
        """The longest time without a turn between then and now; `overdue_ns`: what was due then has not come yet."""
        return max(self._spans_ns(since_ns, now_ns, overdue_ns), default=0)

    def total_ns(self, since_ns: int, now_ns: int, overdue_ns: int | None = None) -> int:
        """All of it together."""
        return sum(self._spans_ns(since_ns, now_ns, overdue_ns))

    def _spans_ns(self, since_ns: int, now_ns: int, overdue_ns: int | None) -> list[int]:
        found = [came - max(due, since_ns) for due, came in self._late if came > since_ns]
        if overdue_ns is not None:
            found.append(now_ns - max(overdue_ns, since_ns))
        return [late for late in found if late > WORTH_NS]
