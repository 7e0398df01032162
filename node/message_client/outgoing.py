"""What a producer sends, as bytes: a message's properties and the command that carries it (310, 320).

A send's header has thirteen fields of which three change from one message to the next; the rest is written once for
each queue.

Invariant: what is written here reads as `SendRequestV2`, and its properties as `join_properties` writes them.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Final

from node.message_client.errors import ClientError
from node.message_client.routes import AUTO_CREATE, NEW_TOPIC_QUEUES
from node.message_store.errors import MessageFormatError
from node.message_store.properties import DELAY, KEYS, PROPERTIES_BYTES_MAX, RESERVED, TAGS, UNIQ_KEY, join_properties
from node.protocol.value_class import value_class
from node.rocketmq.codes import LANGUAGES, VERSION, Request
from node.rocketmq.command import COMMAND_BYTES_MAX, LANGUAGE

_HEAD: Final = struct.Struct(">iIhbhiiii")  # prefix, code to flag, no remark, bytes of the fields
_HEAD_BYTES: Final = _HEAD.size - 8
_BINARY: Final = 1 << 24
_PROPERTIES: Final = struct.Struct(">2sci")
_LANGUAGE: Final = LANGUAGES.index(LANGUAGE)
_id_prefix: Final = bytearray(secrets.token_bytes(8))  # of this process
_ids: Final[Iterator[int]] = count()


@value_class(slots=True, frozen=True)
class OutgoingMessage:
    """`shard`: messages of one shard go to one queue, in order as long as its number of queues stays. `own`: properties
    that this package adds, never an application."""

    topic: str
    body: bytes
    keys: tuple[str, ...] = ()
    tags: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    shard: str | None = None
    delay_level: int = 0
    own: tuple[tuple[str, str], ...] = ()


def _draw_prefix() -> None:
    _id_prefix[:] = secrets.token_bytes(8)


os.register_at_fork(after_in_child=_draw_prefix)  # or both go on with the same keys


def properties_of(message: OutgoingMessage) -> bytes:
    """Raises ClientError for what no property can hold."""
    unique = f"{_id_prefix.hex().upper()}{next(_ids):016X}"
    if message.properties or message.delay_level or message.own:
        return _joined(message, unique)
    text, pairs = f"{UNIQ_KEY}\x01{unique}\x02", 1
    if message.keys:
        text, pairs = f"{text}{KEYS}\x01{' '.join(message.keys)}\x02", pairs + 1
    if message.tags:
        text, pairs = f"{text}{TAGS}\x01{message.tags}\x02", pairs + 1
    if text.count("\x01") != pairs or text.count("\x02") != pairs or "\x01\x02" in text:
        return _joined(message, unique)  # which says what is wrong
    if not text.isascii():
        return _joined(message, unique)
    data = text.encode()
    return data if len(data) <= PROPERTIES_BYTES_MAX else _joined(message, unique)


def _joined(message: OutgoingMessage, unique: str) -> bytes:
    for name, _value in message.properties:
        if name in RESERVED:
            raise ClientError(f"property {name!r} is RocketMQ's own: choose another name")
    if message.delay_level < 0:
        raise ClientError(f"delay level {message.delay_level}: levels begin at 1, and 0 is none")
    pairs = [(UNIQ_KEY, unique), *message.properties, *message.own]
    if message.keys:
        pairs.append((KEYS, " ".join(message.keys)))
    if message.tags:
        pairs.append((TAGS, message.tags))
    if message.delay_level:
        pairs.append((DELAY, str(message.delay_level)))
    try:
        return join_properties(pairs)
    except MessageFormatError as error:
        raise ClientError(str(error)) from error


def send_command(
    code: int, opaque: int, group: str, topic: str, queue_id: int, born_ms: int, properties: bytes, body: bytes
) -> bytes:
    """Raises ClientError where it is longer than any broker reads."""
    front = _front(group, topic, queue_id)
    end = _BATCH_END if code == Request.SEND_BATCH_MESSAGE else _END
    fields_bytes = len(front) + 13 + len(_FLAG) + 7 + len(properties) + len(end)
    header_bytes = _HEAD_BYTES + fields_bytes
    rest_bytes = 4 + header_bytes + len(body)
    if rest_bytes + 4 > COMMAND_BYTES_MAX:
        raise ClientError(f"a command of {rest_bytes + 4} bytes, {COMMAND_BYTES_MAX} at most")
    head = _HEAD.pack(
        rest_bytes, _BINARY | header_bytes, code, _LANGUAGE, VERSION, opaque, 0, 0, fields_bytes
    )  # fmt: skip
    return b"".join(
        (
            head, front, b"%013d" % born_ms, _FLAG, _PROPERTIES.pack(b"\x00\x01", b"i", len(properties)), properties,
            end, body,
        )
    )  # fmt: skip


def _field(name: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")
    return struct.pack(">hci", 1, name.encode(), len(data)) + data


@lru_cache(maxsize=4096)
def _front(group: str, topic: str, queue_id: int) -> bytes:
    """The fields before the time, and the name of that."""
    values = (group, topic, AUTO_CREATE, str(NEW_TOPIC_QUEUES), str(queue_id), "0")
    return b"".join(map(_field, "abcdef", values)) + _field("g", "0" * 13)[:-13]


_FLAG: Final = _field("h", "0")
_END: Final = _field("j", "0") + _field("k", "false") + _field("m", "false")
_BATCH_END: Final = _field("j", "0") + _field("k", "false") + _field("m", "true")
