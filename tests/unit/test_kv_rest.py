"""The key-value store over REST: a control plane beside a real engine; what is read, written, refused, waited for."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.access_rows import Right
from node.control import kv
from node.control.app import create_app
from node.control.machine_calls import Carried
from node.control.problems import Problem
from node.control.rights import needed
from node.engine.engine import Engine
from node.engine.process import Process
from node.protocol.kv import (
    ABSENT,
    KvCommand,
    KvResult,
    Op,
    Status,
    ask_get,
    ask_watch,
    decode_got,
    decode_result,
    encode_command,
    encode_result,
)
from node.server import group_kind, open_store
from node.state_machine.kv import KeyValue
from tests.ports import free_ports
from tests.unit.engine_kit import running, until
from tests.unit.machine_kit import Inside, settings_of

Work = Callable[[httpx.AsyncClient], Awaitable[None]]


class Patient(httpx.AsyncClient):
    """Asks again after a 503: on a busy machine the engine may be too slow for a control plane's patience."""

    async def request(self, *args: Any, **named: Any) -> httpx.Response:
        while True:
            answer = await super().request(*args, **named)
            if answer.status_code != 503:
                return answer
            await asyncio.sleep(0.05)


def run(tmp_path: Path, work: Work) -> None:
    async def both() -> None:
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        settings = settings_of(tmp_path, peers, "n0", "kv").model_copy(deep=True)
        settings = settings.model_copy(update={"node": settings.node.model_copy(update={"init": True})})
        store = open_store(settings)
        process = Process()
        engine = Engine(settings, store, process, machine=Inside(KeyValue(), "kv"), kind=group_kind(settings))
        app = create_app(settings)
        async with running([engine]) as codes:
            await until(lambda: engine.replica.member.hard.group_id is not None and engine.replica.committed_index > 0)
            url = f"http://{settings.control.address}/api/v1"
            async with Patient(transport=httpx.ASGITransport(app), base_url=url, timeout=60) as http:
                await work(http)
            app.state.parts.link.close()
        process.close()
        store.close()
        assert codes == [0], engine.reason

    asyncio.run(both())


def test_keys_are_written_read_listed_and_removed(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        written = (await http.put("/kv/a/b c", json={"value": "één"})).json()
        got = await http.get("/kv/a/b c")
        assert got.status_code == 200
        found = got.json()
        assert (found["key"], found["value"], found["as"], found["found"]) == ("a/b c", "één", "text", True)
        assert found["index"] == written["index"] <= found["applied_index"] and found["expires_at"] is None
        raw = base64.b64encode(b"\xff\x00").decode()
        await http.put("/kv/raw", json={"value": raw, "as": "base64", "ttl_ms": 3_600_000})
        shown = (await http.get("/kv/raw?consistency=stale")).json()
        assert (shown["value"], shown["as"]) == (raw, "base64") and shown["expires_at"].startswith("20")
        for number in range(5):
            assert (await http.put(f"/kv/n{number}", json={"value": str(number)})).status_code == 200
        page = (await http.get("/kv?prefix=n&limit=3")).json()
        assert [one["key"] for one in page["items"]] == ["n0", "n1", "n2"]
        rest = (await http.get("/kv", params={"prefix": "n", "limit": 3, "cursor": page["next"]})).json()
        assert ([one["key"] for one in rest["items"]], rest["next"]) == (["n3", "n4"], None)
        assert len((await http.get("/kv?from=n3&to=raw")).json()["items"]) == 2
        assert (await http.delete("/kv/n0")).json()["deleted"] is True
        assert (await http.delete("/kv/n0")).json()["deleted"] is False
        gone = await http.get("/kv/n0")
        assert (gone.status_code, gone.json()["found"]) == (404, False)

    run(tmp_path, work)


def test_a_write_is_in_what_the_member_says_next(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        for number in range(20):  # each within the time that an answer is kept
            await http.get("/state")
            index = (await http.put("/kv/k", json={"value": str(number)})).json()["index"]
            state = (await http.get("/state")).json()
            while state["engine"] == "stale":  # it says so: on a busy machine the engine may not answer in time
                state = (await http.get("/state")).json()
            assert state["log"]["committed_index"] >= index

    run(tmp_path, work)


def test_keys_of_any_length_are_paged_and_none_is_taken_for_another(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        for number in range(3):
            assert (await http.put(f"/kv/{number}{'k' * 1023}", json={"value": "v"})).status_code == 200
        page = (await http.get("/kv?limit=1")).json()
        rest = await http.get("/kv", params={"cursor": page["next"]})
        assert [one["key"][0] for one in rest.json()["items"]] == ["1", "2"]
        for path in ("/kv/%ff", "/kv/a%ed%a0%80", "/kv?prefix=%fe", "/kv-events?prefix=%ff", "/kv/a?as=%ff"):
            assert (await http.get(path)).status_code == 400
        assert (await http.delete("/kv/a?expected=%ff")).status_code == 400
        unprintable = await http.get("/kv/a%00")
        assert unprintable.status_code == 422 and "quorumscope kv" in unprintable.json()["detail"]
        long = await http.get("/kv-events", params={"prefix": "\U0001f600" * 257})
        assert long.status_code == 422 and "a prefix of 1028 bytes" in long.json()["detail"]

    run(tmp_path, work)


def test_a_condition_that_does_not_hold_is_409_with_what_is_there(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        index = (await http.put("/kv/c", json={"value": "1", "expected_index": -1})).json()["index"]
        lost = await http.put("/kv/c", json={"value": "2", "expected": "0"})
        assert lost.status_code == 409
        problem = lost.json()
        assert (problem["found"], problem["value"], problem["index"]) == (True, "1", index)
        assert (await http.put("/kv/c", json={"value": "2", "expected": "1"})).status_code == 200
        assert (await http.delete(f"/kv/c?expected_index={index}")).status_code == 409
        assert (await http.delete("/kv/c?expected=2")).json()["deleted"] is True
        missing = await http.put("/kv/c", json={"value": "3", "expected": "2"})
        assert (missing.status_code, missing.json()["found"]) == (409, False)

    run(tmp_path, work)


def test_a_write_that_the_state_machine_does_not_understand_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a node is upgraded: a PUT of it was answered 200, a DELETE said that there was no such key."""

    async def commands(*_: object) -> Carried:
        return Carried(7, 2, [encode_result(KvResult(Status.BAD_COMMAND, False, ABSENT))])

    monkeypatch.setattr("node.control.kv.commands", commands)
    parts: Any = None
    calls = kv.put(parts, "k", kv.NewValue(value="v")), kv.delete(parts, "k")
    for call in calls:
        with pytest.raises(Problem) as refused:
            asyncio.run(call)
        assert refused.value.status == 422 and "another release" in refused.value.detail


def test_a_condition_on_bytes_is_named_and_answered_in_base64(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        one, other = base64.b64encode(b"one").decode(), base64.b64encode(b"\xff").decode()
        await http.put("/kv/c", json={"value": one, "as": "base64"})
        lost = (await http.put("/kv/c", json={"value": other, "expected": other, "as": "base64"})).json()
        assert (lost["value"], lost["as"]) == (one, "base64")
        kept = (await http.delete("/kv/c", params={"expected": other, "as": "base64"})).json()
        assert (kept["value"], kept["as"]) == (one, "base64")
        assert (await http.delete("/kv/c", params={"expected": "*", "as": "base64"})).status_code == 422
        assert (await http.delete("/kv/c", params={"expected": one, "as": "base64"})).json()["deleted"] is True

    run(tmp_path, work)


def test_events_are_waited_for_and_go_on_from_next(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        nothing = (await http.get("/kv-events?wait_ms=20")).json()
        assert nothing["items"] == []
        waiting = asyncio.ensure_future(http.get("/kv-events", params={"prefix": "w", "from": nothing["next"]}))
        await http.put("/kv/other", json={"value": "no"})
        index = (await http.put("/kv/w1", json={"value": "yes"})).json()["index"]
        seen = (await waiting).json()
        expected = {"type": "put", "key": "w1", "index": index, "value": "yes", "as": "text"}
        assert (seen["items"], int(seen["next"]) > index) == ([expected], True)
        await http.delete("/kv/w1")
        later = (await http.get("/kv-events", params={"prefix": "w", "from": seen["next"]})).json()
        assert [one["type"] for one in later["items"]] == ["delete"]

    run(tmp_path, work)


@pytest.mark.parametrize("consistency", ["linearizable", "lease", "read-index", "log", "stale"])
def test_a_key_is_read_in_every_way(tmp_path: Path, consistency: str) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        index = (await http.put("/kv/a", json={"value": "1"})).json()["index"]
        read = (await http.get(f"/kv/a?consistency={consistency}")).json()
        assert (read["value"], read["consistency"]) == ("1", consistency)
        assert read["applied_index"] == index + (consistency == "log")  # whose own entry is in the log
        asked = {"question": base64.b64encode(ask_get(b"a")).decode(), "as": "base64", "consistency": consistency}
        answer = (await http.post("/machine/query", json=asked)).json()
        assert answer["consistency"] == consistency and answer["applied_index"] >= read["applied_index"]
        if consistency != "stale":
            page = (await http.get(f"/entries?from={index}&consistency={consistency}")).json()
            assert page["items"][0]["index"] == index and page["committed_index"] >= read["applied_index"]

    run(tmp_path, work)


def test_commands_and_questions_are_bytes_for_any_state_machine(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        asked = [KvCommand(Op.PUT, b"k%d" % number, b"v") for number in range(3)]
        bodies = [base64.b64encode(encode_command(one)).decode() for one in asked]
        done = (await http.post("/machine/command", json={"commands": bodies, "as": "base64"})).json()
        assert done["last_index"] == done["first_index"] + 2
        results = [decode_result(base64.b64decode(one["value"])) for one in done["results"]]
        assert [(one.status, one.index) for one in results] == [
            (Status.DONE, done["first_index"] + at) for at in range(3)
        ]
        question = base64.b64encode(ask_get(b"k1")).decode()
        answer = (await http.post("/machine/query", json={"question": question, "as": "base64"})).json()
        item = decode_got(b"k1", base64.b64decode(answer["answer"]["value"]))
        assert item is not None and item.value == b"v" and answer["applied_index"] >= done["last_index"]
        watch = base64.b64encode(ask_watch(b"never", 0)).decode()
        nothing = await http.post("/machine/query", json={"question": watch, "as": "base64", "wait_ms": 1})
        assert nothing.json() == {"answer": None, "applied_index": None, "consistency": "linearizable"}

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("command", {"commands": []}, 422),
        ("command", {"commands": ["x"] * 1025}, 422),
        ("command", {"commands": ["!"], "as": "base64"}, 422),
        ("command", {"commands": ["x" * (1024 * 1024 + 1)]}, 413),
        ("command", {"commands": ["x"], "more": 1}, 422),
        ("query", {"question": "no question"}, 422),
        ("query", {"question": "!", "as": "base64"}, 422),
        ("query", {"question": "x", "consistency": "fresh"}, 422),
        ("query", {"question": "x", "wait_ms": 30_001}, 422),
        ("query", {}, 422),
    ],
)
def test_what_is_no_command_or_question_is_refused(
    tmp_path: Path, path: str, body: dict[str, object], status: int
) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        before = (await http.get("/kv")).json()["applied_index"]
        answer = await http.post(f"/machine/{path}", json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert (await http.get("/kv")).json()["applied_index"] == before

    run(tmp_path, work)


def test_a_command_needs_what_an_append_needs_and_a_question_what_a_read_needs() -> None:
    assert needed("POST", "/api/v1/machine/command") is Right.APPEND
    assert needed("POST", "/api/v1/machine/query/") is Right.READ
    assert needed("POST", "/api/v1/machine") is Right.OPERATE


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/kv/" + "k" * 1025, None, 422),
        ("GET", "/kv?limit=0", None, 422),
        ("GET", "/kv?prefix=a&from=b", None, 422),
        ("GET", "/kv?cursor=%C3%A9", None, 422),
        ("GET", "/kv-events?from=-1", None, 422),
        ("GET", "/kv-events?wait_ms=30001", None, 422),
        ("GET", "/kv/a?as=hex", None, 422),
        ("PUT", "/kv/a", {"value": "!", "as": "base64"}, 422),
        ("PUT", "/kv/a", {"value": "x" * (1024 * 1024 + 1)}, 413),
        ("PUT", "/kv/a", {"value": "x", "expected": "y", "expected_index": 3}, 422),
        ("PUT", "/kv/a", {"value": "x", "ttl_ms": -1}, 422),
        ("PUT", "/kv/a", {"value": "x", "more": 1}, 422),
        ("PUT", "/kv/a", {}, 422),
        ("DELETE", "/kv/a?expected_index=-2", None, 422),
        ("POST", "/entries", {"entries": ["x"]}, 422),
    ],
)
def test_what_is_no_request_changes_nothing(
    tmp_path: Path, method: str, path: str, body: dict[str, object] | None, status: int
) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        answer = await http.request(method, path, json=body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert (await http.get("/kv")).json()["items"] == []

    run(tmp_path, work)


def test_a_snapshot_is_saved_on_request(tmp_path: Path) -> None:
    async def work(http: httpx.AsyncClient) -> None:
        index = (await http.put("/kv/a", json={"value": "1"})).json()["index"]
        begun = await http.post("/snapshots", json={})
        assert begun.status_code == 202
        operation = begun.json()
        while operation["state"] == "running":
            await asyncio.sleep(0.01)
            operation = (await http.get(f"/operations/{operation['id']}")).json()
        assert operation["state"] == "done" and operation["outcome"]["last_included_index"] >= index

    run(tmp_path, work)


def test_it_is_described_where_there_is_one(tmp_path: Path) -> None:
    peers = {"n0": "127.0.0.1:1"}
    with_store = create_app(settings_of(tmp_path, peers, "n0", "kv")).openapi()["paths"]
    assert {"get", "put", "delete"} <= set(with_store["/api/v1/kv/{key}"])
    without = create_app(settings_of(tmp_path, peers, "n0", "")).openapi()["paths"]
    assert not [path for path in without if "kv" in path or "snapshots" in path or "machine" in path]
    own = create_app(settings_of(tmp_path, peers, "n0", "tests.unit.machines:Journal")).openapi()["paths"]
    assert {"/api/v1/machine/command", "/api/v1/machine/query"} <= set(own) and "/api/v1/kv" not in own
