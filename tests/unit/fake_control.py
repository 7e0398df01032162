"""A group of control planes that exists only as a transport: JSON as INTERFACES has it, adjustable at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2

from app.times import rfc3339, utc_now
from node.paging import page

Json = dict[str, Any]


TRUNCATION: Json = {
    "id": 1, "seq": 1, "at": "2026-01-01T00:00:00Z", "time": "2026-01-01T00:00:00Z", "by": "n1", "leader_id": "n0",
    "term": 4, "from_index": 951, "to_index": 960, "count": 10, "reason": "TRUNCATE from n0", "committed_index": 950,
    "below_committed": False,
}  # fmt: skip


def entry(index: int, body: str) -> Json:
    """As nodes give entries."""
    return {
        "index": index, "term": 4, "magic": "NORMAL", "pos": index * 300, "size_bytes": 300, "body_bytes": len(body),
        "body_crc": 1, "chain_crc": index, "seal": "sealed", "as": "text", "body": body,
    }  # fmt: skip


@dataclass
class FakeNode:
    """One control plane; `alive = False` closes its port, `engine` is what it says of its engine."""

    group: FakeGroup
    id: str
    url: str
    alive: bool = True
    engine: str = "ok"
    begin: int = 0
    end: int = 1000
    durable: int = 1000
    role: str = "FOLLOWER"
    # How far its clock is ahead.
    clock_s: float = 0.0
    # Where the others look for it; they do not reach it there.
    sought_at: str | None = None
    ack_ms: int | None = 20
    rtt_ms: float | None = 0.8
    unanswered_ms: float | None = None
    loop_late_ms: float | None = None
    certificates: list[Json] | None = None
    resends: int = 0
    lag_ms: int | None = None
    # Whom it heard when, where that is not when the leader was acknowledged.
    heard_ms: dict[str, int | None] = field(default_factory=dict)
    voter_state: str = "VOTER"
    learns: bool = False
    group_id: str | None = "1d" * 16
    group_name: str | None = None  # of another group; None: as the others
    dispatcher: str = "APPEND"
    dispatcher_since: str = field(default_factory=lambda: rfc3339(utc_now()))
    snapshot_sent: Json | None = None
    transitions: list[Json] = field(default_factory=list)
    alarms: list[Any] = field(default_factory=list)
    looks_for: dict[str, str] = field(default_factory=dict)  # peers that it looks for elsewhere than where they are
    apart_from: list[str] = field(default_factory=list)  # whom it has no connection to
    faults: list[Json] = field(default_factory=list)
    unknown: list[Json] = field(default_factory=list)
    repair: Json = field(default_factory=dict)
    retention: Json | None = None
    disk: Json = field(default_factory=lambda: {"free_bytes": 10**11, "used_ratio": 0.2})
    events: list[Json] = field(default_factory=list)
    truncations: list[Json] = field(default_factory=list)
    bodies: dict[int, str] = field(default_factory=dict)
    listed: list[Json] = field(default_factory=lambda: [entry(1, "one")])
    # Resource -> what it answers instead, as nodes of strangers might: any JSON (also NaN), or bytes that are none.
    odd: dict[str, Any] = field(default_factory=dict)

    def links(self) -> list[Json]:
        """Both ends of a link with the leader heard each other when its last acknowledgement came."""
        reported = []
        for one in self.group.nodes.values():
            if one is not self:
                ours = one if self.role == "LEADER" else self
                heard = self.heard_ms.get(one.id, ours.ack_ms)
                since = None if heard is None else "2026-01-01T11:00:00.000Z"
                rtt = one.rtt_ms if self.role == "LEADER" else None
                reported.append({"peer_id": one.id, "in_since": since, "out_since": since, "last_heard_ms": heard,
                             "rtt_ms": rtt, "unanswered_ms": one.unanswered_ms})  # fmt: skip
        return reported

    def state(self) -> Json:
        leader = self.group.leader
        return {
            "as_of": rfc3339(utc_now() + timedelta(seconds=self.clock_s)),
            "engine": self.engine,
            "boot_id": f"boot-{self.id}",
            "group": self.group_name or self.group.name,
            "group_id": self.group_id,
            "self_id": self.id,
            "role": self.role,
            "term": self.group.term,
            "leader_id": leader.id if leader and leader.alive else None,
            "voted_for": None,
            "transferee": None,
            "flush": self.group.flush,
            "voter_state": self.voter_state,
            "loop_late_ms": self.loop_late_ms,
            "certificates": self.certificates,
            "retention": self.retention,
            "log": {
                "begin_index": self.begin,
                "end_index": self.end,
                "end_term": self.group.term,
                "durable_index": self.durable,
                "committed_index": min(self.end, self.group.committed),
                "applied_index": min(self.end, self.group.committed),
                "size_bytes": self.end * 300,
                "committed_chain_crc": 7,
            },
            "peers": [
                {"id": one.id, "address": f"127.0.0.1:{20911 + n}", "control_url": one.url}
                | ({"address": one.sought_at, "connected": False} if one.sought_at and one is not self else {})
                | ({"connected": False} if one.id in self.apart_from else {})
                | ({"address": at} if (at := self.looks_for.get(one.id)) else {})
                for n, one in enumerate(self.group.nodes.values())
                if self.group.members is None or one.id in self.group.members
            ],
            "timing": {"heart_beat_time_interval_ms": 100, "election_timeout_max_ms": 1000},
            "links": self.links(),
            "disk": self.disk,
            "alarms": self.alarms,
            "faults": self.faults,
            "repair": self.repair,
            "version": "0.1.0",
            "unknown": self.unknown,
        }


class FakeGroup(httpx2.AsyncBaseTransport):
    """The network towards one group; n0 leads at first."""

    def __init__(self, size: int = 3, name: str = "demo") -> None:
        self.name, self.term, self.flush, self.committed = name, 4, "sync", 1000
        self.nodes = {f"n{n}": FakeNode(self, f"n{n}", f"http://127.0.0.1:{8431 + n}") for n in range(size)}
        self.nodes["n0"].role = "LEADER"
        self.members: set[str] | None = None  # the configuration; None: all nodes
        self.configured = -1  # its entry
        self.pending: Json | None = None  # one that is not committed yet
        self.refuses = ""  # why the leader would not change the members now
        self.closures: Json = {"pending": 0, "limit": 10_000, "oldest_age_ms": None, "groups": [], "items": []}
        self.operations: dict[str, Json] = {}
        self.operation_steps = 1
        self.requests: list[httpx2.Request] = []
        self.silent_on_transfer = False
        self.fails_appends: httpx2.TransportError | None = None

    @property
    def leader(self) -> FakeNode | None:
        return next((one for one in self.nodes.values() if one.role == "LEADER"), None)

    def lead(self, node_id: str | None) -> None:
        self.term += 1
        for one in self.nodes.values():
            one.role = "LEADER" if one.id == node_id else "FOLLOWER"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        base = f"{request.url.scheme}://{request.url.netloc.decode()}"
        node = next((one for one in self.nodes.values() if one.url == base), None)
        if node is None or not node.alive:
            raise httpx2.ConnectError("connection refused", request=request)
        self.requests.append(request)
        path = request.url.path.removeprefix("/api/v1/").split("/")
        if path[0] in node.odd:
            odd = node.odd[path[0]]
            content = odd if isinstance(odd, bytes) else json.dumps(odd).encode()
            return httpx2.Response(200, content=content, request=request)
        status, body = self.answer(node, request, path)
        return httpx2.Response(status, json=body, request=request)

    def answer(self, node: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        what, rest = path[0], path[1:]
        if what == "state":
            return 200, node.state()
        if what == "closures":
            return 200, self.closures
        if what in ("watermarks", "dispatchers"):
            return 200, getattr(self, what)(node)
        if what == "events":
            after = int(request.url.params.get("cursor") or 0)
            fresh = node.events[after:]
            return 200, {"items": fresh, "next": str(len(node.events))}
        if what == "entries" and rest:
            index = int(rest[0])
            if index > node.end:
                return 404, {"title": "Not found", "detail": f"{node.id} ends at {node.end}", "code": 410}
            return 200, {
                "as_of": rfc3339(utc_now()), "engine": "ok", "view": "raw",
                **entry(index, node.bodies.get(index, f"entry {index}")),
            }  # fmt: skip
        if what == "entries" and request.method == "POST":
            if self.fails_appends is not None:
                raise self.fails_appends
            sent = json.loads(request.content)
            node.end += len(sent["entries"])
            return 200, {"first_index": node.end, "last_index": node.end, "term": self.term, "durable": True}
        if what == "entries":
            first = int(request.url.params.get("from") or node.begin)
            if first < node.begin:
                text = f"This log begins at {node.begin}; {first} was removed."
                return 410, {"title": "Trimmed", "detail": text, "code": 419, "begin_index": node.begin}
            return 200, {
                "as_of": rfc3339(utc_now()), "engine": "ok", "view": "committed", "consistency": "stale",
                "begin_index": node.begin, "committed_index": 1000, "last_index": 1000, "items": node.listed,
                "next": None,
            }  # fmt: skip
        if what == "truncations":
            return self.archive(node, rest)
        if what == "segments" and not rest:
            files = [
                {"kind": kind, "name": "0" * 20, "start": 0, "size_bytes": size_bytes, "first_index": 0,
                 "last_index": node.end}
                for kind, size_bytes in (("data", 300_000), ("index", 32_032))
            ]  # fmt: skip
            shown, after = page(
                files, lambda one: f"{one['kind']}-{one['name']}", int(request.url.params.get("limit", 1000)),
                request.url.params.get("cursor"),
            )  # fmt: skip
            return 200, {"as_of": rfc3339(utc_now()), "etag": '"boot-0"', "items": list(shown), "next": after}
        if what == "snapshots" and request.method == "GET":
            files = [{"name": "data", "size_bytes": 4096}, {"name": "quorumscope-meta", "size_bytes": 120}]
            saved = {"index": 900, "term": self.term, "chain_crc": 7, "data_bytes": 4096, "data_crc": 9}
            saved |= {"is_sealed": True, "files": files}
            return 200, {"as_of": rfc3339(utc_now()), "items": [saved], "next": None}
        if what == "digests":
            block = {"from_index": 0, "to_index": node.end, "count": node.end + 1, "digest": "0" * 64,
                     "read_at": rfc3339(utc_now())}  # fmt: skip
            known = {"begin_index": 0, "end_index": node.end}
            return 200, {"as_of": rfc3339(utc_now()), **known, "items": [block], "next": None}
        if what == "leadership-transfer":
            return self.transfer(request)
        if what == "members":
            return self.configuration() if request.method == "GET" else self.change_members(request, rest)
        if what == "operations" and rest[0] in self.operations:
            return 200, self.step(self.operations[rest[0]])
        return 404, {"title": "Not found", "detail": "/".join(path)}

    def configuration(self) -> tuple[int, Json]:
        """Who belongs to the group, as n0's log says; who joined later, did so by entry 900."""
        leader = self.leader
        born, end = {"n0", "n1", "n2"}, (leader or self.nodes["n0"]).end
        items = [
            {"id": one.id, "address": f"127.0.0.1:{20911 + n}", "kind": "learner" if one.learns else "voter",
             "joined_index": -1 if one.id in born else 900, "connected": one.ack_ms is not None,
             "promoting": one.learns, "replaces": None, "lag_entries": max(0, end - one.end),
             "lag_bytes": max(0, end - one.end) * 300, "caught_up": one.end >= end,
             "catch_up_s_at_most": max(0, end - one.end) * 300 / 1e6}
            for n, one in enumerate(self.nodes.values()) if self.members is None or one.id in self.members
        ]  # fmt: skip
        voters = [one for one in items if one["kind"] == "voter"]
        return 200, {
            "as_of": rfc3339(utc_now()), "engine": "ok", "boot_id": "boot", "term": self.term, "index": self.configured,
            "leader_id": leader.id if leader else None, "needed": len(voters) // 2 + 1, "items": items,
            "pending": self.pending, "removed": [], "ended": [], "unknown": [],
        }  # fmt: skip

    def change_members(self, request: httpx2.Request, rest: list[str]) -> tuple[int, Json]:
        """As a leader's control plane answers; `refuses` is why it would refuse."""
        body = json.loads(request.content) if request.content else {}
        dry = body.get("dry_run") or request.url.params.get("dry_run") == "true"
        voters = sorted(one.id for one in self.nodes.values() if not one.learns)
        gone = rest[0] if request.method == "DELETE" else body.get("replaces")
        then = [one for one in voters if one != gone]
        then += [body["id"]] if request.method == "POST" and not rest and not body.get("learner") else []
        refused = {"code": 504, "detail": self.refuses} if self.refuses else None
        if dry:
            now, after = (
                {"voters": one, "needed": len(one) // 2 + 1, "answering": one, "survives": len(one) - len(one) // 2 - 1}
                for one in (voters, then)
            )
            lag = 1_204_993 if request.method == "POST" else 0
            known = {"refused": refused, "before": now, "after": after, "lag_entries": lag, "lag_bytes": lag * 300,
                     "catch_up_s_at_most": lag * 300 / 1e6, "needs_disk_bytes": 361_498_200}  # fmt: skip
            return 200, {"dry_run": True, "would": "change", "members": known}
        if refused:
            return 409, {"title": "Refused", "detail": self.refuses, "code": 504, "outcome": "not_appended"}
        ends = {"index": 1001, "term": self.term, "leader_id": "n0"}
        operation = {"id": f"op-{len(self.operations)}", "state": "running", "left": self.operation_steps, "ends": ends}
        self.operations[str(operation["id"])] = operation
        return 202, operation

    def archive(self, node: FakeNode, rest: list[str]) -> tuple[int, Json]:
        items = [{**TRUNCATION, "seq": one["id"], **one} for one in node.truncations]
        if not rest:
            return 200, {"items": items, "next": None}
        found = next((one for one in items if str(one["id"]) == rest[0]), None)
        if found is None:
            return 404, {"title": "Unknown truncation", "detail": rest[0]}
        return 200, {"id": found["id"], "items": [entry(951, "cut")], "next": None} if rest[1:] else found

    def watermarks(self, node: FakeNode) -> Json:
        peers = [
            {
                "id": one.id,
                "match_index": one.end,
                "write_index": one.end + 1,
                "durable_index": one.durable,
                "lag_entries": node.end - one.end,
                "lag_bytes": (node.end - one.end) * 300,
                "lag_ms": 0 if one.end >= node.end else one.lag_ms,
                "last_ack_ms": None if one is node else one.ack_ms,
            }
            for one in self.nodes.values()
        ]
        return {"term": self.term, "leader_id": node.id, "quorum_index": self.committed, "peers": peers,
                "needed": len(self.nodes) // 2 + 1}  # fmt: skip

    def dispatchers(self, node: FakeNode) -> Json:
        return {
            "items": [
                {
                    "peer_id": one.id,
                    "state": one.dispatcher,
                    "since": one.dispatcher_since,
                    "in_flight": 0,
                    "resends": one.resends,
                    "last_error": None,
                    "snapshot": one.snapshot_sent,
                    "transitions": one.transitions,
                }
                for one in self.nodes.values()
                if one is not node
            ]
        }

    def transfer(self, request: httpx2.Request) -> tuple[int, Json]:
        if self.silent_on_transfer:
            raise httpx2.ReadTimeout("no answer", request=request)
        body = json.loads(request.content)
        if body["if_term"] != self.term:
            return 412, {"title": "The term moved", "detail": f"term {self.term}", "code": 501}
        key = request.headers["idempotency-key"]
        operation = {
            "id": f"node-{key}",
            "kind": "leadership_transfer",
            "state": "running",
            "to": body["to"],
            "left": 1,
        }
        operation["left"] = self.operation_steps
        self.operations[operation["id"]] = operation
        return 202, operation

    def step(self, operation: Json) -> Json:
        operation["left"] -= 1
        if operation["left"] <= 0 and operation["state"] == "running":
            operation["state"] = "done"
            if "ends" in operation:
                operation["outcome"] = operation["ends"]
                return operation
            operation["outcome"] = {"leader_id": operation["to"], "term": self.term + 1}
            self.lead(operation["to"])
        return operation
