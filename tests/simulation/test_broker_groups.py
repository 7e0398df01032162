"""Broker groups in the simulator's world: real disks that fail, logs that are cut, trimmed, healed and begun anew."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import run_seed
from tests.simulation.swarm import CALM, Swarm

TRIMMED = {
    "broker": True, "trim": 8.0, "left_behind": 0.5, "data_file_size": 4096, "body_bytes": 400, "rot": 0.0,
    "misdirected_write": 0.0, "lost_write": 0.0, "lost_tail": 0.0, "lost_checkpoint": 0.0, "lost_file": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_every_entry_is_a_record_whatever_breaks(seed: int) -> None:
    result = run_seed(seed, 2_000, {"broker": True})
    assert result.violation is None, f"seed {seed}: {result.violation}"


@pytest.mark.parametrize("seed", range(3))
def test_no_record_lies_elsewhere_in_a_log_that_begins_later(seed: int) -> None:
    result = run_seed(seed, 2_000, TRIMMED)
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_some_worlds_are_broker_groups_and_the_others_are_what_they_were() -> None:
    swarms = [Swarm.from_seed(seed) for seed in range(300)]
    brokers = [one for one in swarms if one.broker]
    assert 15 < len(brokers) < 70 and not CALM.broker
    assert all(not (one.applier or one.learner) for one in brokers) and any(one.membership for one in brokers)
    assert all(one.born_pos % one.data_file_size == 0 for one in brokers)
    assert any(one.born_at() is not None for one in brokers) and any(one.trim for one in brokers)
    assert {one.flush_sync for one in brokers} == {True, False} and any(one.unnamed for one in brokers)
