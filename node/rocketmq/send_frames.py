"""SEND_MESSAGE_V2 (310) as most clients write it, read in a fraction of the time that any command takes.

Of such a header only the time, the properties and the request's number change from one message to the next. What stands
before and behind them is read once, by the general decoder, and remembered by its bytes; whatever has another layout is
read as any command is.

Invariants: `SendFrame.command()` is what the general decoder reads from the same bytes; a remembered piece was read as
whole fields, so what follows it begins with a field; what is remembered is bounded (PIECES_MAX of PIECE_BYTES_MAX).
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from node.protocol.entry import BytesLike
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, CommandError, decode_parts
from node.rocketmq.header_fields import HeaderError, read_header
from node.rocketmq.headers import SendRequestV2

PIECES_MAX: Final = 4096
PIECE_BYTES_MAX: Final = 1024
_SEND: Final = int(Request.SEND_MESSAGE_V2)
_HEAD: Final = struct.Struct(">hbhiiii")  # code, language, version, opaque, flag, bytes of remark, of fields
_HEAD_BYTES: Final = _HEAD.size
_CODE: Final = struct.pack(">h", _SEND)
_INT: Final = struct.Struct(">i")
_TIME: Final = b"\x00\x01g\x00\x00\x00\x0d"  # names and lengths of 13 digits, of one, and the name of the properties
_FLAG: Final = b"\x00\x01h\x00\x00\x00\x01"
_PROPERTIES: Final = b"\x00\x01i"
_TIME_DIGITS: Final = 13
_JSON_CODE: Final = b'{"code":%d,' % _SEND
_JSON_TIME: Final = b'"g":"'
_JSON_FLAG: Final = b'","h":"'
_JSON_PROPERTIES: Final = b'","i":"'
_JSON_BEHIND: Final = b'","j":"'
_JSON_OPAQUE: Final = b'"opaque":'
_OPAQUE_DIGITS: Final = 9
_FRONT_NAMES: Final = frozenset("abcdef")
_END_NAMES: Final = frozenset("jklmn")
_JSON_NAMES: Final = frozenset({"extFields", "flag", "language", "opaque", "serializeTypeCurrentRPC", "version"})
_PROBE: Final = {"a": "", "b": "", "c": "", "d": "0", "e": "0", "f": "0", "g": "0", "h": "0"}


class SendFront:
    """The fields before the time. `note` is free for whoever handles sends: what it found out about them."""

    __slots__ = ("note", "said")

    def __init__(self, said: SendRequestV2) -> None:
        self.said = said
        self.note: object = None


class SendFrame:
    """One request. `reconsume_times` is of its fields behind the properties; a batch never comes as this."""

    __slots__ = ("binary", "body", "born_ms", "flag", "front", "header", "opaque", "properties", "reconsume_times")
    is_one_way: Final = False
    is_response: Final = False

    def __init__(
        self, header: bytes, body: BytesLike, front: SendFront, opaque: int, born_ms: int, flag: int,
        properties: bytes, reconsume_times: int, binary: bool,
    ) -> None:  # fmt: skip
        self.header, self.body, self.front, self.opaque, self.binary = header, body, front, opaque, binary
        self.born_ms, self.flag, self.properties = born_ms, flag, properties
        self.reconsume_times = reconsume_times

    def command(self) -> Command:
        """The same for whoever knows no frames. Raises CommandError, but never for what a reader made."""
        return decode_parts(self.header, self.body, binary=self.binary)


class SendReader:
    """What it has remembered is shared by the connections of one server."""

    def __init__(self) -> None:
        self._fronts: dict[bytes, SendFront | None] = {}
        self._ends: dict[bytes | tuple[bytes, bytes], int | None] = {}

    def read(self, header: bytes, body: BytesLike, binary: bool) -> Command | SendFrame:
        """Raises CommandError."""
        if binary:
            found = self._binary(header, body) if header.startswith(_CODE) else None
        else:
            found = self._json(header, body) if header.startswith(_JSON_CODE) else None
        return decode_parts(header, body, binary=binary) if found is None else found

    # --- binary headers -------------------------------------------------------------------------------------------
    def _binary(self, header: bytes, body: BytesLike) -> SendFrame | None:
        time_at = header.find(_TIME, _HEAD_BYTES)
        if time_at < 0:
            return None
        _code, _language, _version, opaque, flags, remark_bytes, fields_bytes = _HEAD.unpack_from(header)
        born_at = time_at + 7
        born = header[born_at : born_at + _TIME_DIGITS]
        at = born_at + _TIME_DIGITS + 7
        if flags or remark_bytes or fields_bytes != len(header) - _HEAD_BYTES or not born.isdigit():
            return None
        if header[at - 7 : at] != _FLAG or header[at + 1 : at + 4] != _PROPERTIES or len(header) < at + 8:
            return None
        flag = header[at] - 48
        begin = at + 8
        end = begin + _INT.unpack_from(header, at + 4)[0]
        if not 0 <= flag <= 9 or not begin <= end <= len(header):
            return None
        front_bytes, end_bytes = header[_HEAD_BYTES:time_at], header[end:]
        front = self._fronts.get(front_bytes) or self._learn_front(front_bytes, front_bytes, binary=True)
        times = self._ends.get(end_bytes)
        if times is None:
            times = self._learn_end(end_bytes, end_bytes, binary=True)
        properties = header[begin:end]
        if front is None or times is None or not properties.isascii():
            return None
        return SendFrame(header, body, front, opaque, int(born), flag, properties, times, True)

    # --- JSON headers ---------------------------------------------------------------------------------------------
    def _json(self, header: bytes, body: BytesLike) -> SendFrame | None:
        time_at = header.find(_JSON_TIME)
        born_at = time_at + len(_JSON_TIME)
        born = header[born_at : born_at + _TIME_DIGITS]
        at = born_at + _TIME_DIGITS + len(_JSON_FLAG)
        begin = at + 1 + len(_JSON_PROPERTIES)
        end = header.find(_JSON_BEHIND, begin)
        opaque_at = header.find(_JSON_OPAQUE, end)
        if time_at < 0 or end < 0 or opaque_at < 0 or not born.isdigit():
            return None
        if header[at - len(_JSON_FLAG) : at] != _JSON_FLAG or header[at + 1 : begin] != _JSON_PROPERTIES:
            return None
        flag = header[at] - 48
        number_at = opaque_at + len(_JSON_OPAQUE)
        number_end = header.find(b",", number_at)
        number = header[number_at:number_end]
        if not 0 <= flag <= 9 or not number.isdigit() or len(number) > _OPAQUE_DIGITS or number[:1] == b"0":
            return None
        properties = _plain(header[begin:end])
        if properties is None:
            return None
        front_bytes, ends = header[:time_at], (header[end + 1 : opaque_at], header[number_end:])
        front = self._fronts.get(front_bytes) or self._learn_front(
            front_bytes, front_bytes + b'"g":"0"}}', binary=False
        )
        times = self._ends.get(ends)
        if times is None:
            whole = b'{"extFields":{"i":""%s"opaque":0%s' % ends
            times = self._learn_end(ends, whole, binary=False)
        if front is None or times is None:
            return None
        return SendFrame(header, body, front, int(number), int(born), flag, properties, times, False)

    # --- what stays the same --------------------------------------------------------------------------------------
    def _learn_front(self, key: bytes, data: bytes, *, binary: bool) -> SendFront | None:
        """Of whole fields; None where they are not those of a send."""
        fields = _fields_of(data) if binary else _json_front(data)
        if fields is None or fields.keys() != _FRONT_NAMES or len(key) > PIECE_BYTES_MAX:
            return None
        try:
            front = SendFront(read_header(SendRequestV2, _PROBE | fields))
        except HeaderError:
            return None
        if len(self._fronts) >= PIECES_MAX:
            self._fronts.clear()
        self._fronts[key] = front
        return front

    def _learn_end(self, key: bytes | tuple[bytes, bytes], data: bytes, *, binary: bool) -> int | None:
        """How often it was consumed already; None where the fields are others, or say that it is a batch."""
        fields = _fields_of(data) if binary else _json_end(data)
        if fields is None or not fields.keys() <= _END_NAMES or len(data) > PIECE_BYTES_MAX:
            return None
        try:
            said = read_header(SendRequestV2, _PROBE | fields)
        except HeaderError:
            return None
        times = said.reconsume_times or 0
        if said.batch or not 0 <= times < 1 << 31:
            return None
        if len(self._ends) >= PIECES_MAX:
            self._ends.clear()
        self._ends[key] = times
        return times


def _plain(raw: bytes) -> bytes | None:
    """A JSON text of printable ASCII with the two separators of properties as its only escapes; else None."""
    if not raw.isascii() or b'"' in raw or not raw.decode().isprintable():
        return None
    found = raw.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
    return None if b"\\" in found else found


def _fields_of(data: bytes) -> dict[str, str] | None:
    """Whole fields of a binary header, each name once; None where they are not."""
    header = _HEAD.pack(_SEND, 0, 0, 0, 0, 0, len(data)) + data
    try:
        fields = decode_parts(header, b"", binary=True).fields or {}
    except CommandError:
        return None
    size = sum(6 + len(name.encode()) + len(value.encode()) for name, value in fields.items())
    return dict(fields) if size == len(data) else None  # a name that came twice, or what is no UTF-8


def _json_front(data: bytes) -> dict[str, str] | None:
    """`data` ends with a field of ours, so it reads as an object only where a field's name may stand."""
    said = _object(data)
    if said is None or said.keys() != {"code", "extFields"} or said["code"] != _SEND:
        return None
    fields = said["extFields"]
    if not _is_texts(fields) or fields.pop("g", None) is None:
        return None
    return dict(fields)


def _json_end(data: bytes) -> dict[str, str] | None:
    said = _object(data)
    if said is None or not said.keys() <= _JSON_NAMES or said.get("flag", 0) != 0 or "opaque" not in said:
        return None
    fields, version = said["extFields"], said.get("version", 0)
    if type(version) is not int or not -(1 << 31) <= version < 1 << 31 or not isinstance(said.get("language", ""), str):
        return None
    if not _is_texts(fields) or fields.pop("i", None) is None:
        return None
    return dict(fields)


def _object(data: bytes) -> dict[str, Any] | None:
    """None also where a name comes twice."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _is_texts(fields: object) -> bool:
    return isinstance(fields, dict) and all(type(value) is str and value.isascii() for value in fields.values())
