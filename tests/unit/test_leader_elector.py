"""Elections (SAFETY E1-E5, E8) with DLedger's vote results and parse of results."""

from __future__ import annotations

from typing import Any

import pytest

from node.consensus.api import MS
from node.consensus.roles import ROLE_TRANSITIONS, RoleEvent
from node.consensus.ticks import Ticks
from node.consensus.vote_results import ParseResult, parse_votes
from node.protocol.codes import Role, VoteResult, VoterState
from node.protocol.messages import PushKind, PushResponse, TransferTicket, VoteRequest, VoteResponse
from node.store.faults.results import Fault
from tests.scenarios.cluster import Cluster
from tests.unit.core_kit import NOW, Solo, member_of, store_of

V = VoteResult
A, NR, HL, AV = V.ACCEPT, V.REJECT_TERM_NOT_READY, V.REJECT_ALREADY_HAS_LEADER, V.REJECT_ALREADY_VOTED
SMALL, EXPIRED, U = V.REJECT_SMALL_LEDGER_END_INDEX, V.REJECT_EXPIRED_LEDGER_TERM, V.UNKNOWN


@pytest.mark.parametrize(
    ("results", "needed", "expected"),
    [
        ([A, A], 2, ParseResult.PASSED),
        ([A, A, HL], 2, ParseResult.PASSED),
        ([A, NR], 2, ParseResult.REVOTE_IMMEDIATELY),
        ([A, NR, AV], 2, ParseResult.REVOTE_IMMEDIATELY),
        ([A, HL], 2, ParseResult.WAIT_TO_REVOTE),
        ([A, U, U], 2, ParseResult.WAIT_TO_REVOTE),  # no quorum answered
        ([A, SMALL, EXPIRED], 2, ParseResult.WAIT_TO_REVOTE),  # a quorum's logs are newer
        ([A, SMALL, AV], 2, ParseResult.WAIT_TO_REVOTE),
        ([A, AV, AV], 2, ParseResult.WAIT_TO_VOTE_NEXT),
        ([A, A, A, AV, AV], 4, ParseResult.WAIT_TO_VOTE_NEXT),
        ([A], 1, ParseResult.PASSED),
    ],
)
def test_parse_of_results(results: list[VoteResult], needed: int, expected: ParseResult) -> None:
    assert parse_votes(results, needed) is expected


@pytest.mark.parametrize("event", list(RoleEvent))
@pytest.mark.parametrize("role", list(Role))
def test_role_changes_follow_the_table(role: Role, event: RoleEvent) -> None:
    member = member_of(store_of())
    member.role = role
    if (role, event) in ROLE_TRANSITIONS:
        member.change_role(event, NOW, "why")
        assert member.role is ROLE_TRANSITIONS[(role, event)]
    else:
        with pytest.raises(AssertionError, match="impossible"):
            member.change_role(event, NOW, "why")


def ask(solo: Solo, sender: str = "n1", *, end: tuple[int, int] = (1, 2), **changes: Any) -> VoteResult:
    fields = {"candidate_id": sender, "term": 4, **changes}
    sent = solo.receive(sender, VoteRequest(seq=9, ledger_end_index=end[0], ledger_end_term=end[1], **fields))
    (answer,) = [message for _to, message in sent if isinstance(message, VoteResponse)]
    assert answer.seq == 9 and answer.pre is fields.get("pre", False)
    return answer.result


@pytest.mark.parametrize(
    ("changes", "pre_result", "result"),
    [
        ({}, A, A),
        ({"candidate_id": "n9"}, V.REJECT_UNKNOWN_LEADER, V.REJECT_UNKNOWN_LEADER),
        ({"candidate_id": "n0"}, V.REJECT_UNEXPECTED_LEADER, V.REJECT_UNEXPECTED_LEADER),
        ({"candidate_id": "n2"}, V.REJECT_UNEXPECTED_LEADER, V.REJECT_UNEXPECTED_LEADER),
        ({"end": (9, 1)}, EXPIRED, EXPIRED),
        ({"end": (0, 2)}, SMALL, SMALL),
        ({"end": (0, 3)}, A, A),
        ({"term": 3}, V.REJECT_EXPIRED_VOTE_TERM, V.REJECT_EXPIRED_VOTE_TERM),
    ],
)
def test_votes_and_pre_votes(changes: Any, pre_result: VoteResult, result: VoteResult) -> None:
    """The member is in term 4 for the votes, in term 3 for the pre-votes; its log ends at 1 in term 2."""
    before = Solo(store_of([1, 2], term=3))
    assert ask(before, pre=True, **changes) is pre_result
    assert before.replica.term == 3 and not before.hard_states  # E3: a pre-vote changes nothing
    assert ask(Solo(store_of([1, 2], term=4)), **changes) is result


def test_e2_one_vote_a_term_and_durable_with_the_answer() -> None:
    solo = Solo(store_of([1, 2], term=4))
    assert ask(solo, "n1") is A
    assert solo.effects.hard_state is not None and solo.effects.hard_state.voted_for == "n1"
    assert ask(solo, "n2") is AV
    assert ask(solo, "n1") is A  # a repetition of the same vote
    again = Solo(solo.store)  # the process starts again
    assert ask(again, "n2") is AV and ask(again, "n1") is A


def test_a_higher_term_is_adopted_and_answered_not_ready() -> None:
    solo = Solo(store_of([1, 2], term=3))
    assert ask(solo) is NR and solo.replica.term == 4
    assert ask(solo) is A


def test_e2_no_vote_up_to_the_floor() -> None:
    solo = Solo(store_of([1, 2], term=4, vote_floor=4))
    assert ask(solo) is AV
    assert ask(solo, term=5) is NR and ask(solo, term=5) is A


def test_e1_a_log_of_a_term_that_never_became_durable_raises_term_and_floor() -> None:
    solo = Solo(store_of([1, 6], term=4))
    assert solo.replica.term == 6 and solo.replica.member.hard.vote_floor == 6
    assert ask(solo, term=6, end=(1, 6)) is AV


def test_s6_a_damaged_log_votes_but_neither_leads_nor_campaigns() -> None:
    solo = Solo(store_of([1, 2], term=4))
    solo.lead()
    solo.replica.disk.log_damaged([Fault(0, 0, "crc_invalid")], solo.now)
    assert solo.replica.role is Role.CANDIDATE
    assert ask(solo, term=6, end=(9, 9)) is NR and ask(solo, term=6, end=(9, 9)) is A
    assert not [m for _to, m in solo.tick(2000) if isinstance(m, VoteRequest)]


def test_s6_a_damaged_log_grants_nothing_to_a_shorter_one() -> None:
    solo = Solo(store_of([1, 2, 2], term=4))
    solo.store.rot(1, 2)
    solo.replica.disk.log_damaged([Fault(1, 2, "crc_invalid")], solo.now)
    assert ask(solo, term=6, end=(1, 2)) is V.REJECT_SMALL_LEDGER_END_INDEX


@pytest.mark.parametrize("state", [VoterState.FORMING, VoterState.REJOINING])
def test_e8_no_vote_and_no_campaign_without_a_voters_state(state: VoterState) -> None:
    solo = Solo(store_of([1, 2], term=4, voter_state=state), connect=False)
    assert ask(solo) is U and ask(solo, pre=True, term=5) is U
    assert ask(solo, term=9) is U and solo.replica.term == 4
    for _ in range(5):
        assert not [m for _to, m in solo.tick(1000) if isinstance(m, VoteRequest)]


def test_e4_a_vote_while_the_leader_lives_is_refused_without_adopting_its_term() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    assert ask(solo, "n2") is HL and solo.replica.term == 3
    assert ask(solo, "n2", pre=True) is HL
    solo.now += 500 * MS  # the lease has run out
    assert ask(solo, "n2", pre=True) is A
    assert ask(solo, "n2") is NR and solo.replica.term == 4


def test_e4_a_leader_does_not_give_way_to_a_plain_vote() -> None:
    solo = Solo()
    solo.lead()
    assert ask(solo, "n2", term=9, end=(9, 9)) is HL
    assert solo.replica.role is Role.LEADER and solo.replica.term == 1


@pytest.mark.parametrize(
    ("ticket", "valid"),
    [
        (TransferTicket(3, "n2", "x"), True),
        (TransferTicket(2, "n2", "x"), False),
        (TransferTicket(3, "n1", "x"), False),
        (TransferTicket(4, "n2", "x"), False),
        (None, False),
    ],
)
def test_e4_a_ticket_must_match_term_and_transferee(ticket: TransferTicket | None, valid: bool) -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    assert ask(solo, "n2", ticket=ticket) is (NR if valid else HL)


def test_e4_a_ticket_is_good_for_the_very_next_term_only() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    assert ask(solo, "n2", term=9, ticket=TransferTicket(3, "n2", "x")) is HL


def test_e4_a_leader_takes_only_the_ticket_that_it_handed_out() -> None:
    solo = Solo()
    solo.lead()
    assert ask(solo, "n1", term=2, end=(9, 9), ticket=TransferTicket(1, "n1", "forged")) is HL


def test_e5_a_lost_leader_starts_a_pre_vote_soon_and_permits_one_at_once() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    solo.replica.links.lost("n1", solo.now)
    assert ask(solo, "n2", pre=True) is A
    asked = [m for _to, m in solo.tick(50) if isinstance(m, VoteRequest)]
    assert asked and all(m.pre and m.term == 4 for m in asked)


def test_e5_with_lease_reads_grants_wait_for_the_leases_end() -> None:
    solo = Solo(store_of([1, 2], term=3), lease_reads=True)
    solo.follow(term=3)
    solo.replica.links.lost("n1", solo.now)
    assert ask(solo, "n2", pre=True) is HL
    assert not [m for _to, m in solo.tick(499) if isinstance(m, VoteRequest)]
    solo.now += MS
    assert ask(solo, "n2", pre=True) is A


@pytest.mark.parametrize("milliseconds", [200, 1300, 60_000])
def test_e6_a_follower_that_stood_still_counts_one_tick_and_no_more(milliseconds: int) -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    solo.tick(150)
    assert not [m for _to, m in solo.late_tick(milliseconds) if isinstance(m, VoteRequest)]
    assert not [m for _to, m in solo.tick(299) if isinstance(m, VoteRequest)]
    assert solo.replica.leader_id == "n1"
    assert [m for _to, m in solo.tick(600) if isinstance(m, VoteRequest)], "a leader that is gone is missed"


def test_e6_the_lease_goes_by_the_clock_whoever_stood_still() -> None:
    """A member that woke does not campaign, and no longer keeps others from it."""
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    solo.late_tick(499)
    assert ask(solo, "n2", pre=True) is HL
    solo.late_tick(1)
    assert ask(solo, "n2", pre=True) is A


def test_e6_bytes_of_the_leader_put_off_a_campaign_and_renew_no_lease() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    for _ in range(20):
        assert not [m for _to, m in solo.tick(200) if isinstance(m, VoteRequest)]
        solo.replica.leader_bytes("n1", solo.now)
    assert ask(solo, "n2", pre=True) is A, "the lease ran out by the clock"


def test_e6_while_a_long_frame_is_under_way_its_leader_hears_of_us_once_a_heartbeat() -> None:
    """Its heartbeats wait behind that frame: without a word of ours it would step down."""
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    solo.now += 100 * MS
    reported = []
    for _ in range(100):
        solo.now += 10 * MS
        solo.replica.leader_bytes("n1", solo.now)
        solo.replica.leader_bytes("n2", solo.now)
        reported += solo.take()
    assert {to for to, _message in reported} == {"n1"}
    answers = [message for _to, message in reported if isinstance(message, PushResponse)]
    assert len(answers) == len(reported) == 10
    assert {(answer.seq, answer.end_index, answer.term) for answer in answers} == {(-1, 1, 3)}


def test_e6_bytes_of_any_other_member_put_off_nothing() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.follow(term=3)
    asked = []
    for _ in range(5):
        asked += [m for _to, m in solo.tick(200) if isinstance(m, VoteRequest)]
        solo.replica.leader_bytes("n2", solo.now)
    assert asked


def test_e6_undisturbed_ticks_take_exactly_the_time_that_was_drawn() -> None:
    for wait_ns in (1, 49, 50, 51, 100, 730, 999):
        ticks = Ticks(50, 1000)
        needed, first_ns = ticks.split(wait_ns)
        ticks.begin(1000, first_ns)
        now = 1000
        while ticks.count < needed:
            now = ticks.due_at
            assert not ticks.passed(now - 1) and ticks.passed(now)
        assert now == 1000 + wait_ns


def test_e1_a_real_campaign_raises_the_term_and_votes_for_itself_durably() -> None:
    solo = Solo(store_of([1, 2], term=3))
    asked = solo.tick(1000)
    assert {m.pre for _to, m in asked if isinstance(m, VoteRequest)} == {True}
    assert not solo.hard_states
    sent = solo.grant(asked)
    assert solo.effects.hard_state is not None
    assert (solo.effects.hard_state.term, solo.effects.hard_state.voted_for) == (4, "n0")
    assert {(m.pre, m.term) for _to, m in sent if isinstance(m, VoteRequest)} == {(False, 4)}


def test_not_ready_is_asked_again_at_once_in_the_same_term() -> None:
    solo = Solo(store_of([1, 2], term=3))
    sent = solo.grant(solo.tick(1000))
    request = next(m for to, m in sent if to == "n1" and isinstance(m, VoteRequest))
    again = solo.receive("n1", VoteResponse(request.seq, 4, NR))
    repeated = [m for _to, m in again if isinstance(m, VoteRequest)]
    assert {m.term for m in repeated} == {4} and all(m.seq != request.seq for m in repeated)
    solo.grant(again)
    assert solo.replica.role is Role.LEADER


@pytest.mark.parametrize("pre", [True, False])
def test_an_answer_with_a_higher_term_is_adopted(pre: bool) -> None:
    solo = Solo(store_of([1, 2], term=3))
    sent = solo.tick(1000) if pre else solo.grant(solo.tick(1000))
    request = next(m for to, m in sent if to == "n1" and isinstance(m, VoteRequest))
    solo.receive("n1", VoteResponse(request.seq, 8, V.REJECT_EXPIRED_VOTE_TERM, pre=pre))
    assert solo.replica.term == 8 and solo.replica.role is Role.CANDIDATE


def test_answers_of_another_round_count_for_nothing() -> None:
    solo = Solo(store_of([1, 2], term=3))
    solo.tick(1000)
    for seq in (0, 999):
        solo.receive("n1", VoteResponse(seq, 3, A, pre=True))
    assert solo.replica.term == 3


def test_e2_a_vote_counts_for_the_term_in_which_it_was_given() -> None:
    """A process before this one may have asked for it, under the same number."""
    solo = Solo()
    request = next(m for to, m in solo.grant(solo.tick(1100)) if to == "n1" and isinstance(m, VoteRequest))
    assert not request.pre and request.term == solo.replica.term
    solo.receive("n1", VoteResponse(request.seq, request.term - 1, VoteResult.ACCEPT))
    assert solo.replica.role is Role.CANDIDATE
    solo.receive("n1", VoteResponse(request.seq, request.term, VoteResult.ACCEPT))
    assert solo.replica.role is Role.LEADER


def test_two_answers_of_one_peer_are_one_vote() -> None:
    solo = Solo(store_of(), connect=False)
    solo.connect("n1", voter_state=VoterState.REJOINING)
    request = next(m for to, m in solo.tick(1000) if to == "n1" and isinstance(m, VoteRequest))
    for _ in range(2):
        solo.receive("n1", VoteResponse(request.seq, 0, U, pre=True))
    assert solo.replica.term == 0


def test_retries_are_randomized_and_a_living_leader_is_waited_for() -> None:
    solo = Solo(store_of([1, 2], term=3))
    waits = set()
    request = next(m for to, m in solo.tick(1100) if to == "n1" and isinstance(m, VoteRequest))
    for _ in range(4):
        for peer in ("n1", "n2"):
            solo.receive(peer, VoteResponse(request.seq, 3, HL, pre=True))
        reported_at, asked = solo.now, []
        while not asked:
            solo.now = solo.replica.next_deadline()
            asked = [m for to, m in solo.late_tick(0) if to == "n1" and isinstance(m, VoteRequest)]
        (request,) = asked
        waits.add(solo.now - reported_at)
    assert len(waits) == 4 and min(waits) >= 500 * MS and max(waits) < 1000 * MS


def test_no_campaign_while_the_log_is_being_cut() -> None:
    solo = Solo(store_of([1, 1, 1]))
    solo.compare(0, term=2)
    solo.push(PushKind.TRUNCATE, term=2, first_index=1, prev_term=2)
    assert not [m for _to, m in solo.tick(2000) if isinstance(m, VoteRequest)]


def test_a_group_of_one_leads_at_its_first_tick() -> None:
    cluster = Cluster(1)
    cluster.tick("n0")
    assert cluster.leader() == "n0" and cluster.nodes["n0"].replica.term == 1
