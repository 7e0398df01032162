"""A change of the members is cut short at any message of it: somebody dies, or two lose their connection (SAFETY M).

The step is drawn: the n-th message that arrives after the change was asked for. Whoever leads afterwards is asked again
where the change is not there; nothing acknowledged is lost, no two lead (the kit's invariants look at every step), and
nothing of the first try is in the way.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.consensus.api import MS
from node.consensus.member_changes import MemberChange
from node.protocol.codes import ResponseCode
from tests.scenarios.cluster import Packet
from tests.unit.members_kit import ADD, ADDRESS, REMOVE, Group, address_of

MOVED = "127.0.0.1:30000"
Fault = Callable[["CutShort"], None]
CHANGES = {
    "add": (MemberChange(ADD, "n3", address_of("n3")), ["n0", "n1", "n2", "n3"]),
    "replace": (MemberChange(ADD, "n3", address_of("n3"), replaces="n1"), ["n0", "n2", "n3"]),
    "remove": (MemberChange(REMOVE, "n2"), ["n0", "n1"]),
    "remove the leader": (MemberChange(REMOVE, "n0"), ["n1", "n2"]),
    "address": (MemberChange(ADDRESS, "n1", MOVED), ["n0", "n1", "n2"]),
}
ENDS = ["n0 dies", "n1 dies", "n3 dies", "n0 and n1 part", "n0 and n3 part"]
CUTS = [
    (name, ends)
    for name, (change, _) in CHANGES.items()
    for ends in ENDS
    if change.member_id in ends or "n3" not in ends
]
STRIDE = 5


class CutShort(Group):
    """`ends` happens instead of the n-th message."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.ends = ""
        super().__init__()

    def deliver(self, packet: Packet) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.fail()
        super().deliver(packet)

    def fail(self) -> None:
        one, *other = [word for word in self.ends.split() if word in self.nodes]
        if other:
            self.cut_links.add(frozenset((one, other[0])))
            self.drop_link(one, other[0])
        elif self.nodes[one].up:
            self.crash(one)


def is_made(group: Group, change: MemberChange, voters: list[str]) -> bool:
    leader = group.leader()
    if leader is None:
        return False
    known = group.replica(leader).configuration
    moved = change.kind is not ADDRESS or known.voters.get(change.member_id) == MOVED
    committed = known.index <= group.replica(leader).committed_index
    return sorted(known.voters) == voters and not known.learners and moved and committed


def ask_again(group: Group, change: MemberChange) -> None:
    """As an operator does who does not know what became of it."""
    leader = group.leader()
    if leader is None:
        return
    before = len(group.outcomes)
    group.change(leader, change)
    group.run(200 * MS)
    for outcome in group.outcomes[before:]:
        assert outcome.code is ResponseCode.SUCCESS or outcome.detail, outcome


@pytest.mark.parametrize(("name", "ends"), CUTS)
def test_what_is_cut_short_can_be_asked_again(name: str, ends: str) -> None:
    change, voters = CHANGES[name]
    comes = change.member_id == "n3"
    at, is_over = 1 + sum(map(ord, name + ends)) % STRIDE, False
    while not is_over:
        group = CutShort()
        sure = [group.propose("n0") for _ in range(3)]
        group.run(50 * MS)
        if comes:
            group.start("n3")
        group.ends, group.left = ends, at
        group.change("n0", change)
        group.run(300 * MS)
        is_over = group.left > 0
        group.left = None
        group.run(1500 * MS)
        for one, node in group.nodes.items():
            if not node.up:
                group.restart(one)
        group.heal()
        for _ in range(8):
            group.run(1000 * MS)
            if is_made(group, change, voters):
                break
            ask_again(group, change)
        assert is_made(group, change, voters), (at, group.outcomes[-3:])
        leader = group.leader()
        assert leader is not None
        number = group.propose(leader)
        group.run(300 * MS)
        assert all(map(group.is_acknowledged, [*sure, number])), at
        group.invariants.finish()
        at += STRIDE
    assert at > 3 * STRIDE
