"""Leader marks: what a leader knows its voters to hold, for heartbeats and a voter's next HELLO (SAFETY E8).

Invariants: a mark is durable at its member and committed; it goes out and on record for proven voters only. What a
voter acknowledged in this leadership may be more, and says something to those only who know no later term.
"""

from __future__ import annotations

from node.consensus.member_state import MemberState
from node.consensus.progress import Peers, Progress
from node.consensus.store_records import StoreRecords
from node.protocol.messages import MemberMark


class LeaderMarks:
    """One per leadership."""

    def __init__(self, member: MemberState, peers: Peers, records: StoreRecords) -> None:
        self._member, self._peers, self._records = member, peers, records
        self.sent: tuple[MemberMark, ...] = ()  # with every heartbeat

    def renew(self) -> None:
        """A round of heartbeats leaves."""
        member, records = self._member, self._records
        committed = member.committed_index
        found = [records.mark_of(member.self_id, min(member.durable_index, committed))]
        for peer in self._peers.voters:
            if peer.proven and peer.counts and peer.durable_index is not None:
                index = min(peer.match_index, peer.durable_index, committed)
                found.append(records.mark_of(peer.peer_id, index))
        self.sent = tuple(mark for mark in found if mark is not None)
        records.note_marks(self.sent)

    def acknowledged(self, peer: Progress) -> MemberMark | None:
        """The last entry that this voter counted for in this leadership, committed or not."""
        known = peer.acknowledged
        if not peer.counts:
            return known
        now = self._records.mark_of(peer.peer_id, peer.watermark_index)
        return now if now is not None and (known is None or now.index > known.index) else known

    def lost(self, peer: Progress) -> None:
        """Its connection closed: nothing of it counts until it says anew what it holds, but it did acknowledge."""
        mark = self.acknowledged(peer)
        if mark is not None:
            peer.acknowledged = mark
