"""A damaged log in the core (SAFETY S6): what its member may do, how it repairs, what it gives to others."""

from __future__ import annotations

from typing import Any

import pytest

from node.consensus.api import MS
from node.protocol.codes import FlushMode, ResponseCode, Role, VoterState
from node.protocol.entry import Slab
from node.protocol.messages import (
    FetchRequest,
    FetchResponse,
    Message,
    PushKind,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    TransferRequest,
    TransferResponse,
    TransferTicket,
    VoteRequest,
)
from node.store.errors import StoreCorrupt
from node.store.faults.ranges import merged
from node.store.faults.results import Fault, Mended
from tests.unit.core_kit import Leader, Solo, store_of

OK = ResponseCode.SUCCESS
BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
TERMS = [1, 1, 1, 2, 2, 2]


def fault(first: int, last: int | None = None) -> Fault:
    return Fault(first, first if last is None else last, "crc_invalid", "")


def damaged(first: int, last: int | None = None, *, terms: list[int] = TERMS, **changes: Any) -> Solo:
    store = store_of(terms, **changes.pop("hard", {}))
    store.rot(first, last, known=True)
    return Solo(store, **changes)


def fetches(sent: list[tuple[str, Message]]) -> list[tuple[str, FetchRequest]]:
    return [(to, message) for to, message in sent if isinstance(message, FetchRequest)]


def give(solo: Solo, peer: str, request: FetchRequest, slab: Slab | None, code: ResponseCode = OK) -> Any:
    """A peer's answer; what the disk makes of it is done at once."""
    sent = solo.receive(peer, FetchResponse(request.seq, code, 5, slab))
    while solo.effects.mend is not None:
        order = solo.effects.mend
        solo.replica.disk.mended(order.log_epoch, order.carry_out(solo.store), "", solo.now)
        sent += solo.take()
    return sent


def alarms(solo: Solo) -> set[str]:
    return {code for code, _peer in solo.replica.member.alarms}


# --- what a damaged member may do -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PushKind.COMPARE, PushKind.TRUNCATE])
def test_damage_that_nobody_knew_is_noted_also_beside_known_damage(kind: PushKind) -> None:
    solo = damaged(1)
    solo.store.rot(4)
    at = {"prev_index": 4} if kind is PushKind.COMPARE else {"first_index": 4}
    solo.push(kind, term=3, prev_term=2, **at)
    assert any(isinstance(message, PushResponse) for _to, message in solo.sent)
    assert [one.first_index for one in solo.store.faults] == [1, 4]


def test_the_leader_steps_down_and_healed_it_may_lead_again() -> None:
    leader = Leader()
    solo = leader.solo
    leader.propose([b"a"], [b"b"])
    solo.sync()
    sound = solo.store.read_slab(1, 49)
    solo.store.rot(1)
    solo.replica.disk.log_damaged([fault(1)], solo.now)
    assert len(fetches(solo.take())) == 1
    assert solo.replica.role is Role.CANDIDATE and alarms(solo) == {"log_damaged"}
    assert [outcome.code for outcome in leader.done] == [ResponseCode.TERM_CHANGED] * 2
    assert not [m for _to, m in solo.tick(3000) if isinstance(m, VoteRequest)]
    peer, request = fetches(solo.sent)[-1]  # nobody answered the first one
    give(solo, peer, request, sound)
    assert solo.store.faults == () and alarms(solo) == set()
    solo.lead()


def test_damage_met_in_the_middle_of_a_campaign_ends_it() -> None:
    for real in (False, True):
        solo = Solo(store_of(TERMS))
        sent = solo.tick(1100)
        if real:
            sent = solo.grant(sent)
        solo.store.rot(2)
        solo.replica.disk.log_damaged([fault(2)], solo.now)
        solo.take()
        solo.grant(sent)
        assert solo.replica.role is Role.CANDIDATE and solo.replica.leadership is None


def test_a_damaged_member_takes_no_leadership() -> None:
    solo = damaged(1, hard={"term": 3})
    solo.follow(term=3)
    solo.compare(5, term=3)
    order = TransferRequest(9, 3, "n0", 5, TransferTicket(3, "n0", "x"))
    answer = next(m for _to, m in solo.receive("n1", order) if isinstance(m, TransferResponse))
    assert answer.code is ResponseCode.ILLEGAL_MEMBER_STATE


@pytest.mark.parametrize("flush", list(FlushMode))
def test_answers_say_from_where_nothing_counts(flush: FlushMode) -> None:
    solo = damaged(3, flush=flush)
    solo.follow(term=2)
    answer = solo.compare(5, term=2)
    assert answer is not None
    assert (answer.code, answer.verified_index, answer.faulty_from) == (OK, 5, 3)
    appended = solo.append(solo.slab(5, term=2), 2, term=2)
    assert appended is not None and (appended.code, appended.verified_index, appended.faulty_from) == (OK, 6, 3)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_the_leaders_record_of_a_damaged_peer_goes_down_and_commit_does_not(flush: FlushMode) -> None:
    leader = Leader(flush=flush)
    solo = leader.solo
    push = leader.propose([b"a"])[0]
    solo.sync()
    solo.ack("n1", push, 1)
    assert solo.replica.committed_index == 1
    push = leader.propose([b"b"])[0]
    solo.sync()
    solo.ack("n1", push, 2, faulty_from=1)
    peer = leader.solo.replica.peers.of["n1"]
    assert (peer.match_index, peer.watermark_index, peer.sound_match_index) == (2, 0, 0)
    assert solo.replica.committed_index == 1
    assert leader.solo.replica.handover.transferees.may_take_over("n1") is ResponseCode.ILLEGAL_MEMBER_STATE
    assert leader.solo.replica.handover.transferees.best() != "n1"
    assert leader.transfer("n1")[0].code is ResponseCode.ILLEGAL_MEMBER_STATE
    solo.ack("n1", push, 2, seq=-1)
    assert (peer.watermark_index, solo.replica.committed_index) == (2, 2)


def test_a_transfer_waits_for_the_transferees_repair() -> None:
    leader = Leader()
    solo = leader.solo
    push = leader.propose([b"a"])[0]
    solo.sync()
    solo.ack("n2", push, 1)
    outcomes = leader.transfer("n1")
    solo.ack("n1", push, 1, faulty_from=0)
    assert not [m for to, m in solo.sent if to == "n1" and isinstance(m, TransferRequest)]
    solo.ack("n1", push, 1, seq=-1)
    assert outcomes == [] and [m for to, m in solo.sent if to == "n1" and isinstance(m, TransferRequest)]


def test_e8_a_rejoining_member_is_complete_only_without_damage_up_to_its_target() -> None:
    solo = damaged(2, hard={"voter_state": VoterState.REJOINING})
    solo.follow(term=2)
    solo.compare(5, term=2)
    asked = [m for _to, m in solo.tick(10) if isinstance(m, ReadIndexRequest)]
    solo.receive("n1", ReadIndexResponse(asked[-1].seq, 2, OK, 5, 5))
    assert solo.replica.member.voter_state is VoterState.REJOINING
    peer, request = fetches(solo.sent)[0]
    give(solo, peer, request, store_of(TERMS).read_slab(2, 51))
    assert solo.replica.member.voter_state is VoterState.VOTER


# --- damage and the leader's orders -----------------------------------------------------------------------------


def test_compare_at_a_damaged_entry_is_busy() -> None:
    solo = damaged(1)
    solo.follow(term=2)
    chain = store_of(TERMS).meta(1)
    assert chain is not None
    answer = solo.push(PushKind.COMPARE, term=2, prev_index=1, prev_term=1, prev_chain=chain.chain)
    assert answer is not None and answer.code is BUSY and answer.verified_index == -1


def test_compare_meets_damage_nobody_knew_of() -> None:
    solo = Solo(store_of(TERMS))
    solo.follow(term=2)
    solo.store.rot(1)
    notice = solo.push(PushKind.COMPARE, term=2, prev_index=1, prev_term=1)  # asked again, it is known
    assert notice is not None and (notice.seq, notice.faulty_from) == (-1, 1)
    assert [(one.first_index, one.last_index) for one in solo.store.faults] == [(1, 1)]
    assert solo.replica.member.alarms and fetches(solo.sent)
    again = solo.push(PushKind.COMPARE, term=2, prev_index=1, prev_term=1)
    assert again is not None and again.code is BUSY


def test_compare_at_a_damaged_entry_that_must_differ_goes_below_it() -> None:
    solo = damaged(2, 4, terms=[1, 1, 1, 1, 2, 2])
    solo.follow(term=5)
    answer = solo.push(PushKind.COMPARE, term=5, prev_index=3, prev_term=5)
    assert answer is not None
    assert (answer.code, answer.x_term, answer.x_index) == (ResponseCode.INCONSISTENT_STATE, 1, 2)


def test_nothing_committed_is_given_up_because_it_is_damaged() -> None:
    solo = damaged(2, terms=[1, 1, 1, 1])
    solo.follow(term=5)
    solo.compare(3, term=5, commit_index=3)
    assert solo.replica.committed_index == 3
    answer = solo.push(PushKind.COMPARE, term=5, prev_index=2, prev_term=4)
    assert answer is not None and answer.code is ResponseCode.INCONSISTENT_INDEX
    cut = solo.push(PushKind.TRUNCATE, term=5, first_index=2, prev_term=4)
    assert cut is not None and cut.code is ResponseCode.INCONSISTENT_INDEX
    assert solo.effects.truncate is None


@pytest.mark.parametrize(
    ("theirs", "code", "cuts"),
    [(5, BUSY, True), (1, OK, False), (-1, BUSY, True)],
    ids=["another term for sure", "the same term for sure", "nothing there"],
)
def test_truncate_into_damage_within_one_term(theirs: int, code: ResponseCode, cuts: bool) -> None:
    solo = damaged(2, 3, terms=[1, 1, 1, 1, 1])
    solo.follow(term=5)
    solo.compare(1, term=5)
    answer = solo.push(PushKind.TRUNCATE, term=5, first_index=2, prev_term=theirs)
    assert answer is not None and answer.code is code
    assert (solo.effects.truncate is not None) is cuts


def test_truncate_into_damage_that_may_be_the_leaders_own_waits() -> None:
    solo = damaged(2, 3, terms=[1, 1, 2, 3, 3])
    solo.follow(term=5)
    solo.compare(1, term=5)
    answer = solo.push(PushKind.TRUNCATE, term=5, first_index=2, prev_term=2)
    assert answer is not None and answer.code is BUSY
    assert solo.effects.truncate is None


def test_an_append_over_damage_is_proved_by_the_chain_behind_it() -> None:
    solo = damaged(2, 3)
    whole = store_of(TERMS)
    solo.follow(term=2)
    solo.compare(0, term=2)
    short = solo.append(whole.read_slab(1, 3 * 51), 1, term=2)
    assert short is not None and (short.code, short.verified_index) == (OK, 1)
    long = solo.append(whole.read_slab(1, 1 << 20), 1, term=2)
    assert long is not None and (long.code, long.verified_index, long.faulty_from) == (OK, 5, 2)


# --- repairing --------------------------------------------------------------------------------------------------


def test_the_leader_is_asked_first_then_the_others() -> None:
    solo = damaged(1, 2, connect=False)
    solo.connect("n2")
    assert [to for to, _m in fetches(solo.sent)] == ["n2"]
    request = fetches(solo.sent)[-1][1]
    assert (request.first_index, request.last_index) == (1, 2)
    solo.connect("n1")
    solo.follow(term=2)
    give(solo, "n2", request, None, ResponseCode.DISK_ERROR)
    assert [to for to, _m in fetches(solo.sent)] == ["n2", "n1"]
    give(solo, "n1", fetches(solo.sent)[-1][1], store_of(TERMS).read_slab(1, 2 * 51))
    assert solo.store.faults == ()
    assert [detail["peer"] for kind, detail in solo.events if kind == "repair"] == ["n1"]


def test_a_long_fault_is_fetched_in_pieces_and_another_peer_may_go_on() -> None:
    solo = damaged(1, 4)
    whole = store_of(TERMS)
    peer, request = fetches(solo.sent)[-1]
    sent = give(solo, peer, request, whole.read_slab(1, 51))
    assert [(to, m.first_index) for to, m in fetches(sent)] == [(peer, 2)]
    other = "n2" if peer == "n1" else "n1"
    sent = give(solo, peer, fetches(sent)[-1][1], None, ResponseCode.DISK_ERROR)
    assert [(to, m.first_index) for to, m in fetches(sent)] == [(other, 2)]
    give(solo, other, fetches(sent)[-1][1], whole._slab(2, 3 * 51))
    assert solo.store.faults == () and solo.replica.status(solo.now).repair.repaired_entries == 4


def test_entries_of_two_histories_are_not_mixed() -> None:
    solo = damaged(1, 3)
    other_history = store_of([1, 1, 3, 3, 3, 3])
    peer, request = fetches(solo.sent)[-1]
    sent = give(solo, peer, request, other_history.read_slab(1, 51))
    sent = give(solo, peer, fetches(sent)[-1][1], None, ResponseCode.DISK_ERROR)
    second, request = fetches(sent)[-1]
    assert second != peer
    whole = store_of([1, 1, 1, 2, 2, 2])
    sent = give(solo, second, request, whole._slab(request.first_index, 2 * 51))
    if solo.store.faults:
        to, request = fetches(sent)[-1]
        assert (to, request.first_index) == (second, 1)
        give(solo, second, request, whole._slab(1, 3 * 51))
    assert solo.store.faults == ()


def test_what_does_not_link_is_not_taken_and_the_next_peer_is_asked() -> None:
    solo = damaged(3, 4)
    peer, request = fetches(solo.sent)[-1]
    sent = give(solo, peer, request, store_of([1, 1, 1, 3, 3, 3])._slab(3, 2 * 51))
    assert solo.store.faults != ()
    other, request = fetches(sent)[-1]
    assert other != peer and request.first_index == 3
    give(solo, other, request, store_of(TERMS)._slab(3, 2 * 51))
    assert solo.store.faults == ()


def test_what_was_not_asked_for_is_dropped() -> None:
    solo = damaged(3, 4)
    peer, request = fetches(solo.sent)[-1]
    whole = store_of(TERMS)
    solo.receive("n2" if peer == "n1" else "n1", FetchResponse(request.seq, OK, 5, whole._slab(3, 1000)))
    solo.receive(peer, FetchResponse(request.seq + 99, OK, 5, whole._slab(3, 1000)))
    assert solo.effects.mend is None
    sent = give(solo, peer, request, whole._slab(2, 1000))
    assert solo.store.faults != () and [to for to, _m in fetches(sent)] != [peer]


def test_a_peer_that_does_not_answer_is_passed_over_in_time() -> None:
    solo = damaged(1)
    first = fetches(solo.sent)[-1][0]
    assert solo.replica.next_deadline() <= solo.now + solo.replica.config.timing.push_timeout_ns
    second = fetches(solo.tick(1000))[-1][0]
    assert {first, second} == {"n1", "n2"}
    assert fetches(solo.tick(1000)) == []
    assert fetches(solo.tick(200)) != []
    assert "log_unrecoverable" not in alarms(solo)


def test_a_lost_connection_moves_on_and_a_new_one_is_asked_at_once() -> None:
    solo = damaged(1)
    first = fetches(solo.sent)[-1][0]
    solo.replica.links.lost(first, solo.now)
    other = "n2" if first == "n1" else "n1"
    sent = solo.take()
    assert [to for to, _m in fetches(sent)] == [other]
    give(solo, other, fetches(sent)[-1][1], None, ResponseCode.INDEX_OUT_OF_RANGE)
    solo.sent.clear()
    solo.connect(first)
    assert [to for to, _m in fetches(solo.sent)] == [first]


def test_an_entry_that_nobody_has_is_reported_with_what_each_said_and_never_dropped() -> None:
    solo = damaged(1, 2)
    for _round in range(2):
        for code in (ResponseCode.DISK_ERROR, ResponseCode.INDEX_OUT_OF_RANGE):
            peer, request = fetches(solo.sent)[-1]
            give(solo, peer, request, None, code)
        assert ("log_unrecoverable" in alarms(solo)) is (_round == 1)
        solo.late_tick(31_000)
    text = solo.replica.member.alarms[("log_unrecoverable", None)].text
    for words in ("entries 1..2", "damaged there as well", "its log ends before", "quorumscope store verify"):
        assert words in text
    assert solo.store.end_index == 5 and solo.effects.truncate is None
    assert solo.replica.status(solo.now).repair.hopeless == 1
    peer, request = fetches(solo.sent)[-1]
    give(solo, peer, request, store_of(TERMS)._slab(1, 2 * 51))
    assert alarms(solo) == set()


def test_one_hopeless_fault_does_not_keep_the_others_from_healing() -> None:
    store = store_of(TERMS)
    store.rot(1, known=True)
    store.rot(4, known=True)
    solo = Solo(store)
    for _peer in range(2):
        peer, request = fetches(solo.sent)[-1]
        assert request.first_index == 1
        give(solo, peer, request, None, ResponseCode.DISK_ERROR)
    peer, request = fetches(solo.sent)[-1]
    assert request.first_index == 4
    give(solo, peer, request, store_of(TERMS)._slab(4, 51))
    assert [(one.first_index, one.last_index) for one in solo.store.faults] == [(1, 1)]


def test_a_person_may_ask_for_another_try() -> None:
    solo = damaged(1)
    for _peer in range(2):
        peer, request = fetches(solo.sent)[-1]
        give(solo, peer, request, None, ResponseCode.DISK_ERROR)
    solo.sent.clear()
    solo.replica.disk.repair_now(solo.now)
    solo.take()
    assert fetches(solo.sent) != []


def test_a_full_disk_does_not_end_the_repair() -> None:
    solo = damaged(1)
    peer, request = fetches(solo.sent)[-1]
    solo.receive(peer, FetchResponse(request.seq, OK, 5, store_of(TERMS)._slab(1, 51)))
    assert solo.effects.mend is not None
    solo.replica.disk.mended(solo.effects.mend.log_epoch, None, "no space", solo.now)
    solo.take()
    assert ("repair_failed", "no space") in [(kind, detail.get("text")) for kind, detail in solo.events]
    assert fetches(solo.tick(10)) == [] and fetches(solo.tick(400)) != []


def test_what_was_mended_before_a_cut_is_judged_anew() -> None:
    solo = damaged(4)
    solo.follow(term=5)
    solo.compare(2, term=5)
    peer, request = fetches(solo.sent)[-1]
    solo.receive(peer, FetchResponse(request.seq, OK, 5, store_of(TERMS)._slab(4, 51)))
    mend = solo.effects.mend
    assert mend is not None
    solo.push(PushKind.TRUNCATE, term=5, first_index=3, prev_term=5)
    cut = solo.effects.truncate
    assert cut is not None
    solo.replica.disk.mended(mend.log_epoch, Mended(4, (fault(4),), ()), "", solo.now)
    assert fetches(solo.take()) == []
    solo.store.truncate(3, cut.record)
    solo.replica.disk.truncated(cut.log_epoch, 3, solo.now)
    solo.take()
    assert solo.store.faults == () and alarms(solo) == set()
    assert solo.replica.repair.repaired_faults == 0


def test_a_repair_that_waits_for_a_cut_arms_no_timer_in_the_past() -> None:
    solo = damaged(1)
    solo.follow(term=5)
    solo.compare(2, term=5)
    solo.push(PushKind.TRUNCATE, term=5, first_index=3, prev_term=5)
    cut = solo.effects.truncate
    assert cut is not None
    for peer in ("n1", "n2"):
        solo.replica.links.lost(peer, solo.now)
    solo.take()
    solo.tick(1)
    assert solo.replica.next_deadline() > solo.now
    solo.store.truncate(3, cut.record)
    solo.replica.disk.truncated(cut.log_epoch, 3, solo.now)
    assert solo.replica.next_deadline() > 0


def test_a_repair_is_told_of_also_when_the_disk_was_seen_to_be_sound_before() -> None:
    """A thread mends: the store's faults are gone a little before the core hears what became of its order."""
    solo = damaged(4)
    solo.follow(term=2)
    peer, request = fetches(solo.sent)[-1]
    solo.receive(peer, FetchResponse(request.seq, OK, 5, store_of(TERMS)._slab(4, 51)))
    mend = solo.effects.mend
    assert mend is not None
    result = solo.store.mend(mend.slab)
    solo.tick(10)
    assert alarms(solo) == set()
    solo.replica.disk.mended(mend.log_epoch, result, "", solo.now)
    solo.take()
    assert [detail["first_index"] for kind, detail in solo.events if kind == "repair"] == [4]
    assert solo.replica.repair.repaired_entries == 1 and not solo.replica.repair.status().running


# --- giving -----------------------------------------------------------------------------------------------------


def ask(solo: Solo, first: int, last: int, peer: str = "n1", max_bytes: int = 1000) -> FetchResponse | None:
    sent = solo.receive(peer, FetchRequest(5, first, last, max_bytes))
    for order in solo.effects.fetches:
        slab: Slab | None = None
        try:
            slab = solo.store.read_slab(order.first_index, order.max_bytes)
        except StoreCorrupt as error:
            solo.replica.disk.log_damaged(error.faults, solo.now)
        solo.replica.disk.fetched(order, slab, solo.now)
        sent += solo.take()
    return next((m for _to, m in sent if isinstance(m, FetchResponse)), None)


def test_a_peer_gives_what_was_asked_for_and_no_more() -> None:
    answer = ask(Solo(store_of(TERMS)), 1, 2)
    assert answer is not None and answer.slab is not None
    assert (answer.code, answer.slab.first_index, answer.slab.last_index, answer.end_index) == (OK, 1, 2, 5)
    assert answer.slab == store_of(TERMS).read_slab(1, 2 * 51)


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (6, 7, ResponseCode.INDEX_OUT_OF_RANGE), (2, 1, ResponseCode.UNEXPECTED_ARGUMENT),
        (-1, 3, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN), (3, 3, ResponseCode.DISK_ERROR),
    ],
)  # fmt: skip
def test_a_peer_says_why_it_cannot_help(first: int, last: int, code: ResponseCode) -> None:
    answer = ask(damaged(3), first, last)
    assert answer is not None and (answer.code, answer.slab) == (code, None)


def test_a_damaged_peer_gives_what_is_intact_around_its_damage() -> None:
    solo = damaged(3)
    for first, last in ((1, 2), (4, 5)):
        answer = ask(solo, first, 5)
        assert answer is not None and answer.slab is not None
        assert (answer.slab.first_index, answer.slab.last_index) == (first, last)


def test_a_fetch_may_be_what_finds_a_peers_own_damage() -> None:
    solo = Solo(store_of(TERMS))
    solo.store.rot(2)
    answer = ask(solo, 2, 2)
    assert answer is not None and answer.code is ResponseCode.DISK_ERROR
    assert alarms(solo) == {"log_damaged"} and merged(solo.store.faults, 0, 9) == solo.store.faults != ()


def test_one_read_a_peer_at_a_time() -> None:
    solo = Solo(store_of(TERMS))
    solo.receive("n1", FetchRequest(5, 1, 2, 1000))
    assert len(solo.effects.fetches) == 1
    sent = solo.receive("n1", FetchRequest(6, 1, 2, 1000))
    assert [m.code for _to, m in sent if isinstance(m, FetchResponse)] == [BUSY]
    assert ask(solo, 1, 2, "n2") is not None
    stranger = ask(solo, 1, 2, "n9")
    assert stranger is not None and stranger.code is ResponseCode.UNKNOWN_MEMBER


# --- forks ------------------------------------------------------------------------------------------------------


def test_r7_a_fork_asks_for_a_scrub_once_and_a_sound_log_says_so() -> None:
    solo = Solo(store_of(TERMS))
    solo.follow(term=2)
    solo.compare(4, term=2, prev_chain=12345)
    assert solo.effects.scrub_wanted
    solo.compare(4, term=2, prev_chain=12345)
    assert not solo.effects.scrub_wanted
    solo.replica.disk.scrubbed(solo.now)
    text = solo.replica.member.alarms[("fork", "n1")].text
    assert text.endswith("this log was scrubbed and is sound")


def test_watermarks_show_a_damaged_peer() -> None:
    leader = Leader()
    push = leader.propose([b"a"])[0]
    leader.solo.ack("n1", push, 1, faulty_from=1)
    status = leader.solo.replica.status(leader.solo.now + MS)
    assert {mark.id: mark.faulty_from_index for mark in status.watermarks} == {"n0": None, "n1": 1, "n2": None}


def test_status_names_the_faults() -> None:
    solo = damaged(1, 2)
    status = solo.replica.status(solo.now)
    assert [(one.first_index, one.last_index, one.kind) for one in status.faults] == [(1, 2, "crc_invalid")]
    assert status.repair.running and status.repair.peer_id in ("n1", "n2")


def test_a_push_answer_without_damage_says_so() -> None:
    solo = Solo(store_of(TERMS))
    solo.follow(term=2)
    answer = solo.compare(5, term=2)
    assert isinstance(answer, PushResponse) and answer.faulty_from == -1
