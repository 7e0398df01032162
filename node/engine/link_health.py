"""The health of the two connections to a peer: since when they stand, when it was last heard, round trip.

The round trip is a heartbeat's, one at a time: it waits for no disk on either side, so that it speaks of the link and
of the peer's loop alone. It is the shorter one of the last two: a heartbeat that waited for a cut link to be mended, or
for a process that was stopped, says how long that lasted, and not how fast the link is. For as long as this process
came late itself meanwhile an answer may have waited for it: that is taken off, and where it is more than what is left
the question has timed nothing. Invariants: nothing here
decides anything, it is shown to operators; what is not known is None; a frame costs one clock reading, an append
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from node.consensus.status import LinkStatus
from node.engine.clock import wall_text
from node.views.state import LinkView

LOST_AFTER_NS: Final = 5_000_000_000  # a question that nobody answered for so long is given up
LateNs = Callable[[int, int], int]  # for how long this process came late at most, between two moments


def in_time(_since_ns: int, _now_ns: int) -> int:
    """A process that never comes late."""
    return 0


@dataclass(slots=True)
class LinkHealth:
    """Of one peer. `in`: the connection that it opened to us; `out`: ours to it. Moments are CLOCK_BOOTTIME."""

    in_since_ns: int | None = None
    out_since_ns: int | None = None
    heard_at_ns: int | None = None
    rtt_ns: float | None = None
    last_rtt_ns: int | None = None
    asked_opaque: int = -1
    asked_at_ns: int = 0

    def asked(self, opaque: int, now_ns: int) -> None:
        """A heartbeat leaves."""
        if self.asked_opaque == -1 or now_ns - self.asked_at_ns > LOST_AFTER_NS:
            self.asked_opaque, self.asked_at_ns = opaque, now_ns

    def answered(self, opaque: int, now_ns: int, late_ns: LateNs = in_time) -> None:
        """An answer of this number has come."""
        if opaque == self.asked_opaque != -1:  # a durable ack that nobody asked for says -1, too
            self.asked_opaque = -1
            ours_ns = late_ns(self.asked_at_ns, now_ns)
            took_ns = now_ns - self.asked_at_ns - ours_ns
            if took_ns < ours_ns:
                return
            self.rtt_ns = took_ns if self.last_rtt_ns is None else min(took_ns, self.last_rtt_ns)
            self.last_rtt_ns = took_ns

    @property
    def unanswered_since_ns(self) -> int | None:
        """When the heartbeat left whose answer is waited for; None: there is none."""
        return None if self.asked_opaque == -1 else self.asked_at_ns

    def out_lost(self) -> None:
        """Our connection is gone, and what was asked on it with it."""
        self.out_since_ns = self.rtt_ns = self.last_rtt_ns = None
        self.asked_opaque = -1


def link_view(peer_id: str, link: LinkHealth | LinkStatus, now_ns: int) -> LinkView:
    """One item of `state.links`."""
    heard, asked = link.heard_at_ns, link.unanswered_since_ns
    return LinkView(
        peer_id=peer_id,
        in_since=None if link.in_since_ns is None else wall_text(link.in_since_ns),
        out_since=None if link.out_since_ns is None else wall_text(link.out_since_ns),
        last_heard_ms=None if heard is None else max(0, now_ns - heard) // 1_000_000,
        rtt_ms=None if link.rtt_ns is None else round(link.rtt_ns / 1e6, 2),
        unanswered_ms=None if asked is None else max(0, now_ns - asked) // 1_000_000,
    )
