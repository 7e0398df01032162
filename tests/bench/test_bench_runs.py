"""The benches run and say what INTERFACES promises; what they measure is not asserted here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.cli import run


def long_ones(*values: object) -> list[Any]:
    """What `make test` leaves out: the same way, of something else."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["bench", *words, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err  # progress, for whoever waits
    return dict(json.loads(said.out))


@pytest.mark.parametrize("via", ["client", *long_ones("rest", "tasks", "json")])
def test_appends_are_measured_through_every_interface(
    via: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--rounds", "1", "--seconds", "0.2", "--batch", "10", "--in-flight", "8", "--via", via)
    answer = answer_of(capsys, "append", *words, "--data", str(tmp_path))
    rows = answer["results"]
    assert isinstance(rows, list)
    assert [(row["in_flight"], row["batch"]) for row in rows] == [(1, 1), (8, 1), (800, 10)]
    promised = {"system", "flush", "body_bytes", "in_flight", "batch", "entries_per_s", "mb_per_s", "p50_ms", "p99_ms"}
    assert all(promised <= row.keys() and row["entries_per_s"] > 0 for row in rows)
    assert answer["ratios"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_store_is_measured_beside_single_appends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rounds", "1", "--seconds", "0.2", "--in-flight", "8")
    answer = answer_of(capsys, "kv", *words, "--data", str(tmp_path))
    rows = answer["results"]
    assert isinstance(rows, list) and [row["what"] for row in rows] == ["singles", "puts", "gets"]
    assert all(row["entries_per_s"] > 0 for row in rows)
    assert isinstance(answer["ratios"], dict) and answer["ratios"].keys() == {"puts", "gets"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_brokers_take_store_and_pass_on_and_survive_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rounds", "1", "--seconds", "0.5", "--kills", "1", "--in-flight", "64", "--batch", "10")
    answer = answer_of(capsys, "messages", *words, "--data", str(tmp_path))
    cases = {row["case"]: row for row in answer["results"]}
    assert cases.keys() == {"sends", "sends in JSON", "batches of 10", "pulls", "pulls as objects", "one at a time"}
    assert all(
        row["messages_per_s"] > 0 and row["mb_per_s"] > 0 and row["cpu_us"]["all"] >= 0 for row in cases.values()
    )
    assert cases["batches of 10"]["in_step_s"] >= 0
    part = answer["at_part_of_load"]
    assert part["engine_p99_ms"] > 0 and part["engine_p99_alone_ms"] > 0 and part["engine_p99_ratio"] > 0
    killed = answer["failover"]
    assert (killed["median_s"], killed["max_s"]) == (killed["send_s"]["median"], killed["send_s"]["most"])
    assert killed["lost_acknowledged"] == 0 and killed["repeated"] >= 0
    assert answer["failover"]["send_s"]["median"] > 0 and answer["failover"]["to_master_changes"] >= 2


@pytest.mark.long
def test_a_state_is_saved_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--state-mb", "5", "--rounds", "1", "--rate", "20", "--data", str(tmp_path))
    assert run(["bench", "snapshot", *words, "--json"]) in (0, 1)  # on a busy machine a leadership may be lost
    answer = json.loads(capsys.readouterr().out)
    assert [row["with"] for row in answer["results"]] == ["nobody", "saving"] and answer["saved_max_s"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_files_are_removed_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--files", "3", "--file-mb", "8", "--seconds", "1", "--rate", "20")
    answer = answer_of(capsys, "retention", *words, "--data", str(tmp_path))
    assert answer["files"] >= 3
    assert answer["tick_gap_max_ms_control"] > 0
    assert answer["tick_gap_max_ms_removal"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["kill", *long_ones("partition", "transfer")])
def test_a_leader_goes_and_nothing_acknowledged_is_lost(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answer_of(capsys, "failover", "--runs", "1", "--how", how, "--load")
    assert answer["lost_acknowledged"] == 0
    assert isinstance(answer["runs_s"], list)
    assert len(answer["runs_s"]) == 1
    assert {"median_s", "max_s"} <= answer.keys()


@pytest.mark.long
def test_a_member_comes_and_the_longest_gap_is_told_beside_a_control(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answer_of(capsys, "members", "--rounds", "1", "--data", str(tmp_path))
    for name in ("gaps_ms", "control_ms", "voter_after_s"):
        figures = answer[name]
        assert isinstance(figures, list) and len(figures) == 1 and figures[0] > 0, name
    assert list(tmp_path.iterdir()) == []


def engines_of(directory: Path) -> list[int]:
    """Process ids of what writes below that directory."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"node.server" in command and bytes(directory) in command:
                found.append(int(process.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and the parent-death signal")
@pytest.mark.parametrize("number", [signal.SIGINT, *long_ones(signal.SIGTERM, signal.SIGKILL)])
def test_a_bench_that_is_told_to_stop_leaves_no_engine(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "app.cli", "bench", "append", "--seconds", "600", "--data", str(tmp_path)]
    bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while len(engines_of(tmp_path)) < 3:
            assert bench.poll() is None
            assert time.monotonic() < deadline, "no engines came up"
            time.sleep(0.05)
        os.kill(bench.pid, number)
        bench.communicate(timeout=60)
        deadline = time.monotonic() + 60
        while engines_of(tmp_path):
            assert time.monotonic() < deadline, "engines outlive their bench"
            time.sleep(0.05)
        if number is not signal.SIGKILL:
            assert bench.returncode == (143 if number is signal.SIGTERM else 130)
            assert list(tmp_path.iterdir()) == []
    finally:
        bench.kill()
        bench.wait()
        for pid in engines_of(tmp_path):
            os.kill(pid, signal.SIGKILL)


def test_slow_links_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seconds", "0.5", "--in-flight", "3", "--body-bytes", "20000", "--no-largest")
    answer = answer_of(capsys, "slow-network", *words)
    (row,) = answer["results"]  # type: ignore[misc]
    assert row["acknowledged"] > 0  # type: ignore[index]
    assert {"share_of_link", "unknown_share", "elections", "refused"} <= row.keys()  # type: ignore[union-attr]


@pytest.mark.long
def test_a_paced_client_is_measured_beside_an_attack_and_its_control(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--seconds", "1", "--rate", "100", "--only", "forged", "--only", "left", "--json")
    assert run(["bench", "attacked", *words]) in (0, 1)  # on a busy machine a bound may be passed
    answer = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in answer["attacks"]] == ["opened and left", "forged members"]
    assert answer["beyond"] == sum(bool(row["beyond"]) for row in answer["attacks"])
    assert all(isinstance(row["growth_mb"], float) and row["memory_ratio"] > 0 for row in answer["attacks"])
