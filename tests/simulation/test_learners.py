"""A learner joins and leaves at run time, in worlds with faults: each member is told at its own moment (M4)."""

from __future__ import annotations

import pytest

from node.consensus.api import SECOND
from node.protocol.codes import Role
from tests.simulation.invariants import checks
from tests.simulation.observer import Observer
from tests.simulation.world import World

ROUNDS_MAX = 20


class Comings(Observer):
    """How often a learner came, went and had caught up."""

    def __init__(self) -> None:
        self.joined = self.left = self.caught_up = 0

    def fault(self, kind: str, detail: str) -> None:
        self.joined += kind == "learner" and detail.endswith("joins")
        self.left += kind == "learner" and detail.endswith("leaves")

    def stepped(self, world: World) -> None:
        leader = world.leader()
        for peer in leader.replica.peers.of.values() if leader is not None and leader.replica is not None else ():
            self.caught_up += not peer.is_voter and peer.match_index >= 0
            assert peer.is_voter or not peer.counts


@pytest.mark.parametrize("seed", range(4))
def test_a_learner_comes_and_goes_and_nobody_is_the_worse_for_it(seed: int) -> None:
    comings = Comings()
    world = World.from_seed(seed, observers=[*checks(), comings], learner=4.0, membership=0.0)
    for _ in range(ROUNDS_MAX):
        world.run(1000)
        if comings.joined and comings.left and comings.caught_up:
            break
    else:
        raise AssertionError(f"in {world.now / SECOND:.1f} s: {vars(comings)}")
    world.heal_and_settle()
    for learner in (world.members[one] for one in world.learner_ids):
        for voter in (world.members[one] for one in world.ids):
            assert voter.replica is not None
            assert (learner.id in voter.replica.configuration.learners) is learner.joined
        assert learner.replica is None or learner.replica.role is not Role.LEADER
