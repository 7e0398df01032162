"""`quorumscope trim` and `pins`: what they ask of a control plane, what they print, and their exit codes."""

from __future__ import annotations

from typing import Any

import pytest

from app.command_line import run
from app.commands import one_member

NEED = {"owner": "voter n2", "from_index": 40, "why": "is not connected; it is known to hold entries up to 39"}


class Plane:
    """A control plane that answers as it is set to."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers, self.asked = list(answers), []

    def call(self, method: str, url: str, resource: str, token: Any, body: Any = None, *, tls: Any = None) -> Any:
        self.asked.append((method, resource, body))
        return self.answers.pop(0)


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    made = Plane()
    monkeypatch.setattr(one_member, "control_call", made.call)
    monkeypatch.setattr(one_member, "LOOK_EVERY_S", 0.0)
    state = type("State", (), {"self_id": "n1"})()
    monkeypatch.setattr(one_member, "control_state", lambda *_: state)
    return made


def test_a_dry_run_says_what_would_go_and_who_keeps_the_rest(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"files": 2, "bytes": 8192, "begin_index": 20, "kept_by": [NEED]}
    plane.answers = [{"dry_run": True, "would": "remove 2 data files, 8192 bytes: entries 0 to 19", "trim": plan}]
    assert run(["trim", "--node", "http://127.0.0.1:8431", "--through", "50", "--dry-run"]) == 1
    assert plane.asked == [("POST", "trim", {"through_index": 50, "force": False, "dry_run": True})]
    out = capsys.readouterr().out
    assert "n1 would remove 2 data files, 8192 bytes: entries 0 to 19; its log would begin at entry 20" in out
    assert "kept for voter n2, from entry 40 on: it is not connected" in out


def test_a_trim_is_followed_to_its_end_and_says_where_the_log_begins(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = {"removed_files": 3, "removed_bytes": 12288, "begin_index": 30, "kept_by": [], "forced": False}
    running = {"id": "7", "kind": "trim", "state": "running", "progress": "from entry 0"}
    plane.answers = [running, {**running, "state": "done", "outcome": outcome}]
    assert run(["trim", "--node", "http://127.0.0.1:8431", "--through", "29"]) == 0
    assert plane.asked[0] == ("POST", "trim", {"through_index": 29, "force": False})
    assert "n1 removed 3 data files, 12288 bytes: its log begins at entry 30" in capsys.readouterr().out


def test_force_names_whom_it_leaves_behind(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"removed_files": 5, "removed_bytes": 1, "begin_index": 50, "kept_by": [NEED], "forced": True}
    plane.answers = [{"id": "7", "state": "done", "outcome": outcome}]
    assert run(["trim", "--node", "http://127.0.0.1:8431", "--through", "49", "--force"]) == 0
    assert "left behind voter n2, from entry 40 on" in capsys.readouterr().out


def test_what_could_not_go_is_a_finding_also_as_json(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"removed_files": 0, "removed_bytes": 0, "begin_index": 0, "kept_by": [NEED], "forced": False}
    problem = {"title": "Not all of it went", "detail": "entry 9 is damaged: it has to be mended first"}
    for state, said in (("done", None), ("failed", problem)):
        plane.answers = [{"id": "7", "state": state, "outcome": outcome, "problem": said}]
        assert run(["trim", "--node", "http://127.0.0.1:8431", "--through", "49", "--json"]) == 1
        assert '"begin_index": 0' in capsys.readouterr().out
    assert run(["trim", "--node", "http://127.0.0.1:8431"]) == 64


PINS = [
    {"owner": "the state machine", "from_index": 3, "expires_in_s": None},
    {"owner": "backup-1f", "from_index": 7, "expires_in_s": 840},
]


def test_pins_are_listed_with_their_end(plane: Plane, capsys: pytest.CaptureFixture[str]) -> None:
    plane.answers = [{"items": PINS}, {"items": []}]
    assert run(["pins", "list", "--node", "http://127.0.0.1:8431"]) == 0
    assert run(["pins", "list", "--node", "http://127.0.0.1:8431"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "n1: the state machine keeps entries from 3 on, for as long as it needs them",
        "n1: backup-1f keeps entries from 7 on, for 840 s more, unless it is renewed",
        "n1: nobody has pinned entries",
    ]


def test_the_pin_of_an_owner_that_is_gone_is_released_and_a_members_own_is_not(
    plane: Plane, capsys: pytest.CaptureFixture[str]
) -> None:
    plane.answers = [{"items": PINS}, {}]
    assert run(["pins", "release", "backup-1f", "--node", "http://127.0.0.1:8431"]) == 0
    assert plane.asked[-1] == ("DELETE", "pins/backup-1f", None)
    assert "keeps nothing for backup-1f any more" in capsys.readouterr().out
    for owner, said in (("the state machine", "pins that for itself"), ("x", "no pin of 'x'")):
        plane.answers = [{"items": PINS}]
        assert run(["pins", "release", owner, "--node", "http://127.0.0.1:8431"]) == 1
        assert said in capsys.readouterr().err
