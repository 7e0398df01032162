"""Admission: how much may wait for its quorum, as much as the links of a quorum carry in time (SAFETY C5).

Theory. What a leader takes in beyond the rate of its links waits in a queue; a request at the end of a queue that is
longer than the time it has is certain to end as unknown, and so are all behind it. So the rate is measured, per peer
(`push_window.DeliveryRate`); the rate of the quorum is that of the slowest peer that a commit has to wait for.

A refused client gets a time when there will be room, and holds a promise until then: others do not take what becomes
free before. Without promises those whose append has just ended would always be the first to ask.

Invariants: a request that comes to an idle leader is let in, whatever its size; a promise ends by itself; what waits
here is bounded (PROMISES_MAX).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from node.consensus.api import MS, SECOND, ReplicaConfig
from node.consensus.closures import PATIENCE
from node.consensus.push_window import busy_bytes

PROMISES_MAX: Final = 1024
WAIT_NS_MIN: Final = 5 * MS
GRACE_NS: Final = 200 * MS  # how late who was promised room may be
UNKNOWN_FACTOR: Final = 4  # before anything was measured so many times the floor may wait


class _Promise(NamedTuple):
    size_bytes: int
    until: int


class Admission:
    """One leadership's."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.floor_bytes = config.pending_floor_bytes  # while less waits, only promises keep anybody out
        self.judged_from_bytes = busy_bytes(config)  # less is never too much
        self._config = config
        self._promises: dict[Hashable, _Promise] = {}  # in the order of their turns

    @property
    def _share_ns(self) -> int:
        return self._config.timing.closure_timeout_ns // 2

    @property
    def promised(self) -> bool:
        """Whether a refused client holds a promise."""
        return bool(self._promises)

    def limit_bytes(self, rate: int | None) -> int:
        """Who comes while less waits is let in."""
        if rate is None:
            return UNKNOWN_FACTOR * self.floor_bytes
        return max(self.floor_bytes, rate * self._share_ns // SECOND)

    def own_time_ns(self, size_bytes: int, rate: int | None) -> int:
        """How long a request's own bytes are on their way, within bounds; a link that nobody measured may be slow."""
        own_ns_max = (PATIENCE - 1) * self._config.timing.closure_timeout_ns
        return min(size_bytes * SECOND // max(1, self.floor_bytes if rate is None else rate), own_ns_max)

    def judge(self, origin: Hashable | None, size_bytes: int, waiting_bytes: int, rate: int | None, now: int) -> int:
        """0: it may be let in. Otherwise in how many nanoseconds there will be room, and it is promised to `origin`."""
        limit = self.limit_bytes(rate)
        self._expire(now)
        ahead_bytes = 0
        for other, promise in self._promises.items():
            if other == origin:
                break
            ahead_bytes += promise.size_bytes
        # A link that is about to run dry waits for nobody: who was promised room may have gone.
        if waiting_bytes + ahead_bytes < limit or waiting_bytes < limit // 4:
            self._promises.pop(origin, None)
            return 0
        drained_per_s = rate if rate else limit * SECOND // self._share_ns
        wait_ns = max(WAIT_NS_MIN, (waiting_bytes + ahead_bytes - limit + 1) * SECOND // max(1, drained_per_s))
        if origin is not None and (origin in self._promises or len(self._promises) < PROMISES_MAX):
            self._promises[origin] = _Promise(size_bytes, now + wait_ns + wait_ns // 4 + GRACE_NS)
        return wait_ns

    def _expire(self, now: int) -> None:
        if self._promises and any(promise.until <= now for promise in self._promises.values()):
            self._promises = {one: promise for one, promise in self._promises.items() if promise.until > now}
