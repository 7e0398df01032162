"""A message's properties: name 0x01 value 0x02, in the order in which the sender's map had them.

Invariants: `parse_properties` sees what RocketMQ's reader sees: a pair is passed over when it is shorter than three
characters, or its name or value is empty; the last pair of a name counts; the end needs no 0x02 (4.9 writes none).
`join_properties` writes the separator after every pair, also the last. The bytes themselves stay with the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from node.message_store.errors import MessageFormatError
from node.message_store.java_text import KEY_SEPARATOR, bytes_of, text_of

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
PROPERTIES_BYTES_MAX: Final = 32767
_PAIR_MIN: Final = 3

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
DELAY: Final = "DELAY"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"

# What RocketMQ's clients and brokers write themselves, and refuse of an application (MessageConst).
RESERVED: Final = frozenset(
    {
        KEYS, TAGS, UNIQ_KEY, DELAY, REAL_TOPIC, REAL_QID, "TRACE_ON", "MSG_REGION", "WAIT", "RETRY_TOPIC", "TRAN_MSG",
        "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG",
        "MQ2_FLAG", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "CLUSTER", "MSG_TYPE",
        "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_NUM", "INNER_BASE", "DUP_INFO",
    }
)  # fmt: skip
Pairs = tuple[tuple[str, str], ...]


def parse_properties(data: bytes | memoryview) -> Pairs:
    """The pairs as RocketMQ reads them, in order; names may repeat."""
    found: list[tuple[str, str]] = []
    for piece in text_of(data).split(PAIR_END):
        name, sign, value = piece.partition(NAME_END)
        if sign and name and value and len(piece) >= _PAIR_MIN:
            found.append((name, value))
    return tuple(found)


def join_properties(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Raises MessageFormatError for a pair that no reader would give again, and where the whole is too long."""
    parts: list[str] = []
    for name, value in pairs:
        if not name or not value:
            raise MessageFormatError(f"property {name!r}: an empty name or value is lost on reading")
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise MessageFormatError(f"property {name!r}: 0x01 and 0x02 separate properties, nothing escapes them")
        parts.append(f"{name}{NAME_END}{value}{PAIR_END}")
    try:
        data = bytes_of("".join(parts))
    except UnicodeEncodeError:
        raise MessageFormatError("a property holds half a character (a lone surrogate), which UTF-8 lacks") from None
    if len(data) > PROPERTIES_BYTES_MAX:
        raise MessageFormatError(f"{len(data)} bytes of properties, {PROPERTIES_BYTES_MAX} at most")
    return data


def index_keys(properties: Mapping[str, str]) -> list[str]:
    """What an index has of a message: its unique key, then each of its keys."""
    unique = properties.get(UNIQ_KEY)
    return ([unique] if unique else []) + split_keys(properties.get(KEYS))


def split_keys(keys: str | None) -> list[str]:
    """The keys in KEYS: split at spaces, empty ones passed over, repeated ones kept."""
    return [key for key in keys.split(KEY_SEPARATOR) if key] if keys else []
