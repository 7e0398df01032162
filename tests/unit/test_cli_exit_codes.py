"""Fine (0) is said only where somebody said that all is well: what is not known ends with another code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import run
from app.commands import members, one_member
from app.commands.endings import Exit
from app.commands.one_member import OneMember
from node.protocol.codes import ResponseCode
from node.views.state import FaultView

URL = "http://127.0.0.1:8431"


@pytest.mark.parametrize(
    ("state", "code"),
    [("done", Exit.FINE), ("failed", Exit.FINDING), ("unknown", Exit.UNDETERMINED), ("of a later release", 2)],
)
def test_a_restart_ends_as_its_operation_did(monkeypatch: pytest.MonkeyPatch, state: str, code: Exit) -> None:
    monkeypatch.setattr(OneMember, "followed", lambda *_: {"state": state})
    assert run(["restart", "--node", URL]) == code


@pytest.mark.parametrize(
    ("read", "faults", "code"),
    [
        ("done", (), Exit.FINE),
        ("done", None, Exit.UNDETERMINED),  # the engine went away behind it: nobody said that nothing is damaged
        ("unknown", (), Exit.UNDETERMINED),
        ("failed", (), Exit.FINDING),
    ],
)
def test_a_log_is_whole_where_its_member_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], read: str, faults: Sequence[FaultView] | None,
    code: Exit,
) -> None:  # fmt: skip
    monkeypatch.setattr(one_member, "control_state", lambda *_: SimpleNamespace(self_id="n1", faults=faults))
    monkeypatch.setattr(OneMember, "followed", lambda *_: {"state": read, "kind": "scrub"})
    assert run(["scrub", "--node", URL, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["whole"] is (code == Exit.FINE)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"code": ResponseCode.SUCCESS, "index": 7, "appended": "yes"}, Exit.FINE),
        ({"code": ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, "index": 7, "appended": "unknown"}, Exit.UNKNOWN_OUTCOME),
        ({"code": ResponseCode.INCONSISTENT_TERM, "appended": "not_appended"}, Exit.FINDING),
    ],
)
def test_a_change_of_members_that_may_be_committed_is_unknown(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], code: Exit
) -> None:
    async def ask(_target: object, fields: dict[str, Any]) -> dict[str, Any]:
        return {"code": ResponseCode.SUCCESS, "refused": None} if fields.get("dryRun") else answer

    monkeypatch.setattr(members, "ask", ask)
    assert run(["members", "remove", "n1", "--yes", "--peers", "n0-127.0.0.1:1;n1-127.0.0.1:2"]) == code
