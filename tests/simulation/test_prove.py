"""How `make prove` goes about it: known seeds, a mutant's own worlds, the seeds that a commit names."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.simulation import prove
from tests.simulation.campaign import run_seed
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.observer import Violation
from tests.simulation.report import SeedResult

FAST = "ack_before_sync"  # every world of it shows it


def test_a_known_seed_is_tried_first_and_a_stale_one_is_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prove.hunt(FAST, seeds=5)
    assert plain.invariant is not None and plain.seeds == plain.seed + 1
    known = prove.hunt(FAST, seeds=0, first=3)
    assert (known.invariant, known.seeds, known.seed) == (plain.invariant, 1, 3)

    def clean_at_three(seed: int, steps: int, overrides: Mapping[str, Any]) -> SeedResult:
        result = run_seed(seed, steps, overrides)
        return replace(result, violation=None) if seed == 3 else result

    monkeypatch.setattr(prove, "run_seed", clean_at_three)
    stale = prove.hunt(FAST, seeds=5, first=3)
    assert (stale.invariant, stale.seeds, stale.seed) == (plain.invariant, plain.seeds + 1, plain.seed)


def test_every_known_seed_belongs_to_a_mutant() -> None:
    known = list(prove.known_seeds())
    assert known and set(known) <= MUTANTS.keys()


def test_known_seeds_are_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove, "KNOWN_SEEDS", tmp_path / "seeds.json")
    assert prove.known_seeds() == {}
    catch = prove.hunt(FAST, seeds=5)
    prove.rewrite_known([catch])
    assert json.loads((tmp_path / "seeds.json").read_text()) == {FAST: catch.seed}


def test_mutants_that_share_a_world_have_it_run_once_as_long_as_the_longest_of_them() -> None:
    def world(name: str) -> str:
        one = MUTANTS[name]
        return repr((one.world, sorted(one.profile.items()), one.cause))

    names = prove.different_worlds(MUTANTS)
    assert len(names) == len({world(name) for name in MUTANTS}) < len(MUTANTS)
    lasts = {world(name): MUTANTS[name].lasts for name in names}
    assert all(MUTANTS[name].lasts <= lasts[world(name)] for name in MUTANTS)


def test_a_world_that_is_not_clean_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(_mutant: Mutant, seed: int, _steps: int) -> Violation | None:
        return None if seed < 7 else Violation("liveness", "y")

    monkeypatch.setattr(prove, "_without", without)
    assert prove.check_worlds((FAST, range(5))) == prove.Worlds(FAST, 5, None, -1)
    assert prove.check_worlds((FAST, range(5, 10))) == prove.Worlds(FAST, 3, "liveness: y", 7)


def test_a_commit_names_its_seeds() -> None:
    seeds = prove.commit_seeds("c9725aa0f8d1e2b3c4d5", 500)
    assert len(seeds) == 500 and seeds == prove.commit_seeds("c9725aa0f8d1e2b3c4d5", 500)
    assert seeds.start >= prove.FIXED_MOST
    assert seeds != prove.commit_seeds("c9725aa0f8d2e2b3c4d5", 500)


def test_a_commit_names_the_seeds_of_the_worlds_without_the_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[range] = []

    def worlds(*_names: object, seeds: range, **_options: object) -> list[prove.Worlds]:
        looked_at.append(seeds)
        return []

    monkeypatch.setattr(prove, "prove_worlds", worlds)
    monkeypatch.setattr(prove, "prove_mutants", lambda *_names, **_options: [])
    commit = "c9725aa0f8d1e2b3c4d5"
    for words in (["--commit", commit], ["--commit", commit, "--world-seeds", "3"], ["--clean", "4"]):
        assert prove.main(["--only", FAST, *words]) == 0
    assert looked_at == [prove.commit_seeds(commit, prove.SEEDS_PER_WORLD), prove.commit_seeds(commit, 3), range(4)]


@pytest.mark.parametrize(("code", "of_the_commit", "fixed"), [(0, 0, 0), (1, 1, 1), (2, 0, 1)])
def test_only_the_fixed_seeds_have_to_reach_everything(
    monkeypatch: pytest.MonkeyPatch, code: int, of_the_commit: int, fixed: int
) -> None:
    """Code 2 of a campaign: no violation, but something never occurred."""

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code if command[2] == "tests.simulation" else 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert prove.main(["--quick", "--no-mutants"]) == fixed
    monkeypatch.setattr(prove, "_campaign", partial(_drawn_only, prove._campaign))
    words = ["--no-mutants", "--no-processes", "--commit", "c9725aa0f8d1e2b3c4d5"]
    assert prove.main(words) == of_the_commit


def _drawn_only(campaign: Callable[..., bool], seeds: range, *rest: Any) -> bool:
    return seeds.start < prove.FIXED_MOST or campaign(seeds, *rest)


def test_each_phase_has_its_verdict_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(_mutant: Mutant, seed: int, _steps: int) -> Violation | None:
        return None if seed < 2 else Violation("liveness", "y")

    monkeypatch.setattr(prove, "_without", without)
    words = ["--only", FAST, "--jobs", "1"]
    assert prove.main([*words, "--clean", "2"]) == 0
    assert [line.split()[:-2] for line in capsys.readouterr().out.splitlines()[-2:-1]] == [
        ["their", "worlds", "without", "them", "ok"]
    ]
    assert prove.main([*words, "--clean", "3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "NOT ok" in lines[-2] and lines[-1].startswith("NOT proved in ")


@pytest.mark.parametrize(("sound", "code"), [(True, 0), (False, 1)])
def test_real_processes_run_beside_the_worlds_and_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sound: bool, code: int
) -> None:
    worlds_ran = Event()

    def processes(_options: object) -> bool:
        assert worlds_ran.wait(timeout=60)
        return sound

    def worlds(*_names: object, **_options: object) -> list[prove.Worlds]:
        worlds_ran.set()
        return []

    monkeypatch.setattr(prove, "_processes", processes)
    monkeypatch.setattr(prove, "prove_worlds", worlds)
    monkeypatch.setattr(prove, "prove_mutants", lambda *_names, **_options: [])
    monkeypatch.setattr(prove, "_campaign", lambda *_seeds: True)
    monkeypatch.setattr(prove, "_properties", lambda _options: True)
    assert prove.main([]) == code
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-3:-1]] == [
        ["their", "worlds"], ["real", "processes"]
    ]  # fmt: skip


def test_real_processes_that_cannot_be_run_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_options: object) -> bool:
        raise OSError("no interpreter")

    monkeypatch.setattr(prove, "_processes", broken)
    monkeypatch.setattr(prove, "_properties", lambda _options: True)
    with pytest.raises(OSError, match="no interpreter"):
        prove.main(["--no-mutants", "--seeds", "0"])
