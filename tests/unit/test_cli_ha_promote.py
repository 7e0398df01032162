"""`ha promote`: what stands against it is shown first, and passed over by name alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from tests.unit.fake_pair import FakePair

URL = "http://127.0.0.1:8532"
LACKS = {"code": "lacks_bytes", "text": "it lacks 4,096 bytes of what m had", "stops": True, "can_be_accepted": True}
NOT_HEARD = {"code": "not_heard", "text": "m does not answer", "stops": False, "can_be_accepted": True}
BROKEN = {"code": "log_broken", "text": "a write failed\x1b[31m", "stops": True, "can_be_accepted": False}


class Slave:
    """What a slave's control plane answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *findings: dict[str, Any]) -> None:
        self.findings, self.asked = findings, []  # type: tuple[dict[str, Any], ...], list[dict[str, Any]]
        self.status = 200
        self.view: tuple[int, dict[str, Any]] = (200, FakePair().ha["s1"])
        monkeypatch.setattr("app.commands.ha_promote.control_answer", self.answer)

    def answer(
        self, method: str, url: str, resource: str, _token: object, body: dict[str, Any] | None = None, **_: object
    ) -> tuple[int, dict[str, Any]]:
        if body is None:
            assert (method, url, resource) == ("GET", URL, "ha")
            return self.view
        assert (method, url, resource) == ("POST", URL, "ha/promote")
        self.asked.append(body)
        if self.status != 200 and not body.get("dry_run"):
            return self.status, {"title": "No answer in time", "detail": "the broker said nothing within 60 s"}
        promoted = not body.get("dry_run")
        return 200, {
            "promoted": promoted, "role": "SYNC_MASTER", "epoch": 3 if promoted else None, "findings": self.findings,
        }  # fmt: skip

    @property
    def changes(self) -> list[dict[str, Any]]:
        return [one for one in self.asked if not one.get("dry_run")]


def test_what_stands_against_it_stops_it_until_it_is_accepted_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slave = Slave(monkeypatch, NOT_HEARD, LACKS)
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.FINDING
    said = capsys.readouterr().err
    assert "lacks_bytes (stops it): it lacks 4,096 bytes" in said and "--accept lacks_bytes" in said
    assert "--accept not_heard" not in said and slave.changes == []
    assert run(["ha", "promote", "--node", URL, "--yes", "--accept", "lacks_bytes"]) == Exit.FINE
    assert "promoted: SYNC_MASTER, epoch 3" in capsys.readouterr().out
    assert [one["accept"] for one in slave.changes] == [["lacks_bytes"]]


def test_it_is_promoted_in_the_epoch_that_was_read_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    slave = Slave(monkeypatch)
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.FINE
    assert run(["ha", "promote", "--node", URL, "--yes", "--if-term", "7"]) == Exit.FINE
    read = slave.view[1]["epoch"]
    assert isinstance(read, int) and [one["if_term"] for one in slave.asked] == [read, read, 7, 7]


def test_two_findings_of_one_code_are_accepted_by_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = LACKS | {"code": "master_is_there"}
    Slave(monkeypatch, there, there | {"text": "it follows a master right now"}, LACKS)
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.FINDING
    said = capsys.readouterr().err
    assert "--accept master_is_there --accept lacks_bytes" in said and said.count("--accept master_is_there") == 1


def test_what_cannot_be_accepted_is_not_and_says_so_without_its_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slave = Slave(monkeypatch, BROKEN)
    assert run(["ha", "promote", "--node", URL, "--yes", "--accept", "log_broken"]) == Exit.FINDING
    said = capsys.readouterr().err
    assert "cannot be accepted" in said and "\x1b" not in said and slave.changes == []


def test_nothing_is_changed_without_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    slave = Slave(monkeypatch, NOT_HEARD)
    assert run(["ha", "promote", "--node", URL]) == Exit.USAGE  # no terminal that could be asked
    assert "give --yes" in capsys.readouterr().err
    assert run(["ha", "promote", "--node", URL, "--dry-run", "--json"]) == Exit.FINE
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "not_heard"
    assert slave.changes == []
    assert run(["ha", "promote", "--node", URL, "--role", "SLAVE"]) == Exit.USAGE


def test_whom_it_replaces_and_how_far_it_is_behind_is_said_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slave = Slave(monkeypatch, LACKS)
    said = slave.view[1]
    assert run(["ha", "promote", "--node", URL]) == Exit.FINDING
    assert "it replaces 127.0.0.1:10912, which answers it; its log ends at 81,920, the master's at 81,920" in (
        capsys.readouterr().err
    )
    said["following"] |= {"state": "closed", "reason": "refused\x1b[31m", "master_offset": 86_016, "lag_bytes": 4_096}
    assert run(["ha", "promote", "--node", URL, "--dry-run"]) == Exit.FINDING
    text = capsys.readouterr().out
    assert "no master serves it now" in text and "(refused" in text and "it replaces" not in text and "\x1b" not in text
    assert "the master's at 86,016 when last heard: 4,096 bytes behind" in text
    said["following"] |= {"master_offset": None, "lag_bytes": None}
    run(["ha", "promote", "--node", URL, "--dry-run"])
    assert "how far it is behind is not known" in capsys.readouterr().out  # never 0
    said["following"] = None
    run(["ha", "promote", "--node", URL, "--dry-run"])
    assert "it follows no master now" in capsys.readouterr().out
    assert slave.changes == []


@pytest.mark.parametrize("view", [(503, {"title": "The broker does not answer"}), (200, {"broker": "odd"})])
def test_a_slave_that_does_not_say_whom_it_follows_is_promoted_by_its_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], view: tuple[int, dict[str, Any]]
) -> None:
    slave = Slave(monkeypatch)
    slave.view = view
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.FINE
    assert "which master it replaces is not known" in capsys.readouterr().err and len(slave.changes) == 1


def test_an_outcome_that_nobody_knows_is_75(monkeypatch: pytest.MonkeyPatch) -> None:
    slave = Slave(monkeypatch)
    slave.status = 504
    assert run(["ha", "promote", "--node", URL, "--yes"]) == Exit.UNKNOWN_OUTCOME


def test_without_a_master_the_slave_that_has_most_is_named() -> None:
    pair = FakePair()
    pair.alive["m"] = False
    pair.ha["s1"]["end_offset"] += 512
    (one,) = (each for each in pair.view().problems if each.code == "ha_no_master")
    assert one.command == f"quorumscope ha promote --node {pair.urls['s1']}"
