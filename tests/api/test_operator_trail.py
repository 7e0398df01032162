"""The node's trail: what operators ask of the control plane and decide with commands, and what tampering shows."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli import run as run_cli
from node import operator_trail
from node.access_rows import Right
from node.config import load
from node.control import trail
from node.control.app import create_app
from node.control_tokens import issue
from node.operator_trail import OperatorTrail, older_file, verify
from tests.api.test_control_guard import BASE, run

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]


def said_of(path: Path) -> list[Json]:
    return [json.loads(json.loads(line)["content"]) for line in path.read_text().splitlines()]


def plane(tmp_path: Path) -> tuple[Any, Path]:
    file = tmp_path / "tokens"
    file.touch(0o600)
    chosen = {
        "node.id": "n0", "node.data": str(tmp_path / "data"), "peers": "n0-127.0.0.1:1",
        "control.tokens_file": str(file),
    }  # fmt: skip
    return create_app(load(chosen, environ={})), tmp_path / "data" / operator_trail.NAME


def asking(app: Any, token: str = "") -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE, headers=headers)


def test_who_asked_what_and_how_it_ended(tmp_path: Path) -> None:
    async def work() -> None:
        made, token = issue(tmp_path / "tokens", "ann", Right.OPERATE, 1)
        _, weak = issue(tmp_path / "tokens", "bea", Right.OBSERVE, 1)
        app, path = plane(tmp_path)
        async with asking(app, token) as ann, asking(app, weak) as bea, asking(app) as nobody:
            assert (await nobody.post("/api/v1/scrub", json={})).status_code == 401
            assert (await bea.get("/api/v1/state")).status_code == 200
            assert not path.exists(), "who is nobody, and who only looks, is in no row"
            assert (await ann.post("/api/v1/scrub", json={})).status_code == 503, "no engine runs here"
            assert (await bea.post("/api/v1/scrub", json={})).status_code == 403
        begun, ended, refused, refused_end = said_of(path)
        assert begun["user_name"] == "ann" and begun["role"] == "operate" and begun["target"] == "scrub"
        assert begun["credential"] == f"token {made.id}" and begun["action"] == "POST /api/v1/scrub"
        assert ended["row"] == begun["row"] and ended["status"] == 503 and "before" in ended["detail"]
        assert refused["user_name"] == "bea" and refused_end["status"] == 403
        assert token not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
        assert verify(path).problems == [] and verify(path).rows == 2

    run(work())


def test_an_operation_that_is_over_is_noted_under_the_row_that_began_it(tmp_path: Path) -> None:
    async def work() -> None:
        _, token = issue(tmp_path / "tokens", "ann", Right.OPERATE, 1)
        app, path = plane(tmp_path)
        parts = app.state.parts
        done: Json = {"state": "done", "outcome": {"leader_id": "n1"}}

        async def carry_out() -> Json:
            return done

        @app.post("/api/v1/begin", status_code=202)
        async def begin() -> Json:
            return dict(parts.operations.start("leadership_transfer", None, {"to": "n1"}, "", carry_out))

        async with asking(app, token) as ann:
            assert (await ann.post("/api/v1/begin", json={})).status_code == 202
            await asyncio.gather(*parts.operations.background.tasks)
        by_kind = {one["kind"]: one for one in said_of(path)}
        assert by_kind["ended"]["detail"]["asked"] == {"to": "n1"}
        assert by_kind["outcome"]["row"] == by_kind["begun"]["row"]
        assert by_kind["outcome"]["detail"]["after"]["outcome"] == {"leader_id": "n1"}
        assert verify(path).problems == []

    run(work())


def test_a_token_that_is_refused_over_and_over_pushes_out_what_others_did_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand refusals a second filled file after file: the row of a transfer was gone within a minute."""

    async def work() -> None:
        _, weak = issue(tmp_path / "tokens", "bea", Right.OBSERVE, 1)
        _, token = issue(tmp_path / "tokens", "ann", Right.OPERATE, 1)
        app, path = plane(tmp_path)
        async with asking(app, weak) as bea, asking(app, token) as ann:
            assert (await ann.post("/api/v1/scrub", json={})).status_code == 503
            for _ in range(3 * trail.REFUSED_MAX):
                assert (await bea.post("/api/v1/scrub", json={})).status_code == 403
            assert verify(path).rows == 1 + trail.REFUSED_MAX
            monkeypatch.setattr(trail, "REFUSED_WITHIN_S", 0.0)
            assert (await bea.post("/api/v1/scrub", json={})).status_code == 403
        assert said_of(path)[-1]["detail"]["left_out_before"] == 2 * trail.REFUSED_MAX
        assert verify(path).problems == []

    run(work())


def test_a_key_never_finds_what_somebody_else_began(tmp_path: Path) -> None:
    async def work() -> None:
        tokens = [issue(tmp_path / "tokens", name, Right.OPERATE, 1)[1] for name in ("ann", "bea", "ann")]
        app, _ = plane(tmp_path)
        parts = app.state.parts

        async def carry_out() -> Json:
            return {"state": "done"}

        @app.post("/api/v1/begin", status_code=202)
        async def begin() -> Json:
            return dict(parts.operations.start("leadership_transfer", "one key", {"to": "n1"}, "", carry_out))

        ids = []
        for token in tokens:
            async with asking(app, token) as one:
                ids.append((await one.post("/api/v1/begin", json={})).json()["id"])
        assert ids[0] == ids[2] != ids[1], "ann's new token is still ann's"

    run(work())


def test_what_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    async def work() -> None:
        _, token = issue(tmp_path / "tokens", "ann", Right.OPERATE, 1)
        app, path = plane(tmp_path)
        path.mkdir(parents=True)
        called: list[str] = []

        @app.post("/api/v1/mark")
        async def mark() -> Json:
            called.append("mark")
            return {}

        async with asking(app, token) as ann:
            answer = await ann.post("/api/v1/mark", json={})
        assert answer.status_code == 503 and answer.json()["title"] == "Not recorded" and called == []

    run(work())


def written(path: Path, rows: int) -> None:
    trail = OperatorTrail(path)
    for number in range(rows):
        trail.end(trail.begin(user_name="ann", action=f"a{number}"), 200)


WRITER = """
import sys
from pathlib import Path
from tests.api.test_operator_trail import written
written(Path(sys.argv[1]), 20)
"""


@pytest.mark.parametrize("quotes", [8000, 16_000, 16_350, 40_000])
def test_no_detail_makes_a_line_that_the_check_takes_for_two(tmp_path: Path, quotes: int) -> None:
    """A quotation mark is four characters in a line: what was just short enough was called no entry."""
    path = tmp_path / operator_trail.NAME
    trail_file = OperatorTrail(path)
    trail_file.end(trail_file.begin(user_name="ann", action="a"), 200, {"asked": '"' * quotes})
    written(path, 1)
    assert verify(path).problems == [] and verify(path).rows == 2


def test_the_newest_entries_away_show_with_a_head_alone_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / operator_trail.NAME
    written(path, 3)
    lines, head = path.read_text().splitlines(keepends=True), verify(path).head
    for kept, ends in ((6, 0), (5, 1), (4, 0), (0, 0)):
        path.write_text("".join(lines[:kept]))
        assert verify(path).problems == [] and verify(path).rows_without_end == ends
        assert run_cli(["trail", "verify", "--file", str(path)]) == 0
        said = capsys.readouterr()
        assert said.out.startswith("intact as far as it goes") and verify(path).head in said.out
        assert "shows with --head only" in said.err
        assert (f"{ends} of them without an end" in said.out) == bool(ends)
        assert run_cli(["trail", "verify", "--file", str(path), "--head", head]) == (0 if kept == 6 else 1)
        capsys.readouterr()
    path.write_text(lines[1] + lines[0])
    assert any("stands behind entry 2" in one for one in verify(path).problems)


def test_several_processes_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / operator_trail.NAME
    workers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT) for _ in range(2)]
    written(path, 20)
    assert [one.wait() for one in workers] == [0, 0]
    done = verify(path)
    assert done.problems == [] and done.rows == 60 and done.entries == 120


def in_line_3(old: str, new: str) -> Callable[[list[str]], list[str]]:
    """`old`: as a pattern."""
    return lambda lines: [*lines[:3], re.sub(old, lambda _: new, lines[3], count=1), *lines[4:]]


TAMPER = {
    "a word": lambda lines: [*lines[:2], lines[2].replace('"a1', '"a9'), *lines[3:]],
    "a line away": lambda lines: [*lines[:3], *lines[4:]],
    "the beginning away": lambda lines: lines[2:],
    "two lines swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "a line slipped in": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "nonsense": lambda lines: [*lines[:3], "nonsense\n", *lines[3:]],
    "a time": in_line_3('"at": "[^"]+"', '"at": "2020-01-01T00:00:00.000Z"'),
    "a word beside": in_line_3("{", '{"note": "approved by boss", '),
    "a content said twice": in_line_3("{", '{"content": "{}", '),
    "half a character": in_line_3('"content": "', '"content": "\\ud800'),
    "a nest": in_line_3(".*", "[" * 60_000),
    "a nest within": in_line_3('"content": "', '"content": "' + "[" * 60_000),
}


@pytest.mark.parametrize("how", TAMPER)
def test_what_was_changed_shows(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / operator_trail.NAME
    written(path, 5)
    head = verify(path).head
    assert run_cli(["trail", "verify", "--file", str(path), "--head", head]) == 0
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(TAMPER[how](lines)))
    assert run_cli(["trail", "verify", "--file", str(path)]) == 1
    path.write_text("".join(lines[:-1]))
    assert run_cli(["trail", "verify", "--file", str(path)]) == 0, "a missing end shows with --head alone"
    assert run_cli(["trail", "verify", "--file", str(path), "--head", head]) == 1
    assert run_cli(["trail", "verify", "--file", str(tmp_path / "none")]) == 64


def test_a_line_that_was_cut_short_is_taken_away_and_said(tmp_path: Path) -> None:
    path = tmp_path / operator_trail.NAME
    written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"seq": 5, "conte')
    written(path, 1)
    assert [one["kind"] for one in said_of(path)][-3:] == ["torn", "begun", "ended"]
    assert verify(path).problems == []


def test_a_damaged_last_line_is_named_with_the_way_out_and_the_way_out_works(tmp_path: Path) -> None:
    """One flipped bit there stops all that operators ask: the answer named the disk, and no step that ends it."""

    async def work() -> None:
        _, token = issue(tmp_path / "tokens", "ann", Right.OPERATE, 1)
        app, path = plane(tmp_path)
        written(path, 2)
        content = bytearray(path.read_bytes())
        content[content[:-1].rindex(b"\n") + 1] ^= 4
        path.write_bytes(content)

        @app.post("/api/v1/mark")
        async def mark() -> Json:
            return {}

        async with asking(app, token) as ann:
            answer = await ann.post("/api/v1/mark", json={})
            assert answer.status_code == 503
            said = answer.json()["detail"]
            assert f"the last line of {path} is damaged: keep that file under another name" in said
            assert "disk" not in said
            path.rename(tmp_path / "kept")
            assert (await ann.post("/api/v1/mark", json={})).status_code == 200
        assert verify(path).problems == [] and path.read_bytes()

    run(work())


def test_a_long_trail_goes_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_trail, "FILE_BYTES_MAX", 4096)
    path = tmp_path / operator_trail.NAME
    written(path, 40)
    assert older_file(path).stat().st_size >= 4096 > path.stat().st_size
    assert verify(path).problems == [], "both together"
    older_file(path).unlink()
    assert verify(path).problems == [], "the newer one says what went before it"


def test_what_is_decided_about_a_store_is_in_it(tmp_path: Path) -> None:
    store = tmp_path / "dledger-n0"
    (store / "data").mkdir(parents=True)
    (store / "data" / "00000000000000000000").write_bytes(bytes(4096))
    path = tmp_path / operator_trail.NAME
    assert run_cli(["store", "repair", str(store), "--set-term", "5", "--dry-run"]) != 0
    assert not path.exists()
    asked = ["store", "repair", str(store), "--reset-term", "5", "--group-token", "a-token-of-sixteen"]
    assert run_cli(asked) != 0
    begun, ended = said_of(path)
    assert begun["via"] == "command line" and begun["target"] == "dledger-n0" and "--reset-term" in begun["action"]
    assert "a-token-of-sixteen" not in path.read_text() and ended["status"] != 0
