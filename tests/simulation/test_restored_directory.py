"""The measured loss, replayed: an older copy of a directory is put back, the others change places (SAFETY E8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.consensus.api import SECOND
from node.protocol.codes import VoterState
from tests.simulation.member import Member
from tests.simulation.mutants import MUTANTS
from tests.simulation.swarm import CALM
from tests.simulation.world import World

ENTRIES = 50


def until(world: World, condition: object) -> None:
    bound = world.now + 20 * SECOND
    while not condition():  # type: ignore[operator]
        assert world.now < bound, world.describe()
        world.step()


def settled(world: World) -> bool:
    """A leader, and everybody a voter with all of its log committed."""
    leader = world.leader()
    if leader is None or leader.store is None:
        return False
    return all(
        one.replica is not None
        and one.replica.member.voter_state is VoterState.VOTER
        and one.replica.committed_index == leader.store.end_index
        for one in world.members.values()
    )


def play() -> tuple[World, Member, int, int]:
    """n0 is stopped and copied; it lives on and takes 50 entries that n2 misses; the copy comes back, and n1 goes.

    Gives the world, n0, the index of the last acknowledged entry, and how many entries n0's copy lacks of them.
    """
    world = World(11, replace(CALM, appends=0.0, reads=0.0))
    n0, n1, n2 = (world.members[one] for one in world.ids)
    until(world, lambda: settled(world))
    n0.crash()
    copy = n0.platform.copy_of(n0.directory)
    until(world, lambda: n0.up and settled(world))  # a new life, which both others have on record
    n2.powered = False
    n2.crash()
    until(world, lambda: world.leader() in (n0, n1))
    while n1.store is None or n1.store.durable_index < ENTRIES:
        leader = world.leader()
        if leader is not None:
            world.workload.append(leader, plain=True)
        world.step()
    until(world, lambda: n0.store is not None and n0.store.durable_index >= ENTRIES)
    acknowledged = ENTRIES
    n0.powered = False
    n0.crash()
    n1.powered = False
    n1.crash()
    n0.powered = n2.powered = True
    n0.put_back(copy)
    assert n0.store is not None
    lacks = acknowledged - n0.store.end_index
    n2.boot()
    for _ in range(4_000):
        world.step()
    return world, n0, acknowledged, lacks


def test_the_copy_finds_out_and_waits_for_who_holds_the_entries() -> None:
    world, n0, acknowledged, lacks = play()
    assert lacks > ENTRIES // 2
    assert n0.replica is not None and n0.replica.member.voter_state is VoterState.REJOINING
    assert world.leader() is None, "n2 alone is no quorum, and n0 does not vote"
    n1 = world.members[world.ids[1]]
    n1.powered = True
    n1.boot()
    until(world, lambda: settled(world))
    for member in world.members.values():
        assert member.store is not None and member.store.end_index > acknowledged


@pytest.mark.parametrize("name", ["restored_life_ignored"])
def test_without_the_rule_the_acknowledged_entries_are_gone(name: str) -> None:
    with MUTANTS[name].plant():
        world, _n0, acknowledged, _lacks = play()
        leader = world.leader()
        assert leader is not None and leader.store is not None
        assert leader.store.end_index < acknowledged
