"""Positions written into bodies: after the layout, before the CRCs, in a copy, and the same however they came."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocol.entry import HEAD_BYTES, Magic, Slab, decode_slab
from node.protocol.packed_bodies import PackedBodies
from node.protocol.position_patch import fits_patch, patched
from node.protocol.slab_encode import encode_slab
from node.store.file_store import FileStore
from node.store.files.layout import place
from node.store.log_store import LogStore
from node.store.memory_store import MemoryStore
from tests.unit.store_fixtures import open_store

FILE_BYTES = 4096


def packed(bodies: list[bytes], lead: bytes = b"") -> PackedBodies:
    lengths = np.array([len(body) for body in bodies], dtype=np.int64)
    return PackedBodies(lead + b"".join(bodies), len(lead), lengths)


def by_hand(bodies: list[bytes], end_pos: int, patch_at: int) -> list[bytes]:
    """Each body with its place in it, worked out one entry at a time."""
    result = []
    for body in bodies:
        at = place(end_pos, HEAD_BYTES + len(body), FILE_BYTES)
        result.append(body[:patch_at] + struct.pack(">q", at + HEAD_BYTES) + body[patch_at + 8 :])
        end_pos = at + HEAD_BYTES + len(body)
    return result


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """Bodies of all lengths or of one, a few or many, and a place that all of them have."""
    patch_at = draw(st.integers(0, 40))
    shortest = patch_at + 8
    longest = shortest if draw(st.booleans()) else shortest + 300
    bodies = draw(st.lists(st.binary(min_size=shortest, max_size=longest), min_size=1, max_size=70))
    return bodies, patch_at


@settings(deadline=None)
@given(batches(), st.binary(max_size=9), st.integers(0, 1 << 40))
def test_packed_and_single_bodies_get_the_same_places(batch: tuple[list[bytes], int], lead: bytes, pos: int) -> None:
    bodies, patch_at = batch
    run = packed(bodies, lead)
    before = bytes(run.data)
    wanted = patched(bodies, pos, patch_at)
    assert list(patched(run, pos, patch_at)) == list(wanted)
    assert bytes(run.data) == before  # a copy was patched
    at = pos
    for body, own in zip(bodies, wanted, strict=True):
        assert own == body[:patch_at] + struct.pack(">q", at + HEAD_BYTES) + body[patch_at + 8 :]
        at += HEAD_BYTES + len(body)


def encoded_by_hand(store: LogStore, bodies: list[bytes], end_pos: int, patch_at: int) -> list[Slab]:
    """The plain encoder over bodies that hold their places already."""
    slabs: list[Slab] = []
    done = by_hand(bodies, end_pos, patch_at)
    index, chain = store.end_index + 1, store.end_chain or 0
    for body in done:
        at = place(end_pos, HEAD_BYTES + len(body), FILE_BYTES)
        slabs.append(encode_slab([body], index, 3, at, chain, Magic.NORMAL, 4))
        assert slabs[-1].last_chain is not None
        index, chain, end_pos = index + 1, slabs[-1].last_chain, slabs[-1].end_pos
    return slabs


def check(store: LogStore, batch: tuple[list[bytes], int], in_one_buffer: bool) -> None:
    bodies, patch_at = batch
    (first,) = store.append_as_leader([b"before"], 3)
    wanted = encoded_by_hand(store, bodies, first.end_pos, patch_at)
    given_bodies = packed(bodies) if in_one_buffer else bodies
    slabs = store.append_as_leader(given_bodies, 3, Magic.NORMAL, 4, patch_at)
    assert b"".join(bytes(slab.data) for slab in slabs) == b"".join(bytes(slab.data) for slab in wanted)
    assert b"".join(slab.index_records for slab in slabs) == b"".join(slab.index_records for slab in wanted)
    assert slabs[-1].last_chain == wanted[-1].last_chain == store.end_chain
    entries = [entry for slab in slabs for entry in decode_slab(slab)]
    assert all(entry.channel == 4 for entry in entries)
    assert [entry.body[patch_at : patch_at + 8] for entry in entries] == [
        struct.pack(">q", entry.pos + HEAD_BYTES) for entry in entries
    ]


@settings(deadline=None)
@given(batches(), st.booleans())
def test_a_patched_batch_is_what_the_plain_encoder_makes_of_patched_bodies(
    batch: tuple[list[bytes], int], in_one_buffer: bool
) -> None:
    check(MemoryStore(data_file_size=FILE_BYTES, index_file_size=1024), batch, in_one_buffer)


def test_a_batch_over_several_data_files_on_disk_holds_its_places(tmp_path: Path) -> None:
    store = open_store(tmp_path / "one")
    assert store.data_file_size == FILE_BYTES
    bodies = [bytes([number]) * (60 + number * 7) for number in range(60)]
    check(store, (bodies, 28), in_one_buffer=True)
    end = store.end_index
    places = [(entry.pos, entry.body[28:36]) for entry in map(store.get, range(1, end + 1)) if entry is not None]
    assert len({pos // FILE_BYTES for pos, _ in places}) > 2 and len(places) == 60
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.close()
    again = open_store(tmp_path / "one")
    read = [(entry.pos, entry.body[28:36]) for entry in map(again.get, range(1, end + 1)) if entry is not None]
    assert read == places == [(pos, struct.pack(">q", pos + HEAD_BYTES)) for pos, _ in places]
    again.close()


def test_a_follower_takes_patched_bytes_as_they_are(tmp_path: Path) -> None:
    leader, follower = open_store(tmp_path / "leader"), open_store(tmp_path / "follower")
    assert isinstance(follower, FileStore)
    for slab in leader.append_as_leader(packed([b"x" * 50] * 80), 1, Magic.NORMAL, 0, 28):
        follower.append_slab(slab)
    assert follower.end_chain == leader.end_chain
    assert [follower.get(index) for index in range(80)] == [leader.get(index) for index in range(80)]
    leader.close()
    follower.close()


def test_a_body_too_short_for_the_patch_does_not_fit() -> None:
    assert fits_patch([b"x" * 36, b"y" * 40], 28) and fits_patch(packed([b"x" * 36, b"y" * 40]), 28)
    assert not fits_patch([b"x" * 36, b"y" * 35], 28) and not fits_patch([b"x" * 36], -1)
