"""What commands say where something is down, denied or not known: all of it, and what to do."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.audit import command as audit_command
from app.audit.command import AuditArgs, CommandError
from app.cli import run
from app.commands import ha, ha_promote, members, targets
from app.commands.access_flags import AccessFlags
from app.commands.control_calls import control_call
from app.commands.endings import Exit, Failure
from app.commands.targets import Target
from node.views.state import StateView
from tests.unit.fake_pair import FakePair

URL = "http://127.0.0.1:8431"


def test_a_change_of_members_of_unknown_outcome_is_not_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(_target: Target, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("dryRun"):
            return {"code": 200}
        return {"code": 500, "appended": "unknown", "detail": "entry 7 is not committed yet"}

    monkeypatch.setattr(members, "ask", ask)
    target = Target({"n0": "127.0.0.1:1"}, "g", access=AccessFlags(named=("--node", URL)))
    assert members.change(target, {"kind": "remove", "memberId": "n1"}, "remove n1", True, False, None, False) == 75
    said = capsys.readouterr().out.strip()
    look = f"`quorumscope members list --node {URL}` shows whether it was made"
    assert said == f"outcome unknown: entry 7 is not committed yet; {look}"


def test_each_broker_of_a_pair_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_method: str, url: str, *_: object, **__: object) -> None:
        raise Failure(Exit.UNREACHABLE, f"{url} cannot be reached")

    monkeypatch.setattr(ha, "control_answer", answer)
    assert run(["ha", "status", "--node", "http://m:1", "--node", "http://s:1"]) == Exit.UNREACHABLE
    assert "no broker answers: http://m:1 cannot be reached; http://s:1 cannot" in capsys.readouterr().err


def test_a_slave_whose_broker_is_down_is_not_promoted_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    down = FakePair().ha["s1"] | {"broker": "down", "reason": "the broker ended with exit code 3: its disk is gone"}
    asked: list[str] = []

    def answer(method: str, *_: object, **__: object) -> tuple[int, dict[str, Any]]:
        asked.append(method)
        return 200, down

    monkeypatch.setattr(ha_promote, "control_answer", answer)
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert "not promoted: its broker is down: the broker ended with exit code 3: its disk is gone" in said
    assert asked == ["GET"]


def test_a_control_plane_without_its_engine_sends_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        targets, "control_state", lambda *_: StateView(self_id="n0", engine="down", engine_reason="the lock is held")
    )
    with pytest.raises(Failure) as caught:
        targets.target_of(None, URL, None, None)
    assert str(caught.value) == (
        f"{URL} answers, but its engine does not (the lock is held), and it does not know the members; ask by another"
        " member's control plane (--node), or the members at their own ports (--peers)"
    )


@contextmanager
def denying(detail: str) -> Iterator[str]:
    """A control plane that knows no token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"title": "Not allowed", "detail": detail}).encode()
            self.send_response(401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("token", "hint"), [(None, "It is shown with --token-file FILE, or in $QUORUMSCOPE_TOKEN."), ("a-token", "")]
)
def test_whoever_is_asked_for_a_token_hears_how_it_is_shown(token: str | None, hint: str) -> None:
    with denying("Send it.") as url, pytest.raises(Failure) as caught:
        control_call("GET", url, "state", token)
    assert str(caught.value) == f"{url} denies it: Send it. {hint}".strip()


def test_an_audit_whose_process_was_killed_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("WARN something of no interest\n")
    job = subprocess.Popen(["sh", "-c", "kill -9 $$"])
    with pytest.raises(CommandError, match=r"was killed by signal 9 \(SIGKILL\).*: WARN something of no interest"):
        audit_command._follow(tmp_path, job, AuditArgs())
