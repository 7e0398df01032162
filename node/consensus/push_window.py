"""What limits the pushes to one peer: the window of unanswered slabs, and the quota of a peer far behind.

Invariants: slabs in the window lie in the order of sending, so that an absolute `verified` acknowledges a run from the
front; the quota never holds more than one second's worth.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.consensus.api import SECOND, ReplicaConfig
from node.protocol.entry import Slab


@dataclass(slots=True)
class InFlight:
    """One APPEND that has not been answered."""

    first_index: int
    last_index: int
    size_bytes: int
    sent_at: int


class PushWindow:
    """Unanswered APPENDs; only one at a time while probing (after a time-out, until an answer comes)."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._slabs_max = config.push_window_slabs
        self._bytes_max = config.push_window_bytes
        self._in_flight: dict[int, InFlight] = {}
        self.size_bytes = 0
        self.probing = False

    def __len__(self) -> int:
        return len(self._in_flight)

    def is_open(self) -> bool:
        """Whether one more slab may leave."""
        limit = 1 if self.probing else self._slabs_max
        return len(self._in_flight) < limit and self.size_bytes < self._bytes_max

    def sent(self, seq: int, slab: Slab, now: int) -> None:
        self._in_flight[seq] = InFlight(slab.first_index, slab.last_index, len(slab.data), now)
        self.size_bytes += len(slab.data)

    def answered(self, seq: int, verified_index: int) -> InFlight | None:
        """Forgets what the peer verified; gives what was sent as `seq`, if that was still open."""
        sent = self._in_flight.get(seq)
        while self._in_flight:
            number, oldest = next(iter(self._in_flight.items()))
            if oldest.last_index > verified_index:
                break
            del self._in_flight[number]
            self.size_bytes -= oldest.size_bytes
        return sent

    def oldest(self) -> InFlight | None:
        return next(iter(self._in_flight.values()), None)

    def clear(self) -> None:
        self._in_flight.clear()
        self.size_bytes = 0


class CatchUpQuota:
    """A token bucket for slabs that are read from disk for a peer far behind; 0 bytes a second: no quota."""

    def __init__(self, bytes_per_s: int, now: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.left_bytes = bytes_per_s
        self._at = now

    def exhausted(self, now: int) -> bool:
        if self.bytes_per_s == 0:
            return False
        refilled = self.left_bytes + self.bytes_per_s * (now - self._at) // SECOND
        self.left_bytes = min(self.bytes_per_s, refilled)
        self._at = now
        return self.left_bytes <= 0

    def spend(self, size_bytes: int) -> None:
        self.left_bytes -= size_bytes
