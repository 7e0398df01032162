"""A tour of the console's API: every documented operation once, with success, over a fake group and a fake demo.

What was asked and answered is what `openapi_examples` writes into the document as examples.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pyotp

from app.api.audits import AuditRunner
from app.demo.breaks import Broken
from app.demo.state import DemoMember
from app.health.group_view import Problem
from app.times import rfc3339, utc_now
from tests.unit.console_kit import Kit, Person, documented, running
from tests.unit.fake_control import TRUNCATION, FakeGroup
from tests.unit.fake_pair import FakePair

Json = dict[str, Any]
DEMO_URL = "http://127.0.0.1:1/of-the-demo"
GROUP = "/api/v1/clusters/demo"
PASSWORD = "a long one that nobody tries 7"
RESULT: Json = {
    "verdict": "divergent", "depth": "bytes", "proves": "Every byte of every entry was compared.",
    "fence": {"from_index": 0, "to_index": 1000, "committed_index": 1000, "taken_at": "2026-01-02T03:04:05Z"},
    "replicas": [
        {"id": one, "source": f"http://127.0.0.1:843{n}", "kind": "http", "java": False, "begin_index": 0,
         "end_index": 1000, "committed_index": 1000, "problem": None}
        for n, one in enumerate(("n1", "n2", "n3"), start=1)
    ],
    "first_divergence": 733, "single_copy_ranges": [], "unaudited": [], "findings_truncated": False,
    "findings_total": 1, "rows": 3003, "seconds": 4.2, "summary": "The replicas diverge: entry 733 differs on n2.",
    "findings": [{"class": "body_differs", "severity": "critical", "replicas": ["n2"], "from_index": 733,
                  "to_index": 733, "detail": "entry 733 differs on n2", "good": ["n1", "n3"]}],
}  # fmt: skip


class Surroundings(FakeGroup):
    """The group, a classic pair, the demo that started the console, and a segment's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = FakePair()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = str(request.url)
        if url.startswith(DEMO_URL):
            broken = asdict(Broken("kill", "n2", "killed n2's engine", "n2 comes back by itself"))
            member = DemoMember("n1", "127.0.0.1:20911", "http://127.0.0.1:8431", "/var/lib/quorumscope/n1", 4711)
            state = {"feed": None, "leader_id": "n1", "members": [asdict(member)]}
            return httpx2.Response(200, json=state if url.endswith("/state") else broken, request=request)
        if url.startswith(tuple(self.pair.urls.values())):
            return await self.pair.handle_async_request(request)
        if "/segments/data/" in url:
            headers = {"content-type": "application/octet-stream", "content-range": "bytes 0-3/4", "etag": '"boot-0"'}
            return httpx2.Response(206, content=b"\0\1\2\3", headers=headers, request=request)
        return await super().handle_async_request(request)


class Tour:
    """`seen`: "method template" -> (the request's JSON, the answer's JSON or text)."""

    def __init__(self, kit: Kit, person: Person) -> None:
        self.kit, self.person = kit, person
        self.seen: dict[str, tuple[Any, Any]] = {}

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        kept = {} if body is None else {"json": body}
        answer = await self.person.change(method, path, **kept, **more)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        found = documented(self.kit.app).operation(method, path.partition("?")[0])
        assert found is not None, path
        is_json = answer.headers.get("content-type") == "application/json" and answer.content
        told = answer.json() if is_json else answer.content.decode("latin-1")
        if not (found[0] in self.seen and isinstance(told, dict) and told.get("dry_run")):
            self.seen[found[0]] = body, told
        return told

    async def whole(self) -> None:
        await self.groups()
        await self.members()
        await self.actions()
        await self.alerts()
        await self.people()
        await self.ask("POST", f"{GROUP}/addresses", {"control_url": "http://127.0.0.1:8439", "node_id": "n1"})
        await self.ask("DELETE", f"{GROUP}/addresses", params={"control_url": "http://127.0.0.1:8439"})
        await self.ask("PUT", f"{GROUP}/node-token", {"token": "a-token-of-this-group"})
        await self.ask("DELETE", f"{GROUP}/node-token")
        await self.ask("DELETE", GROUP)

    async def groups(self) -> None:
        for path in ("", "/console", "/clusters", "/problems", "/events", "/me"):
            await self.ask("GET", f"/api/v1{path}")
        await self.ask("POST", "/api/v1/clusters", {"control_url": "http://127.0.0.1:8431"})
        await self.ask("PATCH", GROUP, {"name": "demo"})
        for path in ("", "/view", "/history", "/problems", "/events", "/addresses", "/state", "/state?node=n1"):
            await self.ask("GET", GROUP + path)
        await self.ask("POST", "/api/v1/clusters", {"control_url": "http://127.0.0.1:8531"})
        await self.ask("GET", "/api/v1/clusters/pair/ha")
        await self.ask("DELETE", "/api/v1/clusters/pair")

    async def members(self) -> None:
        hour_ago = rfc3339(utc_now() - timedelta(hours=1)).replace("+", "%2B")
        views = ("dispatchers", "closures", f"watermarks?since={hour_ago}", "watermarks", "entries", "entries/3")
        for path in (*views, "truncations", "truncations/n1/1", "truncations/n1/1/entries", "segments", "digests"):
            await self.ask("GET", f"{GROUP}/{path}")
        await self.ask("GET", f"{GROUP}/segments/data/{0:020}")

    async def actions(self) -> None:
        await self.ask("POST", f"{GROUP}/entries", {"entries": ["first", "second"]})
        await self.ask("GET", f"{GROUP}/leadership-transfer?to=n1")
        await self.ask("POST", f"{GROUP}/leadership-transfer", {"to": "n1", "dry_run": True})
        await self.changes_of_members()
        self.kit.group.operation_steps = 1_000_000
        begun = await self.ask("POST", f"{GROUP}/leadership-transfer", {"to": "n1"})
        await self.ask("GET", "/api/v1/operations")
        await self.ask("GET", f"/api/v1/operations/{begun['id']}")
        await self.ask("DELETE", f"/api/v1/operations/{begun['id']}")
        await self.ask("POST", f"{GROUP}/nodes/n2/repair", {"from_index": 700, "to_index": 800})
        await self.ask("POST", f"{GROUP}/nodes/n2/restart", {"what": "engine"})
        for what in ("scrub", "repairs", "snapshots"):
            await self.ask("POST", f"{GROUP}/{what}?node=n2", {"dry_run": True})
            await self.ask("POST", f"{GROUP}/{what}?node=n2", {"dry_run": False})
        await self.ask("GET", f"{GROUP}/snapshots?node=n2")
        await self.ask("GET", f"{GROUP}/operations")
        await self.ask("GET", "/api/v1/demo/state")
        await self.ask("POST", "/api/v1/demo/break", {"what": "kill", "node": "n2"})
        runner: AuditRunner = self.kit.app.state.audit_runner
        runner._slots = asyncio.Semaphore(0)  # they wait for their turn: no job is started
        await self.ask("POST", "/api/v1/audits", {"cluster": "demo", "dry_run": True})
        audit = await self.ask("POST", "/api/v1/audits", {"cluster": "demo", "depth": "bytes"})
        await self.ask("POST", f"/api/v1/audits/{audit['id']}/cancel")
        old, _ = await runner.kept.create(
            cluster_id="demo", cluster_name="demo", depth="bytes", from_index=None, to_index=None,
            directory=str(runner.root), requested_by="ann",
        )  # fmt: skip
        await runner.kept.running(old.id, 1)
        await runner.kept.finish(old.id, {"event": "result", "result": RESULT})
        await self.ask("GET", f"/api/v1/audits/{old.id}")
        await self.ask("GET", f"/api/v1/audits/{old.id}/findings")
        await self.ask("GET", "/api/v1/audits")
        schedule = await self.ask("POST", "/api/v1/schedules", {"cluster": "demo", "every_s": 86_400})
        for path in ("", f"/{schedule['id']}"):
            await self.ask("GET", f"/api/v1/schedules{path}")
        await self.ask("DELETE", f"/api/v1/schedules/{schedule['id']}")

    async def changes_of_members(self) -> None:
        await self.ask("GET", f"{GROUP}/members")
        new = {"id": "n3", "address": "10.0.0.4:20911"}
        await self.ask("POST", f"{GROUP}/members", {**new, "dry_run": True})
        await self.ask("POST", f"{GROUP}/members", {**new, "if_term": 4})
        await self.ask("POST", f"{GROUP}/members/n3/promotion", {})
        await self.ask("PUT", f"{GROUP}/members/n1/address", {"address": "10.0.0.9:20911"})
        await self.ask("DELETE", f"{GROUP}/members/n2")

    async def alerts(self) -> None:
        problem = Problem(
            id="disk:", code="disk_full", severity="attention", text="the disk is full", what="the disk is full",
            since=rfc3339(utc_now()), next_step="make room",
        )  # fmt: skip
        self.kit.console.own["tour"] = [problem]
        notifier = self.kit.app.state.notifier
        found = await self.kit.until(lambda: next((key for key in notifier.memory if key.problem_id == "disk:"), None))
        stands = f"/api/v1/alerts/problems/{found.scope}/disk:"
        tomorrow = rfc3339(utc_now() + timedelta(days=1))
        await self.ask("POST", f"{stands}/acknowledge")
        await self.ask("POST", f"{stands}/mute", {"until": tomorrow})
        for path in ("/api/v1/alerts", "/api/v1/problems", "/api/v1/console"):
            await self.ask("GET", path)
        await self.ask("POST", f"{stands}/unacknowledge")
        await self.ask("POST", f"{stands}/unmute")
        window = await self.ask("POST", "/api/v1/alerts/windows", {"until": tomorrow, "reason": "new disks"})
        await self.ask("GET", "/api/v1/alerts/windows")
        await self.ask("DELETE", f"/api/v1/alerts/windows/{window['id']}")
        hook = {"name": "on-call", "webhook": {"url": "https://127.0.0.1:1/hook"}, "enabled": False}
        await self.ask("POST", "/api/v1/alerts/routes", hook)
        for path in ("routes", "routes/on-call"):
            await self.ask("GET", f"/api/v1/alerts/{path}")
        await self.ask("PATCH", "/api/v1/alerts/routes/on-call", {"hold_s": 120})
        await self.ask("POST", "/api/v1/alerts/routes/on-call/test")
        await self.kit.until(lambda: not any(one.dirty for one in notifier.outbox.messages.values()))  # stored
        await self.ask("GET", "/api/v1/alerts/messages")
        await self.ask("DELETE", "/api/v1/alerts/routes/on-call")

    async def people(self) -> None:
        await self.ask("POST", "/api/v1/users", {"name": "bob", "role": "operator"})
        await self.ask("POST", "/api/v1/users/bob/login-link")
        await self.ask("PATCH", "/api/v1/users/bob", {"role": "viewer"})
        for path in ("users", "users/bob"):
            await self.ask("GET", f"/api/v1/{path}")
        await self.ask("DELETE", "/api/v1/users/bob/second-factor")
        await self.ask("DELETE", "/api/v1/users/bob")
        await self.second_factor()
        token = await self.ask("POST", "/api/v1/tokens", {"name": "ci", "role": "viewer", "days": 30})
        await self.ask("GET", "/api/v1/tokens")
        await self.ask("DELETE", f"/api/v1/tokens/{token['id']}")
        await self.kit.person("bob", "viewer")
        listed = await self.ask("GET", "/api/v1/sessions")
        other = next(one for one in listed["items"] if not one["current"])
        await self.ask("DELETE", f"/api/v1/sessions/{other['id']}")
        await self.ask("PUT", "/api/v1/me/password", {"password": PASSWORD})
        for path in ("admin-trail", "admin-trail/export"):
            await self.ask("GET", f"/api/v1/{path}")

    async def second_factor(self) -> None:
        path = "/api/v1/me/second-factor"
        begun = await self.ask("POST", path, {})
        done = await self.ask("PUT", path, {"code": pyotp.TOTP(begun["secret"]).now()})
        await self.ask("GET", path)
        done = await self.ask("POST", f"{path}/recovery-codes", {"code": done["recovery_codes"][0]})
        await self.ask("POST", f"{path}/remove", {"code": done["recovery_codes"][0]})


async def toured(tmp_path: Path) -> Tour:
    group = Surroundings()
    group.nodes["n1"].truncations = [TRUNCATION]
    async with running(tmp_path, group, demo=True, demo_control_url=DEMO_URL) as kit:
        await kit.watched()
        tour = Tour(kit, await kit.person())
        await tour.whole()
        return tour
