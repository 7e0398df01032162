"""Whom a removal from a log's front leaves behind: those of whom its remover, or its leader, had been told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.consensus.api import SECOND
from node.protocol.codes import VoterState
from tests.simulation.invariants import checks
from tests.simulation.member import Member
from tests.simulation.observer import Observer, Removal, Violation
from tests.simulation.swarm import CALM
from tests.simulation.world import World

FILES = 4  # of a log's front, at least
SELDOM = 1e-6  # often enough for a learner to be there, too seldom for a fault to happen
LONE_STEPS = 243
LONE_SEED = 2552893
LEFT_OUT = ("recheck_bytes", "partition_ms", "down_ms", "reads")


class Removals(Observer):
    """How many went well."""

    def __init__(self) -> None:
        self.done = 0

    def trimmed(self, member: Member, begin_before: int, removal: Removal) -> None:
        assert member.store is not None
        self.done += member.store.begin_index == removal.through_index + 1


class Group:
    """Three members of a calm world, with a log of several files that all of them hold; l0 stands by, empty."""

    def __init__(self) -> None:
        self.removals = Removals()
        config = replace(CALM, learner=SELDOM, appends=200.0, reads=0.0, body_bytes=400, data_file_size=4096)
        self.world = World(5, config, [*checks(), self.removals])
        members = [self.world.members[one] for one in self.world.ids]
        self.learner = self.world.members["l0"]
        self.world.start()
        self.learner.join()  # before there is an entry: it is a VOTER at once, and nobody doubts what it says
        self.until(lambda: self.learner.last_voter_state is VoterState.VOTER)
        self.turn_off()  # whoever is told of it can give it nothing
        self.until(lambda: all(len(files_of(one)) > FILES for one in members))
        self.world.workload.running = False
        leader = self.world.leader()
        assert leader is not None
        self.leader, self.follower = leader, next(one for one in members if one is not leader)
        self.until(lambda: all(len(set(held)) == 1 for held in zip(*map(held_by, members), strict=True)))

    def until(self, condition: Callable[[], bool]) -> None:
        bound = self.world.now + 20 * SECOND
        while not condition():
            assert self.world.now < bound, self.world.describe()
            self.world.step()

    def turn_off(self) -> None:
        self.learner.powered = False
        self.learner.crash()

    def tell(self, member: Member) -> None:
        member.tell_of_learner(self.learner)
        self.world.step()

    def hear(self) -> None:
        """Whoever follows has had another heartbeat."""
        until = self.world.now + 2 * self.leader.config.timing.heartbeat_ns
        self.until(lambda: self.world.now > until)

    def remove(self, member: Member) -> None:
        """Its first file, whatever it knows of who needs it."""
        assert member.process is not None
        before = self.removals.done
        member.process.jobs.remove_prefix(files_of(member)[0], forced=False)
        self.until(lambda: self.removals.done > before)


def files_of(member: Member) -> list[int]:
    """The last entries of its files but the newest one."""
    return [] if member.store is None else [one.last_index for one in member.store.survey(10).files]


def held_by(member: Member) -> tuple[int, ...]:
    assert member.store is not None and member.replica is not None
    return member.store.end_index, member.store.durable_index, member.replica.committed_index


def test_nobody_keeps_entries_for_a_learner_that_no_leader_has_been_told_of() -> None:
    group = Group()
    group.remove(group.leader)
    group.remove(group.follower)
    assert group.removals.done == 2


def test_a_leader_keeps_what_a_learner_lacks_from_the_moment_it_is_told_of_it() -> None:
    group = Group()
    group.tell(group.leader)
    with pytest.raises(Violation, match=r"needed_entries_kept.*l0 has -1"):
        group.remove(group.leader)


def test_a_follower_keeps_what_a_learner_lacks_of_whom_its_leader_knew_at_its_last_heartbeat() -> None:
    group = Group()
    group.tell(group.leader)
    group.remove(group.follower)  # no heartbeat has come since: it goes by what held before
    group.hear()
    with pytest.raises(Violation, match=r"needed_entries_kept.*l0 has -1"):
        group.remove(group.follower)


def test_a_follower_that_knows_of_a_learner_goes_by_a_leader_that_does_not() -> None:
    group = Group()
    group.tell(group.follower)
    group.remove(group.follower)
    assert group.removals.done == 1


def test_a_removal_is_judged_by_whom_it_was_decided_for() -> None:
    group = Group()
    process = group.leader.process
    assert process is not None
    process.jobs.remove_prefix(files_of(group.leader)[0], forced=False)
    group.leader.tell_of_learner(group.learner)  # its writer has not begun
    group.until(lambda: group.removals.done == 1)


def test_what_a_learner_has_begun_behind_is_not_missed_while_it_is_down() -> None:
    group = Group()
    for _ in range(2):
        group.remove(group.leader)
    for member in (group.leader, group.follower):
        group.tell(member)
    group.learner.power_on()
    store = group.leader.store
    assert store is not None
    group.until(lambda: group.learner.store is not None and group.learner.store.durable_index == store.end_index)
    assert group.learner.store is not None and group.learner.store.begin_index == store.begin_index
    group.turn_off()
    group.hear()
    group.remove(group.follower)  # what lies before: it is in no log of the learner's
    assert group.removals.done == 3


def test_the_seed_whose_leader_was_told_later_is_clean() -> None:
    overrides = {name: getattr(CALM, name) for name in LEFT_OUT}
    world = World.from_seed(LONE_SEED, observers=checks(), **overrides)
    world.run(LONE_STEPS)
    assert world.members["l0"].joined and "l0" not in world.members["n2"].config.learners
