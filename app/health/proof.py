"""The proof behind "in step": lists what is still unknown or unconfirmed, member by member.

Invariant: an empty list means that every member was in APPEND, was heard by the leader and heard it within three
heartbeats, owed nothing older than a second, also to its state machine, and that all of this was reported a moment ago.
"""

from __future__ import annotations

from typing import Final

from app.health.applying import doubt_of
from app.health.facts import SLOW_MS, Facts
from app.health.group_view import Doubt, MemberView
from app.health.links import ASK_NOBODY, heard_ms, round_trips, spell_ms

HEARTBEATS: Final = 3
FRESH_MS: Final = 1500  # three samples
OWED_MS: Final = 1000


def unproven(facts: Facts) -> list[Doubt]:
    """Everything that is not known to be well."""
    leader = facts.leader
    if leader is None:
        return [Doubt(member=None, text="no leader is known")]
    found = [Doubt(member=one.id, text=text) for one in facts.members for text in doubts(facts, leader, one)]
    closures = facts.view.closures
    if closures is None:
        found.append(Doubt(member=leader.id, text=f"{leader.id} did not tell which writes wait"))
    elif closures.oldest_age_ms is not None and closures.oldest_age_ms > OWED_MS:
        found.append(Doubt(member=leader.id, text=f"a write has waited for {closures.oldest_age_ms / 1000:.1f} s"))
    return found


def doubts(facts: Facts, leader: MemberView, one: MemberView) -> list[str]:
    """Of one member."""
    node_id, age_ms = one.id, one.age_ms
    if one.reach != "ok":
        return [f"{node_id} does not tell its state"]
    if age_ms is None or age_ms > max(FRESH_MS, 3 * (one.interval_ms or 0)):
        said = "never" if age_ms is None else f"{age_ms / 1000:.1f} s ago"
        return [f"{node_id} reported its state {said}"]
    unapplied = doubt_of(facts, one)
    if one.id == leader.id or unapplied is not None:
        return [unapplied] if unapplied is not None else []
    state = one.dispatcher_state
    if state is None:
        return [f"the leader {leader.id} did not tell what it sends to {node_id}"]
    if state != "APPEND":
        return [f"{node_id} is in {state}"]
    if one.leader_id != leader.id:
        return [f"{node_id} does not follow {leader.id}"]
    if one.state is not None and one.state.voter_state in ASK_NOBODY:
        return [f"{node_id} does not vote yet"]
    return unheard(facts, leader, one) + owed(one)


def unheard(facts: Facts, leader: MemberView, one: MemberView) -> list[str]:
    """Which of the two is not known to have heard the other."""
    limit_ms = HEARTBEATS * facts.heartbeat_ms
    link = one.link_to(leader.id)
    ours, theirs = heard_ms(leader, one), None if link is None else link.last_heard_ms
    if ours is None:
        return [f"whether {leader.id} hears {one.id} is unknown"]
    if ours > limit_ms:
        return [f"{leader.id} heard {one.id} {ours / 1000:.1f} s ago"]
    asked = leader.link_to(one.id)
    waits_ms = None if asked is None else asked.unanswered_ms
    if waits_ms is not None and waits_ms > limit_ms:
        return [f"{one.id} has not answered {leader.id} for {waits_ms / 1000:.1f} s"]
    if theirs is not None and theirs > limit_ms:
        return [f"{one.id} heard {leader.id} {theirs / 1000:.1f} s ago"]
    took_ms = round_trips(facts).get(one.id)
    if took_ms is not None and took_ms >= SLOW_MS:
        return [f"{one.id} answers the leader in {spell_ms(took_ms)}"]
    return []


def owed(one: MemberView) -> list[str]:
    """Nothing older than a second lacks its acknowledgement."""
    node_id, lag, lag_ms = one.id, one.mark.lag_entries, one.mark.lag_ms
    if lag is None:
        return [f"how far behind {node_id} is, is unknown"]
    if lag <= 0:
        return []
    if lag_ms is None:
        return [f"{node_id} is {lag:,} entries behind, since when is unknown"]
    if lag_ms > OWED_MS:
        return [f"{node_id} lacks an entry that is {lag_ms / 1000:.1f} s old"]
    return []
