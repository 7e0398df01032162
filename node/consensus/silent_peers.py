"""Events about peers that a leader hears nothing of, or hears late: one when it begins, one when it ends.

Counted in ticks, like all silence (ticks.py). Invariant: nothing here decides anything; check-quorum does its own sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from node.consensus.api import MS, SECOND
from node.consensus.member_state import MemberState
from node.consensus.progress import Peers, Progress

SHARE: Final = 2  # a peer is reported as silent after this part of the time after which a quorum's silence deposes
SLOW_AFTER_NS: Final = 500 * MS
SLOW_OVER_NS: Final = 10 * SECOND


class SilentPeers:
    """One per leadership."""

    def __init__(self, member: MemberState, peers: Peers) -> None:
        self._member, self._peers = member, peers
        self._after_ticks = 2

    def retimed(self, silent_ticks_max: int) -> None:
        """After so many ticks a quorum's silence deposes."""
        self._after_ticks = max(2, silent_ticks_max // SHARE)

    def look(self, ticks: int, now: int) -> None:
        """After each tick."""
        for peer in self._peers.of.values():
            self._look_at_pushes(peer, now)
        for peer in self._peers.of.values():
            at, since = peer.answered_at, peer.silent_since
            if since is not None and at > since:
                peer.silent_since = None
                reason = f"after {(at - since) // MS} ms of silence"
                self._member.event("peer_answers", now, peer=peer.peer_id, reason=reason)
            elif since is None and ticks - peer.answered_tick > self._after_ticks and peer.counts:
                peer.silent_since = at
                reason = f"no answer for {(now - at) // MS} ms"
                self._member.event("peer_silent", now, "warning", peer=peer.peer_id, reason=reason)

    def _look_at_pushes(self, peer: Progress, now: int) -> None:
        """Who takes long with what was pushed to it; over once it has not for SLOW_OVER_NS."""
        since, oldest = peer.window.waiting_since(), peer.window.oldest()
        if since is not None and oldest is not None and now - since > SLOW_AFTER_NS:
            if peer.slow_at is None:
                reason = f"entry {oldest.first_index} has waited {(now - since) // MS} ms for its answer"
                self._member.event("peer_slow", now, "warning", peer=peer.peer_id, reason=reason)
            peer.slow_at = now
        elif peer.slow_at is not None and now - peer.slow_at > SLOW_OVER_NS:
            peer.slow_at = None
            self._member.event("peer_in_time", now, peer=peer.peer_id)


def in_words(peers: Iterable[Progress], now: int) -> str:
    """Since when each peer has been silent."""
    return ", ".join(f"{peer.peer_id} for {(now - peer.answered_at) // MS} ms" for peer in peers)
