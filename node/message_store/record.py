"""One message as the commit log holds it: RocketMQ's record, version 1 and 2.

What differs between records: 4 or 16 bytes of address for either host (`sys_flag`), and one or two bytes for the
topic's length (the magic). The body's CRC is crc32(body) & 0x7FFFFFFF, 0 for an empty body.

Invariants: `encode_record(decode_record(data)) == data` for every record that decodes; a decoder never reads beyond
`total_size`, and takes no length on trust; topic and properties stay lossless, also where they are no UTF-8.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from ipaddress import ip_address
from typing import Final

from node.message_store.errors import MessageFormatError
from node.message_store.java_text import bytes_of, tags_code, text_of, units_of
from node.message_store.properties import (
    PROPERTIES_BYTES_MAX,
    TAGS,
    Pairs,
    index_keys,
    parse_properties,
)
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
V1_TOPIC_UNITS_MAX: Final = 127
TOPIC_BYTES_MAX: Final = 32767
CRC_MASK: Final = 0x7FFFFFFF

HEAD: Final = struct.Struct(">iiiiiqqiq")  # up to and with the time of birth; the lengths of the hosts follow from it
HEAD_BYTES: Final = HEAD.size  # 48
SIZE_AND_MAGIC: Final = struct.Struct(">ii")
QUEUE_OFFSET_AT: Final = 20
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
RECORD_BYTES_MIN: Final = 91  # version 1, two IPv4 hosts, nothing in body, topic and properties
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_AFTER_HOSTS: Final = struct.Struct(">iqi")  # times consumed again, prepared offset, body's length


class SysFlag(IntFlag):
    """Single bits of `sys_flag`; the transaction type and the compression are fields of two and three bits."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)  # plain numbers: members of an enumeration cost ten times as much to test
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
TRANSACTION_BITS: Final = 0xC


class TransactionType(IntEnum):
    """Bits 0xC of `sys_flag`."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """Bits 0x700 of `sys_flag`, where COMPRESSED is set. Older clients leave them 0: zlib."""

    NONE = -1
    OLD_ZLIB = 0x000
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


@value_class(slots=True, frozen=True)
class Host:
    """An address (4 or 16 bytes) and a port, an int32 in the file."""

    ip: bytes
    port: int

    def __str__(self) -> str:
        shown = ip_address(self.ip)
        return f"{shown}:{self.port}" if len(self.ip) == 4 else f"[{shown}]:{self.port}"


@value_class(slots=True, frozen=True)
class MessageRecord:
    """All of one record, but for what follows from the rest (its size, lengths)."""

    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: Host
    store_timestamp_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties_data: bytes

    @property
    def total_size(self) -> int:
        """Bytes of the whole record."""
        topic_bytes = len(bytes_of(self.topic)) + (2 if self.magic == MAGIC_V2 else 1)
        hosts = len(self.born_host.ip) + len(self.store_host.ip) + 8
        fixed = HEAD_BYTES + 8 + _AFTER_HOSTS.size + 2
        return fixed + hosts + len(self.body) + topic_bytes + len(self.properties_data)

    @property
    def version(self) -> int:
        return 2 if self.magic == MAGIC_V2 else 1

    @property
    def is_body_sound(self) -> bool:
        return body_crc_of(self.body) == self.body_crc

    @property
    def transaction_type(self) -> TransactionType:
        return TransactionType(self.sys_flag & TRANSACTION_BITS)

    @property
    def compression(self) -> Compression | None:
        """None: bits that no version of RocketMQ writes."""
        if not self.sys_flag & SysFlag.COMPRESSED:
            return Compression.NONE
        bits = self.sys_flag & 0x700
        return Compression(bits) if bits <= Compression.ZLIB else None

    @property
    def pairs(self) -> Pairs:
        """The properties in their order, as RocketMQ reads them."""
        return parse_properties(self.properties_data)

    @property
    def properties(self) -> dict[str, str]:
        """The last value of each name."""
        return dict(self.pairs)

    @property
    def tags(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def tags_code(self) -> int:
        return tags_code(self.tags)

    @property
    def index_keys(self) -> list[str]:
        """What an index has of this message: its unique key, then each of its keys."""
        return index_keys(self.properties)

    @property
    def message_id(self) -> str:
        """The id that a broker gives for its place: the storing host's address and the physical offset, in hex."""
        return message_id(self.store_host, self.physical_offset)


def body_crc_of(body: BytesLike) -> int:
    """What `body_crc` has to be."""
    return crc32(body) & CRC_MASK


def message_id(host: Host, physical_offset: int) -> str:
    """32 hex digits, 56 for an IPv6 host."""
    return (host.ip + _INT.pack(host.port) + _LONG.pack(physical_offset)).hex().upper()


def parse_message_id(text: str) -> tuple[Host, int]:
    """The host and the physical offset in an id. Raises MessageFormatError."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in (32, 56) or len(data) * 2 != len(text):
        raise MessageFormatError(f"{text!r} is no message id of a broker: it has 32 hex digits, 56 with an IPv6 host")
    ip, port, offset = data[:-12], _INT.unpack(data[-12:-8])[0], _LONG.unpack(data[-8:])[0]
    if offset < 0:
        raise MessageFormatError(f"{text!r} is no message id of a broker: the offset in it is negative")
    return Host(ip, port), offset


def is_record_magic(magic: int) -> bool:
    return magic in (MAGIC_V1, MAGIC_V2)


def magic_for(topic: str) -> int:
    """Version 2 where the topic has more than 127 UTF-16 units, as `autoMessageVersionOnTopicLen` (the default)."""
    return MAGIC_V2 if units_of(topic) > V1_TOPIC_UNITS_MAX else MAGIC_V1


def decode_record(data: BytesLike, offset: int = 0) -> MessageRecord:
    """The record at `offset` in `data`. Raises MessageFormatError unless it is whole and its lengths agree.

    The body's CRC is not judged here (`is_body_sound`): RocketMQ checks it in a recovery only.
    """
    left = len(data) - offset
    if offset < 0 or left < RECORD_BYTES_MIN:
        raise MessageFormatError(f"{left} bytes, the smallest record has {RECORD_BYTES_MIN}")
    total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms = HEAD.unpack_from(data, offset)
    if not is_record_magic(magic):
        raise MessageFormatError(f"magic {magic & 0xFFFFFFFF:#010x} is no message's")
    if not RECORD_BYTES_MIN <= total <= left:
        raise MessageFormatError(f"size {total}: {RECORD_BYTES_MIN} at least, and {left} bytes are there")
    end = offset + total
    at = offset + HEAD_BYTES
    born, at = _host(data, at, v6=bool(sys_flag & _BORN_V6))
    store_ms = _LONG.unpack_from(data, at)[0]
    store, at = _host(data, at + 8, v6=bool(sys_flag & _STORE_V6))
    if end - at < _AFTER_HOSTS.size:
        raise MessageFormatError(f"size {total} ends within the fields behind the hosts")
    again, prepared, body_bytes = _AFTER_HOSTS.unpack_from(data, at)
    at += _AFTER_HOSTS.size
    wide = magic == MAGIC_V2
    if not 0 <= body_bytes <= end - at - (2 if wide else 1):
        raise MessageFormatError(f"body of {body_bytes} bytes in a record of {total}")
    body, at = bytes(data[at : at + body_bytes]), at + body_bytes
    topic_bytes = _SHORT.unpack_from(data, at)[0] if wide else data[at]
    at += 2 if wide else 1
    if not 0 <= topic_bytes <= end - at - 2 or (topic_bytes > V1_TOPIC_UNITS_MAX and not wide):
        raise MessageFormatError(f"topic of {topic_bytes} bytes in a record of {total}")
    topic, at = text_of(data[at : at + topic_bytes]), at + topic_bytes
    properties_bytes = _SHORT.unpack_from(data, at)[0]
    at += 2
    if properties_bytes != end - at:
        raise MessageFormatError(f"properties of {properties_bytes} bytes where {end - at} are left in the record")
    return MessageRecord(
        magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born_ms, born, store_ms, store, again, prepared,
        body, topic, bytes(data[at:end]),
    )  # fmt: skip


def _host(data: BytesLike, at: int, *, v6: bool) -> tuple[Host, int]:
    """The smallest record that may be here has room for two IPv4 hosts; `at` is checked against the rest of `data`."""
    length = 16 if v6 else 4
    if at + length + 4 + 8 > len(data):
        raise MessageFormatError("the record ends within a host")
    return Host(bytes(data[at : at + length]), _INT.unpack_from(data, at + length)[0]), at + length + 4


def encode_record(record: MessageRecord) -> bytes:
    """The record's bytes; nothing but its lengths is computed. Raises MessageFormatError for what no field can hold."""
    topic = bytes_of(record.topic)
    v6 = [bool(record.sys_flag & bit) for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6)]
    if [len(record.born_host.ip), len(record.store_host.ip)] != [16 if one else 4 for one in v6]:
        raise MessageFormatError(f"hosts of other lengths than sysFlag {record.sys_flag:#x} says")
    if not is_record_magic(record.magic):
        raise MessageFormatError(f"magic {record.magic & 0xFFFFFFFF:#010x} is no message's")
    topic_max = TOPIC_BYTES_MAX if record.magic == MAGIC_V2 else V1_TOPIC_UNITS_MAX
    if len(topic) > topic_max:
        raise MessageFormatError(f"topic of {len(topic)} bytes, {topic_max} at most in version {record.version}")
    if len(record.properties_data) > PROPERTIES_BYTES_MAX:
        raise MessageFormatError(f"{len(record.properties_data)} bytes of properties, {PROPERTIES_BYTES_MAX} at most")
    try:
        return b"".join(
            (
                HEAD.pack(
                    record.total_size, record.magic, record.body_crc, record.queue_id, record.flag,
                    record.queue_offset, record.physical_offset, record.sys_flag, record.born_timestamp_ms,
                ),
                record.born_host.ip, _INT.pack(record.born_host.port), _LONG.pack(record.store_timestamp_ms),
                record.store_host.ip, _INT.pack(record.store_host.port),
                _AFTER_HOSTS.pack(
                    record.reconsume_times, record.prepared_transaction_offset, len(record.body)
                ),
                record.body,
                _SHORT.pack(len(topic)) if record.magic == MAGIC_V2 else bytes([len(topic)]),
                topic, _SHORT.pack(len(record.properties_data)), record.properties_data,
            )
        )  # fmt: skip
    except struct.error as error:
        raise MessageFormatError(f"a number does not fit its field: {error}") from error
