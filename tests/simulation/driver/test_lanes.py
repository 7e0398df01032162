"""Lanes in the driver's world: real clients, engines and sockets under faults, and appenders that void each other."""

from __future__ import annotations

import pytest

from tests.simulation.driver.campaign import run_seed
from tests.simulation.driver.swarm import CALM, DriverSwarm


@pytest.mark.parametrize("seed", range(6))
def test_lanes_keep_their_promises_under_faults(seed: int) -> None:
    result = run_seed(seed, 4_000, {"lanes": 2})
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_some_worlds_append_over_lanes_and_some_logs_begin_later() -> None:
    swarms = [DriverSwarm.from_seed(seed) for seed in range(200)]
    later = [one for one in swarms if one.born_at() is not None]
    assert 5 < len(later) < 40 and {one.born_pos % one.data_file_size == 0 for one in later} == {True, False}
    assert 30 < sum(one.lanes > 0 for one in swarms) < 90 and any(one.lanes for one in later)
    assert CALM.born_at() is None and CALM.lanes == 0


def test_a_log_born_later_keeps_every_promise() -> None:
    born = {"born_index": 2**33, "born_term": 7, "born_chain": 0x1234_5678, "born_pos": 5000, "data_file_size": 8192}
    for seed in range(3):
        result = run_seed(seed, 3_000, {**born, "lanes": 2})
        assert result.violation is None, f"seed {seed}: {result.violation}"
        assert result.acknowledged > 0


@pytest.mark.parametrize("seed", range(4))
def test_every_entry_of_a_broker_group_is_a_record_under_faults(seed: int) -> None:
    result = run_seed(seed, 4_000, {"broker": True})
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_some_worlds_are_broker_groups() -> None:
    swarms = [one for seed in range(300) if (one := DriverSwarm.from_seed(seed)).broker]
    assert 20 < len(swarms) < 80 and all(one.lanes and not one.applier for one in swarms)
    assert all(one.born_pos % one.data_file_size == 0 for one in swarms)
    assert any(one.born_at() is not None for one in swarms) and not CALM.broker
