"""What may enter a broker's log: limits with their exact statuses, batches, delay levels, and what is dropped."""

from __future__ import annotations

import dataclasses

import pytest

from node.message_store.batch import BatchedMessage, decode_batch, encode_batch
from node.message_store.errors import MessageFormatError
from node.message_store.new_message import BATCH_MESSAGES_MAX, NewMessage, PutLimits, Refused, record_bytes
from node.message_store.properties import join_properties, parse_properties
from node.message_store.put_result import PutResult, PutStatus, refused
from node.message_store.record import Host, TransactionType, decode_record
from node.message_store.record_building import QueueOffsets, encoded
from node.protocol.entry import BODY_BYTES_MAX
from node.transport.slab_frames import ENTRIES_PER_REQUEST_MAX

HOST = Host(bytes([10, 1, 2, 3]), 34567)
STORE = Host(bytes([192, 168, 7, 8]), 10911)
LIMITS = PutLimits()


def message(**changes: object) -> NewMessage:
    return dataclasses.replace(NewMessage("TopicTest", 3, b"body", HOST, STORE), **changes)  # type: ignore[arg-type]


def status_of(limits: PutLimits = LIMITS, **changes: object) -> PutStatus:
    try:
        limits.judged(message(**changes))
    except Refused as refusal:
        assert refusal.reason
        return refusal.status
    return PutStatus.PUT_OK


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, PutStatus.PUT_OK),
        ({"body": b""}, PutStatus.PUT_OK),
        ({"body": None}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 127}, PutStatus.PUT_OK),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%" + "g" * 248}, PutStatus.PUT_OK),
        ({"topic": "%RETRY%" + "g" * 249}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "../etc"}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "rmq_sys_quorumscope_meta"}, PutStatus.MESSAGE_ILLEGAL),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL),
        ({"flag": 1 << 31}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties_data": b"p" * 32767}, PutStatus.PUT_OK),
        ({"properties_data": b"p" * 32768}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"properties_data": b"p" * 32768, "body": bytes(5 << 20)}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"body": bytes((4 << 20) + 1)}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties_data": join_properties([("DELAY", "soon")])}, PutStatus.UNKNOWN_ERROR),
        ({"properties_data": join_properties([("TIMER_DELAY_SEC", "3")])}, PutStatus.WHEEL_TIMER_NOT_ENABLE),
    ],
)  # fmt: skip
def test_every_limit_has_its_own_status(changes: dict[str, object], status: PutStatus) -> None:
    assert status_of(**changes) is status


def test_the_largest_body_leaves_room_for_record_and_entry_and_fits_a_data_file() -> None:
    room = BODY_BYTES_MAX - record_bytes(message(body=b""))
    assert status_of(body=bytes(room)) is PutStatus.PUT_OK
    with pytest.raises(Refused, match=f"{room} at most with this topic"):
        LIMITS.judged(message(body=bytes(room + 1)))
    small = PutLimits(file_bytes=4096)  # RocketMQ answers PUT_OK for what no file holds, and stores nothing
    room = 4096 - 48 - 8 - record_bytes(message(body=b""))
    assert status_of(small, body=bytes(room)) is PutStatus.PUT_OK
    assert status_of(small, body=bytes(room + 1)) is PutStatus.MESSAGE_ILLEGAL


def test_what_needs_no_change_is_stored_as_it_came() -> None:
    odd = b"a\x01b\x02\x02nothing\x02c\x01d"  # no separator at the end, as 4.9 writes it
    assert LIMITS.judged(message(properties_data=odd)).properties_data == odd
    crc = b"__CRC32#\x010123456789\x02"
    assert LIMITS.judged(message(properties_data=b"a\x01b\x02" + crc)).properties_data == b"a\x01b\x02"
    assert LIMITS.judged(message(properties_data=crc + odd)).properties_data == odd
    assert LIMITS.judged(message(properties_data=b"x__CRC32#\x01v\x02")).properties_data == b"x__CRC32#\x01v\x02"


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("19", 18), ("2000000000", 18)])
def test_a_delay_level_moves_the_message_to_its_queue(asked: str, level: int) -> None:
    pairs = [("KEYS", "k"), ("DELAY", asked), ("REAL_TOPIC", "forged"), ("TAGS", "t")]
    found = LIMITS.judged(message(properties_data=join_properties(pairs)))
    assert (found.topic, found.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    named = [("KEYS", "k"), ("TAGS", "t"), ("DELAY", str(level)), ("REAL_TOPIC", "TopicTest"), ("REAL_QID", "3")]
    assert list(parse_properties(found.properties_data)) == named


@pytest.mark.parametrize("level", ["0", "-1"])
def test_a_level_of_nothing_delays_nothing(level: str) -> None:
    one = message(properties_data=join_properties([("DELAY", level)]))
    assert LIMITS.judged(one) == one


@pytest.mark.parametrize("kind", [TransactionType.PREPARED, TransactionType.ROLLBACK])
def test_half_messages_do_not_wait_and_take_no_offset(kind: TransactionType) -> None:
    one = message(sys_flag=int(kind), properties_data=join_properties([("DELAY", "3")]))
    assert LIMITS.judged(one) == one and not one.takes_offset


def batch(*messages: BatchedMessage, **changes: object) -> NewMessage:
    return message(body=encode_batch(messages), **changes)


def test_a_batch_is_one_record_for_each_message() -> None:
    own = [
        BatchedMessage(7, b"one", b"KEYS\x01a"),
        BatchedMessage(8, b"two", b"KEYS\x01b\x02"),
        BatchedMessage(9, b"", b""),
    ]
    found = LIMITS.judged_batch(batch(*own, properties_data=b"CLUSTER\x01c\x02"))
    assert [(one.flag, one.body) for one in found] == [(7, b"one"), (8, b"two"), (9, b"")]
    assert [one.properties_data for one in found] == [
        b"KEYS\x01a\x02CLUSTER\x01c\x02", b"KEYS\x01b\x02CLUSTER\x01c\x02", b"CLUSTER\x01c\x02",
    ]  # fmt: skip
    built = QueueOffsets(lambda _topic, _queue: 40).build(found, 1000)
    assert [decode_record(one).queue_offset for one in built.records] == [40, 41, 42]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"body": b""}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": None}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": b"\0\0\0\x17nonsense"}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": bytes((4 << 20) + 1)}, PutStatus.MESSAGE_ILLEGAL),
        ({"sys_flag": int(TransactionType.PREPARED)}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties_data": join_properties([("DELAY", "1")])}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": encode_batch([BatchedMessage(0, b"a", b"DELAY\x013")])}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"body": encode_batch([BatchedMessage(0, b"a", b"p" * 32767)]), "properties_data": b"a\x01b"},
         PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)  # fmt: skip
def test_a_batch_is_refused_whole(changes: dict[str, object], status: PutStatus) -> None:
    given = batch(BatchedMessage(0, b"good", b""))
    with pytest.raises(Refused) as caught:
        LIMITS.judged_batch(dataclasses.replace(given, **changes))  # type: ignore[arg-type]
    assert caught.value.status is status


def test_offsets_are_dense_and_begin_where_the_queue_stands() -> None:
    asked: list[tuple[str, int]] = []

    def stands_at(topic: str, queue_id: int) -> int:
        asked.append((topic, queue_id))
        return 100 * queue_id

    offsets = QueueOffsets(stands_at, last_time_ms=5000)
    prepared = message(sys_flag=int(TransactionType.PREPARED))
    puts = [[message()], [message(queue_id=1)], [prepared], [message(), message()], [message()]]
    built = [offsets.build(one, now_ms) for one, now_ms in zip(puts, [4000, 6000, 5900, 5800, 7000], strict=True)]
    assert [one.first_offset for one in built] == [300, 100, 0, 301, 303]
    assert [one.store_timestamp_ms for one in built] == [5000, 6000, 6000, 6000, 7000]  # a clock that goes back
    assert asked == [("TopicTest", 3), ("TopicTest", 1)]
    records = [decode_record(data) for one in built for data in one.records]
    assert [one.queue_offset for one in records] == [300, 100, 0, 301, 302, 303]
    assert {one.physical_offset for one in records} == {0} and all(one.is_body_sound for one in records)


def test_hosts_decide_whether_they_are_v6() -> None:
    v6 = Host(bytes(range(16)), 1)
    found = decode_record(encoded(message(sys_flag=0x30), 0, 1))
    assert found.sys_flag == 0
    found = decode_record(encoded(message(born_host=v6, sys_flag=0x1), 0, 1))
    assert (found.sys_flag, found.born_host) == (0x11, v6)


def test_a_result_names_ids_of_what_is_stored_only() -> None:
    stored = PutResult(PutStatus.PUT_OK, "", "T", 0, 7, (48, 300), 5, STORE)
    assert stored.message_ids == "C0A8070800002A9F0000000000000030,C0A8070800002A9F000000000000012C"
    assert refused(PutStatus.OS_PAGE_CACHE_BUSY, "full").message_ids == ""
    assert [one for one in PutStatus if one.is_stored] == list(PutStatus)[:4]


def test_a_batch_has_no_more_messages_than_the_engine_takes_at_once() -> None:
    assert BATCH_MESSAGES_MAX == ENTRIES_PER_REQUEST_MAX
    one = encode_batch([BatchedMessage(0, b"", b"")])
    assert len(LIMITS.judged_batch(message(body=one * BATCH_MESSAGES_MAX))) == BATCH_MESSAGES_MAX
    with pytest.raises(Refused, match="more than 16384 messages"):
        LIMITS.judged_batch(message(body=one * (BATCH_MESSAGES_MAX + 1)))
    with pytest.raises(MessageFormatError, match="more than 3"):
        decode_batch(one * 3 + b"\0" * 22, 3)  # nothing is read of what is behind
    assert len(decode_batch(one * 3, 3)) == 3


def test_the_records_of_a_batch_have_no_more_bytes_than_one_large_message() -> None:
    """Its properties come to each of its messages: a request of 520 kB was made half a gigabyte of records."""
    one, own = BatchedMessage(0, b"", b"KEYS\x01k"), b"A\x01" + bytes(30_000)
    many = batch(*[one] * BATCH_MESSAGES_MAX, properties_data=own)
    with pytest.raises(Refused, match=r"whose records have 49\d{7} bytes, 4259840 at most") as caught:
        LIMITS.judged_batch(many)
    assert caught.value.status is PutStatus.MESSAGE_ILLEGAL
    fits = LIMITS.judged_batch(batch(*[one] * 141, properties_data=own))
    assert 4 << 20 < sum(map(record_bytes, fits)) <= (4 << 20) + 65_536
