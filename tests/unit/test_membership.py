"""Who may vote, and how a member comes to vote (SAFETY E8, R2's flush mode, S5's file sizes)."""

from __future__ import annotations

from typing import Any

import pytest

from node.consensus.api import MS
from node.protocol.codes import FlushMode, ResponseCode, Role, VoteResult, VoterState
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    PushKind,
    ReadIndexRequest,
    ReadIndexResponse,
    VoteRequest,
    VoteResponse,
)
from node.store.log_store import EntryMeta, HardState, TruncationRecord
from node.store.memory_store import MemoryStore
from tests.scenarios.cluster import Cluster
from tests.unit.core_kit import Leader, Solo, store_of

FORMING, VOTER, REJOINING = VoterState.FORMING, VoterState.VOTER, VoterState.REJOINING


def solo_in(state: VoterState, terms: tuple[int, ...] = (), **changes: Any) -> Solo:
    return Solo(store_of(terms, voter_state=state), connect=False, **changes)


def state_of(solo: Solo) -> VoterState:
    return solo.replica.member.voter_state


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ResponseCode.SUCCESS),
        ({"group": "h"}, ResponseCode.UNKNOWN_GROUP),
        ({"node_id": "n9"}, ResponseCode.UNKNOWN_MEMBER),
        ({"node_id": "n0"}, ResponseCode.UNKNOWN_MEMBER),
        ({"node_id": "n2"}, ResponseCode.UNEXPECTED_MEMBER),
        ({"peers_hash": "other"}, ResponseCode.SUCCESS),
        ({"flush": FlushMode.ASYNC}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"lease_reads": True}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"data_file_size": 1}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"index_file_size": 1}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"version_min": 1, "version_max": 1}, ResponseCode.SUCCESS),
        ({"version_min": 2, "version_max": 9}, ResponseCode.SUCCESS),
        ({"version_min": 3, "version_max": 4}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"version_min": 0, "version_max": 0}, ResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_hello_is_answered_with_a_verdict(changes: Any, code: ResponseCode) -> None:
    solo = Solo(connect=False)
    ((to, answer),) = solo.receive("n1", solo.hello_of("n1", seq=5, answer=False, **changes))
    assert isinstance(answer, Hello) and to == "n1"
    assert (answer.seq, answer.answer, answer.code, answer.node_id) == (5, True, code, "n0")
    assert (answer.detail is None) is (code is ResponseCode.SUCCESS)
    reported = [detail["peer"] for kind, detail in solo.events if kind == "hello_refused"]
    assert reported == ([] if code is ResponseCode.SUCCESS else ["n1"])
    assert not solo.replica.member.alarms  # whoever connects to us may be anybody


@pytest.mark.parametrize("leads", [False, True])
def test_a_strangers_hello_is_refused_and_tells_nothing_of_members(leads: bool) -> None:
    """A leader answers it from what it knows of the stranger: nothing."""
    solo = Leader().solo if leads else Solo()
    stranger = solo.hello_of("n9", answer=False, seq=7)
    (answer,) = [m for to, m in solo.receive("n9", stranger) if to == "n9" and isinstance(m, Hello)]
    assert (answer.code, answer.record) == (ResponseCode.UNKNOWN_MEMBER, None)


def test_an_answer_is_not_answered_and_a_refusal_is_an_alarm_until_it_ends() -> None:
    solo = Solo(connect=False)
    assert solo.receive("n1", solo.hello_of("n1", code=ResponseCode.UNKNOWN_GROUP, detail="no")) == []
    assert ("hello_refused", "n1") in solo.replica.member.alarms
    assert solo.receive("n1", solo.hello_of("n1")) == []
    assert not solo.replica.member.alarms


def test_who_is_told_that_it_was_removed_says_so() -> None:
    """The entry that says it is rarely sent to the one that left."""
    solo = Solo(connect=False)
    text = "n0 was removed from the group; it comes back only with an empty directory"
    solo.receive("n1", solo.hello_of("n1", code=ResponseCode.UNKNOWN_MEMBER, detail=text))
    (((code, peer_id), alarm),) = solo.replica.member.alarms.items()
    assert (code, peer_id) == ("removed", "n1") and "n1 says that n0 was removed" in alarm.text
    other = text.replace("n0", "n2")
    solo.receive("n2", solo.hello_of("n2", code=ResponseCode.UNKNOWN_MEMBER, detail=other))
    assert ("hello_refused", "n2") in solo.replica.member.alarms, "that is of another member"


def test_members_agree_by_id_whatever_the_address() -> None:
    ours = Cluster(3).config_of("n0")
    assert ours.peers_hash == Solo().replica.config.peers_hash


@pytest.mark.parametrize(
    ("hellos", "then"),
    [
        ([], FORMING),
        ([{"voter_state": FORMING, "end_index": -1}], VOTER),  # two of three, itself included
        ([{"voter_state": VOTER, "end_index": -1}], VOTER),
        ([{"voter_state": REJOINING, "end_index": -1}], FORMING),  # neither new nor a voter
        ([{"voter_state": VOTER, "end_index": 0}], REJOINING),  # the group has a history
        ([{"voter_state": FORMING, "end_index": -1, "recorded": {"n0": "s0"}}], VOTER),
        ([{"voter_state": FORMING, "end_index": -1, "recorded": {"n0": "before"}}], REJOINING),  # ours was lost
    ],
)
def test_forming(hellos: list[dict[str, Any]], then: VoterState) -> None:
    solo = solo_in(FORMING)
    for peer, changes in zip(("n1", "n2"), hellos, strict=False):
        solo.receive(peer, solo.hello_of(peer, **changes))
    assert state_of(solo) is then
    assert bool(solo.hard_states) is (then is not FORMING)  # durable, once


@pytest.mark.parametrize(
    ("hello", "then"),
    [
        ({"voter_state": FORMING, "end_index": 999}, VOTER),
        ({"voter_state": VOTER, "end_index": 999}, VOTER),
        ({"voter_state": VOTER, "end_index": 1000}, REJOINING),  # the group has a history
        ({"voter_state": FORMING, "end_index": -1}, FORMING),  # it begins somewhere else: no group comes of both
    ],
)
def test_a_group_whose_log_begins_later_forms(hello: dict[str, Any], then: VoterState) -> None:
    """What all of them were born behind is no history that one of them lacks."""
    base = EntryMeta(999, 7, 0x1234)
    store = MemoryStore(hard_state=HardState(voter_state=FORMING), base=base, base_pos=5000)
    solo = Solo(store, connect=False)
    solo.receive("n1", solo.hello_of("n1", **hello))
    assert state_of(solo) is then


def test_a_group_of_one_forms_by_itself() -> None:
    assert Cluster(1).nodes["n0"].store.hard_state.voter_state is VOTER


def test_a_late_one_joins_through_the_leader_that_it_hears() -> None:
    solo = solo_in(FORMING)
    for _ in range(2):
        solo.receive("n1", HeartBeatRequest(1, "n1", 4))
    assert solo.replica.role is Role.FOLLOWER and state_of(solo) is REJOINING


def test_an_empty_voter_with_its_hard_state_stays_a_voter() -> None:
    solo = solo_in(VOTER)
    solo.receive("n1", solo.hello_of("n1", end_index=50))
    assert state_of(solo) is VOTER


def test_a_changed_state_is_told_to_connected_peers() -> None:
    solo = solo_in(FORMING)
    solo.connect("n1", voter_state=REJOINING, end_index=-1)
    sent = solo.receive("n2", solo.hello_of("n2", voter_state=FORMING, end_index=-1))
    assert [(to, m.voter_state) for to, m in sent if isinstance(m, Hello)] == [("n1", VOTER)]


def test_a_store_is_on_record_before_its_first_vote_or_ack_counts() -> None:
    solo = Solo(connect=False)
    solo.receive("n1", solo.hello_of("n1", voter_state=FORMING))
    assert not solo.hard_states and not solo.replica.peers.of["n1"].counts
    solo.receive("n1", solo.hello_of("n1", voter_state=VOTER))
    assert solo.hard_states[-1].store_ids == {"n1": "store-n1"} and solo.replica.peers.of["n1"].counts
    solo.receive("n1", solo.hello_of("n1", voter_state=REJOINING, store_id="new"))
    assert not solo.replica.peers.of["n1"].counts
    solo.receive("n1", solo.hello_of("n1", voter_state=VOTER, store_id="new"))
    assert solo.hard_states[-1].store_ids == {"n1": "new"}
    assert "store_replaced" in [kind for kind, _detail in solo.events]


def test_a_granted_vote_says_that_its_giver_is_a_voter_by_now() -> None:
    solo = Solo(connect=False)
    solo.connect("n1", voter_state=FORMING)
    request = next(m for to, m in solo.tick(1000) if to == "n1" and isinstance(m, VoteRequest))
    solo.receive("n1", VoteResponse(request.seq, 0, VoteResult.ACCEPT, pre=True))
    assert solo.replica.term == 1 and solo.replica.peers.of["n1"].counts


def test_the_vote_of_a_rejoining_peer_does_not_count() -> None:
    solo = Solo(connect=False)
    solo.connect("n1", voter_state=REJOINING)
    request = next(m for to, m in solo.tick(1000) if to == "n1" and isinstance(m, VoteRequest))
    solo.receive("n1", VoteResponse(request.seq, 0, VoteResult.UNKNOWN, pre=True))
    assert solo.replica.term == 0


# --- REJOINING ----------------------------------------------------------------------------------------------------


def joining(*life_ids: str) -> tuple[Solo, ReadIndexRequest]:
    """A member that lost its store follows n1 in term 4, holds 0..1, and has asked for its target."""
    solo = Solo(store_of((4, 4), voter_state=REJOINING, life_ids=life_ids))
    solo.follow(term=4)
    solo.compare(1, term=4)
    (request,) = [m for _to, m in solo.tick(10) if isinstance(m, ReadIndexRequest)]
    return solo, request


def test_a_joining_member_is_a_voter_when_it_durably_holds_the_confirmed_end() -> None:
    solo, request = joining()
    solo.receive("n1", ReadIndexResponse(request.seq, 4, ResponseCode.SUCCESS, 2, 3))
    solo.append(solo.slab(1, [b"a", b"b"], term=4), 4, term=4)
    assert state_of(solo) is REJOINING  # verified, but not durable
    solo.sync()
    assert state_of(solo) is VOTER
    assert solo.hard_states[-1].vote_floor == 4  # no vote in terms up to that leader's


@pytest.mark.parametrize(
    ("sender", "changes"),
    [
        ("n1", {"code": ResponseCode.TIMEOUT}),
        ("n1", {"term": 3}),
        ("n2", {}),
        ("n1", {"seq": 999_999}),
    ],
)
def test_only_the_present_leaders_own_confirmation_sets_the_target(sender: str, changes: Any) -> None:
    solo, request = joining()
    fields = {"seq": request.seq, "term": 4, "code": ResponseCode.SUCCESS, "read_index": 1, "end_index": 1, **changes}
    solo.receive(sender, ReadIndexResponse(**fields))
    assert state_of(solo) is REJOINING and solo.replica.membership.target_index is None


def test_an_answer_to_an_earlier_life_sets_no_target() -> None:
    """It was confirmed before the joining began, and comes over the connection of the new process, by its number."""
    before = Solo(store_of((4, 4), life_ids=("life-1",)))
    before.compare(1, term=4)
    before.replica.read_index(lambda _outcome: None, before.now)
    asked = next(m for _to, m in before.take() if isinstance(m, ReadIndexRequest))
    solo, request = joining("life-2")
    solo.receive("n1", ReadIndexResponse(asked.seq, 4, ResponseCode.SUCCESS, 1, 1))
    assert solo.replica.membership.target_index is None and state_of(solo) is REJOINING
    solo.receive("n1", ReadIndexResponse(request.seq, 4, ResponseCode.SUCCESS, 2, 3))
    assert solo.replica.membership.target_index == 3


def test_the_target_is_taken_anew_under_each_leader() -> None:
    solo, request = joining()
    solo.receive("n1", ReadIndexResponse(request.seq, 4, ResponseCode.SUCCESS, 5, 5))
    solo.push(PushKind.COMMIT, "n2", term=5)
    solo.now += 300 * MS
    again = [m for to, m in solo.tick(1) if isinstance(m, ReadIndexRequest) and to == "n2"]
    assert again and again[0].term == 5 and solo.replica.membership.target_index is None


def test_answers_of_rejoining_peers_do_not_keep_a_leader_in_office() -> None:
    """E6 counts only who has a share in the quorum."""
    solo = Solo()
    solo.lead()
    for _ in range(12):
        solo.tick(100)
        for peer in ("n1", "n2"):
            answer = HeartBeatResponse(solo.replica.member.last_seq, 1, ResponseCode.SUCCESS, -1, REJOINING)
            solo.receive(peer, answer)
    assert solo.replica.role is not Role.LEADER


# --- forming again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "peers", "connected", "flush", "may"),
    [
        (REJOINING, (REJOINING, REJOINING), 2, FlushMode.ASYNC, True),
        (REJOINING, (REJOINING, VOTER), 2, FlushMode.ASYNC, True),
        (VOTER, (REJOINING, REJOINING), 2, FlushMode.ASYNC, True),
        (REJOINING, (VOTER, VOTER), 2, FlushMode.ASYNC, False),  # a quorum of voters: join through its leader
        (REJOINING, (REJOINING, REJOINING), 1, FlushMode.ASYNC, False),  # not all are reachable
        (REJOINING, (REJOINING, REJOINING), 2, FlushMode.SYNC, False),  # only an operator may accept a loss
        (REJOINING, (REJOINING, FORMING), 2, FlushMode.ASYNC, False),
    ],
)
def test_when_a_group_may_form_again(
    own: VoterState, peers: tuple[VoterState, ...], connected: int, flush: FlushMode, may: bool
) -> None:
    solo = solo_in(own, (1, 1), flush=flush)
    for peer, state in list(zip(("n1", "n2"), peers, strict=True))[:connected]:
        solo.connect(peer, voter_state=state)
    assert solo.replica.membership.may_reform() is may
    asked = [m for _to, m in solo.tick(1000) if isinstance(m, VoteRequest)]
    assert any(m.reform for m in asked) is may


def test_a_voter_whose_news_of_the_others_may_be_old_also_tries_the_ordinary_way() -> None:
    solo = solo_in(VOTER, (1, 1), flush=FlushMode.ASYNC)
    for peer in ("n1", "n2"):
        solo.connect(peer, voter_state=REJOINING)
    tried: list[bool] = []
    for _ in range(30):
        requests = [m for _to, m in solo.tick(200) if isinstance(m, VoteRequest)]
        tried += [requests[0].reform] if requests else []
    assert tried[:4] == [True, False, True, False]
    asked: list[VoteRequest] = []
    while not asked or asked[0].reform:
        asked = [m for _to, m in solo.tick(200) if isinstance(m, VoteRequest)]
    (ordinary, _other) = asked
    solo.receive("n1", VoteResponse(ordinary.seq, 1, VoteResult.ACCEPT, pre=True))
    assert solo.replica.peers.of["n1"].counts and not solo.replica.membership.may_reform()


def test_forming_again_takes_every_members_vote_and_the_longest_log() -> None:
    cluster = Cluster(3, flush=FlushMode.ASYNC)
    cluster.run(1500 * MS)
    leader = cluster.leader()
    assert leader is not None
    cluster.nodes[leader].replica.propose([b"x"] * 3, cluster.now)
    cluster.carry_out(leader)
    cluster.deliver_all()
    for node_id in cluster.ids:
        cluster.crash(node_id)
    short = next(node_id for node_id in cluster.ids if node_id != leader)
    cluster.nodes[short].store.truncate(2, TruncationRecord("test", None, 1, 2, 3, "power cut", -1))
    for node_id in cluster.ids:
        cluster.restart(node_id)
    cluster.run(3000 * MS)
    assert cluster.leader() not in (None, short)
    ends = {node.store.end_chain for node in cluster.nodes.values()}
    assert len(ends) == 1 and cluster.nodes[short].store.end_index >= 4
    for node in cluster.nodes.values():
        assert node.replica.member.voter_state is VOTER and ("group_reformed", None) in node.replica.member.alarms
