"""Locks of queues: an orderly consumer pulls from a queue only while it holds the queue's lock.

Invariants: one client of a group holds a queue at a time; a lock that is not renewed within LOCK_MS is free; the table
is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from node.rocketmq.bodies import MessageQueue

LOCK_MS: Final = 60_000
LOCKS_MAX: Final = 100_000


class QueueLocks:
    """See the module's docstring."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._held: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those that this client holds now, in the order asked for."""
        now = self._now_ms()
        found: list[MessageQueue] = []
        for queue in dict.fromkeys(queues):
            holder = self._held.get((group, queue))
            if holder is not None and holder[0] != client_id and now - holder[1] <= LOCK_MS:
                continue
            if holder is None and len(self._held) >= LOCKS_MAX and not self._drop_expired(now):
                continue
            self._held[group, queue] = (client_id, now)
            found.append(queue)
        return found

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            if self._held.get((group, queue), ("", 0))[0] == client_id:
                del self._held[group, queue]

    def _drop_expired(self, now: int) -> bool:
        """Whether there is room by that."""
        for key in [key for key, (_client, at) in self._held.items() if now - at > LOCK_MS]:
            del self._held[key]
        return len(self._held) < LOCKS_MAX
