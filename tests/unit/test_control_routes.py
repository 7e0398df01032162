"""What routes that change something ask of an engine: nothing on a dry run, for another term, or where another leads.

The engine is the test's: it answers what it is asked, and keeps what would have changed something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.config import load
from node.control import restart
from node.control.app import create_app
from node.control.engine_link import EngineAway, EngineSilent
from node.control.problems import Problem
from node.control.snapshots import CACHE_S
from node.protocol.codes import RequestCode
from node.views.state import StateView

Json = dict[str, Any]
PEERS = [{"id": one, "address": f"127.0.0.1:{1 + at}"} for at, one in enumerate(("n0", "n1", "n2"))]
QUORUM = {"voters": ["n0", "n1", "n2"], "needed": 2, "answering": ["n0", "n1", "n2"]}
ANSWER: Json = {
    "code": 200, "index": 9, "term": 3, "leaderId": "n1", "detail": "", "refused": None, "before": QUORUM,
    "after": QUORUM, "files": 2, "bytes": 2048, "throughIndex": 9, "beginIndex": 10, "keptBy": [], "removedFiles": 0,
    "removedBytes": 0,
}  # fmt: skip
AT_LEADER = {
    "transfer": ("POST", "/leadership-transfer", {"to": "n1"}),
    "add": ("POST", "/members", {"id": "n3", "address": "127.0.0.1:9"}),
    "replace": ("POST", "/members", {"id": "n3", "address": "127.0.0.1:9", "replaces": "n2"}),
    "promote": ("POST", "/members/n2/promotion", {}),
    "address": ("PUT", "/members/n2/address", {"address": "127.0.0.1:9"}),
    "remove": ("DELETE", "/members/n2", None),
}
AT_ANY = {"trim": ("POST", "/trim", {"through_index": 9})}
TERMED = {**AT_LEADER, **AT_ANY}
ALL = {**TERMED, "restart": ("POST", "/restart", {"force": True})}


class Engine:
    """`changes`: what came that was no question and no dry run."""

    def __init__(self) -> None:
        self.state: Json = {"role": "LEADER", "leader_id": "n0"}
        self.answer: Json = dict(ANSWER)
        self.changes: list[Json] = []
        self.late_s = 0.0  # it takes so long to answer what it is asked of its state
        self.asked_within_s: list[float] = []

    async def json(self, code: RequestCode, fields: Json, timeout_s: float) -> Json:
        if code is RequestCode.INTROSPECT:
            self.asked_within_s.append(timeout_s)
            await asyncio.sleep(0)
            if self.late_s >= timeout_s:
                raise EngineSilent(f"no answer within {timeout_s:g} s")
            if self.state.get("engine") == "down":
                raise EngineAway("refused")
            known = {"as_of": "now", "engine": "ok", "self_id": "n0", "boot_id": "b", "term": 3, "peers": PEERS}
            return {**known, **self.state}
        if not fields.get("dryRun"):
            self.changes.append(fields)
        return dict(self.answer)


Work = Callable[[Engine, httpx2.AsyncClient], Awaitable[None]]
Plane = Callable[..., None]


@pytest.fixture
def with_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plane:
    """A control plane that was started by `quorumscope node`."""
    engine = Engine()

    def ask() -> bool:
        engine.changes.append({"what": "restart"})
        return True

    monkeypatch.setattr(restart, "is_supervised", lambda: True)
    monkeypatch.setattr(restart, "ask_for_another_engine", ask)
    monkeypatch.setattr(restart, "LOOK_S", 0.0)
    monkeypatch.setattr(restart, "FOLLOWED_S", 0.05)

    def run(work: Work, **settings: str) -> None:
        async def both() -> None:
            peers = ";".join(f"{one['id']}-{one['address']}" for one in PEERS)
            app = create_app(
                load({"node.id": "n0", "node.data": str(tmp_path), "peers": peers, **settings}, environ={})
            )
            app.state.parts.link.json = engine.json
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1/api/v1") as client:
                await work(engine, client)
                await app.state.parts.operations.close()

        asyncio.run(both())

    return run


async def send(client: httpx2.AsyncClient, name: str, key: str | None = None, **more: Any) -> httpx2.Response:
    """That call with `more` in its body, or in its query where it has no body."""
    method, path, body = ALL[name]
    headers = {} if key is None else {"idempotency-key": key}
    if body is None:
        return await client.request(method, path, params=more, headers=headers)
    return await client.request(method, path, json={**body, **more}, headers=headers)


async def ended(client: httpx2.AsyncClient, started: httpx2.Response) -> Json:
    while True:
        operation: Json = (await client.get(f"/operations/{started.json()['id']}")).json()
        if operation["state"] != "running":
            return operation
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("name", ALL)
def test_a_dry_run_changes_nothing_and_says_what_would_follow(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        said = await send(client, name, key="a-key", dry_run=True)
        assert said.status_code == 200 and said.json()["dry_run"] is True and said.json()["would"]
        assert engine.changes == [] and (await client.get("/operations")).json()["items"] == []
        assert (await send(client, name, key="a-key")).status_code == 202, "a dry run takes no key"

    with_plane(work)


@pytest.mark.parametrize("name", ALL)
def test_what_was_decided_for_another_term_is_refused(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        for dry_run in (False, True):
            said = await send(client, name, if_term=2, dry_run=dry_run)
            assert said.status_code == 412 and "term" in said.json()["detail"]
        assert engine.changes == []
        assert (await send(client, name, if_term=3)).status_code == 202

    with_plane(work)


def test_an_engine_of_which_no_term_is_known_is_not_ended_for_one(with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.state = {"role": None, "term": None}
        said = await send(client, "restart", if_term=3)
        assert said.status_code == 412 and "not known" in said.json()["detail"] and engine.changes == []
        assert (await send(client, "restart")).status_code == 202

    with_plane(work)


@pytest.mark.parametrize("name", AT_LEADER)
def test_what_the_leader_decides_is_asked_of_it_alone(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.state = {"role": "FOLLOWER", "leader_id": "n1"}
        said = await send(client, name)
        assert said.status_code == 421 and said.json()["leader_id"] == "n1"
        assert engine.changes == []

    with_plane(work)


@pytest.mark.parametrize("name", TERMED)
def test_nothing_is_begun_at_an_engine_that_is_down(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.state = {"engine": "down"}
        assert (await send(client, name)).status_code == 503
        assert engine.changes == [] and (await client.get("/operations")).json()["items"] == []

    with_plane(work)


@pytest.mark.parametrize("name", ALL)
def test_one_key_is_one_operation(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        first = await send(client, name, key="a-key")
        assert first.status_code == 202
        operation = await ended(client, first)
        assert operation["state"] == ("failed" if name == "restart" else "done"), operation
        again = await send(client, name, key="a-key")
        assert again.status_code in (200, 202) and again.json()["id"] == operation["id"]
        assert len(engine.changes) == 1
        other = await send(client, name, key="another")
        assert (await ended(client, other))["id"] != operation["id"] and len(engine.changes) == 2

    with_plane(work)


@pytest.mark.parametrize("name", [one for one in AT_LEADER if one != "transfer"])
def test_a_change_that_the_pre_flight_refuses_is_not_asked_for(name: str, with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.answer["refused"] = {"code": 501, "detail": "another change is under way"}
        said = await send(client, name)
        assert said.status_code == 409 and said.json()["outcome"] == "not_appended"
        assert said.json()["detail"] == "another change is under way" and engine.changes == []

    with_plane(work)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("add", {"kind": "add", "memberId": "n3", "address": "127.0.0.1:9", "promote": True, "replaces": ""}),
        ("replace", {"kind": "add", "memberId": "n3", "address": "127.0.0.1:9", "promote": True, "replaces": "n2"}),
        ("promote", {"kind": "promote", "memberId": "n2"}),
        ("address", {"kind": "address", "memberId": "n2", "address": "127.0.0.1:9"}),
        ("remove", {"kind": "remove", "memberId": "n2"}),
    ],
)
def test_the_engine_is_asked_for_the_very_change_in_the_term_it_was_decided_for(
    name: str, asked: Json, with_plane: Plane
) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        await ended(client, await send(client, name, if_term=3))
        assert engine.changes == [{"what": "members", **asked, "ifTerm": 3}]

    with_plane(work)


def test_a_learner_that_stays_one_is_added_as_one_and_replaces_nobody(with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        assert (await send(client, "replace", learner=True)).status_code == 422 and engine.changes == []
        await ended(client, await send(client, "add", learner=True))
        assert engine.changes[0]["promote"] is False

    with_plane(work)


def test_a_transfer_goes_to_a_member_that_there_is_and_not_to_the_leader(with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        assert (await send(client, "transfer", to="n9")).status_code == 422
        assert (await send(client, "transfer", to="n0")).status_code == 409
        assert engine.changes == []

    with_plane(work)


@pytest.mark.parametrize(("state", "force", "status"), [("ok", False, 409), ("ok", True, 202), ("down", True, 409)])
def test_an_engine_that_answers_is_ended_with_force_only(
    state: str, force: bool, status: int, with_plane: Plane
) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        if state == "down":
            engine.state = {"engine": "down"}
        assert (await send(client, "restart", force=force)).status_code == status
        assert bool(engine.changes) is (status == 202)

    with_plane(work)


@pytest.mark.parametrize(("applied", "alarms", "goes"), [(9, [], False), (8, [], True), (9, ["applier_silent"], True)])
def test_a_state_machine_that_hangs_is_ended_without_force(applied: int, alarms: list[str], goes: bool) -> None:
    """One that was asked and gave no answer hangs, too: the command that the console prints for it was refused."""
    said = {"as_of": "2026-11-30T04:00:00Z", "engine": "ok", "group": "g", "self_id": "n0", "peers": []}
    log = {"applied_index": applied, "committed_index": 9}
    state = StateView.model_validate(said | {"log": log, "alarms": [{"code": one} for one in alarms]})
    if goes:
        restart.check_machine(state, force=False)
    else:
        with pytest.raises(Problem, match="all that is committed"):
            restart.check_machine(state, force=False)


PATIENT: dict[str, tuple[str, str, Json | None]] = {
    **TERMED, "scrub": ("POST", "/scrub", {}), "repair": ("POST", "/repairs", {}),
    "pin": ("PUT", "/pins/audit", {"from_index": 3, "for_s": 60}), "release": ("DELETE", "/pins/audit", None),
    "state machine": ("POST", "/restart", {"what": "state_machine", "force": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", PATIENT)
def test_an_engine_that_is_late_once_has_time_for_an_operators_action(name: str, with_plane: Plane) -> None:
    """On a busy machine it gave no answer within 0.4 s, and a transfer, say, was refused with 503; reads wait for
    nobody."""

    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        method, path, body = PATIENT[name]
        engine.late_s = 2.0
        said = await client.request(method, path, json=body)
        assert said.status_code in (200, 202, 204), said.text
        engine.late_s, engine.asked_within_s[:] = 1000.0, []
        await asyncio.sleep(CACHE_S)
        assert (await client.get("/state")).json()["engine"] == "stale"
        assert max(engine.asked_within_s) < 1

    with_plane(work, **{"node.state_machine": "kv"})


@pytest.mark.parametrize("name", PATIENT)
def test_one_that_hangs_is_refused_for_what_needs_it(
    name: str, monkeypatch: pytest.MonkeyPatch, with_plane: Plane
) -> None:
    monkeypatch.setattr("node.control.common.LATE_S", 0.5)

    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        method, path, body = PATIENT[name]
        engine.late_s = 1000.0
        said = await client.request(method, path, json=body)
        assert said.status_code == 503 and said.headers["retry-after"]
        assert "no answer within 0.5 s" in said.json()["detail"] and engine.changes == []

    with_plane(work, **{"node.state_machine": "kv"})


def test_an_engine_that_hangs_is_ended_without_a_wait_for_it(with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.late_s = 1000.0
        assert (await send(client, "restart", force=False)).status_code == 202
        assert engine.asked_within_s[0] < 1

    with_plane(work)


def test_a_transfer_that_has_less_time_waits_no_longer(with_plane: Plane) -> None:
    async def work(engine: Engine, client: httpx2.AsyncClient) -> None:
        engine.late_s = 1000.0
        said = await send(client, "transfer", deadline_ms=600)
        assert said.status_code == 503 and "no answer within 0.6 s" in said.json()["detail"]

    with_plane(work)
