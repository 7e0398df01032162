"""A directory put back from an older copy does not vote (SAFETY E8); who is believed about it, and when not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.consensus.api import MS
from node.protocol.codes import FlushMode, ResponseCode, Role, VoteResult, VoterState
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    MemberMark,
    PeerRecord,
    PushRequest,
    ReadIndexRequest,
    ReadIndexResponse,
    VoteRequest,
    VoteResponse,
)
from tests.unit.core_kit import Leader, Solo, store_of

FORMING, VOTER, REJOINING = VoterState.FORMING, VoterState.VOTER, VoterState.REJOINING
OURS = PeerRecord("s0", "life-2", 1, 4)  # what n1 has on record about n0 in these tests, and what holds


def solo_with(terms: tuple[int, ...] = (4, 4), **hard: Any) -> Solo:
    hard = {"life_ids": ("life-1", "life-2"), "marks_from": 4, **hard}
    return Solo(store_of(terms, **hard), connect=False)


def reported(solo: Solo, record: PeerRecord | None, **changes: Any) -> Hello:
    """n1's HELLO with that record; our answer."""
    sent = solo.receive("n1", solo.hello_of("n1", answer=False, record=record, **changes))
    return next(message for to, message in sent if to == "n1" and isinstance(message, Hello) and message.answer)


def alarms(solo: Solo) -> set[str]:
    return {code for code, _peer in solo.replica.member.alarms}


# --- our own store ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("record", "is_copy"),
    [
        (None, False),
        (OURS, False),
        (PeerRecord("s0", "life-1"), False),
        (PeerRecord("s0", "life-3", 1, 4), True),  # it was opened since
        (PeerRecord("s0", "life-2", 2, 4), True),  # it acknowledged more
        (PeerRecord("s0", "life-2", 1, 5), True),  # it acknowledged something else there
        (PeerRecord("before", "life-9", 1, 4), False),  # of a store that this one replaced, and it holds the entry
        (PeerRecord("after", "life-9", 2, 4), True),  # of one that replaced this one
        (PeerRecord("s0", "life-2", 9, 3), False),  # lost by the whole group before this member joined it again
        (PeerRecord("s0", "life-2", 2, 4, leadership=4), True),
        (PeerRecord("s0", "life-2", 2, 4, leadership=3), False),  # a later leader may have had it cut
    ],
)
def test_what_shows_that_our_own_store_is_a_restored_copy(record: PeerRecord | None, is_copy: bool) -> None:
    solo = solo_with()
    answer = reported(solo, record)
    assert answer.code is ResponseCode.SUCCESS
    state = REJOINING if is_copy else VOTER
    assert solo.replica.member.voter_state is answer.voter_state is state, "told with the very answer"
    assert (answer.store_id != "s0") is is_copy
    assert ("restored_copy" in alarms(solo)) is is_copy
    if is_copy:  # durable in one piece, before the answer leaves
        saved = next(state for state in solo.hard_states if state.store_id is not None)
        assert (saved.store_id, saved.voter_state) == (answer.store_id, REJOINING)
        assert saved.life_ids == ("life-1", "life-2"), "the member stays the one that it is"


def test_an_entry_that_cannot_be_read_says_nothing_about_its_term() -> None:
    """A damaged first entry is in no run of equal terms: that is no other history (S6)."""
    solo = Solo(store_of((4, 5), life_ids=("life-1", "life-2"), marks_from=4), connect=False)
    solo.store.rot(0, known=True)
    reported(solo, PeerRecord("s0", "life-2", 0, 5))
    assert solo.replica.member.voter_state is VOTER
    assert solo.replica.membership.records.mark_of("n0", 0) is None, "nor does it go on record with a term"


def test_an_unproven_peer_is_not_believed() -> None:
    solo = solo_with()
    reported(solo, PeerRecord("s0", "life-3", 99, 9), proven=False)
    assert solo.replica.member.voter_state is VOTER and not solo.hard_states[-1].peer_lives


def test_who_joins_already_is_not_sent_back_to_its_start() -> None:
    solo = solo_with(voter_state=REJOINING)
    reported(solo, PeerRecord("s0", "life-3", 99, 9))
    assert solo.replica.member.store_id == "s0"


def test_a_new_store_that_peers_know_better_does_not_form() -> None:
    solo = solo_with((), voter_state=FORMING)
    answer = reported(solo, PeerRecord("s0", "life-3"), voter_state=FORMING, end_index=-1)
    assert answer.voter_state is REJOINING


def test_an_answer_that_refuses_us_as_a_copy_is_believed_too() -> None:
    solo = solo_with()
    hello = solo.hello_of("n1", record=PeerRecord("s0", "life-3"), code=ResponseCode.RESTORED_COPY, detail="a copy")
    solo.receive("n1", hello)
    assert solo.replica.member.voter_state is REJOINING


def test_a_leader_steps_down_and_a_candidate_wins_nothing() -> None:
    solo = Solo(store_of((4, 4), life_ids=("life-1",)))
    solo.lead()
    reported(solo, PeerRecord("s0", "life-2"))
    assert solo.replica.role is not Role.LEADER and solo.replica.member.voter_state is REJOINING
    solo = Solo(store_of((4, 4), life_ids=("life-1",)))
    request = next(m for to, m in solo.grant(solo.tick(1100)) if to == "n1" and isinstance(m, VoteRequest))
    assert not request.pre
    solo.receive("n2", solo.hello_of("n2", answer=False, record=PeerRecord("s0", "life-2")))
    solo.receive("n1", VoteResponse(request.seq, solo.replica.term, VoteResult.ACCEPT))
    assert solo.replica.role is not Role.LEADER


def test_the_alarm_ends_when_it_votes_again() -> None:
    solo = solo_with()
    reported(solo, PeerRecord("s0", "life-3"))
    solo.replica.links.connected("n1", solo.now)
    solo.follow(term=4)
    solo.compare(1, term=4)
    (request,) = [m for _to, m in solo.tick(10) if isinstance(m, ReadIndexRequest)]
    solo.receive("n1", ReadIndexResponse(request.seq, 4, ResponseCode.SUCCESS, 1, 1))
    assert solo.replica.member.voter_state is VOTER and "restored_copy" not in alarms(solo)


def test_what_was_said_as_a_voter_and_waited_does_not_leave_once_the_vote_is_given_up() -> None:
    solo = solo_with()
    beat = HeartBeatResponse(1, 4, ResponseCode.SUCCESS, voter_state=VOTER)
    vote = VoteResponse(1, 4, VoteResult.ACCEPT)
    hello = solo.hello_of("n0")
    others = (VoteResponse(1, 4, VoteResult.UNKNOWN), replace(beat, voter_state=REJOINING), ReadIndexRequest(1, 4))
    may_leave = solo.replica.membership.may_leave
    assert all(map(may_leave, (beat, vote, hello, *others)))
    reported(solo, PeerRecord("s0", "life-3"))
    assert not any(map(may_leave, (beat, vote, hello)))
    assert all(map(may_leave, others))


def test_a_hello_that_waited_says_where_the_log_ends_when_it_leaves() -> None:
    """What its sender acknowledged meanwhile goes over another connection, and may come first."""
    solo = solo_with()
    waited = replace(solo.hello_of("n0"), end_index=0)
    beat = HeartBeatResponse(1, 4, ResponseCode.SUCCESS, voter_state=VOTER)
    as_it_leaves = solo.replica.as_it_leaves
    assert as_it_leaves(waited, solo.now) == replace(waited, end_index=1)
    assert as_it_leaves(beat, solo.now) is beat
    reported(solo, PeerRecord("s0", "life-3"))
    assert as_it_leaves(waited, solo.now) is as_it_leaves(beat, solo.now) is None


def test_a_heartbeats_answer_that_a_hello_overtook_makes_nobody_a_voter_again() -> None:
    led = Leader()
    solo, peer = led.solo, led.solo.replica.peers.of["n1"]
    beats = [m for to, m in solo.tick(100) if to == "n1" and isinstance(m, HeartBeatRequest)]
    solo.receive("n1", solo.hello_of("n1", answer=False, voter_state=REJOINING, store_id="new"))
    late = HeartBeatResponse(beats[-1].seq, 1, ResponseCode.SUCCESS, end_index=0, voter_state=VOTER)
    solo.receive("n1", late)
    assert not peer.counts and peer.voter_state is REJOINING
    beats = [m for to, m in solo.tick(100) if to == "n1" and isinstance(m, HeartBeatRequest)]
    solo.receive("n1", replace(late, seq=beats[-1].seq))
    assert peer.counts


# --- a peer's store -----------------------------------------------------------------------------------------------
def peer_says(solo: Solo, **changes: Any) -> Hello:
    sent = solo.receive("n1", solo.hello_of("n1", answer=False, **changes))
    return next(message for to, message in sent if to == "n1" and isinstance(message, Hello) and message.answer)


def test_a_proven_peers_life_is_on_record_before_it_is_answered() -> None:
    solo = Solo(connect=False)
    assert peer_says(solo, life_ids=("a", "b")).record == PeerRecord("store-n1", "b")
    assert solo.hard_states[-1].peer_lives == {"n1": "b"}
    peer_says(solo, life_ids=("a", "b", "c"))
    assert solo.hard_states[-1].peer_lives == {"n1": "c"}
    saves = len(solo.hard_states)
    peer_says(solo, life_ids=("a", "b", "c"))
    assert len(solo.hard_states) == saves, "nothing new, nothing to sync"


def test_a_peer_that_does_not_know_its_life_is_refused_and_does_not_count() -> None:
    solo = Solo(connect=False)
    peer_says(solo, life_ids=("a", "b"))
    assert solo.replica.peers.of["n1"].counts
    answer = peer_says(solo, life_ids=("a", "x"))
    assert answer.code is ResponseCode.RESTORED_COPY and not solo.replica.peers.of["n1"].counts
    assert ("restored_copy", "n1") in solo.replica.member.alarms
    assert answer.record is not None and answer.record.life_id == "b", "so that it sees it itself"
    assert solo.hard_states[-1].peer_lives == {"n1": "b"}
    answer = peer_says(solo, life_ids=("a", "x"), voter_state=REJOINING, store_id="new")
    assert answer.code is ResponseCode.SUCCESS and ("restored_copy", "n1") not in solo.replica.member.alarms
    assert peer_says(solo, life_ids=("a", "x"), store_id="new").code is ResponseCode.SUCCESS


def test_what_a_copy_still_had_on_its_way_as_a_voter_does_not_make_it_one_again() -> None:
    """Its vote, given before it saw what it is, and its answer to a heartbeat."""
    solo = Solo()
    peer_says(solo, life_ids=("a", "b"))
    request = next(m for to, m in solo.grant(solo.tick(1100)) if to == "n1" and isinstance(m, VoteRequest))
    assert peer_says(solo, life_ids=("a", "x")).code is ResponseCode.RESTORED_COPY
    solo.receive("n1", VoteResponse(request.seq, solo.replica.term, VoteResult.ACCEPT))
    assert solo.replica.role is not Role.LEADER and not solo.replica.peers.of["n1"].counts

    led = Leader()
    solo = led.solo
    peer_says(solo, life_ids=("a", "b"), end_index=0, term=1)
    assert peer_says(solo, life_ids=("a", "x"), end_index=0, term=1).code is ResponseCode.RESTORED_COPY
    beat = [m for to, m in solo.tick(100) if to == "n1" and isinstance(m, HeartBeatRequest)][-1]
    solo.receive("n1", HeartBeatResponse(beat.seq, 1, ResponseCode.SUCCESS, end_index=0, voter_state=VOTER))
    assert not solo.replica.peers.of["n1"].counts
    assert peer_says(solo, life_ids=("a", "b"), end_index=0, term=1).code is ResponseCode.SUCCESS
    assert solo.replica.peers.of["n1"].counts


def test_a_copy_that_is_about_to_join_does_not_rewrite_what_is_on_record() -> None:
    """It says so before that is durable; should it lose its power first, it comes back as the voter that it was."""
    solo = Solo(connect=False)
    peer_says(solo, life_ids=("a", "b"))
    assert peer_says(solo, life_ids=("a", "x"), voter_state=REJOINING).code is ResponseCode.SUCCESS
    assert solo.hard_states[-1].peer_lives == {"n1": "b"}
    assert peer_says(solo, life_ids=("a", "x", "y")).code is ResponseCode.RESTORED_COPY


def test_the_life_of_a_store_that_is_not_on_record_is_not_noted_beside_the_one_that_is() -> None:
    """A HELLO of the disk that was replaced came late; the member that votes now has no such life."""
    solo = Solo(connect=False)
    peer_says(solo, store_id="new", life_ids=("c",))
    assert peer_says(solo, store_id="old", life_ids=("a", "b"), voter_state=REJOINING).code is ResponseCode.SUCCESS
    answer = peer_says(solo, store_id="new", life_ids=("c",))
    assert answer.code is ResponseCode.SUCCESS and answer.record == PeerRecord("new", "c")
    assert solo.replica.peers.of["n1"].counts


def test_an_older_release_keeps_no_lives_so_what_was_on_record_ends() -> None:
    solo = Solo(connect=False)
    peer_says(solo, life_ids=("a",))
    assert peer_says(solo, version_max=1, life_ids=()).code is ResponseCode.SUCCESS
    assert solo.hard_states[-1].peer_lives == {}
    assert peer_says(solo, life_ids=("b",)).code is ResponseCode.SUCCESS


@pytest.mark.parametrize("proven", [True, False])
def test_a_leaders_heartbeat_passes_marks_round(proven: bool) -> None:
    solo = Solo(store_of((1,)), connect=False)
    solo.connect("n1", proven=proven)
    beat = HeartBeatRequest(1, "n1", 1, marks=(MemberMark("n2", 7, 1), MemberMark("n9", 7, 1)))
    solo.receive("n1", beat)
    known = solo.store.recovered_marks
    assert known == ((MemberMark("n2", 7, 1),) if proven else ())
    solo.receive("n1", HeartBeatRequest(2, "n1", 1, marks=(MemberMark("n2", 5, 1),)))
    assert solo.store.recovered_marks == known, "it never goes back"
    answer = solo.receive("n2", solo.hello_of("n2", answer=False, end_index=6))[-1][1]
    assert isinstance(answer, Hello)
    assert answer.code is (ResponseCode.RESTORED_COPY if proven else ResponseCode.SUCCESS)


def test_a_leader_notes_what_its_voters_hold_durably_and_committed() -> None:
    led = Leader()
    solo = led.solo
    (push,) = led.propose([b"x"])
    solo.ack("n1", push, 1, durable=1)
    sent = solo.tick(100)
    marks = next(m.marks for to, m in sent if to == "n1" and isinstance(m, HeartBeatRequest))
    assert MemberMark("n1", 0, 1) in marks, "entry 1 is not committed: our own disk lacks it"
    solo.sync()
    solo.tick(100)
    assert {(m.member_id, m.index) for m in solo.store.recovered_marks} == {("n1", 1), ("n2", 0)}


def test_a_leader_sees_a_voter_whose_log_ends_below_what_it_acknowledged_in_this_leadership() -> None:
    """Also what is not committed yet: no mark says it, but this leader knows it."""
    led = Leader()
    solo = led.solo
    (push,) = led.propose([b"x", b"y"])
    solo.ack("n1", push, 2, durable=2)
    solo.replica.links.lost("n1", solo.now)
    solo.take()
    answer = peer_says(solo, end_index=1, term=1)
    assert answer.code is ResponseCode.RESTORED_COPY
    assert answer.record == PeerRecord("store-n1", None, 2, 1, leadership=1)
    assert peer_says(solo, end_index=2, term=1).code is ResponseCode.SUCCESS
    assert peer_says(solo, end_index=0, term=2).code is ResponseCode.SUCCESS, "a later leader may have had it cut"


def test_what_a_voter_acknowledged_before_it_counts_again_commits_when_it_does() -> None:
    """By its next HELLO; nothing else may come that would have its leader count anew."""
    led = Leader()
    solo = led.solo
    (push,) = led.propose([b"x"])
    solo.sync()
    assert peer_says(solo, end_index=-1, term=1).code is ResponseCode.RESTORED_COPY, (
        "one that waited, and was overtaken"
    )
    solo.ack("n1", push, 1, durable=1)
    assert solo.replica.committed_index == 0 and led.done == []
    assert peer_says(solo, end_index=1, term=1).code is ResponseCode.SUCCESS
    assert solo.replica.committed_index == 1 and len(led.done) == 1


def test_what_a_member_acknowledged_before_it_votes_again_commits_when_it_does() -> None:
    """By its answer to a heartbeat."""
    led = Leader()
    solo = led.solo
    (push,) = led.propose([b"x"])
    solo.sync()
    assert peer_says(solo, end_index=1, term=1, voter_state=REJOINING).code is ResponseCode.SUCCESS
    solo.ack("n1", push, 1, durable=1)
    assert solo.replica.committed_index == 0
    beat = [m for to, m in solo.tick(100) if to == "n1" and isinstance(m, HeartBeatRequest)][-1]
    solo.receive("n1", HeartBeatResponse(beat.seq, 1, ResponseCode.SUCCESS, end_index=1, voter_state=VOTER))
    assert solo.replica.peers.of["n1"].counts and solo.replica.committed_index == 1 and len(led.done) == 1


def test_with_async_flush_what_a_voter_verified_is_what_it_must_hold() -> None:
    """A machine that was started anew would not be a VOTER (its own rule), so it is the same boot."""
    led = Leader(flush=FlushMode.ASYNC)
    solo = led.solo
    (push,) = led.propose([b"x"])
    solo.ack("n1", push, 1, durable=0)
    solo.replica.links.lost("n1", solo.now)
    solo.take()
    assert peer_says(solo, end_index=0, term=1).code is ResponseCode.RESTORED_COPY


def test_every_request_of_ours_says_what_we_know_of_its_receiver_but_not_of_this_leadership() -> None:
    led = Leader()
    solo = led.solo
    (push,) = led.propose([b"x"])
    solo.ack("n1", push, 1, durable=1)
    solo.now += 100 * MS
    solo.tick(0)
    hello = solo.replica.hello(5, "n1")
    assert hello.record == PeerRecord("store-n1", None, 0, 1)
    assert isinstance(push, PushRequest)
