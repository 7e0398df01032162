"""How many messages a second each topic gets: the difference of its queues' ends over the last minute.

Invariant: nothing is said of a topic before it was looked at twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final

EVERY_S: Final = 5.0
KEPT: Final = 13  # a minute


class TopicRates:
    """`look` is to be called often; it counts every EVERY_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, int]]] = deque(maxlen=KEPT)

    def look(self, next_offsets: Mapping[tuple[str, int], int]) -> None:
        now = time.monotonic()
        if self._seen and now - self._seen[-1][0] < EVERY_S:
            return
        ends: dict[str, int] = {}
        for (topic, _queue_id), end in next_offsets.items():
            ends[topic] = ends.get(topic, 0) + end
        self._seen.append((now, ends))

    def of(self, topic: str) -> float | None:
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return round(max(0, last.get(topic, 0) - first.get(topic, 0)) / (ended - began), 1)
