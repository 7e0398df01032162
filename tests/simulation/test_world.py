"""The simulated world itself: runs end calm, faults do happen, and a process that ended stays silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.consensus.api import MS, SECOND
from node.consensus.effects import Event
from node.protocol.codes import ResponseCode, Role
from node.protocol.entry import HEAD_DTYPE
from node.protocol.messages import Message, PushResponse
from node.store.disk_log import find_record
from node.store.errors import ColdEntry, StoreCorrupt
from tests.simulation.clock import MemberClock
from tests.simulation.invariants import checks
from tests.simulation.invariants_log import Logs
from tests.simulation.member import Member
from tests.simulation.observer import Observer, Violation
from tests.simulation.swarm import CALM, FAULTS, Swarm, fenced
from tests.simulation.world import World

STEPS = 1500
CHAIN_AT = HEAD_DTYPE.fields["chain_crc"][1]  # type: ignore[index]


class Counts(Observer):
    """How often each thing happened."""

    def __init__(self) -> None:
        self.faults: dict[str, int] = {}
        self.events: dict[str, int] = {}
        self.boots = 0
        self.crashes: dict[str, int] = {}
        self.steps = 0

    def stepped(self, world: World) -> None:
        self.steps += 1

    def booted(self, member: Member) -> None:
        self.boots += 1

    def crashed(self, member: Member, how: str) -> None:
        self.crashes[how] = self.crashes.get(how, 0) + 1

    def event(self, member: Member, event: Event) -> None:
        self.events[event.kind] = self.events.get(event.kind, 0) + 1

    def fault(self, kind: str, detail: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1


def run(seed: int, steps: int = STEPS, **overrides: Any) -> tuple[World, Counts]:
    counts = Counts()
    world = World.from_seed(seed, observers=[counts], **overrides)
    world.run(steps)
    world.heal_and_settle()
    return world, counts


def calm(**overrides: Any) -> dict[str, Any]:
    """A swarm without faults but these."""
    return CALM.as_json() | overrides


def test_a_quiet_world_elects_once_and_answers_everything() -> None:
    world, counts = run(1, 2 * STEPS, **calm())
    leader = world.leader()
    assert leader is not None
    assert counts.faults == {}
    assert counts.crashes == {}
    assert counts.boots == 3
    results = [one.result for one in world.history]
    assert results.count("ok") > 0.8 * len(results)
    assert world.history.open_count == 0
    assert world.history.acknowledged_index > 20


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_every_seed_becomes_calm_again(first: int) -> None:
    for seed in range(first, first + 10):
        world, _ = run(seed)
        assert world.calm()
        assert world.history.open_count == 0


# The name of a swarm field, and a rate at which it must show within one run.
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("drop", 0.1, "drop"), ("duplicate", 0.1, "duplicate"), ("reorder", 0.2, "reorder"), ("reset", 5.0, "reset"),
        ("slow_link", 5.0, "slow_link"), ("partition", 5.0, "partition"), ("asymmetric", 5.0, "asymmetric"),
        ("bridge", 5.0, "bridge"), ("ring", 5.0, "ring"), ("isolate_leader", 5.0, "isolate_leader"),
        ("clock_jump", 5.0, "clock_jump"), ("pause", 5.0, "pause"), ("stop", 5.0, "stop"), ("crash", 5.0, "crash"),
        ("crash_at_io", 5.0, "crash_at_io"), ("power_loss", 5.0, "power_loss"), ("fsync_error", 5.0, "fsync_error"),
        ("enospc", 5.0, "enospc"), ("rot", 5.0, "rot"), ("misdirected_write", 5.0, "misdirected_write"),
        ("lost_write", 5.0, "lost_write"),
        ("lost_tail", 5.0, "lost_tail"), ("lost_checkpoint", 5.0, "lost_checkpoint"), ("wipe", 5.0, "wipe"),
        ("lost_file", 20.0, "lost_file"),
    ],
)  # fmt: skip
def test_each_fault_happens_and_the_group_gets_over_it(name: str, value: float, kind: str) -> None:
    _, counts = run(7, **calm(members=5, **{name: value}))
    assert counts.faults.get(kind, 0) > 0


def test_with_async_flush_power_is_lost_by_few_enough_at_once() -> None:
    world, counts = run(3, 4000, **calm(flush_sync=False, power_loss=8.0))
    assert counts.faults["power_loss"] > 3
    assert counts.crashes["power_loss"] > 3
    assert counts.events["voter_state"] > 3  # rejoined, each time
    assert world.calm()


def test_processes_die_at_io_boundaries_and_of_store_errors() -> None:
    _, counts = run(5, 4000, **calm(crash_at_io=10.0, fsync_error=6.0))
    assert counts.crashes["io_boundary"] > 3
    assert counts.crashes["store_error"] > 3


def test_a_crashed_process_is_never_entered_again() -> None:
    class Living(Observer):
        """Messages reach processes that run, and effects come from them."""

        def delivered(self, sender: str, to: str, message: Message) -> None:
            assert world.members[to].up

        def stepped(self, world: World) -> None:
            for member in world.members.values():
                assert member.process is None or member.process.alive
                assert (member.replica is None) == (member.process is None)

    world = World.from_seed(11, observers=[Living()], **calm(crash=20.0, pause=10.0, power_loss=5.0))
    world.run(STEPS)
    world.heal_and_settle()


def test_what_a_pause_held_back_arrives_at_once() -> None:
    world = World.from_seed(2, **calm())
    world.run(800)
    leader = world.leader()
    assert leader is not None
    process = leader.process
    assert process is not None
    process.paused = True
    before = process.store.end_index
    world.run(300)
    assert process.store.end_index == before
    assert process._backlog
    assert world.leader() is not leader  # another one was elected meanwhile, in a higher term
    process.resume()
    assert not process._backlog
    world.heal_and_settle()


def test_who_stands_still_when_another_stall_begins_does_so_until_both_are_over() -> None:
    """Else it went on alone, while those who had gone on before stood still again: not one stall of all of them."""
    world = World.from_seed(2, **calm())
    world.run(800)
    process = world.members["n0"].process
    assert process is not None
    began = world.now
    world.nemesis._stand_still(process, 10 * MS)
    world.nemesis._stand_still(process, 50 * MS)
    while process.paused:
        world.run(1)
    assert world.now - began >= 50 * MS
    world.nemesis._stand_still(process, 10 * MS)
    while process.paused:
        world.run(1)
    world.heal_and_settle()


def test_a_leader_that_stood_still_for_longer_than_any_silence_may_last_steps_down_in_peace() -> None:
    """By the clock it must (E6), though everybody stood still alike: no violation of `stall_keeps_leader`."""
    world = World.from_seed(2, observers=checks(), **calm())
    world.run(800)
    leader = world.leader()
    assert leader is not None and leader.replica is not None
    still_ns = leader.replica.config.timing.quorum_silence_max_ns + 10 * MS
    for member in world.members.values():
        assert member.process is not None
        world.nemesis._stand_still(member.process, still_ns)
    until = world.now + still_ns + SECOND
    while world.now < until:
        world.run(1)
    assert leader.replica.term > 1 or leader.replica.role is not Role.LEADER
    world.heal_and_settle()


def test_what_was_verified_is_compared_with_what_the_leader_wrote_whatever_rots_there() -> None:
    """A look at the head of a cold entry meets what rotted there: a true answer was a violation."""
    world = World.from_seed(3, observers=(observers := checks()), **calm(ring_bytes=512))
    world.run(1200)
    logs = next(one for one in observers if isinstance(one, Logs))
    leader = world.leader()
    assert leader is not None and leader.store is not None and leader.replica is not None
    store, damage = leader.store, leader.damage
    index = store.begin_index + 2
    with pytest.raises(ColdEntry):
        store.meta_at_hand(index)
    unit, _ = find_record(store.files.data, store.files.index, index)
    segment = store.files.data.find(unit.pos)
    assert segment is not None
    damage.flip(segment.path, unit.pos - segment.start + CHAIN_AT, 1, index)
    with pytest.raises(StoreCorrupt):
        store.meta(index)
    follower = next(one for one in world.present() if one is not leader)
    answer = PushResponse(-1, ResponseCode.SUCCESS, 0, leader.replica.term, index, index, index)
    logs._claims(follower, leader.id, answer)
    held = logs._mirrors.of[leader.id].at(index)
    assert held is not None
    logs._mirrors.of[leader.id].entries[index] = replace(held, chain=7)
    with pytest.raises(Violation, match="verified_matches_leader"):
        logs._claims(follower, leader.id, answer)


def test_a_group_that_cannot_settle_is_a_violation() -> None:
    world = World.from_seed(1, **calm())
    world.run(500)
    world.network.heal = lambda: None  # type: ignore[method-assign]  # the partition stays
    world.network.block(
        [("n0", "n1"), ("n1", "n0"), ("n1", "n2"), ("n2", "n1"), ("n0", "n2"), ("n2", "n0")], hold=False
    )
    with pytest.raises(Violation, match="liveness"):
        world.heal_and_settle()


def test_lease_reads_are_fenced_off_from_broken_clocks() -> None:
    swarm = fenced(Swarm(lease_reads=True, clock_jump=2.0, clock_drift=0.1))
    assert swarm.clock_jump == 0.0
    assert swarm.clock_drift <= 0.02
    assert fenced(Swarm(clock_jump=2.0)).clock_jump == 2.0


def test_swarms_differ_and_every_fault_is_enabled_by_some_seed() -> None:
    swarms = [Swarm.from_seed(seed) for seed in range(200)]
    assert {swarm.members for swarm in swarms} == {3, 4, 5, 6, 7}
    for name, _, _ in FAULTS:
        values = [getattr(swarm, name) for swarm in swarms]
        assert any(values), name
        assert not all(values), name
    assert Swarm(**swarms[0].as_json()) == swarms[0]


def test_a_clock_never_goes_back_and_says_when_it_will_show_a_moment() -> None:
    true = [0]
    clock = MemberClock(lambda: true[0], 500, -30_000)
    seen = clock.now()
    for at in range(0, 10_000_000, 333_333):
        true[0] = at
        assert clock.now() >= seen
        seen = clock.now()
        due = clock.true_at(seen + 12_345)
        true[0] = due
        assert clock.now() >= seen + 12_345
        true[0] = at
    clock.jump(1000)
    assert clock.now() == seen + 1000
