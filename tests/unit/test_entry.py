"""Records, the chain and slabs, against the document's table and against each other."""

import os
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocol import slab_verify
from node.protocol.entry import (
    Entry,
    EntryError,
    Magic,
    Seal,
    crc32,
    decode_slab,
    pack_record,
    seal_of,
    slab_of,
    unpack_record,
)
from node.protocol.slab_encode import encode_slab
from node.protocol.slab_verify import verify_slab


def test_the_chain_of_the_document() -> None:
    noop = encode_slab([b""], 0, 1, 0, 0, Magic.NOOP)
    hello = encode_slab([b"hello"], 1, 1, 48, noop.last_chain or 0)
    empty = encode_slab([b""], 2, 2, 101, hello.last_chain or 0)
    assert [f"{slab.last_chain:08x}" for slab in (noop, hello, empty)] == ["20479a14", "e45185fe", "1fb82f77"]
    assert decode_slab(hello)[0].body_crc == 0x3610A686


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=60), st.integers(0, 2**40), st.integers(0, 2**31))
def test_loop_and_columns_agree_and_verify(bodies: list[bytes], first_index: int, prev_chain: int) -> None:
    slab = encode_slab(bodies, first_index, 7, 1000, prev_chain)
    one_by_one = b""
    chain, pos = prev_chain, 1000
    for number, body in enumerate(bodies):
        single = encode_slab([body], first_index + number, 7, pos, chain)
        one_by_one += single.data
        chain, pos = single.last_chain or 0, single.end_pos
    assert slab.data == one_by_one
    assert slab.last_chain == chain
    assert verify_slab(slab, prev_chain, bodies=True) == chain
    assert [entry.body for entry in decode_slab(slab)] == bodies
    assert slab_of(slab.data, 1000, prev_chain, chain) == slab


@pytest.mark.parametrize("count", [1, 30])
def test_every_flipped_byte_is_noticed(count: int) -> None:
    slab = encode_slab([b"payload-%d" % n for n in range(count)], 5, 3, 64, 99)
    for offset in range(len(slab.data)):
        damaged = bytearray(slab.data)
        damaged[offset] ^= 0x40
        in_record = offset % (len(slab.data) // count) if count == 1 else None
        if in_record is not None and 24 <= in_record < 32:
            continue  # `pos` in a head may differ from the physical position (FORMATS 6.12)
        try:
            verify_slab(replace(slab, data=bytes(damaged)), 99, bodies=True)
        except EntryError:
            continue
        entries = decode_slab(replace(slab, data=bytes(damaged)))
        assert [(e.index, e.term, e.body) for e in entries] == [(e.index, e.term, e.body) for e in decode_slab(slab)]


def test_a_wrong_previous_chain_is_refused() -> None:
    slab = encode_slab([b"a", b"b"], 1, 1, 0, 5)
    with pytest.raises(EntryError, match="chain"):
        verify_slab(slab, 6)


def test_unsealed_entries_take_part_with_their_computed_crc() -> None:
    entry = Entry(Magic.NORMAL, 0, 1, 0, b"java")
    assert seal_of(entry, 0) is Seal.UNSEALED
    sealed = encode_slab([b"java"], 0, 1, 0, 0)
    slab = slab_of(pack_record(entry), 0, 0)
    assert verify_slab(slab, 0, bodies=True) == sealed.last_chain
    assert seal_of(decode_slab(sealed)[0], 0) is Seal.SEALED
    assert seal_of(replace(decode_slab(sealed)[0], body_crc=1), 0) is Seal.INVALID


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_the_decoder(data: bytes) -> None:
    try:
        entry = unpack_record(data)
    except EntryError:
        return
    assert entry.size <= len(data)


def test_the_fast_crc_is_zlibs() -> None:
    for size in (0, 1, 255, 4096):
        data = os.urandom(size)
        assert crc32(data, 17) == zlib.crc32(data, 17)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255), st.booleans()), max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_loop_and_columns_verify_alike(
    bodies: list[bytes], flips: list[tuple[int, int, bool]], chained: bool, with_bodies: bool, sealed: bool
) -> None:
    slab = encode_slab(bodies, 7, 3, 512, 99)
    if not sealed:
        plain = [replace(one, body_crc=0, chain_crc=0) for one in decode_slab(slab)]
        slab = replace(slab, data=b"".join(map(pack_record, plain)))
    data, records = bytearray(slab.data), bytearray(slab.index_records)
    for at, mask, in_records in flips:
        target = records if in_records else data
        target[at % len(target)] ^= mask
    damaged = replace(slab, data=bytes(data), index_records=bytes(records))

    def verdict(check: Callable[..., int | None]) -> int | str | None:
        try:
            return check(damaged, 99 if chained else None, bodies=with_bodies)
        except EntryError:
            return "refused"

    assert verdict(slab_verify._verify_loop) == verdict(slab_verify._verify_columns)
