"""Moving leadership: every refusal, the ticket, the deadline, an outcome in every case (SAFETY E4, E7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.consensus.api import MS, TransferOutcome
from node.protocol.codes import DispatcherState, ResponseCode, Role, VoterState
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    TransferRequest,
    TransferResponse,
    TransferTicket,
    VoteRequest,
)
from tests.unit.core_kit import Leader, Solo, store_of


def test_e7_refusals() -> None:
    leader = Leader(max_transfer_wait_index=2)
    assert leader.transfer("n1", if_term=9)[0].code is ResponseCode.INCONSISTENT_TERM
    assert leader.transfer("n9")[0].code is ResponseCode.UNKNOWN_MEMBER
    assert leader.transfer("n0")[0].code is ResponseCode.UNEXPECTED_ARGUMENT
    leader.solo.replica.links.lost("n2", leader.solo.now)
    refused = leader.transfer("n2")[0]
    assert (refused.code, refused.detail) == (ResponseCode.NETWORK_ERROR, "n2 is not connected (NETWORK_ERROR)")
    leader.solo.connect("n2", voter_state=VoterState.REJOINING)
    refused = leader.transfer("n2")[0]
    assert refused.code is ResponseCode.ILLEGAL_MEMBER_STATE
    assert refused.detail == "n2 has no vote: it is REJOINING (ILLEGAL_MEMBER_STATE)"
    leader.solo.connect("n2", voter_state=VoterState.VOTER)
    assert leader.transfer("n2")[0].code is ResponseCode.FALL_BEHIND_TOO_MUCH  # still COMPARE
    leader.propose([b"x"] * 2)
    assert leader.transfer("n1")[0].code is ResponseCode.FALL_BEHIND_TOO_MUCH
    assert leader.transfer(None)[0].code is ResponseCode.TAKE_LEADERSHIP_FAILED
    follower = Solo()
    outcomes: list[TransferOutcome] = []
    follower.replica.transfer("n1", follower.now, on_done=outcomes.append)
    assert outcomes[0].code is ResponseCode.NOT_LEADER


def test_e7_the_order_leaves_only_when_the_transferee_holds_everything() -> None:
    leader = Leader()
    (push,) = leader.propose([b"x"])
    outcomes = leader.transfer("n1")
    assert not [m for _to, m in leader.sent if isinstance(m, TransferRequest)]
    assert leader.propose([b"refused"]) == [] and leader.done[-1].code is ResponseCode.LEADER_TRANSFERRING
    leader.solo.sync()
    (order,) = [m for _to, m in leader.solo.ack("n1", push, 1) if isinstance(m, TransferRequest)]
    assert (order.term, order.transferee_id, order.take_leadership_index) == (1, "n1", 1)
    assert order.ticket is not None and order.ticket.term == 1
    assert leader.leadership.reads.lease_void and not outcomes
    vote = VoteRequest(3, "n1", 2, 1, 1, ticket=order.ticket)
    leader.solo.receive("n1", vote)
    assert leader.solo.replica.role is Role.CANDIDATE and leader.solo.replica.term == 2
    leader.solo.push(PushKind.COMMIT, "n1", term=2)
    assert [(o.code, o.leader_id, o.term) for o in outcomes] == [(ResponseCode.SUCCESS, "n1", 2)]


def test_e7_past_the_deadline_writes_go_on() -> None:
    leader = Leader()
    outcomes = leader.transfer("n1", deadline_ns=300 * MS)
    leader.solo.tick(299)
    assert not outcomes
    leader.solo.tick(1)
    assert outcomes[0].code is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert len(leader.propose([b"goes on"])) == 1


def test_e7_a_refusing_transferee_ends_it_at_once() -> None:
    leader = Leader()
    outcomes = leader.transfer("n1")
    (order,) = [m for _to, m in leader.sent if isinstance(m, TransferRequest)]
    leader.solo.receive("n1", TransferResponse(order.seq, 1, ResponseCode.TAKE_LEADERSHIP_FAILED))
    assert outcomes[0].code is ResponseCode.TAKE_LEADERSHIP_FAILED and len(leader.propose([b"x"])) == 1


def test_e7_somebody_else_wins() -> None:
    leader = Leader()
    outcomes = leader.transfer("n1")
    leader.solo.push(PushKind.COMMIT, "n2", term=4)
    assert outcomes[0].code is ResponseCode.TAKE_LEADERSHIP_FAILED and outcomes[0].leader_id == "n2"


def test_e7_nobody_is_heard_of_until_the_deadline() -> None:
    leader = Leader()
    outcomes = leader.transfer("n1", deadline_ns=3000 * MS)
    leader.solo.receive("n1", HeartBeatResponse(1, 7, ResponseCode.EXPIRED_TERM))
    for _ in range(30):
        leader.solo.tick(100)
    assert outcomes[0].code is ResponseCode.TIMEOUT


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ResponseCode.SUCCESS),
        ({"term": 2}, ResponseCode.INCONSISTENT_TERM),
        ({"transferee_id": "n2"}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"ticket": None}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"take_leadership_index": 5}, ResponseCode.TAKE_LEADERSHIP_FAILED),
    ],
)
def test_e7_the_transferees_side(changes: dict[str, object], code: ResponseCode) -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    fields = {"term": 3, "transferee_id": "n0", "take_leadership_index": 1, "ticket": TransferTicket(3, "n0", "x")}
    sent = solo.receive("n1", TransferRequest(seq=8, **{**fields, **changes}))  # type: ignore[arg-type]
    assert [m.code for _to, m in sent if isinstance(m, TransferResponse)] == [code]
    votes = [m for _to, m in sent if isinstance(m, VoteRequest)]
    assert all(not m.pre and m.term == 4 and m.ticket is not None for m in votes)
    assert bool(votes) is (code is ResponseCode.SUCCESS)


def test_a_preferred_leader_is_handed_the_leadership() -> None:
    leader = Leader(preferred_leaders=("n2",))
    leader.solo.now += 2000 * MS
    for peer in ("n1", "n2"):
        leader.solo.replica.peers.of[peer].answered(-1, leader.leadership.contact.ticks.count, leader.solo.now)
    sent = leader.solo.tick(1)
    assert [to for to, m in sent if isinstance(m, TransferRequest)] == ["n2"]


def test_a_preferred_leader_that_does_not_keep_it_is_asked_ever_more_rarely() -> None:
    """Its broker was down: leadership came back within seconds, and was handed to it again two seconds later."""
    solo = Solo(store_of([1], term=1), preferred_leaders=("n2",))
    replica, second = solo.replica, 1000 * MS

    def led_for_s(kept_for_s: int) -> int:
        """Elected; after how many seconds n2 is asked to take over. It does, and leads for so long."""
        solo.lead()
        for peer in ("n1", "n2"):
            replica.peers.of[peer].state = DispatcherState.APPEND
        elected_at = solo.now
        while replica.transfers.transferee_id is None:
            solo.now += second
            replica.handover.prefer_others(solo.now)
        waited_s = (solo.now - elected_at) // second
        assert replica.transfers.transferee_id == "n2"
        solo.push(PushKind.COMMIT, "n2", term=replica.term + 1)
        assert replica.transfers.transferee_id is None
        solo.now += kept_for_s * second
        return waited_s

    assert [led_for_s(3) for _ in range(7)] == [2, 30, 60, 120, 240, 300, 300]
    assert [led_for_s(900), led_for_s(3), led_for_s(3)] == [300, 2, 30]


def ordered() -> tuple[Leader, TransferRequest]:
    """A leader that has just told n1 to take over, entry 1 being committed everywhere."""
    leader = Leader()
    push, *_ = leader.propose([b"x"])
    leader.solo.sync()
    for peer in ("n1", "n2"):
        leader.solo.ack(peer, push, 1)
    leader.transfer("n1", deadline_ns=200 * MS)
    found = [message for _to, message in leader.sent + leader.solo.tick(100) if isinstance(message, TransferRequest)]
    return leader, found[0]


def test_an_order_that_waited_for_a_record_leaves_while_it_holds() -> None:
    leader, order = ordered()
    may_leave = leader.solo.replica.transfers.may_leave
    assert may_leave(order, leader.solo.now)
    assert not may_leave(replace(order, take_leadership_index=0), leader.solo.now)
    assert not may_leave(replace(order, ticket=None), leader.solo.now)
    assert may_leave(HeartBeatRequest(1, "n0", 1), leader.solo.now + 10_000 * MS)


def test_an_order_that_waited_too_long_does_not_leave() -> None:
    """The deadline passed, and writes went on: the log has grown beyond what the order says."""
    leader, order = ordered()
    leader.solo.tick(210)
    assert leader.solo.replica.transfers.current is None
    assert not leader.solo.replica.transfers.may_leave(order, leader.solo.now)
    leader.propose([b"y"])
    assert leader.solo.store.end_index > order.take_leadership_index
    assert not leader.solo.replica.transfers.may_leave(order, leader.solo.now)


def test_no_order_is_given_past_the_deadline() -> None:
    """A leader that stood still reads the last answer and sees the deadline in one turn: what is appended then is not
    in the order."""
    leader = Leader()
    push, *_ = leader.propose([b"x"])
    leader.solo.sync()
    leader.solo.ack("n2", push, 1)
    leader.transfer("n1", deadline_ns=200 * MS)
    leader.solo.now += 210 * MS
    sent = leader.sent + leader.solo.ack("n1", push, 1) + leader.solo.late_tick(0)
    assert not [message for _to, message in sent if isinstance(message, TransferRequest)]
    assert leader.solo.replica.transfers.current is None


def test_an_order_of_an_earlier_transfer_does_not_leave_under_a_later_one() -> None:
    leader, order = ordered()
    leader.solo.tick(210)
    leader.transfer("n2", deadline_ns=200 * MS)
    assert leader.solo.replica.transfers.current is not None
    assert not leader.solo.replica.transfers.may_leave(order, leader.solo.now)
