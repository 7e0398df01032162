"""With lease reads on, a member that starts gives no vote before a lease that it may have granted is over (E9)."""

from __future__ import annotations

import random

import pytest

from node.consensus.api import ReplicaConfig
from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode, Role, VoteResult
from node.protocol.messages import Hello, PushKind, TransferRequest, TransferTicket, VoteRequest, VoteResponse
from tests.unit.core_kit import Solo, store_of

ELECTION_MIN_MS = 500


def asked(solo: Solo, *, pre: bool, term: int, ticket: TransferTicket | None = None) -> VoteResult:
    sent = solo.receive("n1", VoteRequest(9, "n1", term, 0, 1, pre=pre, ticket=ticket))
    (answer,) = [message for _to, message in sent if isinstance(message, VoteResponse)]
    return answer.result


@pytest.mark.parametrize("pre", [True, False])
def test_no_vote_and_no_pre_vote_before_the_lease_is_over(pre: bool) -> None:
    solo = Solo(store_of((1,)), lease_reads=True)
    assert asked(solo, pre=pre, term=2) is VoteResult.UNKNOWN
    assert solo.replica.term == 1, "nor is the candidate's term taken over"
    solo.tick(ELECTION_MIN_MS - 1)
    assert asked(solo, pre=pre, term=2) is VoteResult.UNKNOWN
    solo.tick(1)
    assert asked(solo, pre=pre, term=2) in (VoteResult.ACCEPT, VoteResult.REJECT_TERM_NOT_READY)


def test_without_lease_reads_it_votes_at_once() -> None:
    solo = Solo(store_of((1,)))
    assert asked(solo, pre=True, term=2) is VoteResult.ACCEPT


def test_nor_does_it_campaign_also_when_its_leader_went_away() -> None:
    solo = Solo(store_of((1,)), lease_reads=True)
    solo.follow(term=1)
    solo.replica.links.lost("n1", solo.now)
    sent = solo.tick(ELECTION_MIN_MS - 1)
    assert not [message for _to, message in sent if isinstance(message, VoteRequest)]
    sent = solo.tick(ELECTION_MIN_MS + 60)
    assert [message for _to, message in sent if isinstance(message, VoteRequest)]


def test_a_ticket_of_the_leader_itself_is_exempt() -> None:
    """Both rounds: the one that makes the term known, and the one that asks for the vote."""
    solo = Solo(store_of((1,)), lease_reads=True)
    ticket = TransferTicket(1, "n1", "nonce")
    assert asked(solo, pre=False, term=2, ticket=TransferTicket(1, "n2", "nonce")) is VoteResult.UNKNOWN
    assert asked(solo, pre=False, term=2, ticket=ticket) is VoteResult.REJECT_TERM_NOT_READY
    assert asked(solo, pre=False, term=2, ticket=ticket) is VoteResult.ACCEPT


def test_who_is_told_to_take_leadership_campaigns_at_once() -> None:
    solo = Solo(store_of((1,)), lease_reads=True)
    solo.follow(term=1)
    solo.compare(0, term=1)
    sent = solo.receive("n1", TransferRequest(3, 1, "n0", 0, TransferTicket(1, "n0", "nonce")))
    assert [message.term for _to, message in sent if isinstance(message, VoteRequest)] == [2, 2]


def test_a_group_of_one_has_granted_nothing_to_anybody() -> None:
    config = ReplicaConfig("g", "n0", {"n0": "127.0.0.1:1"}, lease_reads=True)
    replica = Replica(config, store_of((1,)), random.Random(7), 0)
    replica.tick(0)
    assert replica.role is Role.LEADER


@pytest.mark.parametrize(
    ("theirs", "code"),
    [(ELECTION_MIN_MS, ResponseCode.SUCCESS), (400, ResponseCode.UNEXPECTED_ARGUMENT), (None, ResponseCode.SUCCESS)],
)
def test_leases_of_different_length_are_refused(theirs: int | None, code: ResponseCode) -> None:
    """A member of version 1 does not say how long its lease is."""
    solo = Solo(connect=False, lease_reads=True)
    hello = solo.hello_of("n1", answer=False, election_min_ms=theirs, version_max=1 if theirs is None else 2)
    ((_to, answer),) = solo.receive("n1", hello)
    assert isinstance(answer, Hello) and answer.code is code
    assert answer.election_min_ms == ELECTION_MIN_MS


def test_without_lease_reads_nobody_compares_lengths() -> None:
    solo = Solo(connect=False)
    ((_to, answer),) = solo.receive("n1", solo.hello_of("n1", answer=False, election_min_ms=1))
    assert isinstance(answer, Hello) and answer.code is ResponseCode.SUCCESS and answer.election_min_ms is None


def test_a_push_still_renews_what_was_promised() -> None:
    solo = Solo(store_of((1,)), lease_reads=True)
    solo.tick(ELECTION_MIN_MS)
    solo.push(PushKind.COMMIT, term=1)
    assert asked(solo, pre=True, term=2) is VoteResult.REJECT_ALREADY_HAS_LEADER
