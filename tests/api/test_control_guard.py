"""A control plane with a token and names of its own, in this process: who may ask, before any engine is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.config import ConfigError, load, parse_node_arguments
from node.control.app import BODY_BYTES_MAX, create_app
from node.control.operations import KEPT_MAX, Operations
from node.control.problems import Problem
from node.control.segments import parse_range
from node.protocol.kv import KEY_BYTES_MAX
from tests.unit.store_fixtures import fill, open_store

TOKEN = "a-token-of-sixteen-or-more"
BASE = "http://127.0.0.1:8431"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def client(tmp_path: Path, **control: Any) -> httpx2.AsyncClient:
    chosen = {"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", **control}
    app = create_app(load(chosen, environ={}))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE)


def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/api/v1", None, 401),
        ("/api/v1/state", None, 401),
        ("/metrics", None, 401),
        ("/api/v1", "Bearer wrong-token-wrong-token", 401),
        ("/api/v1", f"Basic {TOKEN}", 401),
        ("/api/v1", "Bearer ü", 401),
        ("/api/v1", f"Bearer {TOKEN}", 200),
        ("/api/v1/state", f"bearer {TOKEN}", 200),
        ("/healthz", None, 200),
        ("/readyz", None, 503),
        ("/leaderz", None, 503),
    ],
)
def test_the_token(tmp_path: Path, path: str, authorization: str | None, status: int) -> None:
    async def work() -> None:
        headers = [(b"authorization", authorization.encode())] if authorization is not None else []
        async with client(tmp_path, **{"control.token_file": str(token_file(tmp_path))}) as asking:
            assert (await asking.get(path, headers=headers)).status_code == status

    run(work())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8431", 200),
        ("localhost", 200),
        ("[::1]:1", 200),
        ("node.example", 200),
        ("evil.example", 421),
        ("[", 421),
    ],
)
def test_the_host(tmp_path: Path, host: str, status: int) -> None:
    async def work() -> None:
        async with client(tmp_path, **{"control.allowed_hosts": "node.example"}) as asking:
            assert (await asking.get("/api/v1", headers={"host": host})).status_code == status

    run(work())


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization", "Content-Type", "Sec-Fetch-Site"])
def test_what_is_judged_by_may_be_there_once(tmp_path: Path, name: str) -> None:
    """Else a proxy could let a request pass for its first value, and this one serve it for the other."""
    values = {"Host": "127.0.0.1:8431", "Origin": BASE, "Authorization": f"Bearer {TOKEN}"}

    async def work() -> None:
        headers = [("Host", values["Host"]), ("Authorization", values["Authorization"])]
        async with client(tmp_path, **{"control.token_file": str(token_file(tmp_path))}) as asking:
            assert (await asking.get("/api/v1", headers=headers)).status_code == 200
            twice = [(name, values.get(name, "none"))] * (1 if name in ("Host", "Authorization") else 2)
            answer = await asking.get("/api/v1", headers=[*headers, *twice])
            assert answer.status_code == 400 and name.lower() in answer.json()["detail"]

    run(work())


@pytest.mark.parametrize(
    "missing", [{}, {"control.token_file": "yes"}, {"control.tls_cert_file": "c", "control.tls_key_file": "k"}]
)
def test_beyond_loopback_needs_token_and_tls(tmp_path: Path, missing: dict[str, str]) -> None:
    flags = ["--id", "n0", "--peers", "n0-127.0.0.1:1", "--control", "0.0.0.0:8431"]
    for key, value in missing.items():
        flags += ["--set", f"{key}={token_file(tmp_path) if value == 'yes' else value}"]
    with pytest.raises(ConfigError, match="beyond loopback"):
        parse_node_arguments(flags, {})


def test_without_engine_and_log_nothing_is_invented(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as asking:
            state = (await asking.get("/api/v1/state")).json()
            assert state["engine"] == "down" and set(state["log"].values()) == {None}
            assert "nothing answers" in state["engine_reason"]
            (tmp_path / "engine-refused.json").write_text('{"reason": "the lock is held", "at": "", "command": ""}')
            assert (await asking.get("/api/v1/state")).json()["engine_reason"] == "the lock is held"
            for path in ("entries", "entries/1", "segments", "digests", "truncations"):
                assert (await asking.get(f"/api/v1/{path}")).status_code == 503, path
            sent = await asking.post("/api/v1/entries", json={"entries": ["x"]})
            assert sent.status_code == 503 and sent.json()["outcome"] == "not_appended"
            assert (await asking.post("/api/v1/leadership-transfer", json={})).status_code == 503
            gauges = (await asking.get("/metrics")).text
            assert 'quorumscope_engine{state="down"} 1.0' in gauges and "quorumscope_term 0" not in gauges
            assert "quorumscope_alarms" not in gauges, "nobody knows how many there are"

    run(work())


def test_a_directory_that_nobody_may_write_to_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine could leave a note there: it was only said that nothing listens, or why an earlier one had ended."""
    (tmp_path / "engine-refused.json").write_text('{"reason": "the lock is held", "at": "", "command": ""}')

    async def work() -> None:
        async with client(tmp_path) as asking:
            reason = (await asking.get("/api/v1/state")).json()["engine_reason"]
            assert f"cannot write to {tmp_path}: " in reason and "mount its file system read-write" in reason

    monkeypatch.setattr("node.unwritable.os.access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    run(work())


@pytest.mark.parametrize("which", [0, -1])
def test_a_log_whose_files_are_not_all_read_is_not_called_shorter(tmp_path: Path, which: int) -> None:
    """Its engine is down over it; what it says is from the files, and nothing that is unknown reads -1."""
    directory = tmp_path / "dledger-n0"
    store = open_store(directory)
    fill(store, 2, 60)
    store.close()

    async def log_of_state() -> dict[str, Any]:
        async with client(tmp_path) as asking:
            state = (await asking.get("/api/v1/state")).json()
            assert [one["field"] for one in state["unknown"]] == ["state"]
            found: dict[str, Any] = state["log"]
            return found

    def log_now() -> tuple[Any, Any]:
        found: list[dict[str, Any]] = []

        async def work() -> None:
            found.append(await log_of_state())

        run(work())
        return found[0]["begin_index"], found[0]["end_index"]

    assert log_now() == (0, 119)
    path = sorted((directory / "data").glob("[0-9]*"))[which]
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    assert log_now() == (None, None)
    path.write_bytes(b"")  # a file that was made and has no length yet holds nothing
    assert log_now()[1] is not None


@pytest.mark.parametrize(
    ("asked", "end", "found"),
    [
        (None, 100, (0, 99)),
        (None, 0, (0, -1)),
        ("bytes=0-9", 100, (0, 9)),
        ("bytes=90-", 100, (90, 99)),
        ("bytes=90-500", 100, (90, 99)),
        ("bytes=100-", 100, None),
        ("bytes=9-3", 100, None),
        ("bytes=-5", 100, (95, 99)),
        ("Bytes=-500", 100, (0, 99)),
        ("bytes=-0", 100, None),
        ("bytes=-5", 0, None),
        ("bytes=-", 100, None),
        (f"bytes=-{20 << 20}", 1 << 40, ((1 << 40) - (20 << 20), (1 << 40) - (4 << 20) - 1)),
        ("bytes=0-1,4-5", 100, None),
        ("bytes=x", 100, None),
        ("lines=0-1", 100, (0, 99)),
        ("x", 0, (0, -1)),
        (f"bytes=0-{1 << 40}", 1 << 40, (0, (16 << 20) - 1)),
    ],
)
def test_ranges(asked: str | None, end: int, found: tuple[int, int] | None) -> None:
    if found is not None:
        assert parse_range(asked, end) == found
    else:
        with pytest.raises(Problem) as refused:
            parse_range(asked, end)
        assert refused.value.status == 416 and refused.value.headers["content-range"] == f"bytes */{end}"


def test_operations_are_bounded_and_always_end() -> None:
    async def fails() -> dict[str, Any]:
        raise OSError("gone")

    async def done() -> dict[str, Any]:
        return {"state": "done", "outcome": {}}

    async def work() -> None:
        operations = Operations()
        first = operations.start("transfer", "k", {}, "", fails)
        assert operations.start("transfer", "k", {}, "", done) is first
        await asyncio.gather(*operations.background.tasks)
        assert first["state"] == "unknown" and "gone" in first["problem"]["detail"]
        for _ in range(KEPT_MAX + 50):
            operations.start("transfer", None, {}, "", done)
            await asyncio.gather(*operations.background.tasks)
        assert len(operations.kept) <= KEPT_MAX + 1
        with pytest.raises(Problem):
            operations.get(first["id"])
        assert operations.start("transfer", "k", {}, "", done)["id"] != first["id"], "a forgotten key is free again"
        await operations.close()

    run(work())


@pytest.mark.parametrize("index", ["-1", "x", "", str(1 << 63)])
def test_an_expected_index_in_the_query_is_checked(tmp_path: Path, index: str) -> None:
    async def work() -> None:
        async with client(tmp_path) as asking:
            headers = {"content-type": "application/octet-stream"}
            reported = await asking.post(f"/api/v1/entries?expected_index={index}", content=b"x", headers=headers)
            assert reported.status_code == 422 and reported.json()["fields"][0]["field"] == "query.expected_index"

    run(work())


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/api/v1/leadership-transfer?dry_run=true", {}, "query.dry_run"),
        ("POST", "/api/v1/members?if_term=3", {"id": "n9", "address": "127.0.0.1:9"}, "query.if_term"),
        ("DELETE", "/api/v1/members/n1?dryRun=true", None, "query.dryRun"),
        ("DELETE", "/api/v1/members/n1", {"dry_run": True}, "body"),
        ("PUT", "/api/v1/kv/a?expected_index=3", {"value": "x"}, "query.expected_index"),
        ("DELETE", "/api/v1/kv/a", {"expected": "x"}, "body"),
        ("POST", "/api/v1/entries?expectedIndex=3", {"entries": ["x"]}, "query.expectedIndex"),
    ],
)
def test_a_condition_in_the_wrong_place_is_refused_and_not_overlooked(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None, field: str
) -> None:
    """Otherwise the change would be made without it."""

    async def work() -> None:
        async with client(tmp_path, **{"node.state_machine": "kv"}) as asking:
            reported = await asking.request(method, path, json=body)
            assert reported.status_code == 422 and reported.json()["fields"][0]["field"] == field

    run(work())


@pytest.mark.parametrize("call", ["POST entries", "POST messages", "POST machine/command", "PUT kv/a", "DELETE kv/a"])
def test_whatever_appends_says_that_it_did_not(tmp_path: Path, call: str) -> None:
    """Whoever reads no outcome has to take it for unknown (SAFETY C2)."""
    method, path = call.split()

    async def work() -> None:
        settings = {"node.state_machine": "kv"} if "messages" not in path else {"broker.address": "127.0.0.1:9"}
        async with client(tmp_path, **settings) as asking:
            for refused, status in (("?expected=1&bogus=2", 422), ("?group=other", 404)):
                reported = await asking.request(
                    method, f"/api/v1/{path}{refused}", json={} if method != "DELETE" else None
                )
                assert (reported.status_code, reported.json()["outcome"]) == (status, "not_appended"), reported.text

    run(work())


def test_a_key_of_too_many_bytes_is_set_and_removed_by_nobody(tmp_path: Path) -> None:
    """As many characters as there may be bytes, of two bytes each."""
    path = f"/api/v1/kv/{chr(0xE9) * KEY_BYTES_MAX}"

    async def work() -> None:
        async with client(tmp_path, **{"node.state_machine": "kv"}) as asking:
            for reported in (await asking.put(path, json={"value": "x"}), await asking.delete(path)):
                assert (reported.status_code, reported.json().get("outcome")) == (422, "not_appended"), reported.text
            assert "outcome" not in (await asking.get(path)).json()

    run(work())


def test_a_read_may_carry_names_that_nobody_knows(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path) as asking:
            assert (await asking.get("/api/v1?_=1790000000")).status_code == 200

    run(work())


def test_a_group_that_is_named_twice_has_to_be_this_one_both_times(tmp_path: Path) -> None:
    async def work() -> None:
        async with client(tmp_path, **{"node.group": "this"}) as asking:
            assert (await asking.get("/api/v1?group=this&group=this")).status_code == 200
            assert (await asking.get("/api/v1?group=this&group=other")).status_code == 404

    run(work())


def test_a_body_beyond_all_bounds_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    async def work() -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while True:
                sent += 1 << 20
                yield bytes(1 << 20)

        async with client(tmp_path) as asking:
            headers = {"content-type": "application/octet-stream"}
            reported = await asking.post("/api/v1/entries", content=endless(), headers=headers)
            assert reported.status_code == 413 and sent <= BODY_BYTES_MAX + (2 << 20)

    run(work())
