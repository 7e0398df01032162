"""What a leader gives a peer that needs entries which the leader's own log no longer holds: its base (SAFETY M6).

In a group with a state machine it is a snapshot (`snapshot_giving.py`). Else it is the leader's base and nothing newer:
so the peer gets every entry that the leader has, and lays them out at the leader's positions (S5); the base of a log
that was trimmed lies right before a data file's first entry.
"""

from __future__ import annotations

from node.consensus.effects import OpenSnapshot, ReadSnapshot
from node.consensus.member_state import MemberState
from node.consensus.own_caps import TAKES_BASE
from node.consensus.progress import Progress
from node.consensus.status import SnapshotStatus
from node.protocol.messages import InstallRequest, PushResponse
from node.snapshots.directory import SnapshotMeta


class BaseGiving:
    """One per peer and leadership; a `Giving`."""

    patience_ns = 0

    def __init__(self, member: MemberState, peer: Progress) -> None:
        self._member, self._peer = member, peer
        self.index = -1  # of the base that was sent last

    @property
    def obstacle(self) -> str:
        """Why that peer's log cannot begin where ours does, and what to do; nothing where it can."""
        hello = self._peer.hello
        if hello is None or TAKES_BASE not in hello.caps:
            return "its release cannot begin there: upgrade it"
        if self._member.store.base.chain is None:
            return "the chain there is not known: give it a copy of another member's directory"
        return ""

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

    def went_on(self, answer: PushResponse, now: int) -> int | None:
        """It begins there, or refuses: nothing in between."""
        return None

    def opened(self, order: OpenSnapshot, meta: SnapshotMeta | None, why: str, now: int) -> bool:
        """Nothing is asked for here, nor in `read`."""
        return False

    def read(self, order: ReadSnapshot, piece: bytes | None, now: int) -> bool:
        return False

    def stop(self) -> None:
        """Nothing is kept for it."""

    def status(self) -> SnapshotStatus | None:
        return None
