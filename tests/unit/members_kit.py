"""A group whose members change by entries of the log, for the tests of SAFETY M1 to M7."""

from __future__ import annotations

import random
from collections.abc import Iterable

from node.consensus.api import MS, Appended, Outcome, Proposal, ReplicaConfig
from node.consensus.member_changes import ChangeOutcome, Kind, MemberChange
from node.consensus.replica import Replica
from node.protocol.codes import FlushMode
from node.store.memory_store import MemoryStore
from tests.scenarios.cluster import Cluster, SimNode
from tests.scenarios.invariants import Invariants

ADD, PROMOTE, REMOVE, ADDRESS = Kind.ADD, Kind.PROMOTE, Kind.REMOVE, Kind.ADDRESS


def address_of(member_id: str) -> str:
    return f"127.0.0.1:{20911 + int(member_id[1:])}"


class Group(Cluster):
    """`count` voters since birth, who follow n0; every step is held against the safety properties."""

    def __init__(self, count: int = 3, *, seed: int = 1, flush: FlushMode = FlushMode.SYNC, led: bool = True) -> None:
        self.births: dict[str, dict[str, str]] = {}  # whom later members were told of when they were started
        super().__init__(count, seed=seed, flush=flush)
        self.invariants = Invariants(self)
        self.on_event = self.invariants.event
        self.outcomes: list[ChangeOutcome] = []
        if led:
            self.dial()
            self.deliver_all()
            self.campaign("n0")
            self.run(300 * MS)
            assert self.leader() == "n0"

    def config_of(self, node_id: str) -> ReplicaConfig:
        """A member that comes later is told who was there when it joined, and that it is a learner."""
        born_with = self.births.get(node_id, self.peers)
        return ReplicaConfig("g", node_id, born_with, self.learners[node_id], flush=self.flush, timing=self.timing)

    def campaign(self, node_id: str) -> None:
        self.nodes[node_id].replica.elector.campaign(self.now)
        self.carry_out(node_id)
        self.deliver_all()

    def start(self, node_id: str, *, store: MemoryStore | None = None, beside: Iterable[str] | None = None) -> None:
        """A new member with an empty directory, started with --join beside these (all voters since birth)."""
        others = self.peers if beside is None else {one: address_of(one) for one in beside}
        self.births[node_id] = {one: at for one, at in others.items() if one != node_id}
        if node_id not in self.ids:
            self.ids.append(node_id)
        self.learners[node_id] = {node_id: address_of(node_id)}
        made = store or self.new_store(node_id, forming=False)
        self.nodes[node_id] = SimNode(self.config_of(node_id), made, random.Random(9), self.now)
        self.carry_out(node_id)

    def replica(self, node_id: str) -> Replica:
        return self.nodes[node_id].replica

    def change(self, node_id: str, change: MemberChange) -> ChangeOutcome | None:
        """Asks that member; its outcome, if there is one at once."""
        before = len(self.outcomes)
        self.replica(node_id).change_members(change, self.outcomes.append)
        self.carry_out(node_id)
        return self.outcomes[-1] if len(self.outcomes) > before else None

    def propose(self, node_id: str, body: bytes = b"x") -> int:
        """One append; its number."""
        number = self.invariants.proposed
        self.invariants.proposed += 1

        def done(outcome: Outcome) -> None:
            self.invariants.proposal(number, outcome)

        self.replica(node_id).propose_many([Proposal([body], done)], self.now)
        self.carry_out(node_id)
        return number

    def is_acknowledged(self, number: int) -> bool:
        outcome = self.invariants.outcomes.get(number)
        return outcome is not None and outcome.appended is Appended.YES

    def voters(self, node_id: str) -> list[str]:
        return sorted(self.replica(node_id).configuration.voters)

    def learners_of(self, node_id: str) -> list[str]:
        return sorted(self.replica(node_id).configuration.learners)

    def cut_off(self, node_id: str) -> None:
        """Nobody hears it, and it hears nobody."""
        for other in self.ids:
            if other != node_id:
                self.cut_links.add(frozenset((node_id, other)))
                self.drop_link(node_id, other)

    def heal(self) -> None:
        self.cut_links.clear()

    def run(self, duration_ns: int, step_ns: int = 10 * MS) -> None:
        end = self.now + duration_ns
        while self.now < end:
            super().run(step_ns, step_ns)
            self.invariants.check()
