"""Members change at random beside crashes, cuts of links and lost syncs; a fixed seed is one run (SAFETY M1 to M7)."""

from __future__ import annotations

import random

import pytest

from node.consensus.api import MS, Appended
from node.consensus.member_changes import Kind, MemberChange
from node.protocol.codes import VoterState
from tests.unit.members_kit import Group, address_of

STEPS = 150
IDS = ("n0", "n1", "n2", "n3", "n4")


class Chaos:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"members {seed}")
        self.group = Group(self.rng.choice((1, 3, 3)), seed=seed, led=False)
        self.changed = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self.group.invariants.check()
        self._settle()

    def _step(self) -> None:
        group, rng = self.group, self.rng
        group.run(rng.choice((10, 20, 50, 200, 600)) * MS)
        leaders = [one for one in group.ids if group.nodes[one].up and group.replica(one).leadership is not None]
        dice = rng.random()
        if dice < 0.35 and leaders:
            group.propose(rng.choice(leaders), b"%d" % rng.randrange(1000))
        elif dice < 0.6 and leaders:
            self._change(rng.choice(leaders))
        elif dice < 0.66:
            self._crash(rng.choice(group.ids))
        elif dice < 0.8:
            down = [one for one in group.ids if not group.nodes[one].up]
            if down:
                group.restart(rng.choice(down))
        elif dice < 0.85:
            group.cut_off(rng.choice(group.ids))
        else:
            group.heal()

    def _crash(self, node_id: str) -> None:
        if self.group.nodes[node_id].up:
            self.group.crash(node_id)

    def _change(self, leader: str) -> None:
        group, rng = self.group, self.rng
        configuration = group.replica(leader).configuration
        outside = [one for one in IDS if one not in configuration.members]
        kind = rng.choice((Kind.ADD, Kind.ADD, Kind.REMOVE, Kind.PROMOTE, Kind.ADDRESS))
        if kind is Kind.ADD and outside:
            new = rng.choice(outside)
            replaces = rng.choice(sorted(configuration.voters)) if rng.random() < 0.4 else ""
            change = MemberChange(kind, new, address_of(new), rng.random() < 0.8, replaces)
            self._fresh(new, leader)
        elif kind is Kind.PROMOTE and configuration.learners:
            change = MemberChange(kind, rng.choice(sorted(configuration.learners)))
        elif kind is Kind.ADDRESS:
            elsewhere = f"127.0.0.1:{rng.randrange(30000, 40000)}"
            change = MemberChange(kind, rng.choice(sorted(configuration.members)), elsewhere)
        else:
            change = MemberChange(Kind.REMOVE, rng.choice(sorted(configuration.members)))
        before = group.replica(leader).configuration.index
        group.change(leader, change)
        self.changed += group.replica(leader).configuration.index != before

    def _fresh(self, new: str, leader: str) -> None:
        """An operator gives a new member an empty directory; one that some log still knows keeps what it has."""
        group = self.group
        known = any(new in node.replica.configuration.members for one, node in group.nodes.items() if one != new)
        if known:
            return
        if new in group.nodes and group.nodes[new].up:
            group.crash(new)
        group.start(new, beside=group.replica(leader).configuration.voters)

    def _settle(self) -> None:
        """Everything is mended: one configuration at all its members, and what was acknowledged is there."""
        group = self.group
        group.heal()
        for one in group.ids:
            if not group.nodes[one].up:
                group.restart(one)
        for _ in range(100):
            group.run(200 * MS)
            leader = group.leader()
            if leader is not None and self._is_whole(leader):
                break
        else:
            raise AssertionError(self.describe())
        seen = group.invariants
        assert seen.acknowledged <= seen.committed_index
        for outcome in seen.outcomes.values():
            assert outcome.appended is not Appended.YES or seen.committed[outcome.last_index][0] == outcome.term

    def _is_whole(self, leader: str) -> bool:
        group = self.group
        configuration = group.replica(leader).configuration
        named = configuration.named
        if leader not in configuration.voters or named.to_leave() is not None:
            return False
        number = group.propose(leader)
        group.run(100 * MS)
        voters = [group.replica(one) for one in configuration.voters]
        alike = all(one.configuration == configuration for one in voters)
        return group.is_acknowledged(number) and alike and configuration.index <= group.replica(leader).committed_index

    def describe(self) -> str:
        group = self.group
        lines = []
        for one in group.ids:
            replica = group.replica(one)
            member = replica.member
            lines.append(
                f"{one} {replica.role} term {replica.term} leader {replica.leader_id} {member.voter_state}"
                f" end {group.nodes[one].store.end_index} committed {replica.committed_index}"
                f" {replica.configuration} at {replica.configuration.index}"
                f" connected {sorted(group.nodes[one].connected)}"
                f" guests {sorted(member.configurations.guests)} alarms {[a.text for a in member.alarms.values()]}"
            )
        return "\n".join(lines)


@pytest.mark.parametrize("seed", (0, 1, 2, 3, 4, 6, 20, 45))
def test_members_change_in_the_middle_of_faults_and_nothing_is_lost(seed: int) -> None:
    chaos = Chaos(seed)
    chaos.run()
    assert chaos.changed, "this seed changes nothing"
    states = [one.store.hard_state.voter_state for one in chaos.group.nodes.values()]
    assert VoterState.VOTER in states
