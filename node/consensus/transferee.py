"""The choice of a transferee: which peer may take leadership, and DLedger's refusals for the others."""

from __future__ import annotations

from node.consensus.member_state import MemberState
from node.consensus.progress import PAUSED, Peers, Progress
from node.protocol.codes import DispatcherState, ResponseCode, VoterState


class TransfereeChoice:
    """One per replica; asked while this member leads."""

    def __init__(self, member: MemberState, peers: Peers) -> None:
        self._member, self._peers = member, peers

    def may_take_over(self, peer_id: str) -> ResponseCode:
        """SUCCESS where leadership could go to that peer now, else DLedger's reason why not."""
        peer = self._peers.of[peer_id]
        if not peer.connected:
            return ResponseCode.NETWORK_ERROR
        is_voter = peer.is_voter and peer.voter_state is VoterState.VOTER
        if not is_voter or peer.state in PAUSED or peer.faulty_from >= 0 or peer.needs_state_from >= 0:
            return ResponseCode.ILLEGAL_MEMBER_STATE
        behind = self._member.store.end_index - peer.match_index
        if peer.state is not DispatcherState.APPEND or behind >= self._member.config.max_transfer_wait_index:
            return ResponseCode.FALL_BEHIND_TOO_MUCH
        return ResponseCode.SUCCESS

    def judge(self, peer_id: str | None) -> tuple[ResponseCode, str]:
        """`may_take_over` for whatever an operator named, with words."""
        if peer_id is None:
            return ResponseCode.TAKE_LEADERSHIP_FAILED, "no member can take leadership now"
        if peer_id == self._member.self_id:
            return ResponseCode.UNEXPECTED_ARGUMENT, f"{peer_id} leads already"
        peer = self._peers.of.get(peer_id)
        if peer is None:
            return ResponseCode.UNKNOWN_MEMBER, f"{peer_id} is not a member"
        code = self.may_take_over(peer_id)
        return code, f"{peer_id} {self._standing(peer)} ({code.name})"

    def _standing(self, peer: Progress) -> str:
        if not peer.connected:
            return "is not connected"
        if not peer.is_voter:
            return "has no vote: it is a learner"
        if peer.voter_state is not VoterState.VOTER:
            return f"has no vote: it is {peer.voter_state}"
        return f"is in {peer.state}, {self._member.store.end_index - peer.match_index} entries behind"

    def _able(self) -> list[Progress]:
        return [peer for one, peer in self._peers.of.items() if self.may_take_over(one) is ResponseCode.SUCCESS]

    def best(self) -> str | None:
        """Of those that may take over: a preferred leader first, then whoever holds most."""
        preferred, able = self._member.config.preferred_leaders, self._able()
        able.sort(key=lambda peer: (peer.peer_id not in preferred, -peer.match_index, peer.peer_id))
        return able[0].peer_id if able else None

    def by_what_they_hold(self) -> list[str]:
        """Those that may take over, whoever holds most first; of equals a preferred leader."""
        preferred, able = self._member.config.preferred_leaders, self._able()
        able.sort(key=lambda peer: (-peer.match_index, peer.peer_id not in preferred, peer.peer_id))
        return [peer.peer_id for peer in able]
