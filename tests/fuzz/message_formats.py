"""Targets: the formats of RocketMQ's message store. What decodes comes back to the byte; nothing else is raised than
MessageFormatError."""

from __future__ import annotations

import struct

from node.message_store.batch import BatchedMessage, decode_batch, encode_batch
from node.message_store.bodies import opened_body
from node.message_store.errors import MessageFormatError
from node.message_store.index_file import ENTRY_BYTES, HEAD_BYTES, IndexFile, IndexHead, encode_head, slots_shown_by
from node.message_store.properties import parse_properties
from node.message_store.queue_units import decode_units, encode_units, prefill_of, said_count
from node.message_store.record import (
    MAGIC_V2,
    SIZE_AND_MAGIC,
    Host,
    MessageRecord,
    body_crc_of,
    decode_record,
    encode_record,
    parse_message_id,
)
from node.message_store.store_files import (
    StoreCheckpoint,
    abort_pid,
    decode_checkpoint,
    encode_checkpoint,
    parse_config,
)
from node.protocol.entry import BytesLike
from tests.fuzz.target import KIB, Target
from tests.fuzz.wire import JSON_BYTES_PER_BYTE

V4, V6 = Host(bytes([10, 1, 2, 3]), 10911), Host(bytes(range(16)), 40000)


def a_record(sys_flag: int, born: Host, stored: Host, body: bytes) -> bytes:
    return encode_record(
        MessageRecord(
            MAGIC_V2, body_crc_of(body), 3, 0, 7, 4096, sys_flag, 5, born, 6, stored, 0, -1, body, "TopicTest",
            b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02",
        )
    )  # fmt: skip


def record(data: bytes) -> None:
    found = decode_record(data)
    assert encode_record(found) == data[: found.total_size]
    assert len(found.pairs) <= len(found.properties_data)
    assert len(found.message_id) in (32, 56)
    assert found.compression is None or found.tags_code < 1 << 31
    opened_body(found, 4 * KIB)


def repair_record(data: bytes) -> bytes:
    """The size says again what is there."""
    return data if len(data) < 8 else SIZE_AND_MAGIC.pack(len(data), MAGIC_V2) + data[8:]


def properties(data: bytes) -> None:
    assert all(name and value for name, value in parse_properties(data))


def batch(data: bytes) -> None:
    assert encode_batch(decode_batch(data)) == data


def units(data: bytes) -> None:
    found = decode_units(data)
    assert found.tobytes() == data[: len(found) * found.itemsize]
    assert 0 <= said_count(found) <= len(found)
    assert len(prefill_of(found)) == len(found)


def index(data: BytesLike) -> None:
    file = IndexFile(data, slots_shown_by(data))
    assert len(file.entries) == file.head.entries
    for key in (0, 7, (1 << 31) - 1):
        assert len(list(file.places(key))) <= file.head.index_count


def index_seed() -> bytes:
    entries = struct.pack(">iqii", 7, 4096, 0, 0) + struct.pack(">iqii", 17, 8192, 1, 1)
    head = encode_head(IndexHead(1000, 2000, 0, 9, 1, 3))
    return head + struct.pack(">10i", 0, 0, 0, 0, 0, 0, 0, 2, 0, 0) + bytes(ENTRY_BYTES) + entries.ljust(780, b"\0")


def checkpoint(data: bytes) -> None:
    found = decode_checkpoint(data)
    assert decode_checkpoint(encode_checkpoint(found)) == found


def config(data: bytes) -> None:
    assert isinstance(parse_config(data), dict)


def small(data: bytes) -> None:
    """What an operator types, and a process id."""
    assert abort_pid(data) is None or abort_pid(data) >= 0  # type: ignore[operator]
    parse_message_id(data.decode("latin-1"))


RECORDS = [a_record(0, V4, V4, b"body"), a_record(0x311, V6, V4, b"x" * 60), a_record(0x3C, V6, V6, b"")]
BATCHES = [encode_batch([BatchedMessage(0, b"one", b"K\x01v\x02"), BatchedMessage(1, b"", b"")])]
UNITS = [encode_units([(0, 0x7FFFFFFF, 0), (91, 91, 5), (0, 0, 0)])]
CONFIGS = [b'{"offsetTable":{"T@g":{0:16,1:2\n}},"dataVersion":{"counter":1}}', b'{"a":"b\\"{1:2}"}']
REFUSED = (MessageFormatError,)
TARGETS: tuple[Target, ...] = (
    Target("message_record", record, lambda: RECORDS, REFUSED, repair_record, bytes_per_byte=400),
    Target("message_properties", properties, lambda: [b"KEYS\x01k1\x02TAGS\x01\x02a"], bytes_per_byte=400),
    Target("message_batch", batch, lambda: BATCHES, REFUSED, bytes_per_byte=64),
    Target("queue_units", units, lambda: UNITS),
    Target("index_file", index, lambda: [index_seed()], REFUSED, bytes_per_byte=64),
    Target("store_checkpoint", checkpoint, lambda: [encode_checkpoint(StoreCheckpoint(1, 2, 3, 4, 5))], REFUSED),
    Target("broker_config", config, lambda: CONFIGS, REFUSED, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("message_id", small, lambda: [b"C0A8070800002A9F0000000000000249", b"4711"], REFUSED),
)
assert len(index_seed()) == HEAD_BYTES + 40 + 40 * ENTRY_BYTES
