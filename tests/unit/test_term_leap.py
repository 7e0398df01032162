"""A term that no group reaches by elections is taken over from nobody (SAFETY E10)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from node.protocol.codes import FlushMode, ResponseCode, VoteResult
from node.protocol.entry import TERM_LEAP_MAX
from node.protocol.messages import (
    FetchResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    Message,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexResponse,
    TransferRequest,
    TransferTicket,
    VoteRequest,
    VoteResponse,
)
from tests.unit.core_kit import Solo, store_of

FAR = 1 << 62
OURS = 3


def solo() -> Solo:
    return Solo(store_of((1, 3)), connect=False)


def of_term(term: int) -> list[Message]:
    """One of each kind that names a term."""
    answer = ResponseCode.SUCCESS
    return [
        VoteRequest(9, "n1", term, 50, term),
        VoteRequest(9, "n1", term, 50, term, pre=True),
        VoteRequest(9, "n1", term, 50, term, ticket=TransferTicket(term - 1, "n1", "nonce")),
        VoteResponse(9, term, VoteResult.REJECT_EXPIRED_VOTE_TERM),
        HeartBeatRequest(9, "n1", term),
        HeartBeatResponse(9, term, ResponseCode.EXPIRED_TERM),
        PushRequest(9, PushKind.COMMIT, "n1", term, 1, -1),
        PushResponse(9, ResponseCode.EXPIRED_TERM, 1, term, -1, -1, -1),
        TransferRequest(9, term, "n0", 1, TransferTicket(term, "n0", "nonce")),
        ReadIndexResponse(9, term, answer, 5, 5),
    ]


def alarm_of(one: Solo) -> set[tuple[str, str | None]]:
    return {key for key in one.replica.member.alarms if key[0] == "term_leap"}


@pytest.mark.parametrize("message", of_term(FAR), ids=lambda message: type(message).__name__)
def test_no_message_of_a_term_out_of_reach_changes_anything(message: Message) -> None:
    one = solo()
    one.connect("n1", proven=False)
    saved = len(one.hard_states)
    assert one.receive("n1", message) == []
    assert one.replica.term == OURS and len(one.hard_states) == saved
    assert alarm_of(one) == {("term_leap", "n1")}
    one.receive("n1", HeartBeatRequest(9, "n1", OURS))
    assert not alarm_of(one), "gone with the peer's next sound message"


@pytest.mark.parametrize("kind", range(len(of_term(1))))
def test_the_last_term_within_reach_is_judged_as_ever(kind: int) -> None:
    at, above = solo(), solo()
    for one, term in ((at, OURS + TERM_LEAP_MAX), (above, OURS + TERM_LEAP_MAX + 1)):
        one.connect("n1")
        one.receive("n1", of_term(term)[kind])
    assert not alarm_of(at) and alarm_of(above) and above.replica.term == OURS


def test_a_heartbeat_within_reach_is_obeyed() -> None:
    one = solo()
    one.connect("n1")
    one.receive("n1", HeartBeatRequest(9, "n1", OURS + TERM_LEAP_MAX))
    assert one.replica.term == OURS + TERM_LEAP_MAX


@pytest.mark.parametrize(
    ("said", "admitted"),
    [
        ({"n1": {"term": FAR}, "n2": {"term": FAR - TERM_LEAP_MAX}}, True),  # two of three stored nearly as much
        ({"n1": {"term": FAR}, "n2": {"term": FAR - TERM_LEAP_MAX - 1}}, False),
        ({"n1": {"term": FAR}, "n2": {"term": FAR, "proven": False}}, False),
        ({"n1": {"term": FAR}}, False),
        ({"n1": {"term": FAR}, "n2": {"term": -1, "version_max": 1}}, False),  # version 1 does not say
    ],
)
def test_a_majority_that_proves_itself_is_believed(said: dict[str, dict[str, Any]], admitted: bool) -> None:
    one = solo()
    for peer, changes in said.items():
        one.connect(peer, **changes)
    one.receive("n1", HeartBeatRequest(9, "n1", FAR))
    assert one.replica.term == (FAR if admitted else OURS)
    for peer in said:
        one.receive(peer, HeartBeatResponse(9, FAR, ResponseCode.SUCCESS))
    assert bool(alarm_of(one)) is not admitted, "and gone with their next messages"


def test_a_hello_is_taken_in_whatever_term_it_claims() -> None:
    """Its term is what a majority is counted by; it is not taken over."""
    one = solo()
    ((_to, answer),) = one.receive("n1", one.hello_of("n1", answer=False, term=FAR))
    assert isinstance(answer, Hello) and answer.code is ResponseCode.SUCCESS and answer.term == OURS
    assert one.replica.term == OURS and alarm_of(one)
    one.receive("n1", one.hello_of("n1", answer=False, term=OURS))
    assert not alarm_of(one)


@pytest.mark.parametrize("term", [FAR, OURS])
def test_a_hello_that_is_refused_neither_raises_nor_ends_the_alarm(term: int) -> None:
    """It may be anybody's. Two followers send each other nothing else that would end what it raised."""
    one = solo()
    one.connect("n1")
    if term == OURS:
        one.receive("n1", HeartBeatRequest(9, "n1", FAR))
    before = alarm_of(one)
    ((_to, answer),) = one.receive("n1", one.hello_of("n1", answer=False, term=term, flush=FlushMode.ASYNC))
    assert isinstance(answer, Hello) and answer.code is not ResponseCode.SUCCESS
    assert alarm_of(one) == before


def test_strangers_raise_no_alarm() -> None:
    one = solo()
    for number in range(50):
        one.receive(f"x{number}", HeartBeatRequest(9, f"x{number}", FAR))
    assert not alarm_of(one) and one.replica.term == OURS


def test_entries_of_such_a_term_are_not_taken_either() -> None:
    """Pushed under a sound term, or fetched to heal damage."""
    one = solo()
    one.connect("n1")
    slab = dataclasses.replace(one.slab(1, term=OURS), last_term=FAR)
    one.receive("n1", PushRequest(9, PushKind.APPEND, "n1", OURS, 1, -1, 1, OURS, slab.prev_chain, 2, slab))
    assert one.store.end_index == 1 and alarm_of(one)
    one.receive("n1", HeartBeatRequest(9, "n1", OURS))
    one.receive("n1", FetchResponse(9, ResponseCode.SUCCESS, 5, slab))
    assert alarm_of(one)
