"""Entries of a broker group that are no messages: which topics their records have.

In such a group every entry is one of RocketMQ's records, also those about the log itself, so that a Java broker reads
the log after a hand-over without losing an entry of it. These are *inert*: a ROLLBACK of a topic of our own, which
Java puts into no queue and no index. What such an entry is, its head alone says (`Channel`); the topic is for people
and their tools, and keeps messages and these apart in a directory that Java took over, where nobody reads heads.

Invariant: a topic that begins with PREFIX is in no message, and in every inert record.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from node.protocol.entry import BytesLike, crc32
from node.protocol.group_kind import Channel

_INT: Final = struct.Struct(">i")
_BODY_AT: Final = 88
_TIME: Final = struct.Struct(">q")
_TIME_AT: Final = 56
# Of version 1: size, magic, CRC of the body, queue, flag, queue's offset, place, sysFlag, time and host of birth, the
# same of storing, times consumed again, place of the prepared message, bytes of the body.
_HEAD: Final = struct.Struct(">iiIiiqqiqqqqiqi")
_MAGIC_V1: Final = -626843481
_ROLLBACK: Final = 0xC
PLACE_AT: Final = 28
PREFIX: Final = "rmq_sys_quorumscope"
TOPICS: Final[Mapping[int, str]] = {
    Channel.FIRST_OF_TERM: f"{PREFIX}_term",
    Channel.CONFIG_CHANGE: f"{PREFIX}_config",
    Channel.METADATA: f"{PREFIX}_metadata",
    Channel.SNAPSHOT_PART: f"{PREFIX}_snapshot",
}


def content_of(record: BytesLike) -> bytes:
    """What an inert record was made of, by its fixed places (version 1, IPv4 hosts); empty where it is none."""
    if len(record) < _BODY_AT:
        return b""
    (size,) = _INT.unpack_from(record, _BODY_AT - _INT.size)
    return bytes(record[_BODY_AT : _BODY_AT + size]) if 0 <= size <= len(record) - _BODY_AT else b""


def time_of(record: BytesLike) -> int:
    """When a record was stored, in ms; -1 where it is none."""
    return int(_TIME.unpack_from(record, _TIME_AT)[0]) if len(record) >= _BODY_AT else -1


def inert_record(channel: int, content: bytes, time_ms: int) -> bytes:
    """One without its place, which is written at PLACE_AT once it is known."""
    topic = TOPICS[channel].encode()
    size = _BODY_AT + len(content) + 1 + len(topic) + 2
    crc = crc32(content) & 0x7FFFFFFF  # as Java has it
    head = _HEAD.pack(size, _MAGIC_V1, crc, 0, 0, 0, 0, _ROLLBACK, time_ms, 0, time_ms, 0, 0, 0, len(content))
    return b"".join((head, content, bytes([len(topic)]), topic, bytes(2)))


def is_reserved(topic: str) -> bool:
    """Whether no message may have this topic."""
    return topic.startswith(PREFIX)
