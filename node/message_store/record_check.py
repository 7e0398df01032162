"""Whether bytes are one valid record of RocketMQ's: judged by the leader of a broker group before it appends them.

A log is there for years, and what is no record in it ends a Java broker's recovery at that entry, which cuts all that
lies behind. So a body is judged once, where a refusal still costs nothing. No record is made of it here: this runs for
every message.

Invariants: what passes decodes (`decode_record`) and encodes to the same bytes, has the right CRC and a topic, and a
time of storing that a search by time can use; the bytes of its place are not looked at, the leader writes them.
"""

from __future__ import annotations

import struct
from typing import Final

from node.message_store.properties import NAME_END, PAIR_END
from node.message_store.record import (
    CRC_MASK,
    HEAD,
    HEAD_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    V1_TOPIC_UNITS_MAX,
)
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

TIME_MS_MAX: Final = 1 << 53
CRC_PROPERTY: Final = "__CRC32#"  # covers the record's place, which is written after it was made
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_CRC_MARK: Final = f"{CRC_PROPERTY}{NAME_END}".encode()
_PAIR_END: Final = PAIR_END.encode()


@value_class(slots=True, frozen=True)
class Judged:
    """What a valid record says that its group's rules ask for."""

    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: bytes


class RecordInvalid(ValueError):
    """Why bytes are no valid record."""


def store_timestamp_ms(body: BytesLike) -> int:
    """The time at which a record was stored; -1 where the bytes are no record's."""
    if len(body) < RECORD_BYTES_MIN or HEAD.unpack_from(body)[1] not in (MAGIC_V1, MAGIC_V2):
        return -1
    at = HEAD_BYTES + (20 if body[39] & _BORN_V6 else 8)
    return int(_LONG.unpack_from(body, at)[0])


def has_sound_body(record: BytesLike) -> bool:
    """Whether the CRC in a record is that of its body: all that RocketMQ's own logs have against rot."""
    at = HEAD_BYTES + (20 if record[39] & _BORN_V6 else 8) + 8 + (20 if record[39] & _STORE_V6 else 8) + 12
    if at + 4 > len(record):
        return False
    body_bytes = _INT.unpack_from(record, at)[0]
    begin, end = at + 4, at + 4 + body_bytes
    crc: int = HEAD.unpack_from(record)[2]
    return body_bytes >= 0 and end <= len(record) and crc32(memoryview(record)[begin:end]) & CRC_MASK == crc


def judge(body: bytes) -> Judged:
    """Raises RecordInvalid."""
    size = len(body)
    if size < RECORD_BYTES_MIN:
        raise RecordInvalid(f"{size} bytes are no record, the smallest has {RECORD_BYTES_MIN}")
    total, magic, crc, queue_id, _flag, queue_offset, _place, sys_flag, _born_ms = HEAD.unpack_from(body)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise RecordInvalid(f"magic {magic & 0xFFFFFFFF:#010x} is no record's")
    if total != size:
        raise RecordInvalid(f"a record that says it has {total} bytes has {size}")
    at = HEAD_BYTES + (20 if sys_flag & _BORN_V6 else 8)
    stored_ms = _LONG.unpack_from(body, at)[0]
    at += 8 + (20 if sys_flag & _STORE_V6 else 8) + 12
    wide = magic == MAGIC_V2
    least = 5 if wide else 4  # two lengths, and one byte of topic: the rest of the smallest record
    body_bytes = _INT.unpack_from(body, at)[0] if at + 4 <= size else -1
    at += 4
    if not 0 <= body_bytes <= size - at - least:
        raise RecordInvalid(f"a record of {size} bytes has no room for its topic behind a body of {body_bytes}")
    if crc32(memoryview(body)[at : at + body_bytes]) & CRC_MASK != crc:
        raise RecordInvalid("the CRC of a record is not that of its body")
    at += body_bytes
    topic_bytes = _SHORT.unpack_from(body, at)[0] if wide else body[at]
    at += 2 if wide else 1
    if not 0 < topic_bytes <= size - at - 2 or (topic_bytes > V1_TOPIC_UNITS_MAX and not wide):
        raise RecordInvalid(f"a topic of {topic_bytes} bytes in a record of {size}")
    topic = body[at : at + topic_bytes]
    at += topic_bytes
    if _SHORT.unpack_from(body, at)[0] != size - at - 2:
        raise RecordInvalid(f"the properties of a record of {size} bytes do not end with it")
    if _CRC_MARK in body[at:] and _has_crc(body[at + 2 :]):
        raise RecordInvalid(f"a record carries the property {CRC_PROPERTY}, which its place in the log makes wrong")
    if not 0 < stored_ms <= TIME_MS_MAX:
        raise RecordInvalid(f"a record was stored at {stored_ms}, which is no time in ms")
    if queue_id < 0 or queue_offset < 0:
        raise RecordInvalid(f"a record is of queue {queue_id}, offset {queue_offset}: neither can be negative")
    return Judged(queue_id, queue_offset, sys_flag, stored_ms, topic)


def _has_crc(properties: bytes) -> bool:
    """Whether a property has exactly that name."""
    return any(pair.startswith(_CRC_MARK) for pair in properties.split(_PAIR_END))
