"""The same puts give the same bytes as RocketMQ's own broker wrote, single and as batches."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.commit_log import Placed
from node.message_store.message_store import MessageStore
from node.message_store.new_message import NewMessage, PutLimits
from node.message_store.record import PHYSICAL_OFFSET_AT, MessageRecord, encode_record
from node.message_store.record_building import QueueOffsets
from tests.interop.rocketmq import manifest_of, whole


def message_of(record: MessageRecord) -> NewMessage:
    """What its sender said, but for what a broker adds."""
    return NewMessage(
        record.topic, record.queue_id, record.body, record.born_host, record.store_host, record.properties_data,
        record.flag, record.sys_flag, record.born_timestamp_ms, record.reconsume_times,
        record.prepared_transaction_offset,
    )  # fmt: skip


def batch_of(records: list[MessageRecord]) -> NewMessage:
    """What a producer sent: the messages one behind the other."""
    body = encode_batch(BatchedMessage(one.flag, one.body, one.properties_data) for one in records)
    first = message_of(records[0])
    return NewMessage(
        first.topic, first.queue_id, body, first.born_host, first.store_host, sys_flag=first.sys_flag,
        born_timestamp_ms=first.born_timestamp_ms, reconsume_times=first.reconsume_times,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "batches"), [("store/data", 15), ("dledger-commitlog/single", 15), ("dledger-commitlog/upgraded", 2)]
)
def test_every_recorded_put_is_built_to_the_byte(vectors: Path, tmp_path: Path, name: str, batches: int) -> None:
    source = vectors / "rocketmq" / name
    store = MessageStore(whole(source, tmp_path / "store"))
    placed = [one for one in store.log.scan() if isinstance(one, Placed)]
    numbers = {}
    for put in manifest_of(source)["puts"]:
        ids = put["msgId"].split(",")
        numbers[int(ids[0][-16:], 16)] = len(ids)
    offsets, limits, at, found = QueueOffsets(lambda _topic, _queue: 0), PutLimits(), 0, 0
    while at < len(placed):
        count = numbers.get(placed[at].offset, 1)
        records = [one.record for one in placed[at : at + count]]
        found += count > 1
        messages = limits.judged_batch(batch_of(records)) if count > 1 else [message_of(records[0])]
        offsets.last_time_ms = -1  # the driver's clock, and DLedger's order of times is not kept
        built = offsets.build(messages, records[0].store_timestamp_ms)
        for record, data in zip(records, built.records, strict=True):
            patched = bytearray(data)
            struct.pack_into(">q", patched, PHYSICAL_OFFSET_AT, record.physical_offset)
            assert bytes(patched) == encode_record(record)
        at += count
    assert found == batches
