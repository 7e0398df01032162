"""The frames of lanes: what is written is read again, and whatever else comes is refused as a body."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol.codes import ResponseCode
from node.protocol.group_kind import NO_PATCH
from node.transport.bodies import dump, load
from node.transport.lane_frames import (
    LANE_HEAD,
    LaneAnswer,
    LaneAppend,
    decode_lane_append,
    encode_lane_append,
    lane_answer,
    lane_fields,
)
from node.transport.slab_frames import AppendRequest, BodyError, encode_append

numbers = st.integers(0, 1 << 61)


@given(
    numbers, numbers, numbers, st.lists(st.binary(max_size=60), min_size=1, max_size=60),
    st.sampled_from([0, 1, 2, 3, 4]), st.sampled_from([NO_PATCH, 0, 28, 1000]),
)  # fmt: skip
def test_an_append_is_read_as_it_was_written(
    term: int, lane: int, sequence: int, bodies: list[bytes], channel: int, patch_at: int
) -> None:
    wanted = LaneAppend(term, lane, sequence, bodies, channel, patch_at)
    found = decode_lane_append(b"".join(encode_lane_append(wanted)))
    assert found._replace(bodies=list(found.bodies)) == wanted


@given(st.binary(max_size=200))
def test_whatever_the_bytes_reading_ends_in_a_value_or_in_body_error(raw: bytes) -> None:
    for body in (raw, LANE_HEAD.pack(0, 1, 1, 0, 0, 0) + raw):
        try:
            decode_lane_append(body)
        except BodyError:
            continue


GOOD = (1, 5, 7, 0, 0, 28)


@pytest.mark.parametrize(
    ("head", "inner", "words"),
    [
        ((2, 5, 7, 0, 0, 0), {}, "flags 2"),
        ((0, 5, 7, 0, 0, 28), {}, "positions at byte 28"),
        ((1, 5, 7, 0, 0, 1 << 31), {}, "positions at byte"),
        ((1, -1, 7, 0, 0, 28), {}, "of term -1"),
        ((1, 5, -7, 0, 0, 28), {}, "lane -7"),
        ((1, 5, 7, -1, 0, 28), {}, "entry -1"),
        ((1, 5, 7, 0, 5, 28), {}, "channel 5"),
        ((1, 5, 7, 0, -1, 28), {}, "channel -1"),
        (GOOD, {"ordered": True}, "order by its sequence"),
        (GOOD, {"expected_index": 4}, "order by its sequence"),
    ],
)
def test_what_makes_no_sense_is_refused(head: tuple[int, ...], inner: dict[str, int], words: str) -> None:
    body = LANE_HEAD.pack(*head) + b"".join(encode_append(AppendRequest([b"x" * 40], **inner)))  # type: ignore[arg-type]
    with pytest.raises(BodyError, match=words):
        decode_lane_append(body)


def test_what_does_not_add_up_is_refused() -> None:
    whole = b"".join(encode_lane_append(LaneAppend(1, 1, 0, [b"abc"] * 40)))
    for body in (whole[:-1], whole + b"x", whole[: LANE_HEAD.size - 1], struct.pack(">I", 0)):
        with pytest.raises(BodyError):
            decode_lane_append(body)


@pytest.mark.parametrize(
    "answer",
    [
        LaneAnswer(ResponseCode.SUCCESS, 3, 2, 17, 100, 1000, 1_700_000_000_000, "n0", "127.0.0.1:20911"),
        LaneAnswer(ResponseCode.SUCCESS, 0, 1, -1, 100, 1000, -1, "n0", None),
        LaneAnswer(ResponseCode.NOT_LEADER, leader_id="n1", detail="n0 does not lead"),
    ],
)
def test_an_answer_is_read_as_it_was_written(answer: LaneAnswer) -> None:
    assert lane_answer(load(dump(lane_fields(answer)))) == answer


@pytest.mark.parametrize("name", ["term", "lane", "windowEntries", "windowBytes"])
def test_an_answer_without_its_numbers_is_none(name: str) -> None:
    fields = lane_fields(LaneAnswer(ResponseCode.SUCCESS, 3, 2, 17, 100, 1000))
    del fields[name]
    with pytest.raises(BodyError, match="window"):
        lane_answer(load(dump(fields)))
