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

from node.protocol.entry import BytesLike
from node.protocol.group_kind import Channel

_INT: Final = struct.Struct(">i")
_BODY_AT: Final = 88
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


def is_reserved(topic: str) -> bool:
    """Whether no message may have this topic."""
    return topic.startswith(PREFIX)
