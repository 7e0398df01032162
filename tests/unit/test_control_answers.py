"""How a control plane words what its engine says, and what it says when the engine says nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from fastapi import FastAPI

from node.config import load
from node.control.app import create_app
from node.control.data_look import DataLook, why_down
from node.control.engine_link import EngineAway, EngineSilent
from node.control.state import with_own_alarm
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.slab_frames import AppendAnswer, AppendedByte, decode_append, encode_append_answer
from node.unwritable import is_unwritable
from node.views.state import AlarmView, StateView

Json = dict[str, Any]
Work = Callable[["Plane", httpx2.AsyncClient], Awaitable[None]]
YES, NOT_APPENDED, UNKNOWN = AppendedByte.YES, AppendedByte.NOT_APPENDED, AppendedByte.UNKNOWN
AT_5 = {"first_index": 5, "last_index": 5, "term": 3}
PEERS = [
    {"id": one, "address": f"127.0.0.1:{1 + at}", "control_url": f"http://127.0.0.1:{81 + at}"}
    for at, one in enumerate(("n0", "n1", "n2"))
]


class Plane:
    """One control plane, and what its engine answers: `state`, `appended`; an exception is raised."""

    def __init__(self, app: FastAPI) -> None:
        self.app, self.parts = app, app.state.parts
        self.state: Json | Exception = {"role": "LEADER", "leader_id": "n0"}
        self.appended: AppendAnswer = AppendAnswer(200, 5, 5, 3, YES)
        self.looks = 0
        self.sent: list[bytes] = []
        self.parts.link.json, self.parts.link.request = self._json, self._request

    async def _json(self, code: RequestCode, fields: Json, _timeout_s: float) -> Json:
        assert code is RequestCode.INTROSPECT
        if isinstance(self.state, Exception):
            raise self.state
        if fields["what"] != "state":
            raise EngineSilent("no answer")
        self.looks += 1
        known = {"as_of": f"look {self.looks}", "engine": "ok", "self_id": "n0", "boot_id": "b", "term": 3}
        return {**known, "peers": PEERS, **self.state}

    async def _request(self, code: RequestCode, pieces: list[bytes], _timeout_s: float) -> bytes:
        assert code is RequestCode.FAST_APPEND
        self.sent.append(b"".join(pieces))
        return encode_append_answer(self.appended)


def with_plane(place: Path, work: Work, **settings: str) -> None:
    async def both() -> None:
        peers = ";".join(f"{one['id']}-{one['address']}" for one in PEERS)
        plane = Plane(
            create_app(load({"node.id": "n0", "node.data": str(place), "peers": peers, **settings}, environ={}))
        )
        transport = httpx2.ASGITransport(app=plane.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            await work(plane, client)

    asyncio.run(both())


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes: what was said is as new as ever until it is outdated."""
    monkeypatch.setattr("node.control.snapshots.now_s", lambda: 1000.0)


# --- appends ----------------------------------------------------------------------------------------------------------
def refusal(code: ResponseCode, appended: AppendedByte = NOT_APPENDED, first: int = -1, **more: Any) -> AppendAnswer:
    numbers = (first, first, 3) if first >= 0 else (-1, -1, -1)
    return AppendAnswer(int(code), *numbers, appended, **more)


@pytest.mark.parametrize(
    ("answer", "status", "says", "retry_after"),
    [
        (
            refusal(ResponseCode.NOT_LEADER, leader_id="n2"), 421,
            {"outcome": "not_appended", "leader_id": "n2", "leader_api_url": "http://127.0.0.1:83"}, None,
        ),
        (
            refusal(ResponseCode.LEADER_PENDING_FULL, retry_after_ms=1001), 503,
            {"outcome": "not_appended", "retry_after_ms": 1001}, "2",
        ),
        (refusal(ResponseCode.LEADER_NOT_READY), 503, {"outcome": "not_appended", "retry_after_ms": None}, "1"),
        (refusal(ResponseCode.INCONSISTENT_INDEX), 409, {"outcome": "not_appended", "end_index": 7}, None),
        (refusal(ResponseCode.UNEXPECTED_ARGUMENT), 422, {"outcome": "not_appended"}, None),
        (
            refusal(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, UNKNOWN, 0), 504,
            {"outcome": "unknown", "safe_to_retry": False, "first_index": 0, "last_index": 0, "term": 3}, None,
        ),
        (
            refusal(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, UNKNOWN), 504,
            {"outcome": "unknown", "safe_to_retry": False, "first_index": None}, None,
        ),
    ],
)  # fmt: skip
def test_an_append_that_is_refused_or_unknown(
    tmp_path: Path, answer: AppendAnswer, status: int, says: Json, retry_after: str | None
) -> None:
    """The leader that the answer names counts, and not the one of a state that is older."""

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        plane.state, plane.appended = {"role": "FOLLOWER", "leader_id": "n1", "log": {"end_index": 7}}, answer
        got = await client.post("/api/v1/entries", json={"entries": ["x"]})
        assert got.status_code == status, got.text
        assert {name: got.json().get(name) for name in says} == says
        assert got.headers.get("retry-after") == retry_after

    with_plane(tmp_path, work)


@pytest.mark.parametrize(("flush", "durable"), [("sync", True), ("async", False)])
def test_durable_is_said_only_of_what_was_synced(tmp_path: Path, flush: str, durable: bool) -> None:
    async def work(_plane: Plane, client: httpx2.AsyncClient) -> None:
        got = await client.post("/api/v1/entries", json={"entries": ["x"]})
        assert (got.status_code, got.json()) == (200, AT_5 | {"durable": durable})

    with_plane(tmp_path, work, **{"node.flush": flush})


@pytest.mark.parametrize("appended", [YES, NOT_APPENDED, UNKNOWN])
def test_whoever_asks_behind_an_append_sees_what_is_newer_than_it(tmp_path: Path, appended: AppendedByte) -> None:
    """Also where its outcome is not known: it may be in the log."""

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        for _ in range(2):
            assert (await client.get("/api/v1/state")).json()["as_of"] == "look 1"
        plane.appended = refusal(ResponseCode.DISK_FULL, appended, 5 if appended is not NOT_APPENDED else -1)
        await client.post("/api/v1/entries", json={"entries": ["x"]})
        assert (await client.get("/api/v1/state")).json()["as_of"] == "look 2"

    with_plane(tmp_path, work)


@pytest.mark.parametrize(
    ("query", "body", "expected"),
    [("", 0, 0), ("?expected_index=0", None, 0), ("?expected_index=0", 0, 0), ("", None, -1)],
)
def test_the_first_index_of_all_is_an_index_that_can_be_expected(
    tmp_path: Path, query: str, body: int | None, expected: int
) -> None:
    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        sent = {"entries": ["x"]} | ({} if body is None else {"expected_index": body})
        assert (await client.post(f"/api/v1/entries{query}", json=sent)).status_code == 200
        assert [decode_append(one).expected_index for one in plane.sent] == [expected]

    with_plane(tmp_path, work)


@pytest.mark.parametrize(("query", "body"), [(0, 5), (5, 0)])
def test_index_0_and_another_one_are_two_conditions(tmp_path: Path, query: int, body: int) -> None:
    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        sent = {"entries": ["x"], "expected_index": body}
        got = await client.post(f"/api/v1/entries?expected_index={query}", json=sent)
        assert (got.status_code, got.json()["outcome"], plane.sent) == (422, "not_appended", [])

    with_plane(tmp_path, work)


# --- health -----------------------------------------------------------------------------------------------------------
LEADS: Json = {
    "role": "LEADER", "leader_id": "n0", "leader_ready": True, "quorum_contact_ms": 20,
    "timing": {"election_timeout_max_ms": 1000}, "disk": {"full": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "leads", "ready"),
    [
        ({}, True, True),
        ({"quorum_contact_ms": 1000}, True, True),
        ({"quorum_contact_ms": 1001}, False, True),  # nobody answers it: it can commit nothing
        ({"leader_ready": False}, False, True),
        ({"disk": {"full": True}}, False, True),
        ({"role": "FOLLOWER", "leader_id": "n1"}, False, True),
        ({"role": "CANDIDATE", "leader_id": None}, False, False),
        ({"engine": "stale"}, False, False),
    ],
)
def test_leaderz_is_for_a_leader_that_can_commit_and_readyz_for_who_knows_one(
    tmp_path: Path, changes: Json, leads: bool, ready: bool
) -> None:
    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        plane.state = LEADS
        if changes.get("engine") == "stale":
            await client.get("/api/v1/state")
            plane.parts.snapshots.outdate()
            plane.state = EngineSilent("no answer")
        else:
            plane.state = {**LEADS, **changes}
        for path, fine in (("leaderz", leads), ("readyz", ready)):
            got = await client.get(f"/{path}")
            assert (got.status_code, got.json()["ok"]) == ((200, True) if fine else (503, False)), path

    with_plane(tmp_path, work)


# --- an engine that says nothing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("gone", "engine"), [(EngineSilent("no answer"), "stale"), (EngineAway("refused"), "down")])
def test_what_was_said_last_keeps_its_time_and_the_silence_its_beginning(
    tmp_path: Path, gone: Exception, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1, 100))
    monkeypatch.setattr("node.control.snapshots.now_text", lambda: f"{next(clock)}")

    async def looked(plane: Plane, client: httpx2.AsyncClient) -> Json:
        plane.parts.snapshots.outdate()
        found: Json = (await client.get("/api/v1/state")).json()
        return found

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        assert (await looked(plane, client))["as_of"] == "look 1"
        for since in ("1", "2"):  # each silence begins where it was noticed, and goes on from there
            plane.state = gone
            for _ in range(2):
                shown = await looked(plane, client)
                assert (shown["engine"], shown["as_of"]) == (engine, f"look {plane.looks}")
                assert shown["unknown"][-1]["field"] == "state" and shown["unknown"][-1]["since"] == since
            plane.state = {"role": "LEADER", "leader_id": "n0"}
            assert (await looked(plane, client))["engine"] == "ok"

    with_plane(tmp_path, work)


def test_who_follows_events_loses_no_place_while_the_engine_is_away(tmp_path: Path) -> None:
    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        plane.state = EngineAway("refused")
        got = (await client.get("/api/v1/events?cursor=b-7")).json()
        assert (got["engine"], got["items"], got["next"]) == ("down", [], "b-7")

    with_plane(tmp_path, work)


def test_a_removed_member_sends_appends_on_instead_of_asking_for_another_try(tmp_path: Path) -> None:
    """It never learns of a leader again."""

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        alarm = {"code": "removed", "severity": "warning", "peer_id": "n1", "text": "n1 says that n0 was removed"}
        plane.state = {"role": "CANDIDATE", "leader_id": None, "alarms": [alarm]}
        plane.appended = AppendAnswer(ResponseCode.NOT_LEADER, -1, -1, -1, NOT_APPENDED)
        sent = await client.post("/api/v1/entries", json={"entries": ["a"]})
        said = sent.json()
        assert sent.status_code == 421, said
        assert said["outcome"] == "not_appended" and "leader_id" not in said
        assert "n0 was removed from the group" in said["detail"] and "n1 at http://127.0.0.1:82" in said["detail"]
        assert (await client.post("/api/v1/leadership-transfer", json={"to": "n1"})).status_code == 421

    with_plane(tmp_path, work)


def test_a_directory_that_becomes_unwritable_under_an_engine_that_writes_nothing_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle leader on a file system that was mounted read-only was said to be well, until its next write ended it."""
    parts: Any = SimpleNamespace(
        settings=SimpleNamespace(node=SimpleNamespace(data=tmp_path)), broker_alarms=None,
        rereading=SimpleNamespace(text="its certificate", since_text=None), unwritable_since=None,
        data_look=DataLook(tmp_path, is_unwritable, False),
    )  # fmt: skip
    well, down = StateView(self_id="n0", engine="ok", alarms=()), StateView(self_id="n0", engine="down", alarms=())

    async def work() -> None:
        async def alarms(view: StateView) -> tuple[AlarmView, ...]:
            return (await with_own_alarm(parts, view)).alarms or ()

        assert [one.code for one in await alarms(well)] == ["control_file_not_reread"]
        with monkeypatch.context() as patched:
            patched.setattr("node.unwritable.os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
            first, _ = await alarms(well)
            assert first.code == "data_unwritable" and first.since is not None and str(tmp_path) in (first.text or "")
            assert (await alarms(well))[0].since == first.since
            assert len(await alarms(down)) == 1, "why it is down says more"
        parts.rereading.text = None
        assert await alarms(well) == () and parts.unwritable_since is None

    asyncio.run(work())


def test_a_disk_that_hangs_holds_up_one_thread_and_not_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the file system of a dead NFS server does not return: every request waited behind it."""
    goes_on, looks = threading.Event(), []

    def look(_data: Path) -> bool:
        looks.append(threading.current_thread())
        assert len(looks) == 1 or goes_on.wait(60)
        return len(looks) > 1

    async def work() -> None:
        asked = DataLook(tmp_path, look, False)
        assert (await asked.ask(), asked.known) == (True, False)
        monkeypatch.setattr("node.control.data_look.PATIENCE_S", 0.01)
        for _ in range(5):
            assert (await asked.ask(), asked.known) == (False, False), "as it was when the disk answered last"
        assert len(looks) == 2 and looks[1] is not threading.main_thread()
        goes_on.set()
        monkeypatch.setattr("node.control.data_look.PATIENCE_S", 60)
        assert (await asked.ask(), asked.known) == (True, True), "the answer to the one question that was out"

    asyncio.run(work())


def test_why_an_engine_is_down_is_looked_up_off_the_loop_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that a dead disk took along: each state of it asked that disk on the loop."""
    goes_on = threading.Event()

    def why(data: Path) -> str | None:
        assert threading.current_thread() is not threading.main_thread() and goes_on.wait(60)
        return why_down(data)

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        async def reason() -> str:
            return str((await client.get("/api/v1/state")).json()["engine_reason"])

        (tmp_path / "engine-refused.json").write_text('{"reason": "the lock is held"}')
        plane.state = EngineAway("refused")
        assert await reason() == "the lock is held"
        plane.parts.snapshots.data_look = DataLook(tmp_path, why, None)
        monkeypatch.setattr("node.control.data_look.PATIENCE_S", 0.01)
        hangs = f"nothing answers at its port (refused), nor does the disk of {tmp_path}: see whether it hangs"
        assert await reason() == hangs
        monkeypatch.setattr("node.control.data_look.PATIENCE_S", 60)
        goes_on.set()
        assert await reason() == "the lock is held"
        (tmp_path / "engine-refused.json").unlink()
        assert await reason() == "nothing answers at its port (refused)"

    with_plane(tmp_path, work)


def test_a_look_for_which_no_thread_can_be_had_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        look = DataLook(tmp_path, lambda _data: True, False)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            with pytest.raises(RuntimeError):
                await look.ask()
        monkeypatch.setattr("node.control.data_look.PATIENCE_S", 30)
        assert await look.ask() and look.known

    asyncio.run(work())
