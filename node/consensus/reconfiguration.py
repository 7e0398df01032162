"""Learners come and go while the group runs: every part of a member hears of it, at one moment.

This is the seam for changes of membership as entries of the log (SAFETY M1 to M5), which are not built yet. Until then
the driver says who learns, to each member on its own; who votes is said at the start and stays. Whoever is told late
refuses the newcomer's HELLO until then, and nobody's quorum depends on it.

Invariants: it is safe at any moment, between any two calls of the core: what is under way for a peer that is gone comes
to nothing, and nothing that it said before counts if it comes back under the same id.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.configuration import Configuration
from node.consensus.leadership import Leadership
from node.consensus.log_repair import LogRepair
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.progress import Peers
from node.consensus.term_gate import TermGate


class Reconfiguration:
    """One per replica. `leadership` gives the present one."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, repair: LogRepair, gate: TermGate,
        leadership: Callable[[], Leadership | None],
    ) -> None:  # fmt: skip
        self._member, self._peers = member, peers
        self._membership, self._repair, self._gate, self._leadership = membership, repair, gate, leadership

    def configure(self, to: Configuration, now: int) -> None:
        """Other learners from now on. Raises ValueError for other voters, and where this member's own part changes."""
        member, before = self._member, self._member.configuration
        gone = {one for one, at in before.learners.items() if to.learners.get(one) != at}
        new = {one for one, at in to.learners.items() if before.learners.get(one) != at}
        member.configure(to)
        for peer_id in sorted(gone & self._peers.of.keys()):
            self._forget(peer_id, now)
        self._peers.configure(to, gone)
        leadership = self._leadership()
        for peer_id in sorted(new & self._peers.of.keys()):
            if leadership is not None:
                leadership.add_peer(self._peers.of[peer_id], now)
        if gone or new:
            member.event("configuration", now, learners=sorted(to.learners), joined=sorted(new), left=sorted(gone))

    def _forget(self, peer_id: str, now: int) -> None:
        leadership = self._leadership()
        if leadership is not None:
            leadership.remove_peer(peer_id)
        self._repair.peer_lost(peer_id, now)
        self._gate.forget(peer_id)
        self._membership.forget(peer_id, now)
        for code, about in list(self._member.alarms):
            if about == peer_id:
                self._member.clear_alarm(code, now, peer_id=peer_id)
