"""Batches for a state machine: columns and the loop over entries give the same commands, and the same errors."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from node.protocol.entry import EntryError, Magic, pack_record, unpack_record
from node.protocol.group_kind import PLAIN, Channel, GroupKind
from node.protocol.slab_encode import encode_slab
from node.state_machine import batches
from node.state_machine.batches import Batch, OutOfOrder, read_batch
from node.state_machine.kind import Type, body_of, kind_of

KV = kind_of("kv")
Reading = Callable[[GroupKind, int, int, bytes, int], Batch]


def records_of(bodies: list[bytes], first_index: int = 0) -> bytes:
    return bytes(encode_slab(bodies, first_index, 3, 0, 0).data)


def outcome_of(read: Reading, kind: GroupKind, first: int, last: int, records: bytes) -> object:
    try:
        found = read(kind, first, last, records, 500)
    except (OutOfOrder, EntryError, struct.error) as error:
        return type(error), str(error)
    return list(found.commands), list(found.places), list(found.offsets)


def both_agree(kind: GroupKind, first: int, last: int, records: bytes) -> Any:
    by_entries = outcome_of(batches._by_entries, kind, first, last, records)
    assert outcome_of(read_batch, kind, first, last, records) == by_entries
    return by_entries


@pytest.mark.parametrize("kind", [KV, PLAIN])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_columns_and_the_loop_agree(kind: GroupKind, even: bool, seed: int) -> None:
    rng = random.Random(f"batches {seed} {even}")
    count = rng.randrange(24, 200)
    size = rng.choice([0, 1, 9, 200])
    types = rng.choice([[Type.COMMAND], list(Type)])
    bodies = [
        body_of(rng.choice(types), rng.randrange(0, 1000), rng.randbytes(size if even else rng.randrange(size + 3)))
        for _ in range(count)
    ]
    records = records_of(bodies, 7)
    found = batches._by_columns(kind, 7, 6 + count, records, 500)
    assert found is not None or (even and size == 0)
    commands, places, offsets = both_agree(kind, 7, 6 + count, records)
    assert len(commands) == len(places) == len(offsets) == count
    assert all(type(one.index) is type(one.time_ms) is int for one in commands)


def test_what_is_the_engines_own_is_no_command() -> None:
    bodies = [body_of(Type.COMMAND, 10, b"%d" % number) for number in range(40)]
    offset, parts = 0, []
    whole = records_of(bodies)
    while offset < len(whole):
        entry = unpack_record(whole, offset)
        offset += entry.size
        if entry.index % 10 == 3:
            entry = entry.__class__(
                Magic.NOOP, entry.index, entry.term, entry.pos, body_of(Type.FIRST_OF_TERM, 11), Channel.FIRST_OF_TERM
            )
        parts.append(pack_record(entry))
    records = b"".join(parts)
    assert batches._by_columns(KV, 0, 39, records, 0) is not None
    commands, places, _ = both_agree(KV, 0, 39, records)
    assert places == [number for number in range(40) if number % 10 != 3]
    assert [one.index for one in commands] == places


@pytest.mark.parametrize("even", [True, False])
def test_what_does_not_add_up_is_refused_in_the_same_words(even: bool) -> None:
    rng = random.Random(f"broken batches {even}")
    bodies = [body_of(Type.COMMAND, 10, rng.randbytes(5 if even else rng.randrange(9))) for _ in range(30)]
    sound = records_of(bodies)
    for broken in (sound[:-1], sound + b"\0", sound + sound[:100], sound[60:], sound[:48], b""):
        assert type(both_agree(KV, 0, 29, broken)[0]) is type
    for first, last in ((1, 30), (0, 28), (0, 30)):
        assert both_agree(KV, first, last, sound)[0] is OutOfOrder
    for _ in range(300):  # any byte of a head or of a stamp
        at = rng.randrange(len(sound))
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        both_agree(KV, 0, 29, bytes(damaged))


def test_a_body_too_short_for_a_command_is_an_error_and_not_another_entrys_bytes() -> None:
    bodies = [body_of(Type.COMMAND, 10, b"x" * 20)] * 29 + [b"\1"]
    assert both_agree(KV, 0, 29, records_of(bodies))[0] is struct.error
