"""Records for the worlds of broker groups: what clients send there, and what their own words in an entry are.

A client's words are the body of its record, so that they are in the log as they were sent, whatever its place.
"""

from __future__ import annotations

from collections.abc import Callable

from node.message_store.broker_kind import BrokerKind
from node.message_store.errors import MessageFormatError
from node.message_store.record import MAGIC_V1, Host, MessageRecord, body_crc_of, decode_record, encode_record
from node.protocol.entry import Entry, Magic
from node.protocol.group_kind import BROKER_NAME, ENGINES_OWN, PLAIN, Channel, GroupKind
from node.protocol.inert_records import TOPICS, inert_record

EPOCH_MS = 1_700_000_000_000  # what a simulated clock of 0 shows
_HOST = Host(bytes([127, 0, 0, 1]), 10911)


def kind_of(is_broker: bool, clock_ns: Callable[[], int]) -> GroupKind:
    return BrokerKind(lambda: wall_ms(clock_ns())) if is_broker else PLAIN


def wall_ms(clock_ns: int) -> int:
    return EPOCH_MS + clock_ns // 1_000_000


def record_of(words: bytes, time_ms: int, channel: int = Channel.MESSAGE) -> bytes:
    """Without its place."""
    if channel != Channel.MESSAGE:
        return inert_record(channel, words, time_ms)
    return encode_record(
        MessageRecord(
            MAGIC_V1, body_crc_of(words), 1, 0, 0, 0, 0, time_ms, _HOST, time_ms, _HOST, 0, 0, words, "flights", b""
        )
    )


def words_in(body: bytes) -> bytes:
    """A record's; the bytes themselves where they are none."""
    try:
        return decode_record(body).body
    except MessageFormatError:
        return body


def words_of(kind: str, entry: Entry) -> bytes | None:
    """What a client said in this entry; None: it is the engine's own."""
    if kind != BROKER_NAME:
        return bytes(entry.body) if entry.magic == Magic.NORMAL else None
    return None if entry.channel in ENGINES_OWN or entry.magic != Magic.NORMAL else words_in(bytes(entry.body))


def about_group(kind: str, entry: Entry) -> bytes | None:
    """What an entry says of the group itself; None: nothing."""
    if kind != BROKER_NAME:
        return bytes(entry.body) if entry.magic == Magic.CONFIG_CHANGE else None
    return words_in(bytes(entry.body)) if entry.channel == Channel.CONFIG_CHANGE else None


def words_shown(body: bytes | None) -> bytes | None:
    """The same of a broker group's entry whose head is not shown."""
    try:
        found = decode_record(body or b"")
    except MessageFormatError:
        return body
    return None if found.topic in [TOPICS[one] for one in ENGINES_OWN] else found.body
