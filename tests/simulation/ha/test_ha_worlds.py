"""Worlds of classic HA with fixed seeds, and the planted bugs that they have to notice."""

from __future__ import annotations

import pytest

from tests.simulation.ha.planted import PLANTED, is_caught
from tests.simulation.ha.world import World


@pytest.mark.parametrize("seed", range(25))
def test_a_world_of_master_and_slaves(seed: int) -> None:
    World(seed).run()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_noticed(name: str) -> None:
    seed = PLANTED[name][3]
    assert is_caught(name, seed)
    World(seed).run()


def test_worlds_promote_cut_refuse_and_fence() -> None:
    """Else they would prove nothing."""
    acknowledged = 0
    kinds: set[str] = set()
    epochs = 0
    for seed in range(12):
        world = World(seed)
        world.run()
        acknowledged += len(world.acknowledged)
        kinds |= {kind for node in world.nodes for _at, kind, _text in node.notes}
        epochs = max(epochs, world.master.lineage.epoch)
    assert acknowledged > 500 and epochs >= 1 << 20
    assert kinds >= {"ha_connected", "ha_cut_back", "ha_refused", "ha_fenced"}
