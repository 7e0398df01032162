"""A pair in classic mode that exists only as what its brokers say: a master m, slaves s1 and s2."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from app.console.aggregate import ClusterInfo, group_view
from app.console.pair_asking import state_of
from app.console.sample import NodeSample
from app.console.verdict import conclude
from app.health.classify import classify
from app.health.group_view import GroupView
from app.health.recall import Recall
from app.times import rfc3339, utc_now
from node.views.ha import HaView

Json = dict[str, Any]
T0 = datetime(2026, 11, 23, 8, tzinfo=UTC)
END = 81_920
NAMES = ("m", "s1", "s2")


def connection(slave: str, **more: Any) -> Json:
    return {
        "peer_id": slave, "address": f"10.0.0.{ord(slave[-1])}:40070", "state": "transfer", "kind": "ours",
        "stand": "in_step", "sent_offset": END, "acked_offset": END, "lag_bytes": 0, "lag_ms": 0,
        "rate_bytes_per_s": 1_048_576, "last_heard_ms": 12, "connected_ms": 14_628, "reason": "both end there",
    } | more  # fmt: skip


class FakePair(httpx2.AsyncBaseTransport):
    """The network towards it. `ha`: what each says; `alive`: who answers."""

    def __init__(self) -> None:
        self.name, self.why_silent = "pair", "connection refused"
        self.named: tuple[str, ...] = NAMES  # whose control planes are asked
        self.alive = dict.fromkeys(NAMES, True)
        self.urls = {name: f"http://127.0.0.1:{8531 + n}" for n, name in enumerate(NAMES)}
        self.requests: list[httpx2.Request] = []
        self.ha: dict[str, Json] = {}
        self.before: dict[str, Json] = {}  # what each said last, before its broker fell silent
        for n, name in enumerate(NAMES):
            self.ha[name] = {
                "as_of": rfc3339(T0), "broker": "ok", "reason": None, "name": "pair", "self_id": name, "broker_id": n,
                "address": f"127.0.0.1:{10911 + 100 * n}", "ha_address": f"127.0.0.1:{10912 + 100 * n}", "peers": [],
                "started_with": f"quorumscope node --id {name} --group pair", "role": "SLAVE" if n else "SYNC_MASTER",
                "configured_role": "SLAVE" if n else "SYNC_MASTER", "is_master": n == 0, "fenced_by_epoch": None,
                "pair": "pair-1", "epoch": 2, "epochs": [{"epoch": 1, "start": 0}, {"epoch": 2, "start": 51_200}],
                "begin_offset": 0, "flushed_offset": END, "end_offset": END, "dispatched_offset": END,
                "file_bytes": 1 << 30, "files": 1, "flush": "SYNC_FLUSH", "in_sync_replicas": 2, "cuts_back": False,
                "slave_fall_behind_max_bytes": 256 << 20, "broken_by": None, "connections": [], "following": None,
                "waiting": [], "waiting_count": 0, "problems": [],
            }  # fmt: skip
        self.ha["m"]["connections"] = [connection("s1"), connection("s2")]
        for name in ("s1", "s2"):
            self.ha[name]["following"] = {
                "address": "127.0.0.1:10912", "state": "transfer", "kind": "ours", "stand": "in_step",
                "reported_offset": END, "master_offset": END, "lag_bytes": 0, "rate_bytes_per_s": 0,
                "last_heard_ms": 10, "reason": None,
            }  # fmt: skip

    def link(self, slave: str) -> Json:
        """The master's connection of a slave."""
        return next(one for one in self.ha["m"]["connections"] if one["peer_id"] == slave)

    def leave(self, slave: str, stand: str | None = None, reason: str = "") -> None:
        """It is not served (any more)."""
        self.ha["m"]["connections"] = [one for one in self.ha["m"]["connections"] if one["peer_id"] != slave]
        self.ha[slave]["following"] |= {"state": "ready", "stand": stand, "reason": reason or None}
        if stand is not None:
            self.ha["m"]["problems"].append({"code": "slave_not_served", "about": slave, "text": reason})

    def view(self, seconds: float = 10.0) -> GroupView:
        """After it has been so for so long, looked at every half a second."""
        recall, now = Recall(), T0
        judged: GroupView | None = None
        while judged is None or now <= T0 + timedelta(seconds=seconds):
            view = group_view(ClusterInfo("pair", "pair", "pair"), [self.sample(name, now) for name in self.named], now)
            recall.observe(view, now.timestamp(), now)
            judged = conclude(classify(view, recall, now))
            now += timedelta(seconds=0.5)
        return judged

    def sample(self, name: str, now: datetime) -> NodeSample:
        one = NodeSample(name, "", self.urls[name], added_at=T0)
        one.ha = HaView.model_validate(self.ha[name])
        one.ha_before = HaView.model_validate(self.before[name]) if name in self.before else None
        one.state = state_of(one.ha)
        one.last_seen = now if self.alive[name] else T0 - timedelta(seconds=60)
        one.misses = 0 if self.alive[name] else 9
        one.problem = None if self.alive[name] else self.why_silent or None
        return one

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        base = f"{request.url.scheme}://{request.url.netloc.decode()}"
        name = next((one for one, url in self.urls.items() if url == base), None)
        if name is None or not self.alive[name]:
            raise httpx2.ConnectError("connection refused", request=request)
        self.requests.append(request)
        if request.url.path == "/api/v1/ha":
            return httpx2.Response(200, json=self.ha[name] | {"as_of": rfc3339(utc_now())}, request=request)
        return httpx2.Response(404, json={"title": "Not Found", "detail": "Not Found"}, request=request)
