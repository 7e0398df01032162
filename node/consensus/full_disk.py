"""The full-disk rule (SAFETY S8): a member refuses writes until a try succeeds; another leads if it can.

Heartbeats and reads go on. Of a broker group parts of snapshots go on, too, within a reserve: retention removes nothing
that the newest snapshot does not stand for, so without one there might never be space again. What lies behind the
configured ratio is that reserve; where the disk itself refuses a write, so is a part.

Invariants: a leader hands over, or steps down, once until the next try for space; no more than RESERVE_BYTES get in
from one lack of space to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.consensus.api import Proposal
from node.consensus.handover import Handover
from node.consensus.leadership_transfer import LeadershipTransfer
from node.consensus.member_state import MemberState
from node.consensus.office import Office
from node.consensus.roles import RoleEvent
from node.protocol.group_kind import Channel

RESERVE_BYTES: Final = 256 << 20


class FullDisk:
    """One per replica."""

    def __init__(self, member: MemberState, office: Office, transfers: LeadershipTransfer, handover: Handover) -> None:
        self._member, self._office, self._transfers, self._handover = member, office, transfers, handover
        self._left = False  # handed over, or tried to, since the last try for space
        self.gave_others_a_try = False
        self._reserve_used = 0

    @property
    def keeps_reserve(self) -> bool:
        """Whether snapshots are in the log here."""
        return self._member.config.kind.keeps_places

    def takes(self, proposals: Sequence[Proposal]) -> bool:
        """Whether they may be tried all the same: parts of snapshots, and the reserve holds them."""
        if not self.keeps_reserve or not all(
            one.lane is not None and one.lane.channel == Channel.SNAPSHOT_PART for one in proposals
        ):
            return False
        size_bytes = sum(one.size_bytes for one in proposals)
        if self._reserve_used + size_bytes > RESERVE_BYTES:
            return False
        self._reserve_used += size_bytes
        return True

    def met(self, now: int, *, by_ratio: bool = False) -> None:
        """No space; `by_ratio`: the disk itself refused nothing, what it says ends the alarm without a write."""
        text = f"the disk of {self._member.self_id} is full" + (": `disk_full_ratio` of it is used" if by_ratio else "")
        self._member.no_space(text, now, by_ratio=by_ratio)
        self.leave(now)

    def try_again(self, now: int, *, still_short: bool) -> None:
        """Every now and then, while the member is short of space: a try whether there is some again."""
        member, leadership = self._member, self._office.leadership
        self._left = False
        idle = not member.disk_full and not member.wrote_since_full
        member.try_space(now, still_short)
        if not member.short_of_space:
            self._reserve_used = 0
            self.gave_others_a_try = False
        if leadership is not None:
            unasked = member.short_of_space and idle and not still_short and not self._transfers.pauses_writes
            leadership.append_noop(now, again=unasked)
        self.leave(now)

    def leave(self, now: int) -> None:
        """A leader that met a full disk hands over.

        One that could not even write its first entry can commit nothing, and so hand over nothing: it steps down. If it
        is elected again before it could write, no other member can either: then it stays and waits for space.
        """
        member, leadership = self._member, self._office.leadership
        if leadership is None:
            return
        begun = member.store.end_index >= leadership.own_term_from
        self.gave_others_a_try &= not begun
        if not member.disk_full or self._left:
            return
        self._left = True
        if not begun and not self.gave_others_a_try:
            self.gave_others_a_try = True
            member.change_role(RoleEvent.DEPOSED, now, "the disk is full before the first entry of its own term")
        elif begun and self._transfers.transferee_id is None:
            self._handover.ask(None, now, lambda _outcome: None, reason="the disk is full")
