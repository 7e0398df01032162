"""A leader's orders that a log begins anew, as its follower takes them: behind a base alone, or behind a snapshot.

Invariant: what shows two histories is an alarm, whichever way it came.
"""

from __future__ import annotations

from node.consensus.base_install import BaseInstall
from node.consensus.contradictions import fork_found
from node.consensus.member_state import MemberState
from node.consensus.snapshot_install import SnapshotInstall
from node.protocol.codes import ResponseCode
from node.protocol.messages import InstallRequest, SnapshotPart
from node.snapshots.transfer import Taken
from node.store.errors import ColdEntry


class InstallOrders:
    """One per replica."""

    def __init__(self, member: MemberState) -> None:
        self._member, self._base = member, BaseInstall(member)
        self._snapshot = SnapshotInstall(member, self._base)

    def take(self, request: InstallRequest | SnapshotPart, now: int) -> ResponseCode | None:
        """What to answer; None: once the driver has that piece. Raises ColdEntry: asked again later."""
        if isinstance(request, SnapshotPart):
            return self._judged(request, self._snapshot.take(request, now), now)
        return self._judged(request, self._base.act(request, now).code, now)

    def taken(self, part: SnapshotPart, taken: Taken | None, now: int, *, follows: bool) -> ResponseCode | None:
        """The driver has a piece; see SnapshotInstall."""
        try:
            return self._judged(part, self._snapshot.taken(part, taken, now, follows=follows), now)
        except ColdEntry:  # the leader asks again
            return ResponseCode.PUSH_REQUEST_IS_FULL

    def _judged(
        self, request: InstallRequest | SnapshotPart, code: ResponseCode | None, now: int
    ) -> ResponseCode | None:
        if code is ResponseCode.INCONSISTENT_STATE:
            text = f"entry {request.base_index} has the term of {request.leader_id}'s base but another chain"
            fork_found(self._member, text, now, request.leader_id)
        return code
