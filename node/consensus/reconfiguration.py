"""Learners come and go while the group runs: every part of a member hears of it, at one moment.

This is the seam for changes of membership as entries of the log (SAFETY M1 to M5), which are not built yet. Until then
the driver says who learns, to each member on its own; who votes is said at the start and stays. A member that hears of
it late refuses the newcomer's HELLO until then, and no quorum depends on it.

Invariants: it is safe at any moment, between any two calls of the core: what is under way for a peer that is gone comes
to nothing, and nothing that it said before counts if it comes back under the same id.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.configuration import Configuration
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.term_gate import TermGate


class Reconfiguration:
    """One per replica. `settle`: what may follow from any step."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, repair: LogRepair, giving: LogGiving,
        gate: TermGate, office: Office, settle: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._member, self._peers = member, peers
        self._membership, self._gate, self._office = membership, gate, office
        self._repair, self._giving, self._settle = repair, giving, settle

    def add_learner(self, peer_id: str, address: str, now: int) -> None:
        """A member without a vote, from now on. Raises ValueError where that id or address cannot be one's."""
        self.configure(self._member.configuration.with_learner(peer_id, address), now)

    def remove_learner(self, peer_id: str, now: int) -> None:
        """It is gone. Raises ValueError where it is no learner."""
        self.configure(self._member.configuration.without_learner(peer_id), now)

    def configure(self, to: Configuration, now: int) -> None:
        """Other learners from now on. Raises ValueError for other voters, and where this member's own part changes."""
        member, before = self._member, self._member.configuration
        gone = {one for one, at in before.learners.items() if to.learners.get(one) != at}
        new = {one for one, at in to.learners.items() if before.learners.get(one) != at}
        member.configure(to)
        for peer_id in sorted(gone & self._peers.of.keys()):
            self._forget(peer_id, now)
        self._peers.configure(to, gone)
        leadership = self._office.leadership
        for peer_id in sorted(new & self._peers.of.keys()):
            if leadership is not None:
                leadership.add_peer(self._peers.of[peer_id], now)
        if gone or new:
            member.event("configuration", now, learners=sorted(to.learners), joined=sorted(new), left=sorted(gone))
        self._settle(now)

    def _forget(self, peer_id: str, now: int) -> None:
        leadership = self._office.leadership
        if leadership is not None:
            leadership.remove_peer(peer_id)
        self._repair.peer_lost(peer_id, now)
        self._giving.peer_lost(peer_id)
        self._gate.forget(peer_id)
        self._membership.forget(peer_id, now)
        for code, about in list(self._member.alarms):
            if about == peer_id:
                self._member.clear_alarm(code, now, peer_id=peer_id)
