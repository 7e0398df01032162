"""Rules about where members are: a change of address may name a place where the member does not listen.

The leader looks for a member where its log says; a member that nobody finds may never hear of the change. Its own
control plane answers all the same, and says where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.health.facts import ATTENTION, CONNECTING_GRACE_S, CRITICAL, Facts, Finding, join
from app.health.group_view import MemberView


def wrong_address(facts: Facts) -> Iterator[Finding]:
    """The leader has no connection to a member, and looks for it elsewhere than where it says that it is."""
    for one in facts.members:
        if sought := sought_at(facts, one):
            severity = CRITICAL if facts.stands is False else ATTENTION
            text = f"The group looks for {one.id} at {sought}, as its log says, and does not reach it there;"
            text += f" {one.id} says that it is at {own_address(one)}, for {{age}}"
            yield Finding("wrong_address", severity, text, one.id, grace_s=CONNECTING_GRACE_S)


def wrong_peers(facts: Facts) -> Iterator[Finding]:
    """A member that has another one's address for a peer: two lines of its [peers] were exchanged, say."""
    for one in facts.members:
        if mixed := mixed_up(facts, one):
            where = join([f"{peer} at {whose}'s address {address}" for peer, address, whose in mixed])
            text = f"{one.id} looks for {where}, for {{age}}"
            yield Finding("wrong_peers", ATTENTION, text, one.id, grace_s=CONNECTING_GRACE_S)


def mixed_up(facts: Facts, one: MemberView) -> list[tuple[str, str, str]]:
    """To which peers a member has no connection, and looks for them where another one says that it is itself: the peer,
    the address, and whose that is."""
    if one.reach != "ok" or one.state is None:
        return []
    owners = {own_address(other): other.id for other in facts.members}
    apart = [peer for peer in one.state.peers or () if peer.connected is False and peer.address and peer.id != one.id]
    return [
        (peer.id, peer.address, owners[peer.address])
        for peer in apart
        if peer.address and owners.get(peer.address, peer.id) != peer.id
    ]


def mixed_pairs(facts: Facts) -> frozenset[frozenset[str]]:
    """Pairs of members of which one looks for the other at a third one's address."""
    return frozenset(frozenset((one.id, peer)) for one in facts.members for peer, _, _ in mixed_up(facts, one))


def sought_at(facts: Facts, one: MemberView) -> str:
    """Where the leader looks for a member that is elsewhere, and does not reach it; "": it does, or nobody knows."""
    leader, own = facts.leader, own_address(one)
    known = leader.state.peer(one.id) if leader is not None and leader.state is not None else None
    if known is None or known.connected is not False or own in ("", known.address):
        return ""
    return known.address or ""


def own_address(one: MemberView | None) -> str:
    """Where a member whose engine runs says that it is, itself or by its control plane; "": it does not say."""
    if one is None or one.state is None or one.state.engine != "ok" or one.reach not in ("ok", "never"):
        return ""
    own = one.state.peer(one.id) if one.state.self_id == one.id else None
    return (own.address or "") if own is not None else ""
