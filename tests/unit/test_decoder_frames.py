"""Frames with a broken one behind them in one read: what the fuzzer found in the frame decoder stays fixed."""

from __future__ import annotations

import json
import struct

import pytest

from node.protocol.codes import RequestCode
from node.transport.bodies import BodyError, decode_request
from node.transport.remoting import Frame, FrameDecoder, FrameError, decode_frame, encode_frame

GOOD = Frame(52004, 1, b"an append")
BROKEN = b"\xff" * 16


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_came_whole_before_a_broken_frame_is_delivered_however_it_was_cut(step: int) -> None:
    decoder, found = FrameDecoder(), []
    data = encode_frame(GOOD) + encode_frame(GOOD) + BROKEN
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        decoder.writable()[: len(piece)] = piece
        found += decoder.filled(len(piece))
    assert found == [GOOD, GOOD]
    assert decoder.broken is not None


def test_behind_a_broken_frame_nothing_is_read_and_no_memory_taken() -> None:
    decoder = FrameDecoder()
    for _ in range(1000):
        room = decoder.writable()
        room[:] = b"\xff" * len(room)
        assert decoder.filled(len(room)) == []
    assert decoder.buffer_bytes <= 128 * 1024


@pytest.mark.parametrize("field", ["remark", "language"])
def test_half_a_surrogate_pair_is_no_text_in_a_header(field: str) -> None:
    header = b'{"code":1,"%s":"\\ud800"}' % field.encode()
    data = struct.pack(">iI", 4 + len(header), len(header)) + header
    if field == "language":
        assert decode_frame(data).language == "OTHER"
    else:
        with pytest.raises(FrameError, match=field):
            decode_frame(data)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.VOTE, {"leaderId": "\ud800", "term": 4}),
        (RequestCode.HELLO, {"caps": ["\udc00"]}),
        (RequestCode.HELLO, {"caps": [[]]}),
        (RequestCode.HELLO, {"recorded": {"\ud800": "s"}}),
    ],
)
def test_half_a_surrogate_pair_is_no_text_in_a_body(code: RequestCode, body: dict[str, object]) -> None:
    with pytest.raises(BodyError, match="string"):
        decode_request(code, json.dumps(body).encode(), 1)
