"""A change of a control plane whose answer is lost: it may have been made, so it ends with 75, and never with 69."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands import broker_calls, ha_promote, one_member
from app.commands.control_calls import control_answer, control_call
from app.commands.endings import Exit, Failure
from node.control import broker_link, ha_changes
from tests.unit.fake_control import FakeGroup

Json = dict[str, Any]


class Plane:
    """Answers as `answers` says; what it has nothing for it takes in, and hangs up on, or says nothing to."""

    def __init__(self, answers: dict[tuple[str, str], Json], *, silent: bool) -> None:
        self.answers, self.silent = answers, silent
        self.lost: list[str] = []  # the calls that got no answer
        self.over = threading.Event()
        self.url = ""

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0].removeprefix("/api/v1/")
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length", 0))) or b"{}")
        answer = self.answers.get((handler.command, path + (" dry" if body.get("dry_run") else "")))
        if answer is None:
            self.lost.append(f"{handler.command} {path}")
            if self.silent:
                self.over.wait()
            handler.close_connection = True
            return
        content = json.dumps(answer).encode()
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextmanager
def serving(answers: dict[tuple[str, str], Json], *, silent: bool = False) -> Iterator[Plane]:
    plane = Plane(answers, silent=silent)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        do_GET = do_POST = do_PUT = do_DELETE = lambda self: plane.take(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    plane.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield plane
    finally:
        plane.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No demo of the machine that the tests run on; no waiting between two looks."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(one_member, "LOOK_EVERY_S", 0.0)


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (["topic", "create", "news"], "PUT topics/news"),
        (["topic", "delete", "news", "--yes"], "DELETE topics/news"),
        (["restart"], "POST restart"),
        (["trim", "--through", "9"], "POST trim"),
        (["pins", "release", "reader"], "DELETE pins/reader"),
        (["ha", "promote", "--yes"], "POST ha/promote"),
    ],
)
def test_a_change_whose_answer_is_lost_is_unknown(
    words: list[str], lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    findings: Json = {"promoted": False, "role": "SYNC_MASTER", "epoch": None, "findings": []}
    answers = {
        ("GET", "topics/news"): {"topic": "news", "messages": 3},
        ("GET", "ha"): {},
        ("POST", "ha/promote dry"): findings,
        ("GET", "pins"): {"items": [{"owner": "reader", "from_index": 4, "expires_in_s": 60}]},
    }
    with serving(answers) as plane:
        node = FakeGroup(1).nodes["n0"]
        node.url = plane.url
        answers["GET", "state"] = node.state()
        assert run([*words, "--node", plane.url]) == Exit.UNKNOWN_OUTCOME
    assert plane.lost == [lost], "it is asked once"
    said = capsys.readouterr().err
    assert "outcome unknown: " in said and "look whether it was done before it is asked again" in said


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", {"dry_run": True})])
def test_what_changes_nothing_is_not_reached(method: str, body: Json | None) -> None:
    with serving({}) as plane, pytest.raises(Failure, match="cannot be reached") as failed:
        control_answer(method, plane.url, "trim", None, body)
    assert failed.value.code == Exit.UNREACHABLE


@pytest.mark.parametrize("content", [b'{"detail": "An error that it did not expect."}', b"<h1>Bad Gateway</h1>"])
@pytest.mark.parametrize(
    ("method", "body", "status", "code"),
    [
        ("POST", {}, 500, Exit.UNKNOWN_OUTCOME), ("DELETE", None, 502, Exit.UNKNOWN_OUTCOME),
        ("PUT", {"for_s": 1}, 504, Exit.UNKNOWN_OUTCOME), ("POST", {}, 503, Exit.UNREACHABLE),
        ("POST", {"dry_run": True}, 500, Exit.UNREACHABLE), ("GET", None, 502, Exit.UNREACHABLE),
    ],
)  # fmt: skip
def test_a_change_that_failed_in_the_midst_of_it_may_have_been_made(
    method: str, body: Json | None, status: int, code: Exit, content: bytes
) -> None:
    """The control plane says so itself, of its 500; a proxy in front of it knows as little."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = do

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(Failure) as failed:
            control_call(method, f"http://127.0.0.1:{server.server_port}", "restart", None, body)
        server.shutdown()
    assert failed.value.code == code
    assert str(failed.value).startswith("outcome unknown:") is (code == Exit.UNKNOWN_OUTCOME)


def test_a_change_that_cannot_have_left_was_not_made() -> None:
    with serving({}) as plane:
        pass
    with pytest.raises(Failure, match="cannot be reached") as failed:
        control_answer("POST", plane.url, "restart", None, {})
    assert failed.value.code == Exit.UNREACHABLE


def test_a_promotion_that_takes_too_long_may_have_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control planes wait for their broker first, and say then what is known: whoever asks them waits longer."""
    assert ha_promote.PROMOTED_WITHIN_S > ha_changes.WITHIN_S
    assert broker_calls.CHANGE_WITHIN_S > broker_link.WITHIN_S
    monkeypatch.setattr(ha_promote, "PROMOTED_WITHIN_S", 0.1)
    findings: Json = {"promoted": False, "role": "SYNC_MASTER", "epoch": None, "findings": []}
    with serving({("GET", "ha"): {}, ("POST", "ha/promote dry"): findings}, silent=True) as plane:
        assert run(["ha", "promote", "--yes", "--node", plane.url]) == Exit.UNKNOWN_OUTCOME
        assert plane.lost == ["POST ha/promote"]
    assert "outcome unknown: " in capsys.readouterr().err


def test_an_operation_that_was_begun_and_cannot_be_followed_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    begun: Json = {"id": "7", "kind": "restart", "state": "running", "progress": "n0"}
    with serving({("POST", "restart"): begun}) as plane:
        assert run(["restart", "--node", plane.url]) == Exit.UNKNOWN_OUTCOME
    assert plane.lost == ["GET operations/7"]
    assert "the restart was begun, and how it ended nobody tells" in capsys.readouterr().err
