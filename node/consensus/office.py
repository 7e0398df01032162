"""The office: this member's present leadership, or none; every part of a replica looks it up here.

Invariant: it is set once a quorum elected us, and cleared just before this member stops being the leader.
"""

from __future__ import annotations

from collections.abc import Callable

from node.consensus.leadership import Leadership
from node.consensus.member_state import MemberState
from node.store.errors import StoreCorrupt


class Office:
    """One per replica."""

    __slots__ = ("_member", "leadership")

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self.leadership: Leadership | None = None

    def unless_damaged(self, step: Callable[[Leadership], None]) -> None:
        """A step of the leadership; met damage ends it once the step has settled, so nothing half-done goes on."""
        try:
            if self.leadership is not None:
                step(self.leadership)
        except StoreCorrupt as error:
            self._member.note_damage(error)
