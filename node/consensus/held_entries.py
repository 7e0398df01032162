"""Who still needs entries of this member's log: what retention may not remove without being forced.

Theory. An entry may go once every member of the group is known to hold it: durable, undamaged, matched against the
leader. Only the leader knows that (`Progress.held_index`: what a peer showed in this leadership, also while it is
away), so it says with each heartbeat up to where everybody holds the log, and its followers remove no more than that.
So nobody removes what might be the only copy of an entry that another one lacks: a member that lags or is away keeps
the log of all. What a peer lost since (a replaced disk, rot), it says in its next HELLO or answer: then that counts.

Invariants: what a leader of another term said counts for nothing; a learner's need counts like a voter's; nothing is
known at the start of a leadership, so nothing goes before each member has answered in it.
"""

from __future__ import annotations

from node.consensus.member_state import MemberState
from node.consensus.office import Office
from node.consensus.progress import Peers, Progress
from node.protocol.messages import HeartBeatRequest
from node.store.retention import Need


class HeldEntries:
    """One per replica."""

    def __init__(self, member: MemberState, peers: Peers, office: Office) -> None:
        self._member, self._peers, self._office = member, peers, office
        self._reported: tuple[int, int] = (
            -1,
            -1,
        )  # (term, index): up to where its leader knows everybody to hold the log

    def reported(self, beat: HeartBeatRequest) -> None:
        """A heartbeat of the present leader."""
        self._reported = beat.term, beat.held_index

    def removable_through(self) -> int:
        """This member itself has committed and synced up to here; no more goes, not even by force.

        Whether its own copy is damaged does not matter where that copy goes and everybody else has one.
        """
        return min(self._member.committed_index, self._member.durable_index)

    def needs(self) -> list[Need]:
        """Who needs what of that, as far as this member knows."""
        safe_index = self.removable_through()
        if self._office.leadership is not None:
            peers = self._peers.of.values()
            return [_need_of(peer) for peer in peers if peer.held_index < safe_index]
        term, index = self._reported
        leader_id = self._member.leader_id
        if leader_id is None or term != self._member.term:
            return [Need("the group", 0, "has no leader that says what all members hold")]
        if index < safe_index:
            return [Need(f"leader {leader_id}", index + 1, f"knows all members to hold entries up to {index} only")]
        return []


def _need_of(peer: Progress) -> Need:
    held = "no entry" if peer.held_index < 0 else f"entries up to {peer.held_index}"
    kind = "voter" if peer.is_voter else "learner"
    if peer.faulty_from >= 0:
        why = f"is damaged from entry {peer.faulty_from} on"
    elif not peer.connected:
        why = f"is not connected; it is known to hold {held}"
    else:
        why = f"is known to hold {held} on its disk"
    return Need(f"{kind} {peer.peer_id}", peer.held_index + 1, why)
