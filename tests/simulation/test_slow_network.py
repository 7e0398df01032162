"""Links that are slow but alive: nobody is elected and no outcome is unknown, whatever is asked for (E6, C2, C5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.mutants.planting import Edit, Mutant
from tests.simulation.swarm import CALM, Swarm
from tests.simulation.world import World

STEPS = 12_000
SLOW = {
    "link_kb_per_s": 60.0,
    "body_bytes": 3000,
    "appends": 150.0,
    "clients": 12,
    "reads": 2.0,
    "data_file_size": 64 * 1024,
}

ADMISSION_OFF = Mutant(
    "admission_off",
    "C5",
    "a leader takes in whatever comes, whatever its links carry",
    (
        Edit(
            "node.consensus.admission:Admission.judge",
            "if waiting_bytes + ahead_bytes < limit or waiting_bytes < limit // 4:",
            "if not MUTANT.ignored(waiting_bytes + ahead_bytes >= limit):",
        ),
    ),
)
RATE_OVERRATED = Mutant(
    "rate_overrated",
    "C5",
    "a link is taken for a hundred times as fast as it was measured",
    (
        Edit(
            "node.consensus.admission:Admission.limit_bytes",
            "rate * self._share_ns // SECOND",
            "MUTANT.instead(rate * self._share_ns // SECOND, 100 * rate * self._share_ns // SECOND)",
        ),
    ),
)


def run(seed: int) -> tuple[dict[str, int], int]:
    """How appends ended, and the highest term."""
    fields: dict[str, Any] = CALM.as_json() | SLOW
    world = World(seed, Swarm(**fields))
    world.run(STEPS)
    results: dict[str, int] = {}
    for one in world.history:
        if one.kind == "append" and one.result is not None:
            results[one.result] = results.get(one.result, 0) + 1
    terms = [member.replica.term for member in world.members.values() if member.replica is not None]
    return results, max(terms)


@pytest.mark.parametrize("seed", range(4))
def test_slow_links_cost_neither_a_leader_nor_an_outcome(seed: int) -> None:
    results, term = run(seed)
    assert term == 1
    assert results.get("unknown", 0) == 0, results
    assert results["ok"] > 50 and results["fail"] > 50  # more was asked for than they carry


@pytest.mark.parametrize("mutant", [ADMISSION_OFF, RATE_OVERRATED], ids=lambda one: one.name)
def test_a_planted_bug_of_the_admission_shows(mutant: Mutant) -> None:
    with mutant.plant() as tally:
        results, _term = run(0)
        assert tally.differed > 0
    assert results.get("unknown", 0) > 0, results
