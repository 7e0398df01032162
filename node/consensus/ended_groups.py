"""A group that went on with its survivors, and the members that it left behind (SAFETY C9, E8, M5).

An operator who lost a majority for good gives the survivors another group id (`store recover-members`). Those that were
lost still have the old one; two of them that come back could elect each other, and there would be two groups of one
name with one history behind both. So whoever belongs to the new one refuses the old id and says why, and who hears that
from a voter of its own configuration before it has had a leader gives up its vote: REJOINING, it elects nobody.

It is heeded only before this member's first leader since its start: a group that works (somebody recovered a member
that was merely cut off) is not taken apart by one that was forced to leave it; where a quorum of it stands, a member
that gave up its vote gets it back by itself (E8).

Invariants: it is believed from a member only that is proven, where proof is asked for; no vote is ever won by it.
"""

from __future__ import annotations

from dataclasses import replace

from node.consensus.member_state import MemberState
from node.protocol.codes import Role, VoterState
from node.protocol.messages import Hello


def refusal(member: MemberState, hello: Hello) -> str | None:
    """Why a HELLO with an id that this group had once is refused."""
    named = member.configuration.named
    if hello.group_id not in named.ended:
        return None
    old, new = f"the group {member.config.group!r} of id {hello.group_id}", member.hard.group_id
    if hello.node_id in named.ids:  # a survivor that the command was not given to; its log and vote are wanted
        return (
            f"{old} went on as {new}, and {hello.node_id} is one of its members: keep its directory, stop it, and give"
            f" it the `quorumscope store recover-members` that {member.self_id} was given, too"
        )
    return (
        f"{old} went on without {hello.node_id}, as {new}: it comes back only with an empty directory, as a new member"
    )


def with_verdict(member: MemberState, asked: Hello, answer: Hello) -> Hello:
    """Our answer to such a HELLO says so to programs, too."""
    return replace(answer, ended=True) if refusal(member, asked) is not None else answer


def gives_up_vote(member: MemberState, sender: str, answer: Hello) -> bool:
    """Whether that answer to our HELLO means that our group went on without us."""
    if not answer.ended or answer.group_id in (None, member.hard.group_id):
        return False
    if sender not in member.configuration.voters or (member.config.proof_wanted and not answer.proven):
        return False
    alone = member.role is not Role.LEADER and not member.has_followed
    return alone and member.voter_state is VoterState.VOTER
