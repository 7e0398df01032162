"""The body of AWAITED_READ (52015): entries from an index on, as soon as they are committed.

Request `>qII`: first index, most bytes, and for how many milliseconds it may wait. Answered as FAST_READ is (52005): no
entries where there are none in time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from node.protocol.entry import BytesLike
from node.transport.slab_frames import BodyError

WAIT_MS_MAX: Final = 10_000
_REQUEST: Final = struct.Struct(">qII")


class AwaitedRead(NamedTuple):
    """At least one entry, once there is one."""

    from_index: int
    limit_bytes: int
    wait_ms: int


def encode_awaited_read(request: AwaitedRead) -> bytes:
    return _REQUEST.pack(*request)


def decode_awaited_read(body: BytesLike) -> AwaitedRead:
    """Raises BodyError."""
    if len(body) != _REQUEST.size:
        raise BodyError(f"an awaited read of {len(body)} bytes; it takes {_REQUEST.size}")
    from_index, limit_bytes, wait_ms = _REQUEST.unpack(body)
    if from_index < 0 or limit_bytes < 1 or wait_ms > WAIT_MS_MAX:
        raise BodyError(f"an awaited read from {from_index} of {limit_bytes} bytes that waits {wait_ms} ms")
    return AwaitedRead(from_index, limit_bytes, wait_ms)
