"""The quick check of a slab says what the thorough one says, for sound slabs and for every kind of damage."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.protocol.entry import HEAD_BYTES, INDEX_UNIT, EntryError, Magic, Slab
from node.protocol.slab_check import _are_all_sound, _is_one_sound
from node.protocol.slab_check import check_slab as checked
from node.protocol.slab_encode import encode_slab
from node.protocol.slab_verify import verify_slab
from node.store.recovery.unsealed import strip_seals

CHAIN = 0xABCD1234


def check_slab(slab: Slab, chain: int | None) -> int | None:
    return checked(slab, chain)[0]


def verdict(check: object, slab: Slab, chain: int | None) -> int | str | None:
    try:
        return check(slab, chain)  # type: ignore[operator, no-any-return]
    except EntryError as error:
        return str(error)


def slabs() -> list[Slab]:
    shapes = [[b"x" * 50] * count for count in (1, 2, 7, 8, 30, 300)]
    shapes += [[b""] * 20, [b"x" * (number % 5) for number in range(40)], [b"", b"y"]]
    return [encode_slab(bodies, 1000, 7, 4096, CHAIN) for bodies in shapes]


@pytest.mark.parametrize("slab", slabs(), ids=lambda slab: f"{slab.count}x{len(slab.data)}")
def test_sound_slabs_pass_both_ways(slab: Slab) -> None:
    assert check_slab(slab, CHAIN) == verify_slab(slab, CHAIN) == slab.last_chain
    assert check_slab(slab, None) is None
    other = replace(slab, last_chain=5)
    assert check_slab(other, CHAIN) == verify_slab(other, CHAIN) == slab.last_chain
    for changed in (strip_seals(slab), encode_slab([b"x"] * slab.count, 1000, 7, 4096, CHAIN, Magic.NOOP)):
        assert verdict(check_slab, changed, CHAIN) == verdict(verify_slab, changed, CHAIN)


def test_the_quick_way_is_taken_for_what_our_leaders_send() -> None:
    one, many = (encode_slab([b"x" * 256] * count, 5, 3, 0, CHAIN) for count in (1, 1000))
    assert _is_one_sound(one, CHAIN)
    assert _are_all_sound(many, CHAIN)


@pytest.mark.parametrize("count", [1, 2, 8, 30])
def test_the_quick_way_is_not_taken_where_a_head_says_another_position(count: int) -> None:
    slab = encode_slab([b"x" * 20] * count, 1000, 7, 4096, CHAIN)
    assert checked(slab, CHAIN) == (slab.last_chain, count != 2)
    data = bytearray(slab.data)
    data[(count - 1) * (HEAD_BYTES + 20) + 31] ^= 1
    assert checked(replace(slab, data=bytes(data)), CHAIN) == (slab.last_chain, False)


@pytest.mark.parametrize("count", [1, 8, 30])
def test_any_flipped_bit_of_a_head_or_an_index_record_gets_the_thorough_verdict(count: int) -> None:
    slab = encode_slab([b"x" * 20] * count, 1000, 7, 4096, CHAIN)
    rng = random.Random(count)
    size = HEAD_BYTES + 20
    spots = [(True, entry * size + at) for entry in {0, count - 1} for at in range(size)]
    spots += [(False, entry * 32 + at) for entry in {0, count - 1} for at in range(32)]
    for in_data, at in spots:
        raw = bytearray(slab.data if in_data else slab.index_records)
        raw[at] ^= 1 << rng.randrange(8)
        damaged = replace(slab, data=bytes(raw)) if in_data else replace(slab, index_records=bytes(raw))
        for chain in (CHAIN, None):
            assert verdict(check_slab, damaged, chain) == verdict(verify_slab, damaged, chain), (in_data, at)


@pytest.mark.parametrize("count", [1, 30])
def test_a_slab_that_says_another_place_term_or_length_gets_the_thorough_verdict(count: int) -> None:
    slab = encode_slab([b"x" * 20] * count, 1000, 7, 4096, CHAIN)
    last = (1 << 63) - 1
    lies: list[dict[str, object]] = [
        {"first_index": 999}, {"first_index": last}, {"pos": 0}, {"pos": last}, {"first_term": 6}, {"last_term": 8},
        {"first_term": -1, "last_term": -1}, {"count": count + 1}, {"data": slab.data[:-1]}, {"data": slab.data + b"x"},
        {"data": b""}, {"index_records": slab.index_records[:-1]}, {"index_records": b""},
    ]  # fmt: skip
    for lie in lies:
        reported = replace(slab, **lie)  # type: ignore[arg-type]
        assert verdict(check_slab, reported, CHAIN) == verdict(verify_slab, reported, CHAIN), lie
    assert verdict(check_slab, slab, CHAIN ^ 1) == verdict(verify_slab, slab, CHAIN ^ 1)


def test_entries_that_begin_at_another_position_than_their_heads_say_are_taken() -> None:
    slab = encode_slab([b"x" * 20] * 30, 1000, 7, 4096, CHAIN)
    units = b"".join(
        struct.pack(">iqiqq", magic, pos + 64, size, index, term)
        for magic, pos, size, index, term in struct.iter_unpack(">iqiqq", slab.index_records)
    )
    moved = replace(slab, pos=slab.pos + 64, index_records=units)
    assert check_slab(moved, CHAIN) == verify_slab(moved, CHAIN) == slab.last_chain


@settings(deadline=None)
@given(
    st.integers(1, 60),
    st.integers(0, 20),
    st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 16), st.integers(1, 255)), max_size=3),
    st.sampled_from([Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE]),
    st.sampled_from([(1000, 7, 4096), (0, 0, 0), ((1 << 40) + 3, (1 << 33) + 1, (1 << 42) + 8)]),
)
def test_whatever_is_flipped_the_quick_verdict_is_the_thorough_one(
    count: int, body_bytes: int, flips: list[tuple[bool, int, int]], magic: Magic, place: tuple[int, int, int]
) -> None:
    index, term, pos = place
    slab = encode_slab([bytes([number]) * body_bytes for number in range(count)], index, term, pos, CHAIN, magic)
    data, records = bytearray(slab.data), bytearray(slab.index_records)
    for in_data, at, mask in flips:
        target = data if in_data else records
        target[at % len(target)] ^= mask
    damaged = replace(slab, data=bytes(data), index_records=bytes(records))
    assert verdict(check_slab, damaged, CHAIN) == verdict(verify_slab, damaged, CHAIN)


@pytest.mark.parametrize("zeroed", [0, 15, 29])
def test_an_unsealed_entry_among_sealed_ones_is_left_to_the_thorough_check(zeroed: int) -> None:
    """Its place in the chain is right, and still the quick way must not call it sealed."""
    slab = encode_slab([b""] * 30, 1000, 7, 4096, CHAIN)  # an empty body's CRC is 0
    assert _are_all_sound(slab, CHAIN)
    data = bytearray(slab.data)
    at = zeroed * HEAD_BYTES + 36
    data[at : at + 4] = bytes(4)
    damaged = replace(slab, data=bytes(data))
    assert not _are_all_sound(damaged, CHAIN)
    assert verdict(check_slab, damaged, CHAIN) == verdict(verify_slab, damaged, CHAIN)


@pytest.mark.parametrize("count", [2, 7, 30, 300])
@pytest.mark.parametrize("anchored", [True, False])
def test_from_a_disk_each_sealed_entry_says_the_right_chain(count: int, anchored: bool) -> None:
    slab = encode_slab([b"x" * (number % 7) for number in range(count)], 1000, 7, 4096, CHAIN)
    chain = CHAIN if anchored else None
    stripped = strip_seals(slab)
    for sound in (slab, stripped):
        assert verify_slab(sound, chain, bodies=True) == (slab.last_chain if anchored else None)
    offset = 0
    for index, (_magic, _pos, size, *_) in enumerate(INDEX_UNIT.iter_unpack(slab.index_records), 1000):
        raw = bytearray(slab.data)
        raw[offset + 37] ^= 4  # in its chain
        with pytest.raises(EntryError, match=f"the chain of entry {index + (index == 1000 and not anchored)} is"):
            verify_slab(replace(slab, data=bytes(raw)), chain, bodies=True)
        offset += size
