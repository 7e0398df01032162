"""The replica as a whole: proposals, check-quorum, transfers, and the observers' snapshot (C2-C5, E6, E7, S8, S9)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from node.consensus.api import MS, Appended, Proposal, ReplicaConfig
from node.consensus.member_state import RoleEvent
from node.protocol.codes import NOT_APPENDED, DispatcherState, FlushMode, ResponseCode, Role
from node.protocol.entry import Magic, Slab
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    TransferRequest,
    TransferResponse,
    VoteRequest,
)
from node.store.errors import StoreFull
from tests.scenarios.cluster import Cluster
from tests.unit.core_kit import Leader, Solo, store_of

# --- proposals ----------------------------------------------------------------------------------------------------


def test_everything_of_one_turn_is_one_slab_and_each_request_has_its_outcome() -> None:
    leader = Leader()
    (push,) = leader.propose([b"a"], [b"b", b"c"], [b"d"])
    assert push.slab is not None and (push.slab.first_index, push.slab.count) == (1, 4)
    leader.solo.sync()
    assert leader.done == []
    leader.solo.ack("n1", push, 4, durable=2)
    assert [(o.first_index, o.last_index) for o in leader.done] == [(1, 1)]
    leader.solo.ack("n1", push, 4)
    assert [(o.first_index, o.last_index, o.term, o.appended, o.leader_id) for o in leader.done] == [
        (1, 1, 1, Appended.YES, "n0"),
        (2, 3, 1, Appended.YES, "n0"),
        (4, 4, 1, Appended.YES, "n0"),
    ]


@pytest.mark.parametrize("ends_by", ["time", "stepping down"])
def test_c2_an_unknown_outcome_of_a_merged_slab_names_each_requests_own_entries(ends_by: str) -> None:
    leader = Leader()
    (push,) = leader.propose([b"a"], [b"b", b"c"], [b"d"])
    assert push.slab is not None and push.slab.count == 4
    if ends_by == "time":
        leader.leadership.closures.expire(leader.solo.now + 10_000 * MS, "n0")
    else:
        leader.leadership.end("a test says so", leader.solo.now)
    assert [(o.first_index, o.last_index, o.term) for o in leader.done] == [(1, 1, 1), (2, 3, 1), (4, 4, 1)]
    assert {o.appended for o in leader.done} == {Appended.UNKNOWN}


def test_a_quorum_of_followers_commits_before_the_leaders_own_sync() -> None:
    leader = Leader()
    (push,) = leader.propose([b"a"])
    leader.solo.ack("n1", push, 1)
    assert leader.done == []
    leader.solo.ack("n2", push, 1, dispatch_epoch=leader.solo.replica.peers.of["n2"].dispatch_epoch)
    assert [o.appended for o in leader.done] == [Appended.YES]
    assert leader.solo.replica.member.durable_index == 0


def test_async_counts_the_leaders_own_end_at_once() -> None:
    leader = Leader(flush=FlushMode.ASYNC)
    (push,) = leader.propose([b"a"])
    leader.solo.ack("n1", push, 1, durable=-1)
    assert [o.appended for o in leader.done] == [Appended.YES]


@pytest.mark.parametrize(
    ("batch", "expected", "code"),
    [
        ([], None, ResponseCode.REQUEST_WITH_EMPTY_BODYS),
        ([b""], None, ResponseCode.SUCCESS),
        ([b"x" * (4 * 1024 * 1024 - 47)], None, ResponseCode.UNEXPECTED_ARGUMENT),
        ([b"x"], 2, ResponseCode.INCONSISTENT_INDEX),
        ([b"x"], 0, ResponseCode.INCONSISTENT_INDEX),
        ([b"x"], 1, ResponseCode.SUCCESS),
    ],
)
def test_refusals_append_nothing(batch: list[bytes], expected: int | None, code: ResponseCode) -> None:
    leader = Leader()
    leader.propose(batch, expected=expected)
    if code is ResponseCode.SUCCESS:
        assert leader.done == [] and leader.solo.store.end_index == 1
    else:
        assert [(o.code, o.appended) for o in leader.done] == [(code, Appended.NOT_APPENDED)]
        assert code in NOT_APPENDED and leader.solo.store.end_index == 0 and leader.done[0].detail


def test_c3_c4_a_refused_request_of_a_turn_takes_no_index() -> None:
    leader = Leader()
    proposals = [Proposal([b"a"], leader.done.append), Proposal([b"b"], leader.done.append, 9)]
    proposals.append(Proposal([b"c"], leader.done.append, 2))
    closures = leader.solo.replica.propose_many(proposals, leader.solo.now)
    assert [(c.first_index, c.outcome is None) for c in closures] == [(1, True), (-1, False), (2, True)]


def test_who_does_not_lead_names_the_leader() -> None:
    solo = Solo()
    solo.follow()
    closure = solo.replica.propose([b"x"], solo.now)
    assert closure.outcome is not None
    assert (closure.outcome.code, closure.outcome.leader_id) == (ResponseCode.NOT_LEADER, "n1")


def test_c5_s9_pending_and_unsynced_are_bounded() -> None:
    leader = Leader(pending_requests_max=2)
    leader.propose([b"x"], [b"x"], [b"x"])
    assert [o.code for o in leader.done] == [ResponseCode.LEADER_PENDING_FULL]
    slow = Leader(unsynced_bytes_max=400)
    slow.propose([b"x" * 300])
    slow.propose([b"x" * 300])
    assert [(o.code, o.term) for o in slow.done] == [(ResponseCode.LEADER_PENDING_FULL, -1)]
    slow.solo.sync()
    slow.propose([b"x" * 300])
    assert slow.solo.store.end_index == 2


def test_s8_a_full_disk_refuses_all_of_a_turn_and_keeps_heartbeats() -> None:
    leader = Leader()
    leader.solo.store.full = True
    leader.propose([b"a"], [b"b"])
    assert [(o.code, o.appended) for o in leader.done] == [(ResponseCode.DISK_FULL, Appended.NOT_APPENDED)] * 2
    assert any(isinstance(m, HeartBeatRequest) for _to, m in leader.solo.tick(100))
    assert leader.solo.replica.role is Role.LEADER and not leader.solo.replica.status(leader.solo.now).leader_ready
    order = next(m for _to, m in leader.solo.sent if isinstance(m, TransferRequest))
    leader.solo.receive("n1", TransferResponse(order.seq, 1, ResponseCode.TAKE_LEADERSHIP_FAILED))
    leader.propose([b"refused, and nobody is asked again before there may be space"])
    assert leader.done[-1].code is ResponseCode.DISK_FULL
    assert [m for _to, m in leader.solo.tick(100) if isinstance(m, TransferRequest)] == []
    leader.solo.store.full = False
    leader.solo.replica.disk.disk_full(False, leader.solo.now)
    leader.propose([b"c"])
    assert leader.solo.store.end_index == 1


def test_s8_c2_what_a_full_disk_could_not_take_back_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()

    def refuse(*_: object, **__: object) -> list[Slab]:
        full = StoreFull("no space for the append, nor for zeros over it")
        full.leaves_bytes = True
        raise full

    monkeypatch.setattr(leader.solo.store, "append_as_leader", refuse)
    leader.propose([b"a"], [b"b", b"c"])
    said = [(o.code, o.appended, o.first_index, o.last_index, o.term) for o in leader.done]
    assert said == [
        (ResponseCode.DISK_ERROR, Appended.UNKNOWN, 1, 1, 1),
        (ResponseCode.DISK_ERROR, Appended.UNKNOWN, 2, 3, 1),
    ]
    assert not leader.solo.replica.status(leader.solo.now).leader_ready, "it is full"


def test_s8_a_leader_that_meets_a_full_disk_hands_over_by_itself() -> None:
    leader = Leader()
    leader.solo.store.full = True
    leader.propose([b"a"])
    sent = [(to, m) for to, m in leader.solo.sent if isinstance(m, TransferRequest)]
    assert [(to, m.take_leadership_index) for to, m in sent] == [("n1", 0)]
    leader.propose([b"b"])
    assert [o.code for o in leader.done] == [ResponseCode.DISK_FULL, ResponseCode.LEADER_TRANSFERRING]


def test_s8_who_cannot_write_its_first_entry_steps_down_and_leaves_the_others_the_first_try() -> None:
    solo = Solo(store_of([1, 1]))
    solo.store.full = True
    solo.grant(solo.grant(solo.tick(1100)))
    assert (solo.replica.role, solo.replica.term) == (Role.CANDIDATE, 2)
    assert [m for _ in range(4) for _to, m in solo.tick(500) if isinstance(m, VoteRequest)] == []
    solo.store.full = False
    solo.replica.disk.disk_full(False, solo.now)
    assert [m for _ in range(3) for _to, m in solo.tick(500) if isinstance(m, VoteRequest)] != []


def test_a_new_leader_appends_a_noop_at_once() -> None:
    solo = Solo(store_of([1, 1]))
    solo.lead()
    entry = solo.store.get(2)
    assert entry is not None and (entry.magic, entry.term, entry.body) == (Magic.NOOP, 2, b"")


def test_s8_the_noop_follows_when_there_is_space_again() -> None:
    solo = Solo(store_of([1]))
    solo.store.full = True
    solo.grant(solo.grant(solo.tick(1100)))
    assert solo.replica.role is Role.CANDIDATE, "the others get the first try"
    solo.replica.disk.disk_full(False, solo.now)
    solo.lead()
    solo.tick(100)
    assert solo.replica.role is Role.LEADER, "nobody else could either"
    assert solo.store.end_index == 0 and ("disk_full", None) in solo.replica.member.alarms
    solo.store.full = False
    for _ in range(2):
        solo.replica.disk.disk_full(False, solo.now)
    assert solo.store.end_index == 1 and not solo.replica.member.alarms


def test_s8_a_disk_that_had_space_meanwhile_leaves_the_others_the_first_try_again() -> None:
    solo = Solo(store_of([1]))
    solo.store.full = True
    solo.grant(solo.grant(solo.tick(1100)))
    assert solo.replica.role is Role.CANDIDATE
    solo.store.full = False
    solo.replica.disk.disk_full(False, solo.now)
    solo.compare(0, term=3)
    solo.append_synced(solo.slab(0, term=3), 1, term=3, commit_index=1)  # n1 leads, and there is space here
    solo.replica.disk.disk_full(False, solo.now)
    assert not solo.replica.member.alarms
    solo.store.full = True
    solo.grant(solo.grant(solo.tick(1500)))
    assert (solo.replica.role, solo.replica.term) == (Role.CANDIDATE, 4), "the others get the first try"


def stuck_with_a_full_disk() -> Leader:
    """A leader whose disk refused an append, and whose peers cannot take over."""
    leader = Leader()
    leader.solo.store.full = True
    leader.propose([b"a"])
    nobody_takes_over(leader)
    return leader


def nobody_takes_over(leader: Leader) -> None:
    while leader.solo.replica.transfers.current is not None:
        to, order = next((to, m) for to, m in reversed(leader.solo.sent) if isinstance(m, TransferRequest))
        leader.solo.receive(to, TransferResponse(order.seq, 1, ResponseCode.TAKE_LEADERSHIP_FAILED))


def test_s8_the_alarm_of_a_full_disk_keeps_its_beginning_until_writes_succeed() -> None:
    leader = stuck_with_a_full_disk()
    solo, member = leader.solo, leader.solo.replica.member
    since = member.alarms[("disk_full", None)].since_at_ns
    for number in range(1, 6):  # as the driver asks every now and then; nobody writes meanwhile
        solo.replica.disk.disk_full(False, solo.now + number * MS)
        nobody_takes_over(leader)
        assert member.alarms[("disk_full", None)].since_at_ns == since
        assert solo.replica.status(solo.now).disk_full and not solo.replica.status(solo.now).leader_ready
    leader.propose([b"b"])
    assert leader.done[-1].code is ResponseCode.DISK_FULL
    nobody_takes_over(leader)
    assert member.alarms[("disk_full", None)].since_at_ns == since
    solo.store.full = False
    solo.replica.disk.disk_full(False, solo.now)
    assert ("disk_full", None) in member.alarms, "nothing was written yet"
    leader.propose([b"c"])
    assert ("disk_full", None) in member.alarms, "a small write proves little: the next try decides"
    solo.replica.disk.disk_full(False, solo.now)
    assert not member.alarms and not solo.replica.status(solo.now).disk_full


def test_s8_a_leader_that_nobody_writes_to_finds_out_about_space_by_itself() -> None:
    leader = stuck_with_a_full_disk()
    leader.solo.store.full = False
    end_index = leader.solo.store.end_index
    for _ in range(3):
        leader.solo.replica.disk.disk_full(False, leader.solo.now)
    assert not leader.solo.replica.member.alarms and leader.solo.store.end_index == end_index + 1


def test_s8_small_writes_between_refused_large_ones_do_not_end_the_alarm() -> None:
    leader = stuck_with_a_full_disk()
    member = leader.solo.replica.member
    since = member.alarms[("disk_full", None)].since_at_ns
    for number in range(1, 5):
        leader.solo.replica.disk.disk_full(False, leader.solo.now + number * MS)
        leader.solo.store.full = False
        leader.propose([b"small"])
        leader.solo.store.full = True
        leader.propose([b"large"])
        nobody_takes_over(leader)
        assert leader.done[-1].code is ResponseCode.DISK_FULL
        assert member.alarms[("disk_full", None)].since_at_ns == since


def test_s8_the_alarm_outlives_the_leadership_as_long_as_the_disk_is_full() -> None:
    """What the next leader sends is small and fits into what was allocated before: the disk is full all the same."""
    leader = stuck_with_a_full_disk()
    solo, member = leader.solo, leader.solo.replica.member
    since = member.alarms[("disk_full", None)].since_at_ns
    member.change_role(RoleEvent.DEPOSED, solo.now, "another leads")
    solo.store.full = False
    for number in range(1, 4):
        member.wrote_since_full = True
        solo.replica.disk.disk_full(False, solo.now + number * MS, still_short=True)
        assert member.alarms[("disk_full", None)].since_at_ns == since
        assert solo.replica.status(solo.now).disk_full and not member.disk_full, "writes that fit are taken"
    solo.replica.disk.disk_full(False, solo.now + 5 * MS)
    assert not member.alarms and not solo.replica.status(solo.now).disk_full


# --- leadership ends ----------------------------------------------------------------------------------------------


def test_e6_no_quorum_of_answers_for_an_election_time_out() -> None:
    leader = Leader()
    leader.propose([b"x"])
    for _ in range(10):
        leader.solo.tick(100)
    assert leader.solo.replica.role is Role.LEADER
    leader.solo.tick(100)
    assert leader.solo.replica.role is Role.CANDIDATE
    assert [(o.appended, o.first_index, o.term) for o in leader.done] == [(Appended.UNKNOWN, 1, 1)]
    assert leader.done[0].leader_id is None


@pytest.mark.parametrize("milliseconds", [200, 1300, 5000])
def test_e6_a_leader_that_stood_still_counts_one_tick_and_no_more(milliseconds: int) -> None:
    leader = Leader()
    for _ in range(4):  # whatever it had counted before
        leader.solo.tick(100)
    leader.solo.late_tick(milliseconds)
    assert leader.solo.replica.role is Role.LEADER
    leader.solo.tick(400)
    assert leader.solo.replica.role is Role.LEADER
    leader.solo.tick(500)
    assert leader.solo.replica.role is Role.CANDIDATE, "those that run and answer nothing are silent all the same"


def test_e6_ten_seconds_of_the_clock_end_a_leadership_in_any_case() -> None:
    leader = Leader()
    leader.solo.late_tick(9_999)
    assert leader.solo.replica.role is Role.LEADER
    leader.solo.late_tick(1)
    assert leader.solo.replica.role is Role.CANDIDATE


def test_e6_a_stall_makes_no_lease_longer() -> None:
    leader = Leader(lease_reads=True)
    for to, beat in leader.solo.tick(100):
        if isinstance(beat, HeartBeatRequest):
            leader.solo.receive(to, HeartBeatResponse(beat.seq, 1, ResponseCode.SUCCESS, 0))
    assert leader.leadership.reads.lease_holds(leader.solo.now)
    leader.solo.late_tick(500)
    assert leader.solo.replica.role is Role.LEADER
    assert not leader.leadership.reads.lease_holds(leader.solo.now)


def test_e6_one_answering_follower_of_two_is_enough() -> None:
    leader = Leader()
    for _ in range(30):
        sent = leader.solo.tick(100)
        for seq in [m.seq for to, m in sent if to == "n2" and isinstance(m, HeartBeatRequest)]:
            leader.solo.receive("n2", HeartBeatResponse(seq, 1, ResponseCode.SUCCESS, 0))
    assert leader.solo.replica.role is Role.LEADER


def test_e6_answers_of_a_diverged_peer_do_not_count() -> None:
    leader = Leader()
    (push,) = leader.propose([b"x"])
    leader.solo.ack("n1", push, 0, code=ResponseCode.INCONSISTENT_INDEX)
    assert leader.solo.replica.peers.of["n1"].state is DispatcherState.DIVERGED
    before = leader.leadership.contact.at()
    leader.solo.tick(100)
    leader.solo.receive("n1", HeartBeatResponse(leader.solo.replica.member.last_seq, 1, ResponseCode.SUCCESS, 0))
    assert leader.leadership.contact.at() == before


@pytest.mark.parametrize("how", ["push", "heartbeat"])
def test_an_answer_with_a_higher_term_ends_the_leadership(how: str) -> None:
    leader = Leader()
    (push,) = leader.propose([b"x"])
    if how == "push":
        leader.solo.ack("n1", push, 0, term=7, code=ResponseCode.EXPIRED_TERM)
    else:
        leader.solo.receive("n1", HeartBeatResponse(1, 7, ResponseCode.EXPIRED_TERM))
    assert leader.solo.replica.role is Role.CANDIDATE and leader.solo.replica.term == 7
    assert leader.done[0].code is ResponseCode.TERM_CHANGED and leader.done[0].appended is Appended.UNKNOWN


def test_heartbeat_results_are_parsed_as_dledger_does() -> None:
    leader = Leader()
    sent = leader.solo.receive("n1", HeartBeatResponse(1, 1, ResponseCode.TERM_NOT_READY))
    assert [(to, type(m)) for to, m in sent] == [("n1", HeartBeatRequest)]
    leader.solo.receive("n2", HeartBeatResponse(1, 1, ResponseCode.UNKNOWN_MEMBER))
    assert ("peer_refuses", "n2") in leader.solo.replica.member.alarms
    leader.solo.receive("n1", HeartBeatResponse(1, 1, ResponseCode.INCONSISTENT_LEADER))
    assert leader.solo.replica.role is Role.CANDIDATE


def test_dispatcher_epochs_grow_over_leaderships_of_one_process() -> None:
    leader = Leader()
    first = leader.solo.replica.peers.of["n1"].dispatch_epoch
    leader.solo.push(PushKind.COMMIT, "n2", term=5)
    leader.solo.replica.links.lost("n2", leader.solo.now)
    leader.solo.lead()
    assert leader.solo.replica.peers.of["n1"].dispatch_epoch > first


def test_stop_fails_what_waits_as_unknown_and_nothing_happens_after() -> None:
    leader = Leader()
    leader.propose([b"x"])
    outcomes = leader.transfer("n1")
    leader.solo.replica.stop(leader.solo.now)
    assert [o.appended for o in leader.done] == [Appended.UNKNOWN] and len(outcomes) == 1
    leader.solo.replica.stop(leader.solo.now)
    assert leader.solo.late_tick(5000) == []
    assert leader.solo.replica.propose([b"y"], leader.solo.now).outcome is not None


# --- the snapshot -------------------------------------------------------------------------------------------------


def test_status_of_a_leader() -> None:
    leader = Leader()
    leader.propose([b"x" * 10], [b"y" * 10])
    leader.solo.now += 30 * MS
    status = leader.solo.replica.status(leader.solo.now)
    assert (status.role, status.term, status.leader_id, status.voted_for) == (Role.LEADER, 1, "n0", "n0")
    assert (status.log.end_index, status.log.durable_index, status.log.committed_index) == (2, 0, 0)
    assert (status.quorum_index, status.quorum_needed, status.leader_ready) == (0, 2, True)
    assert [m.id for m in status.watermarks] == ["n0", "n1", "n2"]
    peer = status.watermarks[1]
    assert (peer.match_index, peer.write_index, peer.lag_entries, peer.lag_ms, peer.last_ack_ms) == (0, 3, 2, 30, 30)
    assert peer.lag_bytes == 2 * (48 + 10) and peer.counts
    (group,) = status.closures.groups
    assert (group.waits_for, group.needed, group.count) == (("n0", "n1", "n2"), 2, 2)
    assert [d.state for d in status.dispatchers] == [DispatcherState.APPEND] * 2
    assert status.dispatchers[0].in_flight == 1 and status.dispatchers[0].in_flight_bytes == 2 * (48 + 10)
    with pytest.raises(FrozenInstanceError):
        status.term = 9  # type: ignore[misc]


def test_status_of_a_follower_has_no_watermarks() -> None:
    solo = Solo(store_of([1]))
    solo.compare(0, term=2)
    status = solo.replica.status(solo.now)
    assert (status.role, status.leader_id, status.watermarks, status.dispatchers) == (Role.FOLLOWER, "n1", (), ())
    assert status.quorum_index is None and status.closures.pending == 0 and status.log.verified_index == 0


def test_status_never_shows_an_unknown_as_zero() -> None:
    solo = Solo()
    solo.lead()
    peer = solo.replica.status(solo.now).watermarks[1]
    assert (peer.lag_entries, peer.lag_bytes, peer.lag_ms, peer.last_ack_ms, peer.durable_index) == (None,) * 5


def test_next_deadline_is_always_ahead_and_tick_makes_progress() -> None:
    cluster = Cluster(3)
    for _ in range(300):
        cluster.dial()
        cluster.deliver_all()
        cluster.now = max(cluster.now, min(node.replica.next_deadline() for node in cluster.nodes.values()))
        for node_id in cluster.ids:
            cluster.tick(node_id)
            assert cluster.nodes[node_id].replica.next_deadline() > cluster.now
    assert cluster.leader() is not None


def test_a_config_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="not among the peers"):
        ReplicaConfig("g", "n9", {"n0": "a"})
