"""The kind of a broker group: its log is a commit log of RocketMQ's, so every entry is a record with its own place.

Java's older DLedger knows magic 1 only and takes every body for a record; what it does not understand ends its
recovery, and all that lies behind is cut. So what the engine itself has to say (a leader's first entry, a change of the
group), metadata and snapshots are records, too: inert ones (`protocol/inert_records.py`).

Invariants: messages have no topic of ours, inert records nothing else, and channel and topic agree; times never go
back from one record to the next, or a search by time would find nothing; the leader alone judges, before it appends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from node.message_store.errors import MessageFormatError
from node.message_store.record import (
    PHYSICAL_OFFSET_AT,
    TRANSACTION_BITS,
    TransactionType,
    decode_record,
)
from node.message_store.record_check import Judged, RecordInvalid, judge, store_timestamp_ms
from node.protocol.entry import BytesLike
from node.protocol.group_kind import BROKER_NAME, ENGINES_OWN, Channel, GroupKind
from node.protocol.inert_records import PREFIX, TOPICS, inert_record

INERT: Final = TransactionType.ROLLBACK  # and nothing else in sysFlag: IPv4 hosts, a body that is not compressed
_PREFIX: Final = PREFIX.encode()
_TOPICS: Final = {channel: topic.encode() for channel, topic in TOPICS.items()}


def content_of(body: bytes) -> bytes:
    """What an inert record was made of; empty where nothing can be read."""
    try:
        return decode_record(body).body
    except MessageFormatError:
        return b""


class BrokerKind(GroupKind):
    """See the module's docstring. `now_ms`: the time of the first record of all; later ones go on from there."""

    name = BROKER_NAME
    position_at = PHYSICAL_OFFSET_AT

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def _inert(self, channel: Channel, content: bytes, last_time_ms: int) -> bytes:
        return inert_record(channel, content, last_time_ms if last_time_ms > 0 else self._now_ms())

    def first_of_term(self, last_time_ms: int) -> bytes:
        return self._inert(Channel.FIRST_OF_TERM, b"", last_time_ms)

    def config_change(self, content: bytes, last_time_ms: int) -> bytes:
        return self._inert(Channel.CONFIG_CHANGE, content, last_time_ms)

    def content_of(self, body: bytes) -> bytes:
        return content_of(body)

    def time_ms(self, body: BytesLike) -> int:
        return store_timestamp_ms(body)

    def refusal(self, bodies: Sequence[bytes], channel: int, patch_at: int, last_time_ms: int) -> str | None:
        if channel in ENGINES_OWN or channel not in tuple(Channel):
            return f"a broker group's log takes no entries of channel {channel}"
        if patch_at != PHYSICAL_OFFSET_AT:
            return f"a record holds its place at byte {PHYSICAL_OFFSET_AT}: that is where it is to be written"
        try:
            for body in bodies:
                found = judge(body)
                if found.store_timestamp_ms < last_time_ms:
                    return f"a record of {found.store_timestamp_ms} comes behind one of {last_time_ms}: time goes back"
                last_time_ms = found.store_timestamp_ms
                if channel == Channel.MESSAGE:
                    if found.topic.startswith(_PREFIX):
                        return f"no message has a topic that begins with {PREFIX}"
                elif not _is_inert(found, channel):
                    return f"an entry of channel {channel} is an inert record of topic {TOPICS[channel]}"
        except RecordInvalid as error:
            return str(error)
        return None


def _is_inert(found: Judged, channel: int) -> bool:
    rollback = found.sys_flag & TRANSACTION_BITS == INERT == found.sys_flag
    return rollback and found.topic == _TOPICS[channel] and found.queue_id == found.queue_offset == 0
