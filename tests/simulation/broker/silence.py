"""A queue that nobody sends to until nothing of it is left in any log and another master serves; then it is used again.

By then its next offset is in a snapshot and nowhere else, but for a broker that still has the queue's last file: who
has to begin anew reads it there, or gives offsets out a second time (`queue_offsets_dense`, `answers_are_current`).

Invariant: it decides by what is committed and expired alone, so a run stays a function of seed, steps and swarm.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.broker.world import BrokerWorld

SPOKEN_MAX: Final = 20  # messages between two silences; a file of a queue has room for 16
Master = tuple[str, int]


class Silence:
    """Of one queue, the first; several times in a world."""

    def __init__(self, world: BrokerWorld, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._queue = "T0", 0
        self._falls_silent_at = 1 + rng.randrange(SPOKEN_MAX)
        self._expired_under: Master | None = None
        self._is_silent = False

    def keeps(self, queue: tuple[str, int]) -> bool:
        """Whether nothing may be sent to this queue now."""
        if queue != self._queue:
            return False
        if not self._is_silent:
            self._is_silent = self._world.book.end(*queue) >= self._falls_silent_at
        elif self._may_speak():
            self._is_silent, self._expired_under = False, None
            self._falls_silent_at = self._world.book.end(*queue) + 1 + self._rng.randrange(SPOKEN_MAX)
            self._world.workload.count("used again after expiry")
        return self._is_silent

    def _may_speak(self) -> bool:
        """Whether another master serves than when its last message expired at the last member."""
        now = self._master()
        if now is None or not self._is_expired():
            return False
        if self._expired_under is None:
            self._expired_under = now
            self._world.workload.count("a queue expired")
        return now != self._expired_under

    def _is_expired(self) -> bool:
        last = self._world.book.queues[self._queue][-1]
        return all(last.place < one.machine.log_begin for one in self._world.brokers)

    def _master(self) -> Master | None:
        """Which incarnation of a broker serves in which term; None: none, or more than one thinks so."""
        found = [one for one in self._world.brokers if one.broker is not None and one.broker.is_master]
        if len(found) != 1 or found[0].broker is None:
            return None
        return found[0].name, found[0].broker.roles.term
