"""GroupViews to draw: healthy, the degraded seven of the reference picture, and the edges where drawing goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from app.console.verdict import conclude
from app.health.group_view import GroupView
from app.times import rfc3339
from node.views.reading import read

Json = dict[str, Any]
NOW = datetime(2026, 11, 21, 14, 3, 48, tzinfo=UTC)


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def transition(seconds: float, before: str, after: str, reason: str = "matched") -> Json:
    return {"at": ago(seconds), "from": before, "to": after, "reason": reason}


def dispatcher(peer_id: str, state: str = "APPEND", age_s: float = 8040, *transitions: Json) -> Json:
    return {
        "peer_id": peer_id, "state": state, "since": ago(age_s), "in_flight": 2, "in_flight_bytes": 61_440,
        "write_index": 1000, "match_index": 999, "resends": 0, "quota": None, "last_error": None,
        "transitions": list(transitions),
    }  # fmt: skip


def log(begin: int, applied: int | None, committed: int | None, durable: int | None, end: int) -> Json:
    return {
        "begin_index": begin, "applied_index": applied, "committed_index": committed, "durable_index": durable,
        "end_index": end, "end_term": 7, "size_bytes": max(0, end - begin + 1) * 304, "committed_chain_crc": 0x1A2B3C4D,
    }  # fmt: skip


def member(node_id: str, marks: Json | None, role: str | None = "FOLLOWER", **more: Any) -> Json:
    number = int(node_id[1:])
    state: Json | None = None
    if marks is not None:
        state = {
            "self_id": node_id, "role": role, "term": 7, "leader_id": "n0", "flush": "sync", "log": marks,
            "engine": "ok", "alarms": [], "disk": {"free_bytes": 10**11, "used_ratio": 0.21}, "version": "0.1.0",
        }  # fmt: skip
    return {
        "id": node_id, "address": f"10.0.0.{number + 1}:20911", "control_url": f"http://10.0.0.{number + 1}:8431",
        "role": role, "reach": "ok", "last_seen": ago(0), "never_reached_since": None, "is_java": False,
        "problem": None, "state": state, "watermark": None, "dispatcher": None, "unknown": [], **more,
    }  # fmt: skip


def mark(node_id: str, match: int, lag: int, lag_bytes: int | None, ack_ms: int | None, lag_ms: int | None = 0) -> Json:
    return {
        "id": node_id, "match_index": match, "write_index": match + 1, "durable_index": match, "lag_entries": lag,
        "lag_bytes": lag_bytes, "lag_ms": lag_ms, "last_ack_ms": ack_ms,
    }  # fmt: skip


def view(members: list[Json], leader_id: str | None = "n0", quorum_index: int | None = None, **more: Any) -> GroupView:
    leader = next((one for one in members if one["id"] == leader_id), None)
    size = len(members)
    standing = sum(1 for one in members if one["reach"] == "ok")
    made: Json = {
        "cluster": {"id": "orders", "name": "orders", "group": "orders"}, "as_of": rfc3339(NOW), "at": None,
        "severity": "ok", "sentence": {"headline": "", "rest": ""}, "problems": [], "unproven": [],
        "leader_id": leader_id,
        "term": 7, "flush": "sync", "leader_end_index": leader["state"]["log"]["end_index"] if leader else None,
        "quorum": {"size": size, "needed": size // 2 + 1, "answering": standing, "standing": standing if leader else 0,
        "stands": leader is not None},
        "quorum_index": quorum_index, "members": members, "closures": None,
        "leader_marks": leader["state"]["log"] if leader else {},
        "leader_since": ago(8040) if leader else None, "last_completed": None, **more,
    }  # fmt: skip
    return conclude(read(GroupView, made))


def edited(view: GroupView, edit: Callable[[Json], None]) -> GroupView:
    """The same view with something else in it."""
    made: Json = json.loads(view.to_bytes())
    edit(made)
    return read(GroupView, made)


def problem(code: str, severity: str, node_id: str | None, text: str) -> Json:
    return {"id": f"{code}:{node_id or ''}", "code": code, "severity": severity, "node_id": node_id, "text": text,
            "member": node_id, "what": text, "next_step": "look at `quorumscope status`", "since": ago(38)}  # fmt: skip


def healthy_members() -> list[Json]:
    members = [member("n0", log(0, 1_204_997, 1_204_998, 1_204_998, 1_205_001), "LEADER")]
    for node_id, lag in (("n1", 1), ("n2", 3)):
        end = 1_205_001 - lag
        members.append(
            member(
                node_id,
                log(0, end - 4, 1_204_998, end, end),
                watermark=mark(node_id, end, lag, lag * 304, 4),
                dispatcher=dispatcher(node_id, "APPEND", 8040, transition(8040, "COMPARE", "APPEND")),
            )
        )
    return members


def healthy() -> GroupView:
    closures: Json = {"pending": 0, "limit": 10_000, "oldest_age_ms": None, "groups": [], "items": []}
    return view(healthy_members(), "n0", 1_204_998, closures=closures, last_completed={"at": ago(1), "took_ms": 0.9})


def degraded() -> GroupView:
    """The seven lanes of the reference picture."""
    end = 1_204_993_017
    flapping = [
        transition(38 + 9 * n, *pair)
        for n in range(4)
        for pair in (
            ("COMPARE", "INSTALL_SNAPSHOT", "below_begin"),
            ("INSTALL_SNAPSHOT", "COMPARE", "backoff_over"),
        )
    ]
    members = [
        member("n0", log(0, end - 9, end - 4, end - 2, end), "LEADER"),
        member("n1", log(0, end - 40, end - 12, end - 4, end - 3), watermark=mark("n1", end - 3, 3, 912, 4, 2),
               dispatcher=dispatcher("n1", "APPEND", 8040, transition(8100, "COMPARE", "TRUNCATE", "matched_below_end"),
                                     transition(8040, "TRUNCATE", "APPEND", "cut"))),
        member("n2", log(1_204_100_000, end - 48_100, end - 48_100, end - 48_100, end - 48_100),
               watermark=mark("n2", end - 48_100, 48_100, 14_622_400, 1200, 38_000),
               dispatcher=dispatcher("n2", "INSTALL_SNAPSHOT", 38, *reversed(flapping))),
        member("n3", log(0, end - 880, end - 880, end - 880, end - 880), None, reach="stale", last_seen=ago(41),
               watermark=mark("n3", end - 880, 880, 267_520, 41_000)),
        member("n4", log(0, end - 220_039, end - 220_039, end + 37, end + 37),
               watermark=mark("n4", 1_204_772_977, -37, 11_248, 12),
               dispatcher=dispatcher("n4", "COMPARE", 2.4, transition(2.4, "APPEND", "COMPARE", "reconnected"))),
        member("n5", log(0, None, None, None, end - 640), None, is_java=True,
               watermark=mark("n5", -1, 640, 194_560, None)),
        member("n6", None, None, reach="never", never_reached_since=ago(337), last_seen=None,
               unknown=[{"field": "state", "reason": "connection refused", "since": ago(337)}]),
    ]  # fmt: skip
    waits = ["n1", "n2", "n4"]
    closures = {
        "pending": 118, "limit": 10_000, "oldest_age_ms": 640,
        "groups": [
            {"waits_for": waits, "needed": 1, "count": 110, "first_index": end - 117, "last_index": end - 8,
             "oldest_age_ms": 640, "bytes": 33_440, "times_out_in_ms": 1360},
            {"waits_for": ["n0", *waits], "needed": 2, "count": 8, "first_index": end - 7, "last_index": end,
             "oldest_age_ms": 12, "bytes": 2_432},
        ],
        "items": [
            {"first_index": end - 117 + n, "last_index": end - 117 + n, "term": 7, "bytes": 304, "age_ms": 640 - 5 * n,
             "waits_for": waits} for n in range(100)
        ],
    }  # fmt: skip
    text = "n2 is 48,100 entries behind and not catching up: INSTALL_SNAPSHOT for 38 s."
    problems = [
        problem("not_catching_up", "attention", "n2", text),
        problem("replica_silent", "attention", "n3", "n3 is silent, for 41 s."),
        problem("never_reached", "attention", "n6", "n6 has never been reached (connection refused)."),
    ]
    return view(members, "n0", end - 4, closures=closures, problems=problems)


def no_leader() -> GroupView:
    members = [
        member("n0", log(0, 990, 990, 1000, 1000), None, reach="down", last_seen=ago(12)),
        member("n1", log(0, 990, 990, 995, 995), "CANDIDATE"),
        member("n2", log(0, 990, 990, 998, 998), "FOLLOWER"),
    ]
    return view(members, None, None, problems=[problem("no_leader", "critical", None, "There is no leader, for 12 s.")])


def all_stale() -> GroupView:
    members = healthy_members()
    for one in members:
        one |= {"reach": "stale", "role": None, "last_seen": ago(41), "watermark": None, "dispatcher": None}
    text = "No control plane of this group has answered for 41 s."
    quorum = {"size": 3, "needed": 2, "answering": 0, "standing": None, "stands": None}
    return view(members, None, None, term=None, quorum=quorum, problems=[problem("all_silent", "unknown", None, text)])


def never_reached() -> GroupView:
    members = [
        member(f"n{n}", None, None, reach="never", never_reached_since=ago(5), last_seen=None, address="")
        for n in range(3)
    ]
    text = "No member of this group has answered yet."
    quorum = {"size": 3, "needed": 2, "answering": 0, "standing": None, "stands": None}
    return view(
        members, None, None, term=None, flush=None, quorum=quorum,
        problems=[problem("never_reached", "unknown", None, text)],
    )  # fmt: skip


def empty_log() -> GroupView:
    members = [member("n0", log(0, -1, -1, -1, -1), "LEADER")]
    members += [
        member(f"n{n}", log(0, -1, -1, -1, -1), watermark=mark(f"n{n}", -1, 0, 0, 3), dispatcher=dispatcher(f"n{n}"))
        for n in (1, 2)
    ]
    return view(members, "n0", -1)


ALL = {
    "healthy": healthy, "degraded": degraded, "no_leader": no_leader, "all_stale": all_stale,
    "never_reached": never_reached, "empty_log": empty_log,
}  # fmt: skip
