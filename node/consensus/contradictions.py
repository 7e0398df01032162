"""What cannot be while all keep the rules, raised as an alarm where it is met: two leaders of a term, a fork of logs.

Invariant: nothing is decided by it; it is reported, so that operators do not have to guess.
"""

from __future__ import annotations

from node.consensus.member_state import MemberState


def two_leaders(member: MemberState, other: str, now: int) -> None:
    """Impossible by E1 and E2."""
    text = f"{other} and {member.leader_id} both claim to lead term {member.term}"
    member.alarm("two_leaders", text, now, peer_id=other)


def fork_found(member: MemberState, text: str, now: int, peer_id: str) -> None:
    """Equal index and term, another chain (R7): whose log is damaged shows by its own CRCs, so it is scrubbed."""
    if ("fork", peer_id) not in member.alarms:
        member.effects.scrub_wanted = True
    member.alarm("fork", text, now, peer_id=peer_id)
