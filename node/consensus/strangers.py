"""Alarms about whatever answers at a member's address and is no member of this group (SAFETY C8).

Its kind is decided per connection that this member dialled, by what it said: REQUEST_CODE_NOT_SUPPORTED to a
HELLO is a plain DLedger process, a refusal is a member that does not take us (or, of one that says so, not any
more: SAFETY M5), a HELLO without the proof that is asked
for is unproven (SAFETY C11), anything else is foreign. Silence says nothing. Who merely connects *to* us
raises no alarm, and ends none.

Invariants: at most one such alarm stands per peer, and none once nobody listens at its address or it answers there.
Only a group that is still forming gives up over a plain process; an established one goes on without it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from node.consensus.api import SECOND
from node.consensus.member_state import MemberState
from node.protocol.codes import VoterState

# A member that starts without history may still learn that its group has one: then it joins, and does not give up.
FORMING_GIVES_UP_AFTER_NS: Final = 2 * SECOND
# How a member refuses one whose removal is committed. The entry that says so is rarely sent to the one that left: it
# hears of it in this way alone.
WAS_REMOVED: Final = "was removed from the group; it comes back only with an empty directory"


class Stranger(StrEnum):
    """What was met; the value is the alarm's code."""

    PLAIN = "plain_member"
    REFUSING = "hello_refused"
    REMOVER = "removed"
    FOREIGN = "foreign_process"
    UNPROVEN = "unproven_member"


class Strangers:
    """One per replica."""

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self._met: dict[str, tuple[Stranger, int]] = {}  # by peer: what stands there, and since when

    @property
    def plain(self) -> bool:
        """Whether a plain process stands at any member's address."""
        return any(kind is Stranger.PLAIN for kind, _since in self._met.values())

    def met(self, peer_id: str, kind: Stranger, text: str, now: int) -> str | None:
        """Something that is no member answered at that peer's address; why this member gives up, None: it does not."""
        member = self._member
        known = self._met.get(peer_id)
        if known is None or known[0] is not kind:
            self.gone(peer_id, now)
            self._met[peer_id] = known = (kind, now)
        member.alarm(kind.value, text, now, peer_id=peer_id, severity="warning")
        if kind is not Stranger.PLAIN:
            return None
        empty = member.store.end_index <= member.store.base.index and not member.has_followed
        empty_voter = member.voter_state is VoterState.VOTER and empty
        waited = member.voter_state is VoterState.FORMING and now - known[1] >= FORMING_GIVES_UP_AFTER_NS
        if not empty_voter and not waited:
            return None
        return f"{text}; a new group that mixes both is not supported: take it out of the peers, or run a member there"

    def refused_by(self, peer_id: str, reason: str, now: int) -> None:
        """A member does not take us, or not any more."""
        if reason == f"{self._member.self_id} {WAS_REMOVED}":
            self.met(peer_id, Stranger.REMOVER, f"{peer_id} says that {reason}: stop this member", now)
        else:
            self.met(peer_id, Stranger.REFUSING, f"no connection with {peer_id}: {reason}", now)

    def gone(self, peer_id: str, now: int) -> None:
        """Nobody listens there any more, or a member does."""
        known = self._met.pop(peer_id, None)
        if known is not None:
            self._member.clear_alarm(known[0].value, now, peer_id=peer_id)
