"""A log's bytes are judged alike on the short way, which nearly all records take, and on the careful one."""

from __future__ import annotations

import random

import pytest

from node.message_store import local_records
from node.message_store.blank import encode_blank
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


def both(data: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Walked, Walked]:
    short = walk(data, 0, FILE_BYTES)
    with monkeypatch.context() as patched:
        patched.setattr(local_records, "_common", lambda *_given: 0)
        return short, walk(data, 0, FILE_BYTES)


def said(found: Walked) -> tuple[object, ...]:
    return found.starts, found.sizes, found.at, found.stop, found.needs, found.why


def test_a_sound_log_takes_the_short_way() -> None:
    data = log_of(9)
    starts: list[int] = []
    end = local_records._common(data, 0, FILE_BYTES, starts, [])
    found = walk(bytes(data), 0, FILE_BYTES)
    assert starts == found.starts and len(starts) == 9 and found.stop is Stop.END
    assert end == starts[-1] + found.sizes[-1]


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
        short, careful = both(bytes(data), monkeypatch)
        assert said(short) == said(careful)
        stops.add(short.stop)
    assert stops >= {Stop.END, Stop.PARTIAL, Stop.BAD}


def test_a_record_that_leaves_no_room_for_the_blank_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode_record_at(0, 0))
    data = encode_record_at(0, FILE_BYTES - size)
    short, careful = both(data, monkeypatch)
    assert len(data) == FILE_BYTES and said(short) == said(careful) and short.stop is Stop.BAD


def encode_record_at(place: int, body_bytes: int) -> bytes:
    record = bytearray(one_record(1, body_bytes))
    record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8] = place.to_bytes(8, "big")
    return bytes(record)
