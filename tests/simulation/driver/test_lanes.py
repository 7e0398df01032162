"""Lanes in the driver's world: real clients, engines and sockets under faults, and appenders that void each other."""

from __future__ import annotations

import pytest

from tests.simulation.driver.campaign import run_seed


@pytest.mark.parametrize("seed", range(6))
def test_lanes_keep_their_promises_under_faults(seed: int) -> None:
    result = run_seed(seed, 4_000, {"lanes": 2})
    assert result.violation is None, f"seed {seed}: {result.violation}"
