"""Slabs at the ends of int64: the two paths of `verify_slab` agree, and what cannot be read again is not taken."""

from __future__ import annotations

import struct

import pytest

from node.protocol import slab_verify
from node.protocol.codes import RequestCode
from node.protocol.entry import HEAD, INDEX_UNIT, TERM_MAX, EntryError, Slab, chain_next, crc32, slab_of
from node.protocol.slab_verify import verify_slab
from node.transport.bodies import decode_request, decode_response
from node.transport.slab_frames import PUSH_ANSWER, PUSH_HEAD, BodyError, decode_push, decode_push_answer

LAST = (1 << 63) - 1
FIRST = -(1 << 63)


def slab_with(terms: list[int]) -> Slab:
    """Sealed entries of these terms, however odd."""
    data, units, chain = b"", b"", 0
    for number, term in enumerate(terms):
        chain = chain_next(chain, 1, 49, 5 + number, term, 0, crc32(b"x"))
        data += HEAD.pack(1, 49, 5 + number, term, 49 * number, 0, chain, crc32(b"x"), 1) + b"x"
        units += INDEX_UNIT.pack(1, 49 * number, 49, 5 + number, term)
    return Slab(5, len(terms), 0, data, units, terms[0], terms[-1], 0, chain)


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize("ends", [(-5, -5), (-1, 0), (FIRST, LAST), (LAST, FIRST), (3, 2)])
def test_terms_below_none_or_backwards_are_refused_on_both_paths(ends: tuple[int, int], count: int) -> None:
    slab = slab_with([ends[0]] + [ends[1]] * (count - 1))
    with pytest.raises(EntryError, match="terms"):
        verify_slab(slab, 0)
    for check in (slab_verify._verify_loop, slab_verify._verify_columns):
        with pytest.raises(EntryError, match="terms"):
            check(slab, 0, bodies=True)


@pytest.mark.parametrize("count", [3, 30])
def test_the_largest_term_is_a_term(count: int) -> None:
    slab = slab_with([0] + [LAST] * (count - 1))
    assert verify_slab(slab, 0) == slab.last_chain


def test_records_that_no_position_can_hold_are_refused() -> None:
    data = slab_with([1]).data
    for pos in (-1, LAST, LAST - len(data) + 1):
        with pytest.raises(EntryError, match="position"):
            slab_of(data, pos, None)
    assert slab_of(data, LAST - len(data), None).count == 1


def push_body(slab: Slab, term: int, first: int = 5, pos: int = 0) -> bytes:
    head = (1, 0, 1, 1, term, 4, 1, 0, first, slab.count, pos, len(slab.data), 4, slab.last_chain, crc32(slab.data))
    return PUSH_HEAD.pack(*head) + slab.index_records + slab.data


@pytest.mark.parametrize(("first", "pos"), [(LAST, 0), (5, LAST), (5, LAST - 48)])
def test_a_push_past_the_last_index_or_position_is_refused(first: int, pos: int) -> None:
    slab = slab_with([1])
    with pytest.raises(BodyError, match="position"):
        decode_push(push_body(slab, 1, first, pos), "n1", 7)


def test_a_leader_cannot_push_entries_of_a_later_term_than_its_own() -> None:
    assert decode_push(push_body(slab_with([2, 3]), 3), "n1", 7).term == 3
    with pytest.raises(BodyError, match="term 3 from a leader of term 2"):
        decode_push(push_body(slab_with([2, 3]), 2), "n1", 7)


def test_one_message_cannot_use_up_all_terms() -> None:
    for term in (LAST, TERM_MAX + 1):
        with pytest.raises(BodyError, match="exceeds TERM_MAX"):
            decode_push(push_body(slab_with([2]), term), "n1", 7)
        with pytest.raises(BodyError, match="exceeds TERM_MAX"):
            decode_push_answer(PUSH_ANSWER.pack(200, 1, term, 0, 0, 0, 0, 0), 7)
        for code in (RequestCode.VOTE, RequestCode.PRE_VOTE, RequestCode.HEART_BEAT, RequestCode.READ_INDEX):
            for decode in (decode_request, decode_response):
                with pytest.raises(BodyError, match="exceeds TERM_MAX"):
                    decode(code, b'{"leaderId":"n1","term":%d}' % term, 7)
    assert decode_request(RequestCode.VOTE, b'{"leaderId":"n1","term":%d}' % TERM_MAX, 7)


def test_a_length_of_two_gibibytes_takes_no_memory() -> None:
    head = struct.pack(">iiqqqiIIi", 1, (1 << 31) - 1, 5, 1, 0, 0, 0, 0, (1 << 31) - 49)
    with pytest.raises(EntryError, match="goes past"):
        slab_of(head, 0, None)
