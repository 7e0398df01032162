"""RocketMQ remoting frames (FORMATS 1): one framing for members, clients and plain DLedger.

A frame is `int32 rest, u8 header type, u24 header bytes, header, body`. Headers are written as JSON and read in both
forms, JSON and the binary ROCKETMQ one.

Invariants: no length from the network is believed before it is bounded (16 MiB a frame), and no memory is written to
for bytes that have not arrived: the decoder's buffer grows only as it fills, and what a frame that never ends took is
the system's again once its connection is gone.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

from node.protocol.entry import BytesLike
from node.transport.frame_memory import own_memory
from node.transport.receive_buffer import FULL_BYTES, ReceiveBuffer

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # Netty's limit in the original; it counts the length field too
HEADER_BYTES_MAX: Final = 16 * 1024  # a long remark; what is longer would hold up whoever reads it
PREFIX_BYTES: Final = 8
JOINED_BYTES_MAX: Final = 16 * 1024
# A connection's first reads are small, and grow as they are filled: what hundreds of new ones send at once is decoded
# between other work. (At 64 KiB from the start each brought 550 requests, and a leader fell silent over them.)
BUFFER_BYTES_KEPT: Final = 256 * 1024
# A frame longer than a buffer is read into memory of its own, where its body stays: nothing copies it. (In a buffer
# that grows, a frame of 4 MiB touches 20 MiB of new memory: eight at once held up a busy machine's leader for 2.5 s.)
# The first part of it must have arrived, so that a claim alone gets nothing.
LONG_FRAME_FIRST_PART: Final = 1 / 32
LONG_HEADER_BYTES: Final = 1024  # behind a longer one a body is copied out
LANGUAGE: Final = "PYTHON"

FLAG_RESPONSE: Final = 1
FLAG_ONE_WAY: Final = 2

_PREFIX = struct.Struct(">iI")
_pack_prefix, _unpack_prefix = _PREFIX.pack, _PREFIX.unpack_from
# A plain header: no remark, no fields. All but the number is the same for every frame of a kind.
_PLAIN_BEFORE = b'{"code":%d,"flag":%d,"language":"PYTHON","opaque":'
_PLAIN_BEHIND = b',"serializeTypeCurrentRPC":"JSON","version":0}'
_INT32_MAX = (1 << 31) - 1
# The same read backwards, without a JSON parser; anything else takes the long way, and means the same.
_PLAIN_HEADER = re.compile(
    rb'\{"code":(0|[1-9]\d{0,9}),"flag":(\d),"language":"PYTHON","opaque":(-1|0|[1-9]\d{0,9})'
    + re.escape(_PLAIN_BEHIND)
)
_ZERO = ord("0")
_BINARY_HEAD = struct.Struct(">hbhiii")
# The original's enum order (FORMATS 1).
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip


class HeaderType(IntEnum):
    """How a frame's header is written."""

    JSON = 0
    BINARY = 1


class FrameError(ValueError):
    """The bytes are no frame: where the next frame on the connection begins is unknown."""


class Frame(NamedTuple):  # made for every frame: a third of what a frozen dataclass costs
    """One request or response. `opaque` is the request's id, echoed in its response.

    A long body is a read-only memoryview: whoever keeps a small part of it keeps all of it, unless it copies that part.
    """

    code: int
    opaque: int
    body: BytesLike = b""
    flag: int = 0
    remark: str | None = None
    ext_fields: Mapping[str, str] | None = None
    language: str = LANGUAGE
    version: int = 0

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & FLAG_ONE_WAY)


_new_frame: Callable[[tuple[Any, ...]], Frame] = partial(tuple.__new__, Frame)  # all fields; `Frame()` itself is Python


def encode_head(frame: Frame, body_bytes: int) -> bytes:
    """Everything of a frame but its body, which has `body_bytes` bytes. Raises FrameError when it is too long."""
    fields: dict[str, Any] = {"code": frame.code}
    if frame.ext_fields is not None:
        fields["extFields"] = dict(frame.ext_fields)
    fields |= {"flag": frame.flag, "language": frame.language, "opaque": frame.opaque}
    if frame.remark is not None:
        fields["remark"] = frame.remark
    fields |= {"serializeTypeCurrentRPC": "JSON", "version": frame.version}
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    return _prefix(len(header), body_bytes) + header


def plain_frame(code: int, flag: int, opaque: int, pieces: Sequence[BytesLike]) -> list[BytesLike]:
    """A frame without remark around a body in pieces: one buffer where it is short, a long one is not copied."""
    body_bytes = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
    try:
        before = _befores[code, flag]
    except KeyError:
        before = _befores[code, flag] = _PLAIN_BEFORE % (code, flag)
    header = b"%b%d%b" % (before, opaque, _PLAIN_BEHIND)
    if body_bytes > JOINED_BYTES_MAX:
        return [_prefix(len(header), body_bytes) + header, *pieces]
    return [b"".join((_pack_prefix(4 + len(header) + body_bytes, len(header)), header, *pieces))]


_befores: dict[tuple[int, int], bytes] = {}  # of the codes and flags that were sent


def _prefix(header_bytes: int, body_bytes: int) -> bytes:
    rest_bytes = 4 + header_bytes + body_bytes
    if rest_bytes + 4 > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {rest_bytes + 4} bytes is over the limit of {FRAME_BYTES_MAX}")
    return _pack_prefix(rest_bytes, header_bytes)  # HeaderType.JSON is 0


def encode_frame(frame: Frame) -> bytes:
    """The frame's bytes. Raises FrameError when it is too long."""
    return b"".join((encode_head(frame, len(frame.body)), frame.body))


def response_to(request: Frame, body: bytes, code: int = 200, remark: str | None = None) -> Frame:
    """The answer to a request."""
    return Frame(code, request.opaque, body, FLAG_RESPONSE, remark)


def is_text(value: object) -> bool:
    """Whether it is a string that has bytes: JSON can name half a surrogate pair, and nothing can be sent of it."""
    try:
        return isinstance(value, str) and (value.isascii() or bool(value.encode()))
    except UnicodeEncodeError:
        return False


def _decode_json_header(header: bytes, body: BytesLike) -> Frame:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise FrameError("the header is not a JSON object")
    code, opaque, flag = fields.get("code"), fields.get("opaque", 0), fields.get("flag", 0)
    version, remark, ext = fields.get("version", 0), fields.get("remark"), fields.get("extFields")
    for name, number in (("code", code), ("opaque", opaque), ("flag", flag), ("version", version)):
        if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
            raise FrameError(f"the header's {name} is not an int32")
    assert isinstance(code, int)
    if remark is not None and not is_text(remark):
        raise FrameError("the header's remark is not a string")
    if ext is not None and not (isinstance(ext, dict) and all(map(is_text, (*ext, *ext.values())))):
        raise FrameError("the header's extFields are not strings by name")
    language = fields.get("language", LANGUAGE)
    return Frame(code, opaque, body, flag, remark, ext, language if is_text(language) else "OTHER", version)


def _decode_binary_header(header: bytes, body: BytesLike) -> Frame:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
        offset = _BINARY_HEAD.size
        remark, offset = _text(header, offset, remark_bytes)
        (ext_bytes,) = struct.unpack_from(">i", header, offset)
        offset += 4
        if ext_bytes < 0 or ext_bytes != len(header) - offset:
            raise FrameError(f"the header's extFields claim {ext_bytes} of {len(header) - offset} bytes")
        ext: dict[str, str] = {}
        while offset < len(header):
            (key_bytes,) = struct.unpack_from(">h", header, offset)
            key, offset = _text(header, offset + 2, key_bytes)
            (value_bytes,) = struct.unpack_from(">i", header, offset)
            ext[key], offset = _text(header, offset + 4, value_bytes)
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"the binary header is broken: {error}") from None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    # The field is a signed int16 there: 50001 arrives as a negative number.
    return Frame(code & 0xFFFF, opaque, body, flag, remark or None, ext or None, name, version)


def _text(data: bytes, offset: int, size: int) -> tuple[str, int]:
    if size < 0 or size > len(data) - offset:
        raise FrameError(f"a text of {size} bytes where {len(data) - offset} are left")
    return data[offset : offset + size].decode(), offset + size


def decode_frame(data: bytes | bytearray | memoryview) -> Frame:
    """The one frame that `data` is, exactly. Raises FrameError."""
    if len(data) < PREFIX_BYTES:
        raise FrameError(f"{len(data)} bytes are no frame")
    rest_bytes, type_and_header = _unpack_prefix(data)
    header_bytes = check_prefix(rest_bytes, type_and_header)
    if len(data) != rest_bytes + 4:
        raise FrameError(f"the frame says {rest_bytes + 4} bytes and has {len(data)}")
    view = memoryview(data)
    header = bytes(view[PREFIX_BYTES : PREFIX_BYTES + header_bytes])
    return _decode_parts(type_and_header >> 24, header, bytes(view[PREFIX_BYTES + header_bytes :]))


def _decode_parts(header_type: int, header: bytes, body: BytesLike) -> Frame:
    if header_type != HeaderType.JSON:
        return _decode_binary_header(header, body)
    plain = _PLAIN_HEADER.fullmatch(header)
    if plain is not None:
        code, flag, opaque = map(int, plain.groups())
        if code <= _INT32_MAX and opaque <= _INT32_MAX:
            return _new_frame((code, opaque, body, flag, None, None, LANGUAGE, 0))
    return _decode_json_header(header, body)


def check_prefix(rest_bytes: int, type_and_header: int) -> int:
    """Bounds a frame's two leading words; returns the header's length. Raises FrameError."""
    if rest_bytes < 4 or rest_bytes + 4 > FRAME_BYTES_MAX:
        if (rest_bytes >> 24) & 0xFF == 0x16:
            raise FrameError("this looks like TLS; the port is configured for plain frames")
        raise FrameError(f"a frame of {rest_bytes + 4} bytes: 8 to {FRAME_BYTES_MAX} are allowed")
    kind, header_bytes = type_and_header >> 24, type_and_header & 0xFFFFFF
    if kind > 1:  # HeaderType.BINARY
        raise FrameError(f"unknown header type {kind}")
    if header_bytes > rest_bytes - 4:
        raise FrameError(f"a header of {header_bytes} bytes in a frame of {rest_bytes + 4}")
    if header_bytes > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {header_bytes} bytes; {HEADER_BYTES_MAX} are allowed")
    return header_bytes


class FrameDecoder:
    """Cuts a byte stream into frames, in a buffer that a BufferedProtocol reads straight into.

    Usage: fill (part of) `writable()`, then `filled(n)` returns the frames that are complete. Where a frame is broken,
    what came before it is returned all the same, and `broken` says why no further frame can be found.

    A connection's frames are of few kinds: a plain header of a kind that came before is recognised by its bytes.
    """

    def __init__(self) -> None:
        self._buffer = ReceiveBuffer(BUFFER_BYTES_KEPT, FRAME_BYTES_MAX)
        self._long: memoryview | None = None  # where the rest of a long frame goes
        self._long_bytes = 0  # of it that have arrived
        # By a plain header's length: how to take it apart, what stands before the number, and the code and flag there.
        self._kinds: dict[int, tuple[Callable[[bytearray, int], tuple[bytes, bytes, bytes]], bytes, int, int]] = {}
        self.broken: FrameError | None = None

    @property
    def buffer_bytes(self) -> int:
        """How much memory this decoder has written to."""
        return len(self._buffer.data) + self._long_bytes

    @property
    def unfinished_bytes(self) -> int:
        """What has come of a frame that is not whole."""
        return self._long_bytes or self._buffer.end - self._buffer.start

    @property
    def frame_memory_bytes(self) -> int:
        """What such a frame was given. (A mapping counts whole: one read may bring megabytes before anyone looks.)"""
        if self._long is not None:
            return len(self._long)
        return len(self._buffer.data) if self._buffer.end else 0

    def spare_memory(self) -> None:
        """Frees the buffer, where nothing is in it, until more comes."""
        self._buffer.spare()

    def read_little(self) -> None:
        """Reads grow anew from the first size, once the buffer is made anew."""
        self._buffer.read_little()

    def end(self) -> None:
        """Nothing more comes: frees what is held of a frame that is not whole."""
        self._long, self._long_bytes = None, 0
        self._buffer.drop()

    def writable(self, sizehint: int = -1) -> memoryview:
        """Room for the next bytes; never empty, whatever size is wished for."""
        if self._long is not None:
            return self._long[self._long_bytes :]
        return self._buffer.room()

    def filled(self, count: int) -> list[Frame]:
        """`count` bytes were put into the last `writable()`: the whole frames up to the first broken one."""
        if self._long is not None:
            return self._filled_long(self._long, count)
        held = self._buffer
        buffer, view, start, end = held.data, held.view, held.start, held.end + count
        if end == len(buffer):
            held.filled(count)
        frames: list[Frame] = []
        try:
            while end - start >= PREFIX_BYTES and self.broken is None:
                rest_bytes, header_bytes = _unpack_prefix(buffer, start)
                header_type = 0
                # What the look at the bounds finds nothing wrong with is a JSON header; else it is looked at closely.
                if header_bytes > rest_bytes - 4 or rest_bytes > FRAME_BYTES_MAX - 4 or header_bytes > HEADER_BYTES_MAX:
                    header_type = header_bytes >> 24
                    header_bytes = check_prefix(rest_bytes, header_bytes)
                stop = start + rest_bytes + 4
                if end < stop:
                    if rest_bytes > FULL_BYTES:
                        start = self._begin_long(view[start:end], rest_bytes + 4, start)
                    break
                body_at = start + PREFIX_BYTES + header_bytes
                body = view[body_at:stop].tobytes()
                kind = self._kinds.get(header_bytes)
                frame: Frame | None = None
                if kind is not None and not header_type:
                    take_apart, kinds_before, code, flag = kind
                    before, number, behind = take_apart(buffer, start)
                    if before == kinds_before and behind == _PLAIN_BEHIND and number.isdigit() and number[0] != _ZERO:
                        frame = _new_frame((code, int(number), body, flag, None, None, LANGUAGE, 0))
                frames.append(frame or self._meet(header_type, view[start + PREFIX_BYTES : body_at].tobytes(), body))
                start = stop
        except FrameError as error:
            self.broken = error
        if start == end or self.broken is not None:  # behind a broken frame: what may still arrive takes no memory
            start = end = 0
        held.start, held.end = start, end
        if self._long is not None:
            held.drop_large()
        return frames

    def _begin_long(self, arrived: memoryview, frame_bytes: int, start: int) -> int:
        """Gives a long frame memory of its own, if enough of it has `arrived`; returns where what is left starts."""
        if len(arrived) < frame_bytes * LONG_FRAME_FIRST_PART:
            return start
        self._long, self._long_bytes = own_memory(frame_bytes), len(arrived)
        self._long[: len(arrived)] = arrived
        return start + len(arrived)

    def _filled_long(self, frame: memoryview, count: int) -> list[Frame]:
        self._long_bytes += count
        if self._long_bytes < len(frame):
            return []
        self._long, self._long_bytes = None, 0
        _rest_bytes, type_and_header = _unpack_prefix(frame)
        body_at = PREFIX_BYTES + (type_and_header & 0xFFFFFF)
        # Who counts what it holds counts the body: a view must not keep much more than that.
        body = frame[body_at:].toreadonly() if body_at <= LONG_HEADER_BYTES else frame[body_at:].tobytes()
        try:
            return [_decode_parts(type_and_header >> 24, frame[PREFIX_BYTES:body_at].tobytes(), body)]
        except FrameError as error:
            self.broken = error
            return []

    def _meet(self, header_type: int, header: bytes, body: bytes) -> Frame:
        """A frame of a kind that was not met yet, or of no kind. Raises FrameError."""
        frame = _decode_parts(header_type, header, body)
        before = _PLAIN_BEFORE % (frame.code, frame.flag)
        number_bytes = len(header) - len(before) - len(_PLAIN_BEHIND)
        # Up to nine digits cannot leave the range of the number.
        if 0 < number_bytes <= 9 and header.startswith(before):
            parts = struct.Struct(f"{PREFIX_BYTES}x{len(before)}s{number_bytes}s{len(_PLAIN_BEHIND)}s")
            self._kinds[len(header)] = (parts.unpack_from, before, frame.code, frame.flag)
        return frame
