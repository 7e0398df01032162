"""The body of REGISTER_BROKER: a broker's topics, as JSON or (compressed) in RocketMQ's binary form.

Invariant: whatever the bytes, reading ends in a value or in BodyError; what is packed is unpacked up to a bound.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from node.name_service.registry import TOPICS_MAX
from node.protocol.entry import BytesLike
from node.rocketmq.bodies import (
    DataVersion,
    TopicConfig,
    read_data_version,
    read_topics,
)
from node.rocketmq.java_json import BodyError, load, object_in

BYTES_MAX: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 256 * 1024
VALUES_MAX: Final = 16 * TOPICS_MAX
_INT: Final = struct.Struct(">i")

Topics = dict[str, TopicConfig]


def read_registration(body: BytesLike, *, compressed: bool) -> tuple[DataVersion, Topics | None]:
    """Raises BodyError. Without a body nothing is said of topics."""
    if not len(body):
        return DataVersion(), None
    if compressed:
        return _read_packed(bytes(body))
    wrapper = object_in(load(body, BYTES_MAX, VALUES_MAX), "topicConfigSerializeWrapper")
    version = read_data_version(object_in(wrapper, "dataVersion"))
    return version, read_topics(object_in(wrapper, "topicConfigTable"), TOPICS_MAX)


def _read_packed(body: bytes) -> tuple[DataVersion, Topics]:
    data = _unpacked(body)
    try:
        said, at = _piece(data, 0)
        (count,) = _INT.unpack_from(data, at)
        if not 0 <= count <= TOPICS_MAX:
            raise BodyError(f"{count} topics, {TOPICS_MAX} at most")
        at += _INT.size
        topics: Topics = {}
        for _ in range(count):
            text, at = _piece(data, at)
            topic = _topic(text.decode("utf-8", "replace"))
            topics[topic.name] = topic
    except struct.error:
        raise BodyError("the body ends within a field") from None
    return read_data_version(load(said)), topics


def _unpacked(body: bytes) -> bytes:
    """In pieces, so that what is refused never took more than a bound."""
    unpack, pieces, size = zlib.decompressobj(), list[bytes](), 0
    try:
        while not unpack.eof:
            pieces.append(unpack.decompress(body, PIECE_BYTES))
            size += len(pieces[-1])
            if size > BYTES_MAX or not (pieces[-1] or unpack.eof):
                raise BodyError(f"the body does not end, or holds more than {BYTES_MAX} bytes")
            body = unpack.unconsumed_tail
    except zlib.error as error:
        raise BodyError(f"the body is not compressed as it says: {error}") from None
    return b"".join(pieces)


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack_from(data, at)
    if not 0 <= size <= len(data) - at - _INT.size:
        raise BodyError(f"a field of {size} bytes where {len(data) - at - _INT.size} are left")
    at += _INT.size
    return data[at : at + size], at + size


def _topic(text: str) -> TopicConfig:
    """`name readQueues writeQueues perm filterType`; 5.x writes attributes behind them."""
    parts = text.split(" ")
    if len(parts) < 5 or not parts[0]:
        raise BodyError(f"{text[:100]!r} is no topic")
    numbers = {"readQueueNums": parts[1], "writeQueueNums": parts[2], "perm": parts[3]}
    for name, number in numbers.items():
        if not (number.isascii() and number.isdigit() and len(number) <= 10):
            raise BodyError(f"{name} of the topic {parts[0][:100]!r} is no number")
    said = {name: int(number) for name, number in numbers.items()}
    return read_topics({parts[0]: said | {"topicFilterType": parts[4]}}, 1)[parts[0]]
