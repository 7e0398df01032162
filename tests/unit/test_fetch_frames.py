"""FETCH: round trips, bounds, and refusal of everything that does not add up; a damaged member's push answer."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from node.protocol.codes import ResponseCode
from node.protocol.entry import SLAB_BYTES_MAX, TERM_MAX, Slab
from node.protocol.messages import FetchRequest, FetchResponse, PushResponse
from node.protocol.slab_encode import encode_slab
from node.transport.fetch_frames import (
    FETCH_ANSWER,
    FETCH_HEAD,
    decode_fetch,
    decode_fetch_answer,
    encode_fetch,
    encode_fetch_answer,
)
from node.transport.slab_frames import PUSH_ANSWER, BodyError, decode_push_answer, encode_push_answer


def slab() -> Slab:
    return encode_slab([b"a", b"", b"ccc"], 7, 3, 4096, 12345)


def test_a_request_comes_back_as_it_was() -> None:
    request = FetchRequest(9, 5, 1 << 40, 65536)
    assert decode_fetch(encode_fetch(request), 9) == request
    assert decode_fetch(encode_fetch(replace(request, max_bytes=1 << 31)), 9).max_bytes == SLAB_BYTES_MAX


@pytest.mark.parametrize("one", [slab(), replace(slab(), prev_chain=None, last_chain=None)])
def test_an_answer_comes_back_as_it_was(one: Slab) -> None:
    answer = FetchResponse(9, ResponseCode.SUCCESS, 41, one)
    assert decode_fetch_answer(b"".join(encode_fetch_answer(answer)), 9) == answer


@pytest.mark.parametrize("code", [ResponseCode.DISK_ERROR, ResponseCode.INDEX_OUT_OF_RANGE])
def test_a_refusal_carries_nothing(code: ResponseCode) -> None:
    answer = FetchResponse(9, code, -1)
    assert decode_fetch_answer(b"".join(encode_fetch_answer(answer)), 9) == answer


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ((2, 0, 0, 1, 2, 9), "version 2"), ((1, 0, 0, -1, 2, 9), "entries -1..2"), ((1, 0, 0, 3, 2, 9), "entries 3..2"),
        ((1, 0, 0, 1, 2, 0), "in 0 bytes"),
    ],
)  # fmt: skip
def test_a_broken_request_is_refused(fields: tuple[int, ...], said: str) -> None:
    with pytest.raises(BodyError, match=said):
        decode_fetch(FETCH_HEAD.pack(*fields), 1)
    with pytest.raises(BodyError, match="it takes"):
        decode_fetch(FETCH_HEAD.pack(*fields) + b"x", 1)


def patched(offset: int, form: str, value: int) -> bytes:
    raw = bytearray(b"".join(encode_fetch_answer(FetchResponse(9, ResponseCode.SUCCESS, 41, slab()))))
    struct.pack_into(form, raw, offset, value)
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "head alone"),
        (patched(0, ">B", 9), "version 9"),
        (patched(28, ">I", 1), "says"),  # count
        (patched(28, ">I", 0xFFFFFFFF), "says"),
        (patched(40, ">I", 0xFFFFFFFF), "says"),  # bytes of records
        (patched(16, ">q", -5), "from index -5"),
        (patched(32, ">q", -1), "position -1"),
        (patched(4, ">i", 414), "was refused"),
        (patched(FETCH_ANSWER.size + 3 * 32, ">B", 99), "CRC"),
        (patched(FETCH_ANSWER.size + 2 * 32 + 24, ">q", TERM_MAX + 1), "exceeds TERM_MAX"),
    ],
)
def test_a_broken_answer_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(BodyError, match=said):
        decode_fetch_answer(raw, 9)


def test_every_prefix_of_an_answer_is_refused() -> None:
    whole = b"".join(encode_fetch_answer(FetchResponse(9, ResponseCode.SUCCESS, 41, slab())))
    for length in range(len(whole)):
        with pytest.raises(BodyError):
            decode_fetch_answer(whole[:length], 9)


def test_a_push_answer_says_more_only_where_the_log_is_damaged() -> None:
    sound = PushResponse(3, ResponseCode.SUCCESS, 1, 2, 10, 9, 11)
    assert len(encode_push_answer(sound)) == PUSH_ANSWER.size
    for answer in (sound, replace(sound, faulty_from=0), replace(sound, faulty_from=1 << 40)):
        assert decode_push_answer(encode_push_answer(answer), 3) == answer
    with pytest.raises(BodyError, match="damage from entry -1"):
        decode_push_answer(encode_push_answer(replace(sound, faulty_from=0))[:-8] + b"\xff" * 8, 3)
    with pytest.raises(BodyError, match="it takes"):
        decode_push_answer(encode_push_answer(sound) + b"\x00" * 7, 3)
