"""The benches run and say what INTERFACES promises; what they measure is nobody's assertion here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["bench", *words, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err  # progress, for whoever waits
    return dict(json.loads(said.out))


@pytest.mark.parametrize("via", ["client", "json", "rest"])
def test_appends_are_measured_through_every_door(via: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rounds", "1", "--seconds", "0.2", "--batch", "10", "--in-flight", "8", "--via", via)
    answer = answer_of(capsys, "append", *words, "--data", str(tmp_path))
    rows = answer["results"]
    assert isinstance(rows, list)
    assert [(row["in_flight"], row["batch"]) for row in rows] == [(1, 1), (8, 1), (400, 10)]
    promised = {"system", "flush", "body_bytes", "in_flight", "batch", "entries_per_s", "mb_per_s", "p50_ms", "p99_ms"}
    assert all(promised <= row.keys() and row["entries_per_s"] > 0 for row in rows)
    assert answer["ratios"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["kill", "partition", "transfer"])
def test_a_leader_goes_and_nothing_acknowledged_is_lost(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "failover", "--runs", "1", "--how", how, "--load")
    assert answer["lost_acknowledged"] == 0
    assert isinstance(answer["runs_s"], list)
    assert len(answer["runs_s"]) == 1
    assert {"median_s", "max_s"} <= answer.keys()
