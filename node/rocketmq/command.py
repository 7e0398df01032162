"""One remoting command, a request or its response: `int32 rest, u8 header type, u24 header bytes, header, body`.

The header is JSON as fastjson writes it, or RocketMQ's binary form. An answer is written as its request was.

Invariants: `encode(decode(data)) == data` for everything that a Java client or broker writes; no length is believed
before it is bounded; whatever the bytes, decoding ends in a Command or in CommandError. Texts that no bytes stand for
(half a surrogate pair) become "?", and bytes that are no UTF-8 the replacement character: as Java reads them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from node.protocol.entry import BytesLike
from node.rocketmq.codes import FLAG_ONE_WAY, FLAG_RESPONSE, LANGUAGES, VERSION

COMMAND_BYTES_MAX: Final = 16 * 1024 * 1024  # Netty's limit in the original; it counts the length field too
# A message's properties (32,767 bytes) are a header field of a send; escaped in JSON a byte takes six at worst.
HEADER_BYTES_MAX: Final = 224 * 1024
FIELDS_MAX: Final = 64  # the longest header of the list has 16
PREFIX_BYTES: Final = 8
LANGUAGE: Final = "PYTHON"

_PREFIX = struct.Struct(">iI")
_BINARY_HEAD = struct.Struct(">hbhiii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_OTHER: Final = LANGUAGES.index("OTHER")
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class CommandError(ValueError):
    """The bytes are no command: where the next one on the connection begins is unknown."""


class Command(NamedTuple):
    """`opaque` is the request's number, echoed in its response; `fields` are the header's extFields."""

    code: int
    opaque: int
    flag: int = 0
    fields: Mapping[str, str] | None = None
    remark: str | None = None
    body: BytesLike = b""
    language: str = LANGUAGE
    version: int = VERSION
    binary: bool = False

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & FLAG_ONE_WAY)


def response(
    request: Command,
    code: int,
    fields: Mapping[str, str] | None = None,
    remark: str | None = None,
    body: BytesLike = b"",
) -> Command:
    """The answer to a request, in the form of the request."""
    return Command(code, request.opaque, FLAG_RESPONSE, fields, remark, body, binary=request.binary)


# --- writing ------------------------------------------------------------------------------------------------------
def encode(command: Command) -> bytes:
    """The command's bytes. Raises CommandError when it is too long for any reader."""
    header = _binary_header(command) if command.binary else _json_header(command)
    rest_bytes = 4 + len(header) + len(command.body)
    if len(header) > HEADER_BYTES_MAX or rest_bytes + 4 > COMMAND_BYTES_MAX:
        raise CommandError(f"a command of {rest_bytes + 4} bytes, {len(header)} of them its header")
    return b"".join((_PREFIX.pack(rest_bytes, command.binary << 24 | len(header)), header, command.body))


def _json_header(command: Command) -> bytes:
    """Names in alphabetical order, nulls left out."""
    fields: dict[str, Any] = {"code": command.code}
    if command.fields is not None:
        fields["extFields"] = command.fields if isinstance(command.fields, dict) else dict(command.fields)
    fields["flag"] = command.flag
    fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    return _encode_json(fields).encode("utf-8", "replace")


def _binary_header(command: Command) -> bytes:
    language = LANGUAGES.index(command.language) if command.language in LANGUAGES else _OTHER
    remark = (command.remark or "").encode("utf-8", "replace")
    parts: list[bytes] = []
    try:
        for name, value in (command.fields or {}).items():
            name_data, value_data = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
            parts += (_SHORT.pack(len(name_data)), name_data, _INT.pack(len(value_data)), value_data)
        fields = b"".join(parts)
        head = _BINARY_HEAD.pack(
            command.code, language, command.version, command.opaque, command.flag, len(remark)
        )  # fmt: skip
    except struct.error as error:
        raise CommandError(f"a number that has no room in a binary header: {error}") from None
    return b"".join((head, remark, _INT.pack(len(fields)), fields))


# --- reading ------------------------------------------------------------------------------------------------------
def check_prefix(rest_bytes: int, type_and_header: int) -> int:
    """Bounds a command's two leading words; returns the header's length. Raises CommandError."""
    if rest_bytes < 4 or rest_bytes + 4 > COMMAND_BYTES_MAX:
        raise CommandError(f"a command of {rest_bytes + 4} bytes: 8 to {COMMAND_BYTES_MAX} are allowed")
    header_bytes = type_and_header & 0xFFFFFF
    if type_and_header >> 24 > 1:
        raise CommandError(f"unknown header type {type_and_header >> 24}")
    if header_bytes > rest_bytes - 4:
        raise CommandError(f"a header of {header_bytes} bytes in a command of {rest_bytes + 4}")
    if header_bytes > HEADER_BYTES_MAX:
        raise CommandError(f"a header of {header_bytes} bytes; {HEADER_BYTES_MAX} are allowed")
    return header_bytes


def read_prefix(data: BytesLike, offset: int = 0) -> tuple[int, int, bool]:
    """Of a command at `offset`: its bytes with the length field, its header's, whether that is binary."""
    rest_bytes, type_and_header = _PREFIX.unpack_from(data, offset)
    return rest_bytes + 4, check_prefix(rest_bytes, type_and_header), bool(type_and_header >> 24)


def decode(data: BytesLike) -> Command:
    """The one command that `data` is, exactly. Raises CommandError."""
    if len(data) < PREFIX_BYTES:
        raise CommandError(f"{len(data)} bytes are no command")
    command_bytes, header_bytes, binary = read_prefix(data)
    if len(data) != command_bytes:
        raise CommandError(f"the command says {command_bytes} bytes and has {len(data)}")
    body_at = PREFIX_BYTES + header_bytes
    return decode_parts(bytes(data[PREFIX_BYTES:body_at]), bytes(data[body_at:]), binary=binary)


def decode_parts(header: bytes, body: BytesLike, *, binary: bool) -> Command:
    """Raises CommandError."""
    return _read_binary(header, body) if binary else _read_json(header, body)


def _read_json(header: bytes, body: BytesLike) -> Command:
    try:
        said = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"the header is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise CommandError("the header is not a JSON object")
    numbers: list[int] = []
    for name in ("code", "opaque", "flag", "version"):
        number = said.get(name, 0)
        if type(number) is not int or not -(1 << 31) <= number < 1 << 31:
            raise CommandError(f"the header's {name} is no int32")
        numbers.append(number)
    code, opaque, flag, version = numbers
    remark, fields, language = said.get("remark"), said.get("extFields"), said.get("language", "JAVA")
    if remark is not None and not isinstance(remark, str):
        raise CommandError("the header's remark is no text")
    if fields is not None:
        fields = _read_fields(fields)
    if language not in LANGUAGES:
        language = "OTHER"
    return Command(code, opaque, flag, fields, remark if remark is None else _text(remark), body, language, version)


def _read_fields(fields: Any) -> dict[str, str]:
    if not isinstance(fields, dict) or len(fields) > FIELDS_MAX:
        raise CommandError(f"the header's extFields are no object of at most {FIELDS_MAX} names")
    found: dict[str, str] = {}
    for name, value in fields.items():
        if type(value) is str:
            found[name if name.isascii() else _text(name)] = value if value.isascii() else _text(value)
        elif value is True or value is False:  # fastjson makes texts of what is none
            found[_text(name)] = "true" if value else "false"
        elif type(value) is int:
            found[_text(name)] = str(value)
        elif value is not None:
            raise CommandError(f"the header's field {_text(name)[:100]!r} is no text")
    return found


def _text(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _read_binary(header: bytes, body: BytesLike) -> Command:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
        remark, at = _read_text(header, _BINARY_HEAD.size, remark_bytes)
        (fields_bytes,) = _INT.unpack_from(header, at)
        at += 4
        if fields_bytes != len(header) - at:
            raise CommandError(f"the header's fields claim {fields_bytes} of {len(header) - at} bytes")
        fields: dict[str, str] = {}
        while at < len(header):
            name, at = _read_text(header, at + 2, _SHORT.unpack_from(header, at)[0])
            fields[name], at = _read_text(header, at + 4, _INT.unpack_from(header, at)[0])
            if len(fields) > FIELDS_MAX:
                raise CommandError(f"a header of more than {FIELDS_MAX} fields")
    except struct.error as error:
        raise CommandError(f"the binary header is broken: {error}") from None
    said_in = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(code, opaque, flag, fields or None, remark or None, body, said_in, version, True)


def _read_text(data: bytes, at: int, size: int) -> tuple[str, int]:
    if not 0 <= size <= len(data) - at:
        raise CommandError(f"a text of {size} bytes where {len(data) - at} are left")
    return data[at : at + size].decode("utf-8", "replace"), at + size
