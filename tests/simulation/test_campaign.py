"""Forty-five simulated groups under faults: no promise is broken, and everything that should occur did.

`make prove` runs these and 455 more.
"""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from tests.simulation.campaign import STEPS, run_seed
from tests.simulation.coverage import IMPOSSIBLE, RARE, SCARCE, expected, missing, surprising, total
from tests.simulation.invariants import INVARIANTS
from tests.simulation.report import repeat_line

SEEDS, CHUNK = 45, 5
CHUNKS = SEEDS // CHUNK


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of this run."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "simulation-coverage"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fixed_seeds_keep_every_promise(chunk: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every invariant after every step; whichever chunk ends last judges what all of them covered."""
    results = [run_seed(seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
    broken = [f"{one.violation}\n{repeat_line(one.seed, STEPS, {})}" for one in results if one.violation is not None]
    assert not broken, "\n\n".join(broken)
    folder = shared_folder(tmp_path_factory)
    half_written = folder / f"{chunk}.tmp"
    half_written.write_text(json.dumps(total(one.coverage for one in results)))
    half_written.rename(folder / f"{chunk}.json")
    done = sorted(folder.glob("*.json"))
    if len(done) == CHUNKS:
        counts = total(json.loads(path.read_text()) for path in done)
        assert missing(counts, rare=False) == []
        assert surprising(counts) == []


def test_the_same_seed_is_the_same_run() -> None:
    first, again, other = run_seed(3, 400), run_seed(3, 400), run_seed(4, 400)
    assert first.trace_sha256 == again.trace_sha256 != other.trace_sha256
    assert first.coverage == again.coverage


def test_what_is_looked_for_is_consistent() -> None:
    names = expected()
    assert len(names) == len(set(names))
    assert set(names) >= RARE | SCARCE
    assert not set(names) & IMPOSSIBLE.keys()
    assert all(IMPOSSIBLE.values())


def test_every_violation_has_a_promise_and_every_promise_a_check() -> None:
    """The names of INVARIANTS are those that are raised, no more and no fewer."""
    raised: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Violation" and node.args:
                name = node.args[0]
                if isinstance(name, ast.Constant):
                    raised.add(name.value)
    raised |= {"pre_vote_changes_nothing", "live_leader_not_unseated"}  # told by a variable
    assert raised == INVARIANTS.keys()
