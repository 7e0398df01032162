"""Packed bodies are the same bodies: same slabs, same refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocol.entry import EntryError, Magic
from node.protocol.packed_bodies import PACKED_FROM, PackedBodies, encode_bodies, gather, longest_of, size_of
from node.protocol.slab_encode import encode_slab
from node.store.memory_store import MemoryStore
from node.transport.slab_frames import AppendRequest, BodyError, decode_append, encode_append

SOME = [b"one", b"", b"three", b"x" * 300]


def packed(bodies: list[bytes], lead: bytes = b"") -> PackedBodies:
    lengths = np.array([len(body) for body in bodies], dtype=np.int64)
    return PackedBodies(lead + b"".join(bodies), len(lead), lengths)


def lists_of_bodies() -> st.SearchStrategy[list[bytes]]:
    uneven = st.lists(st.binary(max_size=70), min_size=1, max_size=60)
    even = st.integers(0, 70).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=60)
    )
    return uneven | even


@settings(deadline=None)
@given(lists_of_bodies(), st.binary(max_size=9), st.integers(0, 1 << 40), st.integers(0, 0xFFFFFFFF))
def test_packed_bodies_encode_to_the_same_slab(bodies: list[bytes], lead: bytes, pos: int, chain: int) -> None:
    run = packed(bodies, lead)
    assert list(run) == bodies
    assert [run[at] for at in range(len(run))] == bodies
    assert encode_bodies(run, 17, 3, pos, chain, Magic.NORMAL) == encode_slab(bodies, 17, 3, pos, chain)
    assert encode_bodies(bodies, 17, 3, pos, chain) == encode_slab(bodies, 17, 3, pos, chain)
    assert (size_of(run), longest_of(run)) == (size_of(bodies), longest_of(bodies))


@settings(deadline=None)
@given(lists_of_bodies(), st.data())
def test_bodies_in_a_view_are_the_same(bodies: list[bytes], data: st.DataObject) -> None:
    run = packed(bodies)
    view = PackedBodies(memoryview(run.data).toreadonly(), 0, run.lengths)
    at = data.draw(st.integers(0, len(bodies) - 1))
    assert list(view) == bodies
    assert all(type(body) is bytes for body in (*view, view[at]))
    assert list(gather([run, view])) == bodies + bodies
    assert list(view[at : at + 1]) == [bodies[at]]
    assert encode_bodies(view, 17, 3, 99, 7) == encode_slab(bodies, 17, 3, 99, 7)


@given(lists_of_bodies(), st.data())
def test_a_cut_run_holds_what_it_was_cut_to(bodies: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(bodies) - 1))
    stop = data.draw(st.integers(first + 1, len(bodies)))
    assert list(packed(bodies, b"ab")[first:stop]) == bodies[first:stop]


def test_runs_are_gathered_in_their_order() -> None:
    assert list(gather([packed(SOME), packed(SOME[1:], b"zz")])) == SOME + SOME[1:]
    assert gather([packed(SOME), [b"alone"]]) == [*SOME, b"alone"]
    alone = [b"alone"]
    assert gather([alone]) is alone


def test_lengths_must_add_up() -> None:
    for lengths in ([], [3], [5, 1], [1 << 32] * 24):
        with pytest.raises(EntryError):
            PackedBodies(b"four", 0, np.array(lengths, dtype=np.int64))
    with pytest.raises(ValueError, match="left to right"):
        packed(SOME)[2:2]


@pytest.mark.parametrize("count", [1, PACKED_FROM - 1, PACKED_FROM, 100])
def test_an_append_frame_gives_back_its_bodies(count: int) -> None:
    bodies = [bytes([number]) * (number % 7) for number in range(count)]
    request = decode_append(b"".join(encode_append(AppendRequest(bodies, 9, ordered=True))))
    assert isinstance(request.bodies, PackedBodies) is (count >= PACKED_FROM)
    assert (list(request.bodies), request.expected_index, request.ordered) == (bodies, 9, True)


@pytest.mark.parametrize("cut", [1, 5, 400])
def test_an_append_frame_that_does_not_add_up_is_refused(cut: int) -> None:
    frame = b"".join(encode_append(AppendRequest([b"body"] * 100)))
    for broken in (frame[:-cut], frame + b"x" * cut):
        with pytest.raises(BodyError):
            decode_append(broken)


def test_a_store_takes_packed_bodies_over_several_files() -> None:
    bodies = [b"x" * (number % 40) for number in range(200)]
    stores = [MemoryStore(data_file_size=1024) for _ in range(2)]
    assert stores[0].append_as_leader(packed(bodies), 1) == stores[1].append_as_leader(bodies, 1)
