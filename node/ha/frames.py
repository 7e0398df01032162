"""What goes over an HA connection, to the byte.

RocketMQ's: slave to master 8 bytes, the slave's end, which is report, acknowledgement and (the first one) request in
one; master to slave a head of 12 bytes (offset, size), then so many bytes of the log, none in a heartbeat.

Between our own ends there is more, in places where RocketMQ has nothing. A slave begins with -1: a master of RocketMQ's
waits on for a request (`slaveRequestOffset` stays -1) and answers nothing, one of ours answers with a frame of offset
-2. From then on offsets below zero carry an object as JSON, in both directions.

Invariants: a reader takes bytes in pieces of any length; what breaks the format raises HaError, and nothing behind it
is read; memory is bounded by one frame.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import numpy as np

from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

HEADER: Final = struct.Struct(">qi")  # transfer header: phyOffset, bodySize
REPORT: Final = struct.Struct(">q")
LENGTH: Final = struct.Struct(">i")
ASK: Final = -1  # a slave of ours begins; a master of RocketMQ's takes it for no request yet
SAY: Final = -2  # an object follows
BODY_BYTES_MAX: Final = 8 << 20  # of a frame: RocketMQ's are 32 KiB at most, or one record
JSON_BYTES_MAX: Final = 256 << 10
ROOM_BYTES: Final = 64 << 10  # for what comes before the length of a frame is known
ROOM_BYTES_MAX: Final = 1 << 20


class HaError(Exception):
    """Why a connection ends: the peer's bytes, or what it asks for."""


@value_class(slots=True, frozen=True)
class Frame:
    """Of a master's. `said`: an object, where there is no log in it."""

    offset: int
    body: BytesLike
    said: dict[str, Any] | None = None


def encode_header(offset: int, size_bytes: int) -> bytes:
    return HEADER.pack(offset, size_bytes)


def encode_report(offset: int) -> bytes:
    return REPORT.pack(offset)


def master_says(said: dict[str, Any]) -> bytes:
    body = json.dumps(said, separators=(",", ":")).encode()
    return HEADER.pack(SAY, len(body)) + body


def slave_says(said: dict[str, Any]) -> bytes:
    body = json.dumps(said, separators=(",", ":")).encode()
    return REPORT.pack(SAY) + LENGTH.pack(len(body)) + body


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HaError(f"what the other end says is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise HaError("what the other end says is no JSON object")
    return found


class FrameReader:
    """A master's bytes, as a slave reads them.

    A socket writes into `room`, and `fill` says how much: most of a long frame comes where it stays, and is not copied.
    """

    def __init__(self) -> None:
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._head = bytearray()  # as much of it as there is
        self._offset = 0
        self._body: memoryview | None = None  # of the frame whose head was read
        self._filled = 0

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong: never empty."""
        if self._body is None:
            return self._room
        return self._body[self._filled : self._filled + ROOM_BYTES_MAX]

    def fill(self, size_bytes: int) -> list[Frame]:
        """So much was written into `room`; the frames that are whole now. Raises HaError."""
        if self._body is None:
            return self.feed(self._room[:size_bytes])
        self._filled += size_bytes
        return self.feed(b"")

    def feed(self, data: BytesLike) -> list[Frame]:
        """The same of bytes that lie elsewhere."""
        found: list[Frame] = []
        at = 0
        with memoryview(data) as view:
            while at < len(view) or (self._body is not None and self._filled == len(self._body)):
                if self._body is None:
                    upto = min(len(view), at + HEADER.size - len(self._head))
                    self._head += view[at:upto]
                    at = upto
                    if len(self._head) == HEADER.size:
                        self._begin()
                    continue
                upto = min(len(view), at + len(self._body) - self._filled)
                self._body[self._filled : self._filled + upto - at] = view[at:upto]
                self._filled += upto - at
                at = upto
                if self._filled == len(self._body):
                    body, self._body, self._filled = self._body, None, 0
                    if self._offset == SAY:
                        found.append(Frame(SAY, b"", _object(bytes(body))))
                    else:
                        found.append(Frame(self._offset, body.toreadonly()))
        return found

    def _begin(self) -> None:
        offset, size = HEADER.unpack(self._head)
        self._head.clear()
        if size < 0 or size > (JSON_BYTES_MAX if offset == SAY else BODY_BYTES_MAX):
            raise HaError(f"a frame of {size} bytes from the master")
        if offset < 0 and offset != SAY:
            raise HaError(f"a frame at offset {offset} from the master")
        self._offset, self._body, self._filled = offset, np.empty(size, np.uint8).data, 0


class ReportReader:
    """A slave's bytes, as a master reads them: offsets, and objects."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[int | dict[str, Any]]:
        """What is whole now. Raises HaError."""
        self._data += data
        found: list[int | dict[str, Any]] = []
        at = 0
        while len(self._data) - at >= REPORT.size:
            (offset,) = REPORT.unpack_from(self._data, at)
            if offset >= 0 or offset == ASK:
                found.append(offset)
                at += REPORT.size
                continue
            if offset != SAY:
                raise HaError(f"a report of {offset} from the slave")
            if len(self._data) - at < REPORT.size + LENGTH.size:
                break
            (size,) = LENGTH.unpack_from(self._data, at + REPORT.size)
            if not 0 <= size <= JSON_BYTES_MAX:
                raise HaError(f"an object of {size} bytes from the slave")
            begin = at + REPORT.size + LENGTH.size
            if len(self._data) < begin + size:
                break
            found.append(_object(bytes(self._data[begin : begin + size])))
            at = begin + size
        del self._data[:at]
        return found
