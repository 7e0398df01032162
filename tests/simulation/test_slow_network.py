"""Links that are slow but alive: nobody is elected and no outcome is unknown, whatever is asked for (E6, C2, C5)."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import run_seed
from tests.simulation.mutants.slow_links import NARROW


@pytest.mark.parametrize("seed", [0, 2, 7, 13])
def test_links_that_become_narrow_cost_neither_a_leader_nor_an_outcome(seed: int) -> None:
    """The promises are invariants (`stall_keeps_leader`, `slow_links_cost_nothing`); here, that they were put to it."""
    result = run_seed(seed, overrides=NARROW)
    assert result.violation is None, result.violation
    counts = result.coverage
    assert counts["fault.narrow_link"] > 0 and counts.get("append.unknown.502", 0) == 0
    assert counts["append.ok"] > 20 and counts["append.fail.503"] > 50  # more was asked for than they carry
