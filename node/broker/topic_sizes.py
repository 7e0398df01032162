"""How many bytes the records of a topic's queues take in the log: counted in the queues' units, which hold each size.

Of a long queue some units are read, evenly taken, and the rest is estimated from them. Invariants: a look reads at most
SAMPLE units of a queue; a queue that did not change is not read again, and no queue more often than every KEPT_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from node.broker.requests.store import Reads

SAMPLE: Final = 512
PIECES: Final = 8  # a long queue's sample is taken at so many places
KEPT_S: Final = 10.0
QUEUES_MAX: Final = 65_536
Queue = tuple[str, int]


class TopicSizes:
    """Of one broker's queues. `clock` in seconds, monotonic."""

    def __init__(self, reads: Reads, clock: Callable[[], float] = time.monotonic) -> None:
        self._reads, self._clock = reads, clock
        self._means: dict[Queue, tuple[float, int, int, float]] = {}  # looked at when, from where to where: a mean

    def of(self, topic: str, queue_id: int) -> tuple[int, bool]:
        """Bytes of what can be read, and whether that is estimated."""
        low, high = self._reads.min_offset(topic, queue_id), self._reads.max_offset(topic, queue_id)
        if low >= high:
            return 0, False
        known, now_s = self._means.get((topic, queue_id)), self._clock()
        is_long = high - low > SAMPLE
        if known is None or (known[1:3] != (low, high) and (not is_long or now_s - known[0] >= KEPT_S)):
            if len(self._means) >= QUEUES_MAX:
                self._means.clear()
            known = self._means[topic, queue_id] = now_s, low, high, self._mean(topic, queue_id, low, high)
        return round(known[3] * (high - low)), is_long

    def _mean(self, topic: str, queue_id: int, low: int, high: int) -> float:
        """Bytes of one record; 0 where no unit can be read."""
        sizes: list[int] = []
        if high - low <= SAMPLE:
            at = low
            while at < high and (found := self._reads.units(topic, queue_id, at, high - at)):
                sizes += [size for _place, size, _code in found]
                at += len(found)
        else:
            count = SAMPLE // PIECES
            for piece in range(PIECES):
                first = low + (high - low - count) * piece // (PIECES - 1)
                sizes += [size for _place, size, _code in self._reads.units(topic, queue_id, first, count)]
        return sum(sizes) / len(sizes) if sizes else 0.0
