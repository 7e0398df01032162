"""Binary bodies: round trips, and refusal of everything that does not add up."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol.codes import ResponseCode
from node.protocol.entry import TERM_MAX, Slab
from node.protocol.messages import PushKind, PushRequest, PushResponse
from node.protocol.slab_encode import encode_slab
from node.protocol.slab_verify import verify_slab
from node.transport.slab_frames import (
    PUSH_HEAD,
    AppendAnswer,
    AppendedByte,
    AppendRequest,
    BodyError,
    PushEncoder,
    ReadAnswer,
    ReadMode,
    ReadRequest,
    decode_append,
    decode_append_answer,
    decode_push,
    decode_push_answer,
    decode_read,
    decode_read_answer,
    encode_append,
    encode_append_answer,
    encode_push_answer,
    encode_read,
    encode_read_answer,
)

int64 = st.integers(-1, (1 << 63) - 1)
index = st.integers(0, 1 << 40)
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=40)


@st.composite
def slabs(draw: st.DrawFn) -> Slab:
    chain = draw(st.integers(0, (1 << 32) - 1))
    return encode_slab(draw(bodies), draw(index), draw(st.integers(0, 1 << 40)), draw(index), chain)


@st.composite
def pushes(draw: st.DrawFn) -> PushRequest:
    kind = draw(st.sampled_from(PushKind))
    slab = draw(slabs()) if kind is PushKind.APPEND else None
    numbers = [draw(int64) for _ in range(5)]
    chain = slab.prev_chain if slab is not None else draw(st.none() | st.integers(0, (1 << 32) - 1))
    term, epoch, commit, prev_index, prev_term = numbers
    term = max(min(term, TERM_MAX), -1 if slab is None else slab.last_term)
    first = slab.first_index if slab is not None else draw(int64)
    return PushRequest(7, kind, "n1", term, epoch, commit, prev_index, prev_term, chain, first, slab)


@given(pushes())
def test_a_push_comes_back_and_its_slab_still_verifies(push: PushRequest) -> None:
    body = b"".join(PushEncoder().encode(push))
    found = decode_push(body, "n1", 7)
    assert found == push
    if found.slab is not None:
        assert verify_slab(found.slab, found.slab.prev_chain, bodies=True) == found.slab.last_chain


@given(pushes(), st.data())
def test_a_mutated_push_is_refused_or_well_formed(push: PushRequest, data: st.DataObject) -> None:
    raw = bytearray(b"".join(PushEncoder().encode(push)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, 3))
    try:
        found = decode_push(bytes(raw[: len(raw) - cut]), "n1", 7)
    except BodyError:
        return
    assert cut == 0
    assert found.slab is None or found.slab.data == (push.slab.data if push.slab else b"")


def test_a_flipped_bit_in_the_slab_is_seen() -> None:
    slab = encode_slab([b"a" * 100] * 5, 3, 2, 4096, 9)
    raw = bytearray(b"".join(PushEncoder().encode(PushRequest(1, PushKind.APPEND, "n0", 2, 1, 0, 2, 2, 9, 3, slab))))
    raw[-20] ^= 4
    with pytest.raises(BodyError, match="CRC"):
        decode_push(bytes(raw), "n0", 1)


@pytest.mark.parametrize(("offset", "value", "said"), [(0, 9, "version 9"), (1, 7, "kind 7")])
def test_unknown_versions_and_kinds_are_named(offset: int, value: int, said: str) -> None:
    raw = bytearray(PushEncoder().encode(PushRequest(1, PushKind.COMMIT, "n0", 1, 1, 0))[0])
    raw[offset] = value
    with pytest.raises(BodyError, match=said):
        decode_push(bytes(raw), "n0", 1)


def test_a_count_that_lies_takes_no_memory() -> None:
    raw = bytearray(PushEncoder().encode(PushRequest(1, PushKind.COMMIT, "n0", 1, 1, 0))[0])
    struct.pack_into(">I", raw, 4 + 4 * 8 + 4 + 8, 0xFFFFFFFF)
    assert PUSH_HEAD.unpack_from(raw)[9] == 0xFFFFFFFF
    with pytest.raises(BodyError, match="says"):
        decode_push(bytes(raw), "n0", 1)
    with pytest.raises(BodyError, match="do not fit"):
        decode_append(struct.pack(">iqI", 0, -1, 0xFFFFFFFF))


@given(st.sampled_from(ResponseCode), st.lists(int64, min_size=7, max_size=7))
def test_a_push_answer_comes_back(code: ResponseCode, numbers: list[int]) -> None:
    numbers[1] = min(numbers[1], TERM_MAX)
    answer = PushResponse(5, code, *numbers)
    assert decode_push_answer(encode_push_answer(answer), 5) == answer


@given(bodies, int64, st.booleans())
def test_an_append_comes_back(sent: list[bytes], expected: int, ordered: bool) -> None:
    request = AppendRequest(sent, expected, ordered)
    assert decode_append(b"".join(encode_append(request))) == request


@given(
    st.integers(0, 999), int64, int64, int64, st.sampled_from(AppendedByte), st.text(max_size=20), st.booleans(),
    st.integers(0, 60_000),
)  # fmt: skip
def test_an_append_answer_comes_back(
    code: int, first: int, last: int, term: int, appended: AppendedByte, said: str, known: bool, after_ms: int
) -> None:
    leader = ("n1", "127.0.0.1:1") if known else ("", "")
    answer = AppendAnswer(code, first, last, term, appended, *leader, said, after_ms)
    assert decode_append_answer(encode_append_answer(answer)) == answer


@given(index, st.integers(1, 1 << 20), st.sampled_from(ReadMode))
def test_a_read_comes_back(from_index: int, limit: int, mode: ReadMode) -> None:
    request = ReadRequest(from_index, limit, mode)
    assert decode_read(encode_read(request)) == request


@given(st.integers(0, 999), int64, int64, int64)
def test_a_read_answer_comes_back(code: int, committed: int, first: int, end: int) -> None:
    records = encode_slab([b"x", b"yy"], 0, 1, 0, 0).data
    answer = ReadAnswer(code, committed, first, end, 2, records)
    assert decode_read_answer(b"".join(encode_read_answer(answer))) == answer


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(data: bytes) -> None:
    readers = (decode_append, decode_append_answer, decode_read, decode_read_answer)
    for reader in readers:
        with contextlib.suppress(BodyError):
            assert reader(data) is not None
    for keyed in (lambda raw: decode_push(raw, "n0", 1), lambda raw: decode_push_answer(raw, 1)):
        with contextlib.suppress(BodyError):
            assert keyed(data) is not None
