"""A state that is lost behind a trimmed log: who may lose one, and what nobody else may lose meanwhile (SAFETY M6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.consensus.api import SECOND
from node.protocol.codes import VoterState
from node.store.retention import FILES_MAX, plan_by_hand
from tests.simulation.campaign import run_seed
from tests.simulation.lost_states import has_lost_state, lose_state
from tests.simulation.member import Member
from tests.simulation.swarm import CALM
from tests.simulation.world import World

ENTRIES = 60
TRIMMED = replace(CALM, appends=0.0, reads=0.0, applier=True, data_file_size=4096, body_bytes=400, left_behind=1.0)


def until(world: World, condition: Callable[[], bool]) -> None:
    bound = world.now + 20 * SECOND
    while not condition():
        assert world.now < bound, world.describe()
        world.step()


def append(world: World, entries: int) -> None:
    begin = len(world.history)
    for _ in range(entries):
        until(world, lambda: world.leader() is not None)
        leader = world.leader()
        assert leader is not None
        world.workload.append(leader, plain=True)
        until(world, lambda: not world.workload.open_count)
    assert len(world.history) == begin + entries


def trim(world: World, member: Member, upto: int = 0) -> None:
    machine, replica, store, process = member.state_machine, member.replica, member.store, member.process
    assert machine is not None and replica is not None and store is not None and process is not None
    until(world, lambda: machine.at == store.end_index)
    machine.save_now()
    through = store.end_index
    while store.begin_index <= upto:
        begin = store.begin_index
        plan = plan_by_hand(through, store.survey(FILES_MAX), replica.held.needs(), through, forced=True)
        process.jobs.remove_prefix(plan.through_index, forced=True)
        until(world, lambda begin=begin: store.begin_index > begin)


def away(member: Member) -> None:
    member.powered = False
    member.crash()


def back(member: Member) -> None:
    member.powered = True
    member.boot()


def made(*, trimmed: tuple[str, ...] = ("n0", "n1")) -> tuple[World, Member, Member, Member]:
    """n2 was away from the beginning: whatever there is, n0 and n1 hold it, and their logs begin behind it."""
    world = World(5, TRIMMED)
    n0, n1, n2 = (world.members[one] for one in world.ids)
    until(world, lambda: all(one.last_voter_state is VoterState.VOTER for one in (n0, n1, n2)))
    away(n2)
    append(world, ENTRIES)
    for one in trimmed:
        trim(world, world.members[one])
    back(n2)
    return world, n0, n1, n2


def test_who_lost_its_state_leans_on_another_one_until_it_has_one_again() -> None:
    world, n0, n1, n2 = made()
    nemesis = world.nemesis
    assert nemesis.may_forget(n0) and nemesis.may_lose_state(n1)
    assert lose_state(n1, [n0, n2]) and has_lost_state(n1)
    assert not nemesis.may_forget(n0), "what it held is nowhere else"
    assert not nemesis.may_lose_state(n0)
    assert nemesis.may_forget(n1) and nemesis.may_forget(n2)
    away(n1)
    assert has_lost_state(n1) and not nemesis.may_forget(n0), "whether it runs or not"
    back(n1)
    until(world, lambda: not has_lost_state(n1))
    assert nemesis.may_forget(n0) and nemesis.may_lose_state(n0)
    world.heal_and_settle()


def test_no_state_is_lost_that_only_a_member_without_a_vote_holds() -> None:
    """It cannot lead; and the leader that can has nothing for the empty member, whom it needs for a quorum."""
    world, n0, n1, n2 = made()
    n0.lost_memory = True
    assert not has_lost_state(n0)
    assert not world.nemesis.may_lose_state(n1)
    n0.lost_memory = False
    assert world.nemesis.may_lose_state(n1)
    assert n2.state_machine is not None and n2.state_machine.at < 0


def test_no_state_is_lost_that_the_others_cannot_follow_to() -> None:
    """An empty log, and one that ends before this one begins, bring nothing back."""
    world, n0, n1, n2 = made(trimmed=())
    until(world, lambda: n2.store is not None and n2.store.end_index >= 0)
    away(n0)
    append(world, 1)
    until(world, lambda: n2.state_machine is not None and n2.state_machine.at >= ENTRIES)
    away(n2)
    back(n0)
    append(world, ENTRIES)
    trim(world, n1, ENTRIES + 1)
    back(n2)
    away(n0)
    assert not world.nemesis.may_lose_state(n1), "n2 lacks what goes before"
    back(n0)
    assert world.nemesis.may_lose_state(n1), "n0 has it"


def test_who_alone_can_give_a_state_does_not_leave() -> None:
    """A member that leaves takes its state with it, also where nothing takes a member's memory."""
    swarm = replace(TRIMMED, membership=0.001, members=3)
    world = World(5, swarm)
    n0, n1, n2 = (world.members[one] for one in world.ids)
    until(world, lambda: all(one.last_voter_state is VoterState.VOTER for one in (n0, n1, n2)))
    away(n2)
    append(world, ENTRIES)
    trim(world, n0)
    trim(world, n1)
    assert n0.replica is not None
    now = n0.replica.configuration
    assert world.operator.may_leave("n0", now)
    assert lose_state(n1, [n0])
    assert not world.operator.may_leave("n0", now)
    assert world.operator.may_leave("n1", now) and world.operator.may_leave("n2", now)


@pytest.mark.parametrize(
    ("seed", "steps", "without"),
    [(700610, 1574, ("preferred_leader", "unnamed", "reorder", "reads", "expected_index")), (2553015, 2000, ())],
)
def test_groups_that_lost_a_state_settle(seed: int, steps: int, without: tuple[str, ...]) -> None:
    """A state was lost while its only other holder was joining again; the only other holder was wiped."""
    result = run_seed(seed, steps, {name: getattr(CALM, name) for name in without})
    assert result.violation is None
