"""What limits the pushes to one peer: the window of unanswered slabs, and the quota of a peer far behind; and what the
way to it was measured to carry.

Invariants: slabs in the window lie in the order of sending, so that an absolute `verified` acknowledges a run from the
front; the quota lets a peer have at least its floor, and never more than a share of the measured capacity while others
append.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from node.consensus.api import MS, SECOND, ReplicaConfig
from node.protocol.entry import SLAB_BYTES_MAX

SHARE: Final = 0.9  # of the measured capacity, for a peer far behind while others append
LOADED_NS: Final = 200 * MS  # so long after an append the leader counts as busy
SPAN_NS: Final = 50 * MS  # a rate is measured over at least so long, while the link is busy
LATE_NS: Final = 250 * MS  # from then on what has not come yet counts, too: the link may have become slow
SAMPLES: Final = 4  # the best of so many counts: a pause of the machine makes no link slow
PROBE_SLAB_BYTES: Final = 512 * 1024  # after a time-out the way may be thin: a whole slab would take long to answer


class InFlight(NamedTuple):
    """What one APPEND carries, as long as it has not been answered; the same for every peer that it went to."""

    first_index: int
    last_index: int
    size_bytes: int
    sent_at: int


def busy_bytes(config: ReplicaConfig) -> int:
    """A link on which less waits does not count as busy, and less is never too much to wait for a quorum."""
    return max(1, config.pending_floor_bytes // 4)


class DeliveryRate:
    """What one peer takes, in bytes a second."""

    def __init__(self, busy_bytes: int) -> None:
        """With less than `busy_bytes` waiting for it a link does not count as busy."""
        self._busy_bytes = busy_bytes
        self._waiting: deque[InFlight] = deque()
        self._waiting_bytes = 0
        self._since: int | None = None  # measured since then
        self._taken_bytes = 0
        self._samples: deque[int] = deque(maxlen=SAMPLES)

    @property
    def waiting(self) -> int:
        """How many slabs were sent and not taken yet."""
        return len(self._waiting)

    def sent(self, slab: InFlight) -> None:
        """A slab leaves, behind all that left before."""
        self._waiting.append(slab)
        self._waiting_bytes += slab.size_bytes
        if self._since is None and self._waiting_bytes >= self._busy_bytes:
            self._since, self._taken_bytes = slab.sent_at, 0

    def taken(self, watermark_index: int, now: int) -> None:
        """The peer counts with all up to `watermark_index`."""
        waiting, taken_bytes = self._waiting, 0
        while waiting and waiting[0].last_index <= watermark_index:
            taken_bytes += waiting.popleft().size_bytes
        self._waiting_bytes -= taken_bytes
        if self._since is None or not taken_bytes:
            return
        self._taken_bytes += taken_bytes
        busy = self._waiting_bytes >= self._busy_bytes
        span_ns = now - self._since
        if busy and span_ns < SPAN_NS:
            return
        if self._taken_bytes >= self._busy_bytes:
            self._samples.append(self._taken_bytes * SECOND // max(1, span_ns))
        self._since, self._taken_bytes = now if busy else None, 0

    def forget_sent(self) -> None:
        """What was sent is void; what was measured stays."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._since = None

    def bytes_per_s(self, now: int) -> int | None:
        """None: nobody knows yet."""
        known = max(self._samples, default=None)
        if self._since is None or not self._waiting or now - self._since < LATE_NS:
            return known
        at_best = (self._taken_bytes + self._waiting[0].size_bytes) * SECOND // (now - self._since)
        return at_best if known is None else min(known, at_best)


class PushWindow:
    """Unanswered APPENDs; only one at a time while probing (after a time-out, until an answer comes)."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._slabs_max = config.push_window_slabs
        self._bytes_max = config.push_window_bytes
        self._in_flight: dict[int, InFlight] = {}
        self.size_bytes = 0
        self.probing = False
        self._progress_at = 0  # something was acknowledged
        self.rate = DeliveryRate(busy_bytes(config))
        self._long_bytes = busy_bytes(config)
        self._config, self._slow_bytes_per_s = config, max(1, config.pending_floor_bytes)

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def slab_bytes_max(self) -> int:
        """How much the next slab may hold."""
        return PROBE_SLAB_BYTES if self.probing else SLAB_BYTES_MAX

    def is_open(self) -> bool:
        """Whether one more slab may leave."""
        limit = 1 if self.probing else self._slabs_max
        return len(self._in_flight) < limit and self.size_bytes < self._bytes_max

    def sent(self, seq: int, slab: InFlight) -> None:
        self._in_flight[seq] = slab
        self.size_bytes += slab.size_bytes
        self.rate.sent(slab)

    def answered(self, seq: int, verified_index: int, now: int) -> InFlight | None:
        """Forgets what the peer verified; gives what was sent as `seq`, if that was still open."""
        sent = self._in_flight.get(seq)
        while self._in_flight:
            number, oldest = next(iter(self._in_flight.items()))
            if oldest.last_index > verified_index:
                break
            del self._in_flight[number]
            self.size_bytes -= oldest.size_bytes
            self._progress_at = now
        return sent

    def oldest(self) -> InFlight | None:
        return next(iter(self._in_flight.values()), None)

    def waiting_since(self) -> int | None:
        """Since when nothing in the window was acknowledged; None: it is empty.

        Not since when the oldest slab is on its way: over a thin line the whole window takes longer than any time-out,
        and sending it again would only make that worse.
        """
        oldest = self.oldest()
        return None if oldest is None else max(oldest.sent_at, self._progress_at)

    def silent_from(self) -> int | None:
        """When nothing was acknowledged for too long; None: it is empty. A long frame is on its way for long."""
        since, oldest = self.waiting_since(), self.oldest()
        if since is None or oldest is None:
            return None
        own_ns = oldest.size_bytes * SECOND // self._slow_bytes_per_s if oldest.size_bytes >= self._long_bytes else 0
        return since + self._config.timing.push_timeout_ns + own_ns

    def late(self, now: int) -> InFlight | None:
        """The oldest, where nothing was acknowledged for too long."""
        silent_from = self.silent_from()
        return self.oldest() if silent_from is not None and now >= silent_from else None

    def clear(self) -> None:
        self._in_flight.clear()
        self.size_bytes = 0
        self.rate.forget_sent()


class CatchUpQuota:
    """How fast a peer far behind is brought back, so that those who append do not feel it.

    While nobody appends there is no limit. Otherwise slabs go one at a time, and take SHARE of what the way to the peer
    was measured to carry, from the read of a slab to its acknowledgement, but at least the floor. What is measured
    falls where the machine has more to do, and the rate with it. A floor of 0: no limit, ever.

    Whole slabs: measured beside 1,000 appends a second on two cores, a peer came back 1.3 times as fast with 1 MiB as
    with 512 KiB, and the appends' p99 was 1.7 times that of a group in which all is well instead of 1.5.
    """

    def __init__(self, config: ReplicaConfig) -> None:
        self._config = config
        self._appended_at: int | None = None
        self._asked_at: int | None = None  # the one slab that is measured
        self._free_at = 0
        self.capacity_bytes_per_s = 0  # measured; 0: not yet
        self.bytes_per_s = 0  # what it gets now; 0: no limit

    @property
    def _floor(self) -> int:
        return self._config.catch_up_bytes_per_s

    def appended(self, now: int) -> None:
        """A client's entries were appended, and this peer was not in step."""
        self._appended_at = now

    def holds(self, now: int) -> bool:
        """Whether there is a limit now."""
        at = self._appended_at
        if self._floor == 0 or at is None or now - at > LOADED_NS:
            self.bytes_per_s, self._asked_at = 0, None
            return False
        self.bytes_per_s = max(self._floor, int(self.capacity_bytes_per_s * SHARE))
        return True

    def ask(self, now: int) -> int:
        """The next slab is read under the limit; for how long to wait before."""
        pause_ns = max(0, self._free_at - now)
        self._asked_at = now + pause_ns
        return pause_ns

    def taken(self, size_bytes: int, now: int) -> None:
        """The peer holds the slab."""
        if self._asked_at is None or size_bytes == 0:
            return
        measured = size_bytes * SECOND // max(1, now - self._asked_at)
        known = self.capacity_bytes_per_s
        self.capacity_bytes_per_s = known + (measured - known) // 4 if known else measured
        rate = max(self._floor, int(self.capacity_bytes_per_s * SHARE))
        self._free_at = self._asked_at + size_bytes * SECOND // rate
        self._asked_at = None
