"""Members change in worlds with faults: every promise holds, and everything that can come of a change comes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.campaign import run_seed
from tests.simulation.coverage import OF_MEMBERS, total
from tests.simulation.invariants import checks
from tests.simulation.swarm import DAMAGE, Swarm
from tests.simulation.world import World

CHANGING: dict[str, Any] = {"membership": 10.0, "appends": 15.0, "reads": 5.0, "lease_reads": False}
ALONE: dict[str, Any] = {"trim": 0.0, "retune": 0.0}
SEEDS = tuple(dict.fromkeys((6, 41, 11, 32, *range(60))))  # the first four are enough, as long as the core is as it is


def test_the_fixed_seeds_meet_all_that_can_come_of_a_change() -> None:
    counts: dict[str, int] = {}
    for seed in SEEDS:
        result = run_seed(seed, overrides=CHANGING | ALONE)
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
    swarm = Swarm.from_seed(1, membership=4.0, members=7, rot=1.0, learner=1.0, trim=1.0, applier=True)
    assert (swarm.members, swarm.rot, swarm.learner) == (5, 0.0, 0.0) and swarm.applier
    assert swarm.trim == 1.0, "also beside state machines: a snapshot brings what a log holds no more"


@pytest.mark.parametrize(
    ("more", "met"),
    [
        ({"trim": 10.0, "data_file_size": 4096, "body_bytes": 400, "appends": 60.0}, ("trim.removed", "base.begun")),
        ({"retune": 8.0}, ("fault.retune",)),
    ],
)
def test_fronts_go_and_settings_change_while_members_do(more: dict[str, Any], met: tuple[str, ...]) -> None:
    """Who joins behind a trimmed front goes by the members that its base names, and all agree on settings at last."""
    wanted, counts = (*met, "fault.membership"), dict[str, int]()
    without = {**dict.fromkeys(DAMAGE, 0.0), "applier": False}  # else no front goes
    for seed in SEEDS:
        result = run_seed(seed, overrides={**CHANGING, **without, **more})
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts = total((counts, result.coverage))
        if all(counts.get(name) for name in wanted):
            break
    assert [name for name in wanted if not counts.get(name)] == []


FRONTS: dict[str, Any] = {
    "membership": 4.0, "trim": 10.0, "data_file_size": 4096, "body_bytes": 400, "applier": False, "lost_tail": 0.0,
    "lost_checkpoint": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "steps", "more"),
    [
        (7134, 1100, FRONTS),  # the disk of a member of another group was emptied, its record is still that one's
        (7005, 700, FRONTS),  # the first change is under way, and four voters' entry is on a quorum of the three to be
        (5041, 2000, {"membership": 4.0, "retune": 8.0}),  # under async, no member is left alone with what it has
    ],
)
def test_what_looked_like_a_broken_promise_and_was_none(seed: int, steps: int, more: dict[str, Any]) -> None:
    assert run_seed(seed, steps, overrides=more).violation is None


def test_an_announced_change_that_never_came_counts_nowhere_once_its_place_was_removed() -> None:
    """n0 wrote a removal down, the entry never came; it trimmed its log beyond that place, and started anew."""
    assert run_seed(630605584, 700).violation is None


def test_worlds_whose_members_stay_have_no_machine_more() -> None:
    world = World.from_seed(3, membership=0.0)
    assert world.machine_ids == world.ids and world.spare_ids == ()
    assert world.operator.group() == list(world.ids) and world.operator.is_content()
