"""For how long this console itself stood still: what it did not read meanwhile is no member's silence.

A timer that comes too late says so, by a clock that goes on while the machine is suspended. Invariant: while the loop
runs, nothing is counted.
"""

from __future__ import annotations

import asyncio
from typing import Final

from app.health.clock_steps import boot_ns
from node.lateness import Lateness

BEAT_NS: Final = 250_000_000


class Beat:
    """One per watch."""

    def __init__(self) -> None:
        self._lateness = Lateness()
        self._due_ns: int | None = None

    async def run(self) -> None:
        while True:
            self._due_ns = boot_ns() + BEAT_NS
            await asyncio.sleep(BEAT_NS / 1e9)
            self._lateness.came(self._due_ns, boot_ns())

    def stood_still_s(self, since_ns: int | None) -> float:
        """Since that moment of the monotonic clock, until now."""
        if since_ns is None:
            return 0.0
        return self._lateness.total_ns(since_ns, boot_ns(), self._due_ns) / 1e9
