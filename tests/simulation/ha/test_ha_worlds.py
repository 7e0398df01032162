"""Worlds of classic HA with fixed seeds; the planted bugs that they have to notice are `mutants/pairs.py`."""

from __future__ import annotations

import pytest

from tests.simulation.ha.campaign import run_seed
from tests.simulation.ha.world import World
from tests.simulation.mutants.pairs import PAIRS
from tests.simulation.prove import hunt, known_seeds


@pytest.mark.parametrize("seed", range(25))
def test_a_world_of_master_and_slaves(seed: int) -> None:
    assert run_seed(seed).violation is None


@pytest.mark.parametrize("seed", range(25))
def test_a_world_of_an_asynchronous_master_and_slaves(seed: int) -> None:
    """Links are cut under it and it goes on: what is lost with it lies at the broker that answered it."""
    assert run_seed(seed, overrides={"is_async": True}).violation is None


def test_asynchronous_masters_lose_what_they_may() -> None:
    """Else they would prove nothing."""

    def lost(seed: int) -> bool:
        world = World(seed, is_async=True)
        world.run()
        log = world.master.log
        assert log is not None
        return any(log.crc_of(put.begin, put.end) != put.crc for put in world.acknowledged)

    assert any(map(lost, range(12)))


@pytest.mark.parametrize("name", [one.name for one in PAIRS])
def test_a_planted_bug_is_noticed(name: str) -> None:
    """By an invariant, where the planted code was not the right one, and the same world without it is clean."""
    catch = hunt(name, seeds=40, first=known_seeds().get(name))
    assert catch.invariant is not None, f"{name} survived {catch.seeds} seeds; it differed {catch.differed} times"


def test_there_are_twenty_bugs_and_more() -> None:
    assert len(PAIRS) >= 20


def test_worlds_promote_cut_refuse_and_fence() -> None:
    """Else they would prove nothing."""
    missing = {"ha_connected", "ha_cut_back", "ha_refused", "ha_fenced"}
    acknowledged = epochs = 0
    for seed in range(12):
        world = World(seed)
        world.run()
        acknowledged += len(world.acknowledged)
        missing -= {kind for node in world.nodes for _at, kind, _text in node.notes}
        epochs = max(epochs, world.master.lineage.epoch)
        if acknowledged > 500 and epochs >= 1 << 20 and not missing:
            return
    raise AssertionError(f"{acknowledged} puts, epoch {epochs}, and none of {missing}")
