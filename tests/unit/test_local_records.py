"""A log's bytes are judged alike on the short ways, which nearly all records take, and on the careful one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from node.message_store import local_records
from node.message_store.blank import encode_blank
from node.message_store.dispatch_batch import Batch, _heads_of, columns_at_once
from node.message_store.heads import Heads
from node.message_store.local_records import Stop, Walked, walk
from node.message_store.record import PHYSICAL_OFFSET_AT
from tests.unit.ha_kit import one_record

FILE_BYTES = 4096
FLIPS = 2000


def log_of(count: int, *, blank: bool = True) -> bytearray:
    """Records that lie where they say, and the blank of their file."""
    data = bytearray()
    for number in range(count):
        record = bytearray(one_record(number, 20 + 7 * number))
        record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = len(data).to_bytes(8, "big")
        data += record
    left = FILE_BYTES - len(data)
    return data + encode_blank(left).ljust(left, b"\0") if blank else data


WAYS = {
    "one by one": ("FEW", 1 << 30),
    "at once": ("FEW", 0),
    "with care": ("_common", lambda *_given: ([], [], None)),
}  # fmt: skip


def each_way(data: bytes, monkeypatch: pytest.MonkeyPatch, file_bytes: int = FILE_BYTES) -> list[Walked]:
    found = []
    for name, instead in WAYS.values():
        with monkeypatch.context() as patched:
            patched.setattr(local_records, name, instead)
            found.append(walk(data, 0, file_bytes))
    return found


def said(found: Walked) -> tuple[object, ...]:
    return found.starts, found.sizes, found.at, found.stop, found.needs, found.why


@pytest.mark.parametrize("way", ["one by one", "at once"])
def test_a_sound_log_takes_the_short_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(log_of(9))
    monkeypatch.setattr(local_records, *WAYS[way])
    starts, sizes, heads = local_records._common(data, 0, FILE_BYTES)
    found = walk(data, 0, FILE_BYTES)
    assert (starts, sizes) == (found.starts, found.sizes) and len(starts) == 9 and found.stop is Stop.END
    assert (heads is not None) == (found.heads is not None) == (way == "at once")


def test_the_fields_of_many_are_those_that_dispatch_reads_for_itself() -> None:
    data = bytes(log_of(9))
    found = walk(data, 0, FILE_BYTES)
    starts, sizes = np.array(found.starts), np.array(found.sizes)
    alone, judged = Batch(data, starts, sizes, starts), Batch(data, starts, sizes, starts, found.heads)
    read = _heads_of(np.frombuffer(data, np.uint8), alone)
    assert found.heads is not None
    for name in Heads.__slots__:
        assert np.array_equal(getattr(read, name), getattr(found.heads, name)), name
    own, given = columns_at_once(alone, ()), columns_at_once(judged, ())
    assert own.queues == given.queues and own.last_time_ms == given.last_time_ms
    assert np.array_equal(own.queued, given.queued) and np.array_equal(own.keyed, given.keyed)


def test_whatever_is_flipped_or_missing_is_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    whole = log_of(9)
    stops: set[Stop] = set()
    for _ in range(FLIPS):
        data = bytearray(whole)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        one_by_one, at_once, careful = each_way(bytes(data), monkeypatch)
        assert said(one_by_one) == said(at_once) == said(careful)
        stops.add(careful.stop)
    assert stops >= {Stop.END, Stop.PARTIAL, Stop.BAD}


def test_a_record_that_leaves_no_room_for_the_blank_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode_record_at(0, 0))
    data = encode_record_at(0, FILE_BYTES - size)
    one_by_one, at_once, careful = each_way(data, monkeypatch)
    assert len(data) == FILE_BYTES and said(one_by_one) == said(at_once) == said(careful)
    assert careful.stop is Stop.BAD


SIZE, CRC, QUEUE_ID, QUEUE_OFFSET, PLACE, SYS_FLAG, STORED, BODY = 0, 8, 12, 20, 28, 36, 56, 84
FIELDS = [
    (SIZE, 4), (4, 4), (CRC, 4), (QUEUE_ID, 4), (QUEUE_OFFSET, 8), (PLACE, 8), (SYS_FLAG, 4), (STORED, 8), (BODY, 4),
]  # fmt: skip
NUMBERS = [0, 1, -1, 90, 91, 100, 4095, 4096, 1 << 30, (1 << 31) - 1, -(1 << 31), 0x10, 0x20, 0x7FFF, 0x8000]


@pytest.mark.parametrize(("at", "size_bytes"), FIELDS)
def test_each_field_is_held_against_what_it_may_be(at: int, size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first, a middle and the last record: whatever number it is, all ways come to one verdict."""
    whole = log_of(9)
    starts = walk(bytes(whole), 0, FILE_BYTES).starts
    verdicts = set()
    for start in (starts[0], starts[4], starts[8]):
        for number in NUMBERS:
            data = bytearray(whole)
            data[start + at : start + at + size_bytes] = number.to_bytes(size_bytes, "big", signed=True)
            one_by_one, at_once, careful = each_way(bytes(data), monkeypatch)
            assert said(one_by_one) == said(at_once) == said(careful), (start, number)
            verdicts.add(careful.stop)
    assert Stop.BAD in verdicts


@pytest.mark.parametrize("length", [0x7FFF, 0x8000, 0xFFFF])
def test_properties_of_more_than_32_kib_are_no_short(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their length is a signed number of two bytes: whole, and not what any broker writes."""
    whole = bytearray(encode_record_at(0, 10))
    topic_end = local_records.COMMON_BYTES + 10 + 1 + whole[local_records.COMMON_BYTES + 10]
    grown = whole[:topic_end] + length.to_bytes(2, "big") + b"p" * length
    grown[:4] = len(grown).to_bytes(4, "big")
    one_by_one, at_once, careful = each_way(bytes(grown), monkeypatch, 1 << 20)
    assert said(one_by_one) == said(at_once) == said(careful)
    assert careful.stop is (Stop.END if length == 0x7FFF else Stop.BAD)


def encode_record_at(place: int, body_bytes: int) -> bytes:
    record = bytearray(one_record(1, body_bytes))
    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = place.to_bytes(8, "big")
    return bytes(record)
