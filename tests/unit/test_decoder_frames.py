"""Frames that arrive in one read with a broken one behind them; what the fuzzer found in the frame decoder stays fixed."""

from __future__ import annotations

import pytest

from node.transport.remoting import Frame, FrameDecoder, encode_frame

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
