"""The frame codec: round trips, bounds, and that no bytes can make it crash, hang or take memory."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.transport.receive_buffer import FIRST_BYTES, FULL_BYTES
from node.transport.remoting import (
    FRAME_BYTES_MAX,
    Frame,
    FrameDecoder,
    FrameError,
    decode_frame,
    encode_frame,
    plain_frame,
)

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
text = st.text(max_size=40).filter(lambda value: value.isprintable())
frames = st.builds(
    Frame,
    code=int32,
    opaque=int32,
    body=st.binary(max_size=300),
    flag=st.integers(0, 3),
    remark=st.none() | text,
    ext_fields=st.none() | st.dictionaries(text, text, max_size=3),
    language=st.sampled_from(["JAVA", "PYTHON", "GO"]),
    version=st.integers(0, 500),
)


def feed(decoder: FrameDecoder, data: bytes, step: int) -> list[Frame]:
    found: list[Frame] = []
    offset = 0
    while offset < len(data):
        room = decoder.writable()
        assert len(room) > 0
        piece = data[offset : offset + min(step, len(room))]
        room[: len(piece)] = piece
        found += decoder.filled(len(piece))
        if decoder.broken is not None:
            raise decoder.broken
        offset += len(piece)
    return found


@given(frames)
def test_a_frame_comes_back(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(st.lists(frames, max_size=6), st.integers(1, 1000))
def test_a_stream_is_cut_into_its_frames_however_it_arrives(sent: list[Frame], step: int) -> None:
    assert feed(FrameDecoder(), b"".join(map(encode_frame, sent)), step) == sent


@given(st.binary(max_size=400), st.integers(1, 100))
def test_random_bytes_end_in_frames_or_an_error(data: bytes, step: int) -> None:
    decoder = FrameDecoder()
    with contextlib.suppress(FrameError):
        feed(decoder, data, step)
    assert decoder.buffer_bytes <= FRAME_BYTES_MAX + FULL_BYTES


@given(frames, st.data())
def test_mutated_frames_end_in_frames_or_an_error(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decoder = FrameDecoder()
    with contextlib.suppress(FrameError):
        feed(decoder, bytes(raw), len(raw))
    assert decoder.buffer_bytes <= 4 * FULL_BYTES


def test_a_large_claim_takes_no_memory_before_its_bytes_arrive() -> None:
    decoder = FrameDecoder()
    assert feed(decoder, struct.pack(">iI", FRAME_BYTES_MAX - 4, 2) + b"{}", 10) == []
    assert decoder.buffer_bytes == FIRST_BYTES


def test_a_frame_of_the_largest_size_passes_and_its_memory_is_given_back() -> None:
    (head,) = plain_frame(1, 0, 2, [])
    body = bytes(FRAME_BYTES_MAX - len(head))
    decoder = FrameDecoder()
    (frame,) = feed(decoder, encode_frame(Frame(1, 2, body)), 1 << 20)
    assert len(frame.body) == len(body)
    decoder.writable()
    assert decoder.buffer_bytes == FULL_BYTES
    with pytest.raises(FrameError, match="over the limit"):
        encode_frame(Frame(1, 2, body + b"x"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack(">iI", FRAME_BYTES_MAX, 0), "are allowed"),
        (struct.pack(">iI", 3, 0), "are allowed"),
        (struct.pack(">iI", -1, 0), "are allowed"),
        (struct.pack(">iI", 10, 7), "header of 7 bytes"),
        (struct.pack(">iI", 10, 9 << 24), "header type 9"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "TLS"),
        (struct.pack(">iI", 6, 2) + b"[]", "not a JSON object"),
        (struct.pack(">iI", 6, 2) + b"{}", "code is not an int32"),
    ],
)
def test_broken_prefixes_are_named(data: bytes, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        feed(FrameDecoder(), data, 1000)


def test_a_binary_header_is_read_and_its_code_is_unsigned() -> None:
    ext = struct.pack(">h", 1) + b"k" + struct.pack(">i", 2) + b"vv"
    header = struct.pack(">hbhiii", 50001 - 65536, 9, 3, 77, 2, 2) + b"hi" + struct.pack(">i", len(ext)) + ext
    raw = struct.pack(">iI", 4 + len(header) + 4, 1 << 24 | len(header)) + header + b"body"
    frame = decode_frame(raw)
    assert frame == Frame(50001, 77, b"body", 2, "hi", {"k": "vv"}, "GO", 3)


@given(st.binary(max_size=80))
def test_random_binary_headers_end_in_a_frame_or_an_error(header: bytes) -> None:
    raw = struct.pack(">iI", 4 + len(header), 1 << 24 | len(header)) + header
    with contextlib.suppress(FrameError):
        assert decode_frame(raw).body == b""


HEADER = '{"code":52003,"flag":1,"language":"PYTHON","opaque":77,"serializeTypeCurrentRPC":"JSON","version":0}'


def framed(header: str) -> bytes:
    raw = header.encode()
    return (4 + len(raw) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw + b"body"


@pytest.mark.parametrize("code", ["0", "7", "52003", "2147483647"])
@pytest.mark.parametrize("opaque", ["-1", "0", "12", "2147483647"])
def test_a_plain_header_means_what_json_says(code: str, opaque: str) -> None:
    header = HEADER.replace("52003", code).replace("77", opaque)
    frame = decode_frame(framed(header))
    assert frame == decode_frame(framed(header.replace(",", ", ")))
    assert (frame.code, frame.opaque, frame.flag, frame.body) == (int(code), int(opaque), 1, b"body")


@pytest.mark.parametrize("number", ["007", "2147483648", "9999999999", "-2147483649", "1.5", "", "x"])
def test_a_header_with_a_number_that_is_none_is_refused_either_way(number: str) -> None:
    for header in (HEADER, HEADER.replace(",", ", ")):
        with pytest.raises(FrameError):
            decode_frame(framed(header.replace("77", number)))


plain_frames = st.builds(
    lambda code, opaque, body, flag: Frame(code, opaque, body, flag),
    st.sampled_from([0, 200, 52004]),
    st.integers(-1, 40) | st.integers(10**8, (1 << 31) - 1),
    st.binary(max_size=30),
    st.sampled_from([0, 1, 3]),
)


@given(st.lists(plain_frames | frames, max_size=30), st.integers(1, 2000))
def test_kinds_of_frames_that_were_met_before_are_told_apart(sent: list[Frame], step: int) -> None:
    def raw(one: Frame) -> bytes:
        plain = one == Frame(one.code, one.opaque, one.body, one.flag)
        return b"".join(plain_frame(one.code, one.flag, one.opaque, [one.body])) if plain else encode_frame(one)

    assert feed(FrameDecoder(), b"".join(map(raw, sent)), step) == sent


@pytest.mark.parametrize("number", ["007", "+12", "1_2", " 12", "-12", "1.5", "x", "\u00b2", "2147483648"])
@pytest.mark.parametrize("gap", [0, 1])
def test_a_header_like_the_one_before_but_for_a_number_that_is_none(number: str, gap: int) -> None:
    """Whatever the decoder remembers, it means what JSON says."""
    decoder = FrameDecoder()
    known = [framed(HEADER.replace("77", digits)) for digits in ("1", "22", "333", "4444", "55555", "1234567890")]
    assert len(feed(decoder, b"".join(known), 1000)) == len(known)
    header = HEADER.replace("77", " " * gap + number)
    try:
        expected = [decode_frame(framed(header))]
    except FrameError:
        with pytest.raises(FrameError):
            feed(decoder, framed(header), 1000)
    else:
        assert feed(decoder, framed(header), 1000) == expected


def test_a_known_kind_does_not_hide_what_is_wrong_elsewhere_in_the_header() -> None:
    decoder = FrameDecoder()
    feed(decoder, framed(HEADER), 1000)
    for broken in (
        HEADER.replace("JSON", "JSOX"),
        HEADER.replace("PYTHON", "PYTHOX"),
        HEADER.replace("52003", "52004"),
    ):
        assert feed(decoder, framed(broken), 1000) == [decode_frame(framed(broken))]
    with pytest.raises(FrameError):
        feed(decoder, framed(HEADER.replace("{", "[")), 1000)
