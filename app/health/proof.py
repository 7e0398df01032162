"""What would have to be known before "in step" may be said, and is not: positive proof, member by member.

Invariant: an empty list means that every member was in APPEND, was heard by the leader and heard it within three
heartbeats, owed nothing older than a second, and that all of this was told a moment ago.
"""

from __future__ import annotations

from typing import Final

from app.health.facts import Facts, Json, link_of
from app.health.links import heard_ms

HEARTBEATS: Final = 3
FRESH_MS: Final = 1500  # three samples
OWED_MS: Final = 1000


def unproven(facts: Facts) -> list[Json]:
    """`{member, text}` of everything that is not known to be well."""
    leader = facts.leader
    if leader is None:
        return [{"member": None, "text": "no leader is known"}]
    found = [{"member": one["id"], "text": text} for one in facts.members for text in doubts(facts, leader, one)]
    oldest_ms = (facts.view["closures"] or {}).get("oldest_age_ms")
    if facts.view["closures"] is None:
        found.append({"member": leader["id"], "text": f"{leader['id']} did not tell which writes wait"})
    elif oldest_ms is not None and oldest_ms > OWED_MS:
        found.append({"member": leader["id"], "text": f"a write has waited for {oldest_ms / 1000:.1f} s"})
    return found


def doubts(facts: Facts, leader: Json, one: Json) -> list[str]:
    """Of one member."""
    node_id, age_ms = one["id"], one.get("age_ms")
    if one["reach"] != "ok":
        return [f"{node_id} does not tell its state"]
    if age_ms is None or age_ms > max(FRESH_MS, 3 * one.get("interval_ms", 0)):
        said = "never" if age_ms is None else f"{age_ms / 1000:.1f} s ago"
        return [f"{node_id} told its state {said}"]
    if one["id"] == leader["id"]:
        return []
    state, mark = (one["dispatcher"] or {}).get("state"), one["watermark"] or {}
    if state is None:
        return [f"the leader {leader['id']} did not tell what it sends to {node_id}"]
    if state != "APPEND":
        return [f"{node_id} is in {state}"]
    if (one["state"] or {}).get("leader_id") != leader["id"]:
        return [f"{node_id} does not follow {leader['id']}"]
    return unheard(facts, leader, one) + owed(mark, node_id)


def unheard(facts: Facts, leader: Json, one: Json) -> list[str]:
    """Whether each of the two has heard the other."""
    limit_ms = HEARTBEATS * facts.heartbeat_ms
    ours, theirs = heard_ms(leader, one), (link_of(one, leader["id"]) or {}).get("last_heard_ms")
    if ours is None:
        return [f"whether {leader['id']} hears {one['id']} is unknown"]
    if ours > limit_ms:
        return [f"{leader['id']} heard {one['id']} {ours / 1000:.1f} s ago"]
    if theirs is not None and theirs > limit_ms:
        return [f"{one['id']} heard {leader['id']} {theirs / 1000:.1f} s ago"]
    return []


def owed(mark: Json, node_id: str) -> list[str]:
    """Nothing older than a second lacks its acknowledgement."""
    lag, lag_ms = mark.get("lag_entries"), mark.get("lag_ms")
    if lag is None:
        return [f"how far behind {node_id} is, is unknown"]
    if lag <= 0:
        return []
    if lag_ms is None:
        return [f"{node_id} is {lag:,} entries behind, since when is unknown"]
    if lag_ms > OWED_MS:
        return [f"{node_id} lacks an entry that is {lag_ms / 1000:.1f} s old"]
    return []
