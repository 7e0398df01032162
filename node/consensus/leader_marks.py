"""What a leader knows its voters to hold: for the marks in its heartbeats, and for a voter's next HELLO (SAFETY E8).

Invariants: a mark is durable at its member and committed; it goes out and on record for proven voters only. What a
voter acknowledged in this leadership may be more, and says something to those only who know no later term.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.member_state import MemberState
from node.consensus.membership import Membership
from node.protocol.messages import MemberMark


class LeaderMarks:
    """One per leadership."""

    def __init__(self, member: MemberState, membership: Membership, dispatchers: Mapping[str, EntryDispatcher]) -> None:
        self._member, self._membership, self._dispatchers = member, membership, dispatchers
        self.sent: tuple[MemberMark, ...] = ()  # with every heartbeat
        self._acknowledged: dict[str, MemberMark] = {}  # by peers whose connection closed

    def renew(self) -> None:
        """A round of heartbeats leaves."""
        member, records = self._member, self._membership.records
        committed = member.committed_index
        found = [records.mark_of(member.self_id, min(member.durable_index, committed))]
        for peer_id, dispatcher in self._dispatchers.items():
            view = self._membership.peers[peer_id]
            if view.proven and view.counts and dispatcher.durable_index is not None:
                index = min(dispatcher.match_index, dispatcher.durable_index, committed)
                found.append(records.mark_of(peer_id, index))
        self.sent = tuple(mark for mark in found if mark is not None)
        records.note_marks(self.sent)

    def acknowledged(self, peer_id: str) -> MemberMark | None:
        """The last entry that this voter counted for in this leadership, committed or not."""
        known = self._acknowledged.get(peer_id)
        if not self._membership.counts(peer_id):
            return known
        now = self._membership.records.mark_of(peer_id, self._dispatchers[peer_id].watermark_index)
        return now if now is not None and (known is None or now.index > known.index) else known

    def lost(self, peer_id: str) -> None:
        """Its connection closed: nothing of it counts until it says anew what it holds, but it did acknowledge."""
        mark = self.acknowledged(peer_id)
        if mark is not None:
            self._acknowledged[peer_id] = mark
