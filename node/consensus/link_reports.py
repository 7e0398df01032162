"""Handles the driver's reports about connections: which peers are reachable, and what answers at an address.

Invariant: a report about a peer that is gone changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.leader_elector import LeaderElector
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.log_giving import LogGiving
from node.consensus.log_repair import LogRepair
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.consensus.office import Office
from node.consensus.progress import Peers
from node.consensus.strangers import Stranger


class LinkReports:
    """One per replica. `settle`: what may follow from any step."""

    def __init__(
        self, member: MemberState, peers: Peers, membership: Membership, elector: LeaderElector, repair: LogRepair,
        giving: LogGiving, transfers: LeadershipTransfer, office: Office, settle: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._member, self._peers, self._membership, self._elector = member, peers, membership, elector
        self._repair, self._giving, self._transfers = repair, giving, transfers
        self._office, self._settle = office, settle

    def connected(self, peer_id: str, now: int) -> None:
        """Our outbound HELLO was accepted; its answer came in as a message before."""
        peer = self._peers.of.get(peer_id)
        if peer is None:
            return
        peer.connected = True
        end_index = peer.hello.end_index if peer.hello is not None else self._member.store.end_index
        self._office.unless_damaged(lambda leading: leading.dispatchers[peer_id].connected_now(end_index, now))
        self._repair.peer_connected(peer_id, now)
        self._settle(now)

    def lost(self, peer_id: str, now: int) -> None:
        """Either connection of that peer closed."""
        peer = self._peers.of.get(peer_id)
        if peer is None:
            if self._member.configurations.guests.pop(peer_id, None) is not None and self._member.leader_id == peer_id:
                self._elector.leader_lost(now)
            return
        peer.connected = False
        self._repair.peer_lost(peer_id, now)
        self._giving.peer_lost(peer_id)
        if self._office.leadership is not None:
            self._office.leadership.peer_lost(peer_id)
            self._transfers.transferee_lost(peer_id, now)
        elif self._member.leader_id == peer_id:
            self._elector.leader_lost(now)

    def stranger_met(self, peer_id: str, kind: Stranger, text: str, now: int) -> str | None:
        """What answered at that peer's address is no member of ours; why this member must end, None: it goes on."""
        return None if peer_id not in self._peers.of else self._membership.strangers.met(peer_id, kind, text, now)

    def nobody_there(self, peer_id: str, now: int) -> None:
        """Nobody listens at that peer's address."""
        self._membership.stranger_gone(peer_id, now)
