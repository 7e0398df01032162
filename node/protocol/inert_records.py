"""Entries of a broker group that are no messages: which topics their records have.

In such a group every entry is one of RocketMQ's records, also those about the log itself, so that a Java broker reads
the log after a hand-over without losing an entry of it. These are *inert*: a ROLLBACK of a topic of our own, which
Java puts into no queue and no index. What such an entry is, its head alone says (`Channel`); the topic is for people
and their tools, and keeps messages and these apart in a directory that Java took over, where nobody reads heads.

Invariant: a topic that begins with PREFIX is in no message, and in every inert record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.protocol.group_kind import Channel

PREFIX: Final = "rmq_sys_quorumscope"
TOPICS: Final[Mapping[int, str]] = {
    Channel.FIRST_OF_TERM: f"{PREFIX}_term",
    Channel.CONFIG_CHANGE: f"{PREFIX}_config",
    Channel.METADATA: f"{PREFIX}_metadata",
    Channel.SNAPSHOT_PART: f"{PREFIX}_snapshot",
}


def is_reserved(topic: str) -> bool:
    """Whether no message may have this topic."""
    return topic.startswith(PREFIX)
