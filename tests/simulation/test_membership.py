"""Members change in worlds with faults: every promise holds, and everything that can come of a change comes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.campaign import run_seed
from tests.simulation.coverage import OF_MEMBERS, total
from tests.simulation.invariants import checks
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

CHANGING: dict[str, Any] = {"membership": 10.0, "appends": 15.0, "reads": 5.0, "lease_reads": False}
SEEDS = tuple(dict.fromkeys((6, 41, 11, 32, *range(60))))  # the first four are enough, as long as the core is as it is


def test_the_fixed_seeds_meet_all_that_can_come_of_a_change() -> None:
    counts: dict[str, int] = {}
    for seed in SEEDS:
        result = run_seed(seed, overrides=CHANGING)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts = total((counts, result.coverage))
        if all(counts.get(name) for name in OF_MEMBERS):
            break
    assert [name for name in OF_MEMBERS if not counts.get(name)] == []


@pytest.mark.parametrize("seed", [7])
def test_a_group_may_have_none_left_of_those_it_was_born_with_and_answers(seed: int) -> None:
    """`heal_and_settle` reads and appends at everybody who belongs to the group then."""
    world = World.from_seed(seed, observers=checks(), **CHANGING)
    world.run(2000)
    world.heal_and_settle()
    leader = world.leader()
    assert leader is not None and leader.replica is not None
    configuration = leader.replica.configuration
    assert configuration.index >= 0 and configuration.index <= leader.replica.committed_index
    assert {one.id for one in world.present()} == configuration.members.keys()
    assert set(world.operator.group()) == configuration.members.keys()


def test_worlds_whose_members_change_keep_what_a_removed_one_may_hold_alone() -> None:
    swarm = Swarm.from_seed(1, membership=4.0, members=7, rot=1.0, learner=1.0, trim=1.0)
    assert (swarm.members, swarm.rot, swarm.learner, swarm.trim) == (5, 0.0, 0.0, 0.0)


def test_worlds_whose_members_stay_have_no_machine_more() -> None:
    world = World.from_seed(3, membership=0.0)
    assert world.machine_ids == world.ids and world.spare_ids == ()
    assert world.operator.group() == list(world.ids) and world.operator.is_content()
