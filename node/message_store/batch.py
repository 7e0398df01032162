"""Several messages in one body: what a producer sends as a batch, and what an inner batch (sysFlag 0x80) keeps.

A broker takes a batch apart: each message becomes a record of its own. Only a topic of 5.x whose queues are of kind
BatchCQ keeps it whole, as the body of one record.

Invariants: `encode_batch(decode_batch(data)) == data` for every batch whose unused fields (magic, CRC) are 0, as
clients write them; a decoder takes no length on trust.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from node.message_store.errors import MessageFormatError
from node.message_store.properties import PROPERTIES_BYTES_MAX
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

_HEAD: Final = struct.Struct(">iiiii")  # size, magic, CRC, flag, the body's length
_SHORT: Final = struct.Struct(">h")
_FIXED_BYTES: Final = _HEAD.size + _SHORT.size


@value_class(slots=True, frozen=True)
class BatchedMessage:
    """What a producer says of one message of a batch."""

    flag: int
    body: bytes
    properties_data: bytes
    magic: int = 0
    body_crc: int = 0


def decode_batch(data: BytesLike, messages_max: int | None = None) -> list[BatchedMessage]:
    """Raises MessageFormatError unless the messages fill `data` to its end, and where there are more than
    `messages_max`: none is read beyond it."""
    found: list[BatchedMessage] = []
    at = 0
    while at < len(data):
        if len(found) == messages_max:
            raise MessageFormatError(f"a batch of more than {messages_max} messages")
        if len(data) - at < _FIXED_BYTES:
            raise MessageFormatError(f"message {len(found)} of the batch: {len(data) - at} bytes are left")
        size, magic, crc, flag, body_bytes = _HEAD.unpack_from(data, at)
        if not _FIXED_BYTES <= size <= len(data) - at or not 0 <= body_bytes <= size - _FIXED_BYTES:
            text = f"size {size} and body of {body_bytes} bytes where {len(data) - at} are left"
            raise MessageFormatError(f"message {len(found)} of the batch: {text}")
        body = at + _HEAD.size
        properties = body + body_bytes + _SHORT.size
        properties_bytes = _SHORT.unpack_from(data, body + body_bytes)[0]
        if properties_bytes != at + size - properties:
            raise MessageFormatError(f"message {len(found)} of the batch: properties of {properties_bytes} bytes")
        found.append(
            BatchedMessage(flag, bytes(data[body : body + body_bytes]), bytes(data[properties : at + size]), magic, crc)
        )
        at += size
    return found


def encode_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Raises MessageFormatError for what no field can hold."""
    parts: list[bytes] = []
    for one in messages:
        if len(one.properties_data) > PROPERTIES_BYTES_MAX:
            raise MessageFormatError(f"{len(one.properties_data)} bytes of properties, {PROPERTIES_BYTES_MAX} at most")
        size = _FIXED_BYTES + len(one.body) + len(one.properties_data)
        try:
            parts.append(_HEAD.pack(size, one.magic, one.body_crc, one.flag, len(one.body)))
        except struct.error as error:
            raise MessageFormatError(f"a number does not fit its field: {error}") from error
        parts += [one.body, _SHORT.pack(len(one.properties_data)), one.properties_data]
    return b"".join(parts)
