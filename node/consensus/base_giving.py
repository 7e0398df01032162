"""What a leader gives a peer that needs entries which the leader's own log no longer holds: its base (SAFETY M6).

The leader's base and nothing newer: so the peer gets every entry that the leader has, and lays them out at the leader's
positions (S5); the base of a log that was trimmed lies right before a data file's first entry.
"""

from __future__ import annotations

from typing import Final

from node.consensus.member_state import MemberState
from node.consensus.progress import Progress
from node.protocol.messages import InstallRequest

TAKES_BASE: Final = "base_install"  # the capability in HELLO: releases before do not know of it


class BaseGiving:
    """One per peer and leadership."""

    def __init__(self, member: MemberState, peer: Progress) -> None:
        self._member, self._peer = member, peer
        self.index = -1  # of the base that was sent last

    @property
    def can_be_taken(self) -> bool:
        """Whether that peer's log can begin where ours does: it takes a base, and ours is known in full.

        A group with a state machine needs the state at the base, too.
        """
        hello = self._peer.hello
        knows = hello is not None and TAKES_BASE in hello.caps
        return knows and self._member.store.base.chain is not None and not self._member.config.applies

    def send(self, now: int) -> int:
        """The order to begin where our log begins; its number."""
        member, base = self._member, self._member.store.base_on_record
        self.index = base.meta.index
        request = InstallRequest(
            member.next_seq(), member.self_id, member.term, self._peer.dispatch_epoch, member.committed_index,
            base.meta.index, base.meta.term, base.meta.chain, base.pos, base.group_id, base.members,
        )  # fmt: skip
        member.send(self._peer.peer_id, request)
        self._peer.order_sent(request.commit_index, now)
        return request.seq
