"""Words of strangers: what people, members and other control planes write, where the console, its database, a terminal
or a mail's header would take it for more than words.

A name that is none is refused (422) and never an error of the console's own; what is shown on a terminal holds no
control characters, whatever command shows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.audit import replicas
from app.audit.replicas import ControlPlane, ReplicaSpec
from app.audit.segments import ReadFailed
from app.cli import run as run_cli
from app.commands import control_calls
from app.commands.control_calls import control_call
from app.commands.endings import Exit, Failure
from app.db.models import ApiToken
from app.security.limits import ACCOUNT
from node import control
from tests.attack.remoting_kit import drawn
from tests.unit.console_kit import run, running
from tests.unit.fake_control import FakeGroup
from tests.unit.test_login_limits import PASSWORD, login, with_password

RNG = drawn("words")
OBEYED = ["\x1b[2J", "\x1b]0;owned\x07", "\r", "\u202e", "\x9b31m", "\x1bc", "\x08" * 20, "\x9d52;c;aGk=\x9c", "\u2066"]
ESCAPES = "".join(f"{RNG.choice(['', 'x', ' '])}{one}" for one in RNG.sample(OBEYED, RNG.randrange(5, len(OBEYED) + 1)))
UNSEEN = "\u2066\u200f\u200b\ue000\u0085\x01\ufeff"
UNPRINTABLE = [
    "a" * RNG.randrange(3) + one + "b" * RNG.randrange(3)
    for one in ("\x00", "\n", "\x1b[2J", "\x7f", "\x9b", "\u2028", "\u202e", RNG.choice(UNSEEN))
] + ["\ud800"]  # fmt: skip
ODD_TIMES = ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:59"]


def raw(**body: Any) -> dict[str, Any]:
    """JSON with what no library would send, such as half a surrogate pair."""
    return {"content": json.dumps(body).encode(), "headers": {"content-type": "application/json"}}


# --- to the console's API -------------------------------------------------------------------------------------------


def test_a_name_that_is_none_is_refused_wherever_people_name_things(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            boss = await kit.person("boss", "admin")
            for odd in UNPRINTABLE:
                asked = [
                    ("POST", "/api/v1/tokens", raw(name=odd)),
                    ("POST", "/api/v1/tokens", raw(name="x", cluster_roles={odd: "viewer"})),
                    ("POST", "/api/v1/users", raw(name="eve", cluster_roles={odd: "viewer"})),
                    ("PATCH", "/api/v1/users/boss", raw(cluster_roles={odd: None})),
                    ("PATCH", "/api/v1/clusters/demo", raw(name=odd)),
                    ("POST", "/api/v1/clusters", raw(control_url="http://127.0.0.1:8431", name=odd)),
                ]
                if odd != "\ud800":  # no form can send one
                    asked.append(("POST", "/account/tokens", {"data": {"name": odd}}))
                    form = {"control_url": "http://127.0.0.1:8431", "name": f"a{odd}b"}
                    asked.append(("POST", "/clusters", {"data": form}))
                for method, path, body in asked:
                    answer = await boss.change(method, path, **body)
                    assert answer.status_code == 422, f"{method} {path} {odd!r}: {answer.status_code} {answer.text}"
            assert (await boss.get("/api/v1/tokens")).json()["items"] == []

    run(work())


def test_a_time_in_no_year_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            vic = await kit.person("vic", "viewer")
            for time in ODD_TIMES:
                for path in ("view?at=", "history?since=", "history?until="):
                    answer = await vic.get(f"/api/v1/clusters/demo/{path}{time.replace('+', '%2B')}")
                    assert answer.status_code == 422, answer.text

    run(work())


def test_a_group_whose_own_name_is_none_is_not_taken_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, FakeGroup(name=f"a{ESCAPES}"), seeded=False) as kit:
            boss = await kit.person("boss", "admin")
            body = {"control_url": "http://127.0.0.1:8431", "name": "fine"}
            answer = await boss.change("POST", "/api/v1/clusters", json=body)
            assert answer.status_code == 422 and "no name of a group" in answer.json()["detail"], answer.text

    run(work())


def test_whoever_fails_under_a_name_keeps_nobody_from_a_new_password(tmp_path: Path) -> None:
    """Both were counted in one list, where `password of ann` could be tried as a name."""

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await with_password(kit)
            for name in ("password of ann", "ann", "a\x00nn", f"ann{ESCAPES}"):
                for _ in range(ACCOUNT.free):
                    assert (await login(kit, name[:64], "wrong")).status_code in (403, 429)
            body = {"password": "another long one", "current": PASSWORD}
            assert (await ann.change("PUT", "/api/v1/me/password", json=body)).status_code == 204
            rows = (await ann.get("/api/v1/admin-trail")).json()["items"]
            names = [one for row in rows if row["action"] == "login failed" for one in row["detail"]["names"]]
            assert len(names) >= 3 and all(one.isprintable() for one in names)

    run(work())


def test_behind_a_proxy_the_address_is_the_one_that_the_proxy_wrote(tmp_path: Path) -> None:
    """Some proxies add a header of their own behind the caller's instead of a word to it."""

    async def work() -> None:
        base = "https://console.example"
        settings: dict[str, Any] = {"behind_proxy": True, "allowed_hosts": ("console.example",)}
        async with running(tmp_path, seeded=False, base=base, **settings) as kit:
            for forged in ("10.0.0.1", "10.0.0.2, 10.0.0.3"):
                headers = [("origin", base), ("x-forwarded-for", forged), ("x-forwarded-for", "192.0.2.7")]
                client = kit.client()
                answer = await client.post("/login", data={"name": "ann", "password": "x"}, headers=headers)
                assert answer.status_code == 403
            boss = await kit.person("boss", "admin")
            rows = (await boss.get("/api/v1/admin-trail")).json()["items"]
            assert {one["address"] for one in rows if one["action"] == "login failed"} == {"192.0.2.7"}

    run(work())


def test_a_head_of_what_would_stream_leaves_no_session_open(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            boss = await kit.person("boss", "admin")
            pool = kit.app.state.sessions.kw["bind"].pool
            for path in ("/api/v1/admin-trail/export", "/live/clusters"):
                assert (await boss.client.head(path)).status_code == 200
                assert kit.app.state.hub.count == 0
            await asyncio.sleep(0)
            await kit.until(lambda: pool.checkedout() == 0)

    run(work())


# --- to a terminal --------------------------------------------------------------------------------------------------


def obeyed(text: str) -> list[str]:
    return sorted({one for one in text if not one.isprintable() and one not in "\n\t"})


@contextmanager
def answering(answer: dict[str, Any] | bytes, status: int = 200) -> Iterator[str]:
    """A control plane of strangers that answers everything so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):  # it is read no further
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_POST = do_GET

        def log_message(self, *_words: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called by the test itself: in a fixture it would be said of another stdout."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


HOSTILE: dict[str, Any] = {
    "engine": "ok", "self_id": f"n0{ESCAPES}", "group": "g", "title": ESCAPES, "detail": f"{ESCAPES}\n0 problems",
    "state": "failed", "kind": ESCAPES, "id": "1", "progress": ESCAPES,
    "problem": {"title": ESCAPES, "detail": ESCAPES}, "faults": [],
}  # fmt: skip
COMMANDS = [
    ["scrub", "--node", "URL"],
    ["status", "--node", "URL"],
    ["transfer", "--node", "URL"],
    ["get", "0", "--node", "URL"],
    ["tail", "--node", "URL"],
    ["audit", "URL"],
]


@pytest.mark.parametrize("status", [200, 401, 500])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_hostile_control_plane_writes_nothing_that_a_terminal_obeys(
    words: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch)
    with answering(HOSTILE, status) as url:
        run_cli([url if one == "URL" else one for one in words])
    said = capsys.readouterr()
    assert said.out or said.err
    assert obeyed(said.out) == []
    assert obeyed(said.err.replace("\r\x1b[K", "")) == []  # a line of progress, begun again


@pytest.mark.parametrize(
    "words", [["status"], ["append", "text"], ["tail"], ["get", "0"], ["transfer"]], ids=lambda words: words[0]
)
def test_an_address_that_is_none_ends_a_command_in_words(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback, with what was said instead of an address as it was."""
    terminal(monkeypatch)
    state = json.loads((Path(control.__file__).parent / "examples.json").read_text())["get /api/v1/state"]["response"]
    for peer in state["peers"]:
        peer["address"] += ESCAPES
    with answering(state) as url:
        code = run_cli([*words, "--node", url])
    said = capsys.readouterr()
    assert code == 69
    assert "names no address of" in said.err and len(said.err.splitlines()) == 1
    assert obeyed(said.out + said.err) == []


def test_a_mistake_of_ours_shows_nothing_that_a_terminal_obeys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistaken(*_asked: Any) -> None:
        raise ValueError(f"no number: {ESCAPES}")

    terminal(monkeypatch)
    monkeypatch.setattr(control_calls, "read", mistaken)
    with answering(HOSTILE) as url:
        assert run_cli(["status", "--node", url]) == 2
    said = capsys.readouterr()
    assert "Traceback" in said.err and "no number: " in said.err
    assert obeyed(said.out + said.err) == []


def test_tokens_and_trails_are_listed_without_what_a_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever an older release, or another program, let into the database."""
    db = ["--db", f"sqlite:///{tmp_path / 'console.db'}"]
    terminal(monkeypatch)
    assert run_cli(["db", "upgrade", *db]) == 0
    assert run_cli(["user", "link", "admin", *db]) == 0
    assert run_cli(["token", "issue", "admin", *db]) == 0

    async def rename() -> None:
        async with running(tmp_path, seeded=False) as kit, kit.app.state.sessions() as session, session.begin():
            await session.execute(update(ApiToken).values(name=ESCAPES))

    run(rename())
    for words in (["token", "list"], ["user", "list"], ["trail", "verify"], ["trail", "export"]):
        capsys.readouterr()
        run_cli([*words, *db])
        assert obeyed(capsys.readouterr().out) == []
    trail = tmp_path / "operator-trail.jsonl"
    trail.write_text(json.dumps({"seq": 1, "content": ESCAPES, "previous_hash": ESCAPES, "hash": ESCAPES}) + "\n")
    assert run_cli(["trail", "verify", "--file", str(trail)]) == 1
    said = capsys.readouterr()
    assert obeyed(said.out) == [] and obeyed(said.err) == []


# --- answers without end --------------------------------------------------------------------------------------------


def test_no_command_and_no_audit_reads_an_answer_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_calls, "CONTROL_ANSWER_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(replicas, "ANSWER_BYTES_MAX", 1 << 20)
    with answering(b" " * (64 << 20)) as url:
        with pytest.raises(Failure, match="more than"):
            control_call("GET", url, "state", None)
        plane = ControlPlane(ReplicaSpec("http", url))
        with pytest.raises(ReadFailed, match="more than"):
            plane.get("/state")
        plane.close()
    monkeypatch.setattr(control_calls, "CONTROL_ANSWER_S", -control_calls.HTTP_TIMEOUT_S)
    monkeypatch.setattr(replicas, "ANSWER_S", -1.0)
    with answering(b" " * 1000) as url:
        with pytest.raises(Failure, match="did not end"):
            control_call("GET", url, "state", None)
        plane = ControlPlane(ReplicaSpec("http", url))
        with pytest.raises(ReadFailed, match="no answer"):
            plane.get("/state")
        plane.close()


READING = [
    ["audit", "--node", "URL"], ["backup", "DIR", "--node", "URL"], ["status", "--node", "URL"],
    ["scrub", "--node", "URL"], ["members", "--node", "URL"], ["topic", "list", "--node", "URL"],
]  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_an_answer_that_cannot_be_parsed_is_a_member_that_answers_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nested beyond what a parser follows, or a number beyond what it reads: it was a traceback, of an audit and of a
    back-up also where another member could have been asked. And a refusal is said in a few words, however long it is.
    """
    rng = drawn(f"unreadable answers to {words[0]}")
    begin = rng.choice([b"[", b'{"items":', b'[{"detail":'])
    long = json.dumps({rng.choice(["detail", "title"]): "x" * rng.randrange(1 << 16, 1 << 22)}).encode()
    for status, answer in (
        (rng.choice([200, 206]), begin * rng.randrange(2000, 200_000)),
        (rng.choice([403, 500, 503]), begin * rng.randrange(2000, 200_000)),
        (200, b'{"engine":' + b"9" * rng.randrange(5000, 1 << 20) + b"}"),
        (rng.choice([403, 500, 503]), long),
    ):
        with answering(answer, status) as url:
            place = {"URL": url, "DIR": str(tmp_path / "b")}
            code = run_cli([place.get(one, one) for one in words])
        said = capsys.readouterr()
        assert code in (Exit.UNREACHABLE, Exit.DENIED), f"{status} {answer[:50]!r}: {code} {said.err[:500]}"
        assert "Traceback" not in said.err and len(said.err) < 4000


def test_a_stranger_is_unreachable_for_a_backup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said "items is missing", of nobody, with the exit code of a finding."""
    with answering(b"{}") as url:
        assert run_cli(["backup", str(tmp_path / "b"), "--node", url, "--json"]) == Exit.UNREACHABLE
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"quorumscope: {url} answers as no member does: items is missing")
