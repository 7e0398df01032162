"""From the nodes' last samples to one picture of the group: the GroupView.

Pure: samples and a time in, a JSON-able dict out. Invariants: nothing unknown reads 0 (it is None and listed in
`unknown`); members are sorted by id and never reordered; a stale member keeps its last marks and does not count towards
the quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.console.sample import NodeSample
from app.health.facts import rfc3339
from node.protocol.quorum import majority_of

Json = dict[str, Any]
# Who was heard longer ago than this says nothing about now (the leader steps down without a quorum in about 1 s).
ACK_FRESH_MS = 2000
STALE_S = 2.0  # an answer older than this is no picture of now, whoever is still being asked
# Watermarks are of one term: a deposed leader's answer must not colour the new one's picture.
NO_LEADER_REASON = "no leader is known that could tell"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    id: str
    name: str
    group: str
    group_id: str | None = None


def reach_of(sample: NodeSample, now: datetime) -> str:
    """As the sample says; one that has not been answered for too long is stale before it has missed often enough."""
    age_s = 0.0 if sample.last_seen is None else (now - sample.last_seen).total_seconds()
    return "stale" if sample.reach in ("ok", "down") and age_s > max(STALE_S, 3 * sample.interval_s) else sample.reach


def find_leader(samples: Iterable[NodeSample], now: datetime) -> NodeSample | None:
    """The reachable leader of the highest term; a deposed one may still believe it leads."""
    leaders = [one for one in samples if one.leads and reach_of(one, now) == "ok"]
    return max(leaders, key=lambda one: (one.state or {}).get("term") or 0, default=None)


def group_view(info: ClusterInfo, samples: Sequence[NodeSample], now: datetime) -> Json:
    """Everything but problems, sentence and what needs a memory (`app.console.watch` adds these)."""
    ordered = sorted(samples, key=lambda one: one.node_id)
    leader = find_leader(ordered, now)
    watermarks = by_id(leader.watermarks if leader else None, "peers", "id")
    dispatchers = by_id(leader.dispatchers if leader else None, "items", "peer_id")
    members = [member(one, leader, watermarks.get(one.node_id), dispatchers.get(one.node_id), now) for one in ordered]
    marks = leader_marks(leader, watermarks) if leader else {}
    return {
        "cluster": {"id": info.id, "name": info.name, "group": info.group, "group_id": info.group_id},
        "as_of": rfc3339(now),
        "at": None,
        "severity": "unknown",
        "sentence": {"headline": "", "rest": ""},
        "problems": [],
        "unproven": [],
        "leader_id": leader.node_id if leader else None,
        "term": newest_term(ordered, now),
        "flush": flush_mode(leader, ordered),
        "leader_end_index": marks.get("end_index"),
        "quorum": quorum(members, leader, watermarks),
        "quorum_index": marks.get("quorum_index"),
        "leader_marks": marks,
        "members": members,
        "closures": leader.closures if leader else None,
        "leader_since": None,
        "last_completed": (leader.closures or {}).get("last_completed") if leader else None,
    }


def leader_marks(leader: NodeSample, watermarks: dict[str, Json]) -> Json:
    """The leader's log at the instant of its peers' watermarks. A leader's marks never go back within its term, so that
    what it said of itself just before holds then too."""
    log, told = (leader.state or {}).get("log") or {}, leader.watermarks or {}
    own = watermarks.get(leader.node_id) or {}
    ends = (told.get("end_index"), own.get("match_index"), log.get("end_index"))
    end = next((one for one in ends if one is not None), None)
    found = {
        "begin_index": log.get("begin_index"),
        "applied_index": first_known(told.get("applied_index"), log.get("applied_index")),
        "committed_index": first_known(told.get("committed_index"), log.get("committed_index")),
        "durable_index": first_known(own.get("durable_index"), log.get("durable_index")),
        "quorum_index": told.get("quorum_index"),
    }
    if end is not None:  # of two answers, the log may have been another one in between
        found |= {name: min(found[name], end) for name in found if name != "begin_index" and found[name] is not None}
    return {**found, "end_index": end}


def first_known(*values: Any) -> Any:
    return next((one for one in values if one is not None), None)


def by_id(answer: Json | None, field: str, key: str) -> dict[str, Json]:
    return {str(item[key]): item for item in (answer or {}).get(field) or [] if key in item}


def newest_term(samples: Iterable[NodeSample], now: datetime) -> int | None:
    terms = [one.state["term"] for one in samples if reach_of(one, now) == "ok" and one.state and "term" in one.state]
    return max((term for term in terms if term is not None), default=None)


def flush_mode(leader: NodeSample | None, samples: Sequence[NodeSample]) -> str | None:
    """The leader's word; without one, what any member said last."""
    said = [one.state.get("flush") for one in ([leader] if leader else samples) if one and one.state]
    return next((str(one) for one in said if one), None)


def member(
    sample: NodeSample, leader: NodeSample | None, watermark: Json | None, dispatcher: Json | None, now: datetime
) -> Json:
    state, reach = sample.state, reach_of(sample, now)
    unknown: list[Json] = list((state or {}).get("unknown") or [])
    since = rfc3339(sample.last_seen or sample.added_at)
    if reach != "ok":
        reason = sample.problem or ("its engine does not run" if reach == "down" else "no answer yet")
        unknown.append({"field": "state", "reason": reason, "since": since})
    else:
        unknown += [{"field": name, "reason": why, "since": since} for name, why in sample.untold.items()]
    if leader is None:
        unknown += [{"field": f, "reason": NO_LEADER_REASON, "since": since} for f in ("watermark", "dispatcher")]
    return {
        "id": sample.node_id,
        "address": sample.address,
        "control_url": sample.control_url,
        "role": (state or {}).get("role") if reach == "ok" else None,
        "reach": reach,
        "last_seen": rfc3339(sample.last_seen) if sample.last_seen else None,
        "age_ms": max(0.0, (now - sample.last_seen).total_seconds() * 1000) if sample.last_seen else None,
        "interval_ms": sample.interval_s * 1000,
        "never_reached_since": rfc3339(sample.added_at) if reach == "never" else None,
        "is_java": bool((state or {}).get("is_java", False)),
        "problem": sample.problem,
        "state": state,
        "watermark": watermark,
        "dispatcher": dispatcher,
        "unknown": unknown,
    }


def quorum(members: Sequence[Json], leader: NodeSample | None, watermarks: dict[str, Json]) -> Json:
    """How many are needed, how many answer us, how many stand with the leader, and whether that is a quorum.

    `standing`: the leader and those that it hears; 0 where nobody leads. Its fresh acknowledgements are better evidence
    than our own view: it may hear whom we do not, and we may hear whom it does not. None: nobody can tell.
    """
    size = len(members)
    needed = majority_of(size)
    if leader is not None and leader.watermarks and leader.watermarks.get("needed"):
        needed = int(leader.watermarks["needed"])
    answering = [one for one in members if one["reach"] == "ok"]
    stands: bool | None
    standing: int | None = None
    if leader is not None:
        links = {str(one["peer_id"]): one for one in (leader.state or {}).get("links") or []}
        others = [one for one in watermarks.values() if one["id"] != leader.node_id]
        heard = sum(1 for one in others if ack_is_fresh(one) or link_is_fresh(links.get(str(one["id"]))))
        told = any(one.get("last_ack_ms") is not None for one in others)
        told = told or any(one.get("last_heard_ms") is not None for one in links.values())
        standing = 1 + heard if told or size == 1 else None
        stands = standing >= needed if standing is not None else (True if len(answering) >= needed else None)
    elif any(one["role"] == "FOLLOWER" and (one["state"] or {}).get("leader_id") for one in members):
        stands = None  # somebody follows a leader that we cannot reach
    elif all(one["reach"] in ("never", "stale") for one in members):
        stands = None
    else:
        standing, stands = 0, False
    return {"size": size, "needed": needed, "answering": len(answering), "standing": standing, "stands": stands}


def ack_is_fresh(watermark: Json) -> bool:
    age_ms = watermark.get("last_ack_ms")
    return age_ms is not None and 0 <= age_ms <= ACK_FRESH_MS


def link_is_fresh(link: Json | None) -> bool:
    age_ms = None if link is None else link.get("last_heard_ms")
    return age_ms is not None and 0 <= age_ms <= ACK_FRESH_MS


def lag_entries(view: Json, one: Json) -> int | None:
    """How far a member is behind the leader's end; None when either end is unknown."""
    if one["id"] == view["leader_id"]:
        return 0
    told = (one["watermark"] or {}).get("lag_entries")
    if told is not None and one["reach"] == "ok":
        return int(told)
    end = ((one["state"] or {}).get("log") or {}).get("end_index")
    leader_end = view["leader_end_index"]
    if end is None or leader_end is None or one["reach"] != "ok":
        return None
    return max(0, int(leader_end) - int(end))
