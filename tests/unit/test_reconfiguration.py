"""Learners come and go at any moment (SAFETY M4): nothing is left of one that is gone, and nothing breaks over it."""

from __future__ import annotations

from typing import Any

from node.consensus.api import MS, ReadOutcome
from node.consensus.effects import ReadSlab
from node.consensus.strangers import Stranger
from node.protocol.codes import DispatcherState, ResponseCode, VoteResult, VoterState
from node.protocol.messages import (
    FetchRequest,
    HeartBeatResponse,
    Hello,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    VoteRequest,
    VoteResponse,
)
from tests.unit.core_kit import PEERS, Leader, Solo, store_of

AT = "127.0.0.1:30911"


def with_learner(leader: Leader, *, matched: bool = True) -> PushRequest:
    """l0 joins, connects and (`matched`) says that it holds everything; gives the COMPARE that it was asked."""
    solo = leader.solo
    solo.replica.reconfiguration.add_learner("l0", AT, solo.now)
    solo.take()
    solo.sent.clear()
    solo.connect("l0", end_index=0)
    compare = next(m for to, m in solo.sent if to == "l0" and isinstance(m, PushRequest))
    assert compare.kind is PushKind.COMPARE
    if matched:
        solo.ack("l0", compare, solo.store.end_index)
        assert solo.replica.peers.of["l0"].state is DispatcherState.APPEND
    return compare


def test_m4_a_learner_is_sent_everything_and_makes_no_quorum() -> None:
    leader = Leader()
    solo = leader.solo
    with_learner(leader)
    leader.propose([b"x"])
    (push,) = [m for to, m in solo.sent if to == "l0" and isinstance(m, PushRequest) and m.slab is not None]
    solo.sync()
    solo.ack("l0", push, 1)
    assert solo.replica.peers.of["l0"].watermark_index == 1 and solo.replica.committed_index == 0
    status = solo.replica.status(solo.now)
    assert [mark.id for mark in status.watermarks if not mark.counts] == ["l0"]
    assert status.closures.groups[0].waits_for == ("n1", "n2") and status.quorum_needed == 2


def test_m4_a_learner_confirms_no_leader() -> None:
    leader = Leader()
    solo = leader.solo
    with_learner(leader)
    reads: list[ReadOutcome] = []
    solo.replica.read_index(reads.append, solo.now)
    seq = solo.replica.member.last_seq
    for peer, so_far in (("l0", 0), ("n1", 1)):
        solo.receive(peer, HeartBeatResponse(seq, solo.replica.term, ResponseCode.SUCCESS, 0, VoterState.VOTER))
        assert len(reads) == so_far
    assert reads[0].code is ResponseCode.SUCCESS


def test_m4_a_learners_answers_keep_no_leader_in_office() -> None:
    leader = Leader()
    solo = leader.solo
    with_learner(leader)
    while solo.replica.leadership is not None and solo.now < 60_000 * MS:
        solo.tick(50)
        seq = solo.replica.member.last_seq
        solo.receive("l0", HeartBeatResponse(seq, solo.replica.term, ResponseCode.SUCCESS, 0, VoterState.VOTER))
    assert solo.replica.leadership is None and solo.replica.term == 1


def test_m4_a_learners_vote_elects_nobody_and_it_is_not_asked() -> None:
    solo = Solo(store_of([1]))
    solo.replica.reconfiguration.add_learner("l0", AT, solo.now)
    solo.connect("l0")
    sent = solo.tick(1100)
    requests = {to: m for to, m in sent if isinstance(m, VoteRequest)}
    assert requests.keys() == {"n1", "n2"}
    answer = VoteResponse(requests["n1"].seq, solo.replica.term, VoteResult.ACCEPT, pre=True)
    assert not [m for _to, m in solo.receive("l0", answer) if isinstance(m, VoteRequest)]
    assert [m for _to, m in solo.receive("n1", answer) if isinstance(m, VoteRequest) and not m.pre]


def test_m4_a_learner_does_not_campaign_and_votes_only_for_who_takes_it_for_a_voter() -> None:
    solo = Solo(store_of([1]))
    voters = {one: at for one, at in PEERS.items() if one != "n0"}
    learner = Solo(store_of([1]), peers=voters, learners={"n0": AT})
    assert not learner.replica.member.has_vote and learner.replica.member.voter_state is VoterState.VOTER
    assert not [m for _to, m in learner.tick(5000) if isinstance(m, VoteRequest)]
    vote = VoteRequest(5, "n1", 9, 0, 1, pre=False)
    (answer,) = [m for _to, m in learner.receive("n1", vote) if isinstance(m, VoteResponse)]
    assert answer.result is VoteResult.REJECT_TERM_NOT_READY  # n1's log may know more than ours (M3)
    (answer,) = [m for _to, m in learner.receive("n1", vote) if isinstance(m, VoteResponse)]
    assert answer.result is VoteResult.ACCEPT
    vote = VoteRequest(6, "l0", 9, 5, 5, pre=False)
    solo.replica.reconfiguration.add_learner("l0", AT, solo.now)
    (answer,) = [m for _to, m in solo.receive("l0", vote) if isinstance(m, VoteResponse)]
    assert answer.result is VoteResult.REJECT_UNKNOWN_LEADER and solo.replica.term == 1


def late_messages(compare: PushRequest, term: int) -> list[Any]:
    """What may still arrive from a learner that is gone."""
    return [
        PushResponse(compare.seq, ResponseCode.SUCCESS, compare.dispatch_epoch, term, 0, 0, 0),
        HeartBeatResponse(compare.seq, term, ResponseCode.SUCCESS, 0, VoterState.VOTER),
        ReadIndexRequest(9, term),
        FetchRequest(9, 0, 0, 100),
        VoteResponse(9, term, VoteResult.ACCEPT, pre=True),
        VoteRequest(9, "l0", term + 1, 5, 5, pre=False),
        ReadIndexResponse(9, term, ResponseCode.SUCCESS, 0, 0),
    ]


def test_whatever_a_learner_sent_before_it_left_changes_nothing() -> None:
    leader = Leader()
    solo = leader.solo
    compare = with_learner(leader, matched=False)
    solo.replica.reconfiguration.remove_learner("l0", solo.now)
    before = solo.replica.status(solo.now)
    for message in late_messages(compare, 1):
        solo.receive("l0", message)
    solo.receive("l0", solo.hello_of("l0"))  # its answer to our HELLO
    solo.replica.links.connected("l0", solo.now)
    solo.replica.links.lost("l0", solo.now)
    assert solo.replica.links.stranger_met("l0", Stranger.FOREIGN, "someone", solo.now) is None
    after = solo.replica.status(solo.now)
    assert (after.alarms, after.term, after.watermarks) == (before.alarms, before.term, before.watermarks)
    (answer,) = [m for _to, m in solo.receive("l0", solo.hello_of("l0", answer=False)) if isinstance(m, Hello)]
    assert answer.code is ResponseCode.UNKNOWN_MEMBER


def test_a_learner_that_comes_back_is_not_believed_what_it_said_before() -> None:
    leader = Leader()
    solo = leader.solo
    compare = with_learner(leader, matched=False)
    solo.replica.reconfiguration.remove_learner("l0", solo.now)
    with_learner(leader, matched=False)
    peer = solo.replica.peers.of["l0"]
    assert peer.dispatch_epoch > compare.dispatch_epoch
    solo.ack("l0", compare, 0)  # of its life before
    assert (peer.match_index, peer.state) == (-1, DispatcherState.COMPARE)


def test_a_read_and_a_disk_read_for_a_learner_come_to_nothing_once_it_is_gone() -> None:
    leader = Leader()
    solo = leader.solo
    with_learner(leader)
    solo.receive("l0", ReadIndexRequest(9, 1))
    order = ReadSlab("l0", solo.replica.peers.of["l0"].dispatch_epoch, 0, 0, 1000)
    solo.replica.reconfiguration.remove_learner("l0", solo.now)
    solo.replica.disk.slab_read(order, solo.store.read_slab(0, 1000), solo.now)
    for peer in ("n1", "n2"):
        seq = solo.replica.member.last_seq
        solo.receive(peer, HeartBeatResponse(seq, 1, ResponseCode.SUCCESS, 0, VoterState.VOTER))
    assert leader.propose([b"x"])


def test_nothing_stays_on_record_of_a_learner_that_is_gone() -> None:
    leader = Leader()
    solo = leader.solo
    with_learner(leader)
    assert solo.replica.member.hard.store_ids["l0"] == "store-l0"
    solo.replica.member.alarm("diverged", "l0 diverged", solo.now, peer_id="l0")
    solo.replica.reconfiguration.remove_learner("l0", solo.now)
    solo.take()
    assert "l0" not in solo.store.hard_state.store_ids and "l0" not in solo.store.hard_state.peer_lives
    assert not [about for _code, about in solo.replica.member.alarms if about == "l0"]


def test_a_group_of_one_voter_commits_beside_its_learner() -> None:
    solo = Solo(store_of([1]), peers={"n0": PEERS["n0"]}, learners={"l0": AT}, connect=False)
    solo.tick(1)
    solo.sync()
    assert solo.replica.leadership is not None and solo.replica.committed_index == solo.store.end_index == 1
