"""What clients want appended: in order, merged, and no more in one turn than a turn takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from node.consensus.api import Appended, Outcome, Proposal
from node.engine.proposals import TURN_BYTES, Done, Proposals
from node.protocol.codes import ResponseCode


class Core:
    leader_id = "n0"

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.refuses: set[bytes] = set()
        self.outcome = Appended.NOT_APPENDED  # of those

    def propose_many(self, proposals: Sequence[Proposal], now: int) -> None:
        self.batches.append([bytes(proposal.bodies[0][:1]) for proposal in proposals])
        for proposal in proposals:
            refused = bytes(proposal.bodies[0][:1]) in self.refuses
            appended = self.outcome if refused else Appended.YES
            proposal.on_done(Outcome(ResponseCode.SUCCESS, 0, 0, 1, appended))


class Client:
    def __init__(self) -> None:
        self.order_broken = False
        self.outcomes: list[Outcome] = []

    def proposal(self, body: bytes) -> Proposal:
        return Proposal([body], self.outcomes.append)


def deliver(done: Done) -> None:
    for tell, outcome in done:
        tell(outcome)


def test_a_turn_takes_what_is_there_and_leaves_what_is_too_much_for_the_next() -> None:
    core, client, done = Core(), Client(), Done()
    proposals = Proposals(core, done)
    half = bytes(TURN_BYTES // 2)
    for name in (b"a", b"b", b"c", b"d"):
        proposals.add(client, client.proposal(name + half), ordered=False)
    proposals.add(client, client.proposal(b"e" + bytes(3 * TURN_BYTES)), ordered=False)
    proposals.add(client, client.proposal(b"f"), ordered=False)
    left = []
    while proposals.waiting:
        proposals.propose(1)
        left.append(len(proposals.waiting))
    assert core.batches == [[b"a", b"b"], [b"c", b"d"], [b"e"], [b"f"]]
    assert left == [4, 2, 1, 0]
    assert client.outcomes == []  # it is the turn that tells
    deliver(done)
    assert len(client.outcomes) == 6


@pytest.mark.parametrize("outcome", [Appended.NOT_APPENDED, Appended.UNKNOWN])
def test_only_what_follows_an_ordered_append_of_its_own_client_waits_for_it(outcome: Appended) -> None:
    """One that may or may not be there breaks the order, too."""
    core, one, other, done = Core(), Client(), Client(), Done()
    core.outcome = outcome
    proposals = Proposals(core, done)
    core.refuses = {b"1"}
    for client, name, ordered in ((one, b"1", True), (other, b"x", False), (one, b"2", True), (one, b"3", False)):
        proposals.add(client, client.proposal(name), ordered)
    proposals.propose(1)
    assert core.batches == [[b"1", b"x"], [b"3"]]
    deliver(done)
    assert [outcome.code for outcome in one.outcomes] == [
        ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_INDEX, ResponseCode.SUCCESS
    ]  # fmt: skip
