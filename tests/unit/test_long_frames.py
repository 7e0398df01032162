"""Frames longer than a buffer: read into memory of their own, where their bodies stay."""

from __future__ import annotations

import struct
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.consensus.overlap import _tail_of
from node.protocol.entry import BODY_BYTES_MAX, HEAD_BYTES, Slab
from node.protocol.slab_encode import encode_slab
from node.store.slab_pieces import cut_slab, settle
from node.transport.connection import Connection
from node.transport.frame_memory import MAPPED_BYTES_MIN
from node.transport.receive_buffer import FULL_BYTES
from node.transport.remoting import (
    BUFFER_BYTES_KEPT,
    FRAME_BYTES_MAX,
    LONG_FRAME_FIRST_PART,
    Frame,
    FrameDecoder,
    FrameError,
    encode_frame,
)

SHORT = (0, 7, 300, FULL_BYTES - 200)
LONG = (FULL_BYTES, 200_000, MAPPED_BYTES_MIN - 200, MAPPED_BYTES_MIN + 1, 5_000_000)


def pattern(length: int, seed: int) -> bytes:
    return (bytes(range(seed, 251)) * (length // (251 - seed) + 1))[:length]


def take(decoder: FrameDecoder, data: bytes, step: int) -> list[Frame]:
    """As a socket would fill it: at most `step` bytes at once."""
    found: list[Frame] = []
    at = 0
    while at < len(data):
        room = decoder.writable()
        size = min(step, len(room), len(data) - at)
        room[:size] = data[at : at + size]
        at += size
        found += decoder.filled(size)
    return found


def test_the_largest_entry_is_read_into_memory_of_its_own() -> None:
    """A buffer that grows would touch five times as much: too much at once for a leader that many clients ask."""
    frame = encode_frame(Frame(7, 1, pattern(BODY_BYTES_MAX + 200, 3)))
    decoder, most, found = FrameDecoder(), 0, []
    for at in range(0, len(frame), 50_000):
        found += take(decoder, frame[at : at + 50_000], 50_000)
        most = max(most, decoder.buffer_bytes)
    assert most <= len(frame) + BUFFER_BYTES_KEPT
    assert [bytes(one.body) for one in found] == [pattern(BODY_BYTES_MAX + 200, 3)]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(SHORT + LONG), min_size=1, max_size=5), st.sampled_from([1_000, 60_000, 1 << 20]))
def test_long_and_short_frames_come_back_in_their_order_however_they_arrive(lengths: list[int], step: int) -> None:
    sent = [Frame(7, number, pattern(length, number)) for number, length in enumerate(lengths)]
    decoder = FrameDecoder()
    found = take(decoder, b"".join(map(encode_frame, sent)), step)
    assert [(frame.code, frame.opaque, bytes(frame.body)) for frame in found] == [
        (frame.code, frame.opaque, frame.body) for frame in sent
    ]
    decoder.writable()
    assert decoder.buffer_bytes <= BUFFER_BYTES_KEPT


def test_the_body_of_a_long_frame_is_its_own_and_nobody_can_write_to_it() -> None:
    decoder = FrameDecoder()
    (first,) = take(decoder, encode_frame(Frame(7, 1, pattern(200_000, 1))), 50_000)
    (second,) = take(decoder, encode_frame(Frame(7, 2, pattern(200_000, 2))), 50_000)
    assert isinstance(first.body, memoryview)
    assert first.body.readonly
    assert (bytes(first.body), bytes(second.body)) == (pattern(200_000, 1), pattern(200_000, 2))


def test_a_body_behind_a_long_header_does_not_keep_that_header() -> None:
    header = b'{"code":7,"opaque":1' + b" " * 12_000 + b"}"  # of 16 KiB that are allowed
    body = b"b" * 200_000
    data = struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body
    (frame,) = take(FrameDecoder(), data, 50_000)
    assert (frame.code, frame.opaque, frame.body) == (7, 1, body)
    assert type(frame.body) is bytes


@pytest.mark.parametrize("frame_bytes", [200_000, MAPPED_BYTES_MIN, 5_000_000, FRAME_BYTES_MAX])
def test_a_frame_that_never_ends_counts_whole_and_is_gone_with_its_connection(frame_bytes: int) -> None:
    decoder = FrameDecoder()
    data = encode_frame(Frame(7, 1, bytes(frame_bytes - 200)))
    assert take(decoder, data[:-1], 1 << 20) == []
    assert decoder.unfinished_bytes == len(data) - 1 and decoder.frame_memory_bytes == len(data)
    memory = weakref.ref(decoder.writable().obj)
    assert memory() is not None and decoder.buffer_bytes <= len(data) + BUFFER_BYTES_KEPT
    decoder.end()
    assert decoder.unfinished_bytes == decoder.frame_memory_bytes == decoder.buffer_bytes == 0
    assert memory() is None  # none of it waits for a collection


def test_a_claim_of_a_long_frame_takes_no_memory_before_its_first_part_is_there() -> None:
    data = encode_frame(Frame(7, 1, bytes(FRAME_BYTES_MAX - 200)))
    for arrived in (8, 1_000, int(len(data) * LONG_FRAME_FIRST_PART) - 1):
        decoder = FrameDecoder()
        assert take(decoder, data[:arrived], 1 << 20) == []
        assert decoder.frame_memory_bytes <= max(2 * arrived - FULL_BYTES, FULL_BYTES)


@pytest.mark.parametrize("header", [b"[]", b'{"code":"x"}', b"\xff\xff"])
def test_a_long_frame_with_a_broken_header_ends_the_stream_behind_what_came_whole(header: bytes) -> None:
    body = bytes(200_000)
    broken = struct.pack(">iI", 4 + len(header) + len(body), len(header)) + header + body
    good = Frame(7, 1, b"good")
    decoder = FrameDecoder()
    assert take(decoder, encode_frame(good) + broken + encode_frame(good), 50_000) == [good]
    assert isinstance(decoder.broken, FrameError)
    assert decoder.buffer_bytes <= FULL_BYTES


def test_a_part_of_a_slab_does_not_hold_the_memory_of_the_whole() -> None:
    made = encode_slab([bytes(1000)] * 30, 5, 1, 0, 0)
    slab = Slab(
        made.first_index, made.count, made.pos, memoryview(made.data), made.index_records, made.first_term,
        made.last_term, made.prev_chain, made.last_chain,
    )  # fmt: skip
    record_bytes = HEAD_BYTES + 1000
    parts = [cut_slab(slab, 7, 3), _tail_of(slab, 29, 29 * record_bytes, 0), *settle(slab, 0, 10 * record_bytes + 100)]
    assert len(parts) > 3
    assert all(type(part.data) is bytes for part in parts)
    assert b"".join(part.data for part in parts[2:]) == made.data


def test_bytes_that_complete_no_frame_are_told_and_no_others() -> None:
    """What the engine takes for a sign of life from its leader (SAFETY E6)."""
    said: list[str] = []
    connection = Connection(
        lambda _one, _frame: said.append("frame"), lambda _one: None, on_part=lambda _one: said.append("part")
    )

    def arrive(data: bytes) -> None:
        connection.get_buffer(len(data))[: len(data)] = data
        connection.buffer_updated(len(data))

    whole = encode_frame(Frame(310, 1, b"b" * 100))
    for piece in (whole[:3], whole[3:60], whole[60:], whole, whole + whole[:9], whole[9:]):
        arrive(piece)
    assert said == ["part", "part", "frame", "frame", "frame", "frame"]
