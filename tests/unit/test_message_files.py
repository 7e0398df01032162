"""The formats of a message store's other files: queue units, index files, checkpoint, configuration."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.message_store import index_file as index_file_module
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.errors import MessageFormatError
from node.message_store.index_file import (
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEAD_BYTES,
    SLOT_BYTES,
    IndexFile,
    IndexHead,
    encode_head,
    slots_shown_by,
)
from node.message_store.queue_units import (
    PREFILL_SIZE,
    SCHEDULE_TOPIC,
    decode_units,
    encode_units,
    is_queued,
    prefill_of,
    said_count,
    unit_tags_code,
)
from node.message_store.store_files import (
    CHECKPOINT_BYTES,
    StoreCheckpoint,
    abort_pid,
    decode_checkpoint,
    encode_checkpoint,
    parse_config,
)
from tests.unit.message_kit import CALM, INT64, record

ROWS = st.tuples(st.integers(0, 1 << 50), st.integers(1, 1 << 30), INT64)


@CALM
@given(st.lists(ROWS, max_size=20), st.integers(0, 19))
def test_units_come_back_and_end_at_the_first_that_says_nothing(rows: list[tuple[int, int, int]], spare: int) -> None:
    data = encode_units(rows)
    units = decode_units(data + bytes(spare))  # what is no whole unit is left out
    assert [tuple(one) for one in units.tolist()] == rows
    assert units.tobytes() == data
    assert said_count(decode_units(data + bytes(40))) == len(rows)
    assert said_count(decode_units(data + encode_units([(-1, 5, 0)]))) == len(rows)


def test_pre_fill_is_told_from_a_first_message_at_offset_zero() -> None:
    units = decode_units(encode_units([(0, PREFILL_SIZE, 0), (0, 91, 0), (91, 100, 5)]))
    assert prefill_of(units).tolist() == [True, False, False]


@pytest.mark.parametrize(("kind", "queued"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_half_and_rolled_back_records_have_no_unit(kind: int, queued: bool) -> None:
    assert is_queued(record(sys_flag=kind)) is queued


def test_a_message_that_waits_has_its_time_in_place_of_the_hash_of_its_tags() -> None:
    levels = parse_delay_levels()
    assert (len(levels), levels[0], levels[4], levels[17]) == (18, 1_000, 60_000, 7_200_000)
    stored = record().store_timestamp_ms

    def code(properties: bytes, topic: str = SCHEDULE_TOPIC) -> int:
        return unit_tags_code(record(topic=topic, properties_data=properties), levels)

    assert code(b"DELAY\x013\x02TAGS\x01TagA\x02") == stored + 10_000
    assert code(b"DELAY\x0199\x02") == stored + 7_200_000
    assert code(b"DELAY\x010\x02TAGS\x01TagA\x02") == code(b"TAGS\x01TagA\x02") == 2598919
    assert code(b"DELAY\x013\x02TAGS\x01TagA\x02", "TopicTest") == 2598919
    with pytest.raises(ValueError, match="delay levels are"):
        parse_delay_levels("1s 5x")


def index_file(hashes: list[tuple[int, int, int]], slots: int = 10, room: int = 40) -> bytes:
    """(hash, offset, seconds) put one after the other, as RocketMQ's IndexFile.putKey does."""
    table = [0] * slots
    entries = np.zeros(room, ENTRY_DTYPE)
    for number, (key, offset, seconds) in enumerate(hashes, start=1):
        entries[number] = (key, offset, seconds, table[key % slots])
        table[key % slots] = number
    begin, end = (hashes[0][1], hashes[-1][1]) if hashes else (0, 0)
    head = IndexHead(1_000_000, 2_000_000, begin, end, sum(map(bool, table)), len(hashes) + 1)
    return encode_head(head) + struct.pack(f">{slots}i", *table) + entries.tobytes()


HASHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1 << 40), st.integers(0, 90)), max_size=39)


@CALM
@given(HASHES, st.integers(0, 60))
def test_a_look_up_gives_every_place_of_a_hash_newest_first(rows: list[tuple[int, int, int]], key: int) -> None:
    file = IndexFile(index_file(rows))
    assert [tuple(one)[:3] for one in file.entries.tolist()] == rows
    assert list(file.places(key)) == [offset for found, offset, _ in reversed(rows) if found == key]


def test_a_look_up_keeps_to_a_span_of_time() -> None:
    file = IndexFile(index_file([(7, 100, 0), (7, 200, 10), (17, 250, 15), (7, 300, 20)]))
    assert list(file.places(7, 1_005_000, 1_015_000)) == [200]
    assert list(file.places(7, None, 1_010_000)) == [200, 100]
    assert list(file.places(7, 1_010_000, None)) == [300, 200]


def test_a_look_up_passes_over_so_many_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file_module, "STEP_ENTRIES", 3)
    file = IndexFile(index_file([(7, 100, 0), *((7, 200 + number, 50) for number in range(8))]))
    assert list(file.steps(7, None, 1_010_000)) == [None, None, 100, None]
    assert list(file.places(7, None, 1_010_000)) == [100]


@pytest.mark.parametrize("link", [2, 1, 0, -5, 1000])
def test_a_chain_that_leads_anywhere_ends(link: int) -> None:
    data = bytearray(index_file([(7, 100, 0), (7, 200, 1)]))
    struct.pack_into(">i", data, HEAD_BYTES + 10 * SLOT_BYTES + 2 * ENTRY_BYTES + 16, link)
    assert next(IndexFile(bytes(data)).places(7)) == 200


def test_the_number_of_slots_is_seen_from_the_links_where_the_length_does_not_show_it() -> None:
    rows = [(hashed * 7919, hashed, 0) for hashed in range(30)]
    assert slots_shown_by(index_file(rows, slots=100, room=50)) == 100
    assert slots_shown_by(index_file(rows, slots=20, room=80)) == 20
    assert slots_shown_by(index_file([], slots=10, room=40)) == 10
    with pytest.raises(MessageFormatError, match="maxHashSlotNum"):
        slots_shown_by(index_file(rows, slots=33, room=50))
    with pytest.raises(MessageFormatError, match="1000 entries"):
        IndexFile(encode_head(IndexHead(0, 0, 0, 0, 0, 1000)) + bytes(10 * SLOT_BYTES + 40 * ENTRY_BYTES))


def test_the_number_of_slots_is_seen_while_a_broker_writes() -> None:
    """Slots lead to entries already that the head counts only afterwards."""
    data = bytearray(index_file([(hashed * 7919, hashed, 0) for hashed in range(30)], slots=100, room=50))
    for end_offset in (26, 25):  # the last one's that is counted; RocketMQ counts it before it says so
        head = encode_head(IndexHead(1_000_000, 2_000_000, 0, end_offset, 20, 28))
        data[: len(head)] = head
        assert slots_shown_by(bytes(data)) == 100


@pytest.mark.parametrize("count", range(1, 12))
def test_a_few_entries_show_the_number_of_slots(count: int) -> None:
    """Where it is taken for too small, what lies in the place of the entries are empty slots: they lead to slot 0."""
    rows = [(20 * number, 15_912 + 210 * number, 0) for number in range(count)]
    assert slots_shown_by(index_file(rows, slots=20, room=60)) == 20


@CALM
@given(st.lists(INT64, min_size=5, max_size=5))
def test_a_checkpoint_comes_back_to_the_byte(fields: list[int]) -> None:
    data = encode_checkpoint(StoreCheckpoint(*fields))
    assert len(data) == CHECKPOINT_BYTES
    assert decode_checkpoint(data) == StoreCheckpoint(*fields)
    with pytest.raises(MessageFormatError):
        decode_checkpoint(data[1:])


def test_an_abnormal_recovery_looks_three_seconds_further_back() -> None:
    assert StoreCheckpoint(10_000, 9_000, 1, 0, 0).min_timestamp_ms == 6_000
    assert StoreCheckpoint(10_000, 0, 1, 0, 0).min_timestamp_ms == 0


def test_configuration_as_fastjson_writes_it() -> None:
    text = b'{"offsetTable":{"T@g":{0:16,1:2\n\t},"{1:2}":{ -3 :4}},"a\\"{5:6":[1,2],"t":"x,y:z"}'
    assert parse_config(text) == {
        "offsetTable": {"T@g": {"0": 16, "1": 2}, "{1:2}": {"-3": 4}}, 'a"{5:6': [1, 2], "t": "x,y:z",
    }  # fmt: skip
    for bad in (b"", b"[1]", b"{", b'{"a":', b"\xff", b"{0}", b"[" * 100_000, b'{"a"' * 50_000):
        with pytest.raises(MessageFormatError):
            parse_config(bad)


@pytest.mark.parametrize(("data", "pid"), [(b"4711", 4711), (b"", None), (b"x", None), (b"9" * 30, None)])
def test_abort_names_a_process(data: bytes, pid: int | None) -> None:
    assert abort_pid(data) == pid
