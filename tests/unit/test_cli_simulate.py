"""`quorumscope simulate`: its words reach the simulator, its verdict and exit code come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli import run
from app.commands import simulate
from app.commands.endings import Exit


def test_one_seed_says_its_trace(capfd: pytest.CaptureFixture[str]) -> None:
    """INTERFACES: `{seeds, steps, simulated_s, violations, coverage, trace_sha256}`; the same seed, the same trace."""
    reported = []
    for _ in range(2):
        assert run(["simulate", "--seed", "7", "--steps", "150", "--json"]) == Exit.FINE
        reported.append(json.loads(capfd.readouterr().out))
    first, again = reported
    assert first.keys() >= {"seeds", "steps", "simulated_s", "violations", "coverage", "trace_sha256"}
    assert (first["seeds"], first["steps"], first["violations"]) == (1, 150, [])
    assert first["coverage"]["role.CANDIDATE>LEADER"] >= 1
    assert first["trace_sha256"] == again["trace_sha256"]
    assert run(["simulate", "--seed", "8", "--steps", "150", "--json"]) == Exit.FINE
    assert json.loads(capfd.readouterr().out)["trace_sha256"] != first["trace_sha256"]


def test_a_broken_promise_is_1_with_the_line_that_does_it_again(capfd: pytest.CaptureFixture[str]) -> None:
    """A planted bug: a request is told its success when it is written, not when a quorum holds it."""
    words = ["simulate", "--seeds", "40", "--mutant", "acked_at_append", "--json"]
    assert run(words) == Exit.FINDING == 1
    said = capfd.readouterr()
    violations = json.loads(said.out)["violations"]
    assert violations
    assert violations[0].keys() >= {"seed", "step", "invariant", "detail", "reproduce"}
    assert violations[0]["reproduce"].startswith(f"quorumscope simulate --seed {violations[0]['seed']} ")
    assert "reproduce it with: quorumscope simulate --seed " in said.err
    assert said.err.rstrip().endswith("--mutant acked_at_append")


def test_wrong_words_are_64(capfd: pytest.CaptureFixture[str]) -> None:
    for words, says in (
        (["--without", "gravity"], "gravity"),
        (["--set", "members=many"], "members"),
        (["--mutant", "nosuch"], "nosuch"),
    ):
        assert run(["simulate", *words]) == Exit.USAGE == 64
        assert says in capfd.readouterr().err


def test_without_a_source_tree_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate, "code_root", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", "--seed", "1"]) == Exit.UNDETERMINED == 2
    said = capsys.readouterr().err
    assert "source tree" in said
    assert said.count("\n") == 1


def test_what_it_does_not_know_goes_to_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def note(_tree: Path, words: list[str]) -> int:
        given.append(words)
        return 0

    monkeypatch.setattr(simulate, "run_tree", note)
    assert run(["simulate", "--processes", "--plan", "each", "--seed", "3", "--seconds", "5"]) == 0
    assert given[0][0] == "--processes"
    assert given[0][1:3] == ["--seed", "3"]
    assert given[0][3:] == ["--plan", "each", "--seconds", "5"]
