"""Flush, lease reads and timings change while a member runs: what counts, what is kept to, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from node.consensus.api import MS, ReplicaConfig, Timing
from node.consensus.member_changes import ChangeOutcome, Kind, MemberChange
from node.consensus.replica import Replica
from node.protocol.codes import FlushMode, ResponseCode, Role, VoteResult, VoterState
from node.protocol.group_settings import GroupSettings, KeptSettings, Promises, SaidSettings
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse, Hello, VoteRequest, VoteResponse
from node.store.files.hard_state import hard_state_from_json, hard_state_to_json
from node.store.log_store import HardState
from tests.unit.core_kit import Leader, Solo, config_of, store_of

SYNC, ASYNC = FlushMode.SYNC, FlushMode.ASYNC
PLAIN = GroupSettings(SYNC, False, 500)
LONGER = Timing(election_min_ns=900 * MS, election_max_ns=1_000 * MS)
LONG = Timing(election_min_ns=2_000 * MS, election_max_ns=4_000 * MS)


def heard(
    solo: Solo, peer: str, settings: GroupSettings = PLAIN, *, knows: str = "", answer: bool = True, **more: Any
) -> None:
    """A HELLO of a peer of this release that has these settings."""
    said = SaidSettings(
        more.pop("heartbeat_ms", 100), settings.election_min_ms, f"{peer}.0", knows, more.pop("was", None)
    )
    lease_ms = settings.election_min_ms if settings.lease_reads else None
    hello = solo.hello_of(
        peer, flush=settings.flush, lease_reads=settings.lease_reads, election_min_ms=lease_ms, settings=said,
        answer=answer, **more,
    )  # fmt: skip
    solo.receive(peer, hello)


def both_heard(solo: Solo, settings: GroupSettings = PLAIN, *, knows: str = "") -> None:
    for peer in ("n1", "n2"):
        heard(solo, peer, settings, knows=knows)


def change(solo: Solo, **wanted: Any) -> str | None:
    refused = solo.replica.change_settings(replace(solo.replica.config, **wanted), solo.now)
    solo.take()
    return refused


def kept(solo: Solo) -> KeptSettings:
    found = solo.replica.member.durable_hard.kept
    assert found is not None
    return found


def mark(solo: Solo) -> str:
    return solo.replica.membership.settings.mark


def hello_to(solo: Solo, peer: str) -> Hello:
    return [message for to, message in solo.sent if to == peer and isinstance(message, Hello)][-1]


# --- flush --------------------------------------------------------------------------------------------------
def waterline(leader: Leader) -> int:
    return leader.solo.replica.peers.of["n1"].watermark_index


def test_nothing_counts_before_it_is_durable_from_the_moment_the_leader_says_sync() -> None:
    leader = Leader(flush=ASYNC)
    solo, every = leader.solo, GroupSettings(ASYNC, False, 500)
    both_heard(solo, every)
    (push,) = leader.propose([b"a"])
    solo.ack("n1", push, 1, durable=0)
    assert solo.replica.committed_index == 1 and waterline(leader) == 1
    (push,) = leader.propose([b"b"])
    assert change(solo, flush=SYNC) is None
    assert waterline(leader) == 0, "what one of its answers said is both its leader's and durable"
    solo.sync()
    solo.ack("n1", push, 2, durable=1)
    assert solo.replica.committed_index == 1, "what was committed stays; nothing more is"
    solo.ack("n1", push, 2, durable=2)
    assert solo.replica.committed_index == 2


def test_nothing_of_a_member_counts_before_it_is_durable_from_the_moment_it_says_sync() -> None:
    leader = Leader(flush=ASYNC)
    solo = leader.solo
    both_heard(solo, GroupSettings(ASYNC, False, 500))
    (push,) = leader.propose([b"a"])
    heard(solo, "n1", PLAIN, was=GroupSettings(ASYNC, False, 500))
    solo.ack("n1", push, 1, durable=0)
    assert solo.replica.committed_index == 0 and waterline(leader) == 0
    assert ("settings_differ", "n1") in solo.replica.member.alarms
    solo.ack("n1", push, 1, durable=1)
    assert solo.replica.committed_index == 1


def test_what_is_written_counts_once_both_say_async() -> None:
    leader = Leader()
    solo = leader.solo
    both_heard(solo)
    (push,) = leader.propose([b"a"])
    assert change(solo, flush=ASYNC) is None
    solo.ack("n1", push, 1, durable=0)
    assert solo.replica.committed_index == 0, "that member says sync"
    heard(solo, "n1", GroupSettings(ASYNC, False, 500))
    solo.ack("n1", push, 1, durable=0)
    assert solo.replica.committed_index == 1


def test_async_is_on_durable_record_before_it_is_said_and_until_all_know_better() -> None:
    solo = Solo(store_of((1,)))
    both_heard(solo)
    solo.sent.clear()
    solo.replica.change_settings(replace(solo.replica.config, flush=ASYNC), solo.now)
    effects = solo.replica.take_effects()
    assert effects.hard_state is not None and effects.hard_state.kept is not None and effects.spoken_of
    assert effects.hard_state.kept.promises == Promises(0, True), "the HELLOs of this batch wait for that"
    assert all(message.flush is ASYNC for _to, message in effects.sends if isinstance(message, Hello))
    solo.replica.disk.hard_state_saved(effects.hard_state, solo.now)
    assert change(solo, flush=SYNC) is None
    assert kept(solo).promises.unsynced, "the others may still count on what is not durable"
    heard(solo, "n1", knows=mark(solo))
    solo.tick(100)
    assert kept(solo).promises.unsynced, "n2 may"
    heard(solo, "n2", knows=mark(solo))
    solo.tick(100)
    assert kept(solo) == KeptSettings(PLAIN, Promises(0, False))


def test_what_was_acknowledged_before_it_was_durable_becomes_so_first() -> None:
    solo = Solo(store_of((1,)), flush=ASYNC)
    solo.follow()
    solo.compare(0)
    solo.append(solo.slab(0), 1)
    both_heard(solo, GroupSettings(ASYNC, False, 500))
    assert (solo.replica.member.durable_index, solo.store.end_index) == (0, 1)
    assert change(solo, flush=SYNC) is None
    both_heard(solo, knows=mark(solo))
    solo.late_tick(10)
    assert kept(solo).promises.unsynced
    solo.sync()
    solo.late_tick(200)
    assert not kept(solo).promises.unsynced


# --- leases -------------------------------------------------------------------------------------------------
LEASES = GroupSettings(SYNC, True, 500)


def asked_for_a_vote(solo: Solo) -> VoteResult:
    sent = solo.receive("n2", VoteRequest(9, "n2", 2, 0, 1, pre=True))
    (answer,) = [message for _to, message in sent if isinstance(message, VoteResponse)]
    return answer.result


def test_a_member_keeps_to_a_longer_lease_until_all_know_of_the_shorter_one_and_it_is_over() -> None:
    solo = Solo(store_of((1,)), lease_reads=True, timing=LONG)
    solo.tick(2_000)
    both_heard(solo, GroupSettings(SYNC, True, 2_000))
    solo.follow()
    assert change(solo, timing=Timing()) is None
    solo.now += 1_000 * MS
    assert asked_for_a_vote(solo) is VoteResult.REJECT_ALREADY_HAS_LEADER, "the leader may count on 2 s"
    solo.follow()
    both_heard(solo, LEASES, knows=mark(solo))
    solo.late_tick(10)
    assert solo.replica.config.vote_kept_ns == 2_000 * MS, "also what was granted until now"
    solo.follow()
    solo.now += 2_000 * MS
    solo.follow()
    solo.late_tick(10)
    assert kept(solo) == KeptSettings(LEASES, Promises(500, False))
    solo.follow()
    solo.now += 600 * MS
    assert asked_for_a_vote(solo) is VoteResult.ACCEPT


def test_its_own_vote_keeps_to_a_longer_lease_too() -> None:
    solo = Solo(store_of((1,)), lease_reads=True, timing=LONG)
    solo.tick(2_000)
    both_heard(solo, GroupSettings(SYNC, True, 2_000))
    solo.follow()
    assert change(solo, timing=Timing()) is None
    solo.follow()
    assert not campaigns(solo, 1_900), "the leader may count on 2 s, the new time-out is over"
    assert campaigns(solo, 200)


def campaigns(solo: Solo, ms: int) -> bool:
    return any(isinstance(message, VoteRequest) for _to, message in solo.tick(ms))


def test_what_was_promised_is_kept_to_after_a_restart_with_other_settings() -> None:
    store = store_of((1,), kept=KeptSettings(GroupSettings(SYNC, True, 2_000), Promises(2_000, False)))
    solo = Solo(store, connect=False)
    solo.now += 1_999 * MS
    assert asked_for_a_vote(solo) is VoteResult.UNKNOWN
    solo.now += MS
    assert asked_for_a_vote(solo) is VoteResult.ACCEPT
    assert hello_of_start(solo).was == GroupSettings(SYNC, True, 2_000)


def hello_of_start(solo: Solo) -> SaidSettings:
    said = solo.replica.hello(1, "n1").settings
    assert said is not None
    return said


def lease_ms(solo: Solo) -> int:
    leadership = solo.replica.leadership
    assert leadership is not None
    return leadership.reads.lease_left_ns(solo.now) // MS


def beaten(solo: Solo) -> None:
    """Both answer a heartbeat that leaves now."""
    for to, message in solo.tick(100):
        if isinstance(message, HeartBeatRequest):
            answer = HeartBeatResponse(message.seq, message.term, ResponseCode.SUCCESS, 0, VoterState.VOTER)
            solo.receive(to, answer)


def test_a_lease_lasts_as_long_as_those_who_grant_it_say_and_by_answers_to_what_left_afterwards() -> None:
    leader = Leader(lease_reads=True, timing=LONGER)
    solo = leader.solo
    both_heard(solo, GroupSettings(SYNC, True, 900))
    beaten(solo)
    assert 600 <= lease_ms(solo) <= 810
    for peer in ("n1", "n2"):
        heard(solo, peer, LEASES, was=GroupSettings(SYNC, True, 900))
    assert lease_ms(solo) == 0, "nothing was granted under these settings yet"
    beaten(solo)
    assert 250 <= lease_ms(solo) <= 450
    for peer in ("n1", "n2"):
        heard(solo, peer, PLAIN, was=GroupSettings(SYNC, True, 900))
    beaten(solo)
    assert lease_ms(solo) == 0, "they grant none any more"


def test_an_answer_to_a_heartbeat_from_before_a_longer_promise_grants_no_longer_lease() -> None:
    leader = Leader(lease_reads=True, timing=LONGER)
    solo = leader.solo
    beats = [(to, one) for to, one in solo.tick(100) if isinstance(one, HeartBeatRequest)]
    both_heard(solo, GroupSettings(SYNC, True, 900))
    for to, beat in beats:
        solo.receive(to, HeartBeatResponse(beat.seq, beat.term, ResponseCode.SUCCESS, 0, VoterState.VOTER))
    assert lease_ms(solo) == 0


# --- timings, and who differs -------------------------------------------------------------------------------
def timed(heartbeat_ms: int, min_ms: int) -> Timing:
    return Timing(heartbeat_ns=heartbeat_ms * MS, election_min_ns=min_ms * MS, election_max_ns=2 * min_ms * MS)


def test_longer_time_outs_come_before_longer_heartbeats_and_shorter_ones_behind() -> None:
    solo = Solo()
    both_heard(solo)
    refused = change(solo, timing=timed(400, 2_000))
    assert refused is not None and "more than half of n1's election_timeout_min_ms 500: raise that one" in refused
    assert change(solo, timing=timed(250, 2_000)) is None
    for peer in ("n1", "n2"):
        heard(solo, peer, GroupSettings(SYNC, False, 2_000), heartbeat_ms=250)
    assert change(solo, timing=timed(800, 2_000)) is None
    for peer in ("n1", "n2"):
        heard(solo, peer, GroupSettings(SYNC, False, 2_000), heartbeat_ms=800)
    refused = change(solo, timing=timed(100, 500))
    assert refused is not None and "less than twice n1's heart_beat_time_interval_ms 800: lower that one" in refused
    assert solo.replica.config.timing == timed(800, 2_000), "a refusal changes nothing"


@pytest.mark.parametrize("wanted", [{"flush": ASYNC}, {"lease_reads": True}, {"timing": timed(100, 600)}])
def test_beside_an_older_release_nothing_changes_that_it_would_refuse(wanted: dict[str, Any]) -> None:
    solo = Solo()
    solo.connect("n1", settings=None)
    refused = change(solo, **wanted)
    assert refused == "n1 is of a release that refuses members with other settings: upgrade it first"
    assert change(solo, max_transfer_wait_index=7) is None, "the others hear nothing of that"
    assert solo.replica.config.max_transfer_wait_index == 7


def test_beside_an_older_release_no_member_changes_and_after_a_change_it_is_refused() -> None:
    leader = Leader()
    solo = leader.solo
    adds = MemberChange(Kind.ADD, "n3", "127.0.0.1:20914")
    assert solo.replica.refused_change(adds) is None
    solo.connect("n1", settings=None)
    refused = solo.replica.refused_change(adds)
    assert refused is not None and refused[0] is ResponseCode.ILLEGAL_MEMBER_STATE
    assert refused[1] == "n1 is of a release that knows no changes of members: upgrade it first"
    heard(solo, "n1")
    outcomes: list[ChangeOutcome] = []
    solo.replica.change_members(adds, outcomes.append)
    solo.take()
    assert solo.replica.configuration.index > 0, "it is in the log"
    before = len(solo.sent)
    solo.receive("n1", solo.hello_of("n1", settings=None, answer=False))
    (answer,) = [one for to, one in solo.sent[before:] if to == "n1" and isinstance(one, Hello)]
    assert answer.code is ResponseCode.UNEXPECTED_ARGUMENT
    assert answer.detail == "the release of n1 knows no changes of members, and there were some: upgrade it"


def test_other_time_outs_are_in_force_at_once() -> None:
    leader = Leader()
    solo = leader.solo
    both_heard(solo)
    assert change(solo, timing=timed(50, 400)) is None
    beats = [one for to, one in solo.tick(201) if to == "n1" and isinstance(one, HeartBeatRequest)]
    assert len(beats) >= 4
    solo.tick(801)
    assert solo.replica.role is not Role.LEADER, "no quorum for the new election time-out"


def refusal(solo: Solo, peer: str, settings: GroupSettings, was: GroupSettings | None) -> str | None:
    before = len(solo.sent)
    heard(solo, peer, settings, answer=False, was=was)
    answers = [one for to, one in solo.sent[before:] if to == peer and isinstance(one, Hello) and one.answer]
    return None if answers[-1].code is ResponseCode.SUCCESS else answers[-1].detail


def test_who_differs_is_refused_unless_one_of_both_is_changing_that() -> None:
    solo = Solo()
    every = GroupSettings(ASYNC, False, 500)
    assert refusal(solo, "n1", every, None) == "flush differs: async at n1, sync at n0"
    assert refusal(solo, "n1", every, PLAIN) is None, "n1 is changing it"
    assert refusal(solo, "n1", PLAIN, None) is None
    assert refusal(solo, "n2", PLAIN, None) is None
    assert change(solo, flush=ASYNC) is None
    assert refusal(solo, "n2", PLAIN, None) is None, "n0 is changing it"
    assert ("settings_differ", "n2") in solo.replica.member.alarms
    both_heard(solo, every, knows=mark(solo))
    solo.tick(10)
    assert ("settings_differ", "n2") not in solo.replica.member.alarms
    assert kept(solo).agreed == every and not solo.replica.settings.under_way
    assert refusal(solo, "n1", PLAIN, None) == "flush differs: sync at n1, async at n0", "it is over"
    assert ("settings_agreed", {**every._asdict(), "flush": "async"}) in [
        (kind, {name: detail[name] for name in every._fields if name in detail}) for kind, detail in solo.events
    ]


def test_who_has_not_answered_is_told_again() -> None:
    solo = Solo()
    both_heard(solo)
    assert change(solo, flush=ASYNC) is None
    solo.sent.clear()
    solo.follow()
    solo.late_tick(1_100)
    assert hello_to(solo, "n1").flush is ASYNC


def test_the_record_survives_and_a_damaged_one_is_refused() -> None:
    state = HardState(kept=KeptSettings(GroupSettings(ASYNC, True, 700), Promises(900, True)))
    written = hard_state_to_json(state)
    assert hard_state_from_json(written) == state
    for odd in (
        [],
        [["async", 1, 700], [900, True]],
        [["later", True, 700], [900, True]],
        [["sync", True, "7"], [1, True]],
    ):
        with pytest.raises((ValueError, TypeError)):
            hard_state_from_json({**written, "kept": odd})
    del written["kept"]
    assert hard_state_from_json(written).kept is None, "as an older release leaves it"


def test_a_replica_changes_its_own_configuration_and_nobody_elses() -> None:
    config: ReplicaConfig = config_of()
    replica = Replica(config, store_of(), random.Random(1), 0)
    assert replica.change_settings(replace(config, flush=ASYNC), 0) is None
    assert (replica.config.flush, config.flush) == (ASYNC, SYNC)


def test_a_start_with_a_heartbeat_too_slow_for_a_member_is_an_alarm() -> None:
    """A running member is refused such a change (above); a start has only its own file to go by."""
    slow = Timing(heartbeat_ns=400 * MS, election_min_ns=1_000 * MS, election_max_ns=2_000 * MS)
    solo = Solo(timing=slow)
    heard(solo, "n1", PLAIN)
    heard(solo, "n2", PLAIN._replace(election_min_ms=800))
    alarms = solo.replica.member.alarms
    assert [key for key in alarms if key[0] == "timings_conflict"] == [("timings_conflict", "n1")]
    assert "400 at n0 is more than half of election_timeout_min_ms 500 at n1" in alarms["timings_conflict", "n1"].text
    heard(solo, "n1", PLAIN._replace(election_min_ms=1_000))
    assert ("timings_conflict", "n1") not in alarms, "n1 was changed as well"
    heard(solo, "n1", PLAIN)
    assert ("timings_conflict", "n1") in alarms
    assert change(solo, timing=LONGER) is None
    assert ("timings_conflict", "n1") not in alarms, "this one was changed back"


def test_values_are_said_as_the_configuration_has_them() -> None:
    solo = Solo()
    leased = GroupSettings(SYNC, True, 500)
    assert refusal(solo, "n1", leased, None) == "lease_reads differs: true at n1, false at n0"
