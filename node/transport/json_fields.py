"""Fields of a JSON body (FORMATS 2): fastjson's forms, read by name.

Keys are written alphabetically and nulls left out, bytes are base64, CRCs signed 32-bit numbers. Reading takes any
order, ignores unknown keys, and gives a missing key DLedger's default.

Invariant: whatever the bytes, reading ends in a value or in BodyError.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from node.protocol.codes import ResponseCode
from node.protocol.entry import TERM_MAX, BytesLike
from node.transport.remoting import is_text
from node.transport.slab_frames import BodyError, response_code

__all__ = ["BodyError", "Fields", "dump", "load", "signed", "unsigned"]

T = TypeVar("T")
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
SHORT_TEXT_MAX: Final = 128
BODY_BYTES_MAX: Final = 64 * 1024  # but for entries in JSON
VALUES_MAX: Final = 16_384


def signed(crc: int | None) -> int | None:
    """An unsigned CRC-32 as fastjson reads it: an int."""
    return None if crc is None else crc - (1 << 32) if crc >= 1 << 31 else crc


def unsigned(crc: int | None) -> int | None:
    return None if crc is None else crc & 0xFFFFFFFF


def dump(fields: Mapping[str, Any]) -> bytes:
    """A body as fastjson writes a bean: alphabetical, nulls left out."""
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


class Fields:
    """A JSON object, read by name and type. Every getter raises BodyError on a value of another type."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def number(self, name: str, default: int = -1) -> int:
        """An int64. Raises BodyError."""
        value = self.values.get(name)
        if value is None:
            return default
        if type(value) is not int or not INT64_MIN <= value <= INT64_MAX:
            raise BodyError(f"{name} is not an int64")
        return value

    def term(self) -> int:
        """One that can still be followed by others: a single message must not use up all terms. Raises BodyError."""
        value = self.number("term")
        if value > TERM_MAX:
            raise BodyError(f"term {value} exceeds TERM_MAX")
        return value

    def optional_number(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.number(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not is_text(value):
            raise BodyError(f"{name} is not a string")
        assert isinstance(value, str)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def short_text(self, name: str) -> str | None:
        """An id, a nonce or a proof: it is kept, so its length is bounded."""
        return None if self.values.get(name) is None else self.id_text(name)

    def id_text(self, name: str) -> str:
        """The same where it is always there; empty where it is not. Raises BodyError."""
        value = self.text(name)
        if len(value) > SHORT_TEXT_MAX:
            raise BodyError(f"{name} has {len(value)} characters, {SHORT_TEXT_MAX} at most")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise BodyError(f"{name} is not true or false")
        return value

    def blob(self, name: str) -> bytes | None:
        """Bytes from base64; None where the key is missing."""
        value = self.optional_text(name)
        return None if value is None else _unbase64(name, value)

    def items(self, name: str) -> list[Any]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BodyError(f"{name} is not a list")
        return value

    def texts(self, name: str) -> dict[str, str]:
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(map(is_text, (*value, *value.values()))):
            raise BodyError(f"{name} is not a table of strings")
        return value

    def list_of_texts(self, name: str) -> list[str]:
        items = self.items(name)
        if not all(map(is_text, items)):
            raise BodyError(f"{name} is not a list of strings")
        return items

    def blobs(self, name: str) -> list[bytes]:
        return [_unbase64(name, item) for item in self.items(name)]

    def nested(self, name: str) -> Fields | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise BodyError(f"{name} is not an object")
        return Fields(value)

    def choice(self, name: str, kind: Callable[[str], T], default: T) -> T:
        """A member of a string enumeration. Raises BodyError."""
        value = self.values.get(name)
        if value is None:
            return default
        try:
            return kind(self.text(name))
        except ValueError:
            raise BodyError(f"{name} {value!r} is not known") from None

    def code(self) -> ResponseCode:
        return response_code(self.number("code", ResponseCode.SUCCESS))


def _unbase64(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise BodyError(f"{name} is not base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise BodyError(f"{name} is not base64") from None


def load(body: BytesLike, bytes_max: int = BODY_BYTES_MAX, values_max: int = VALUES_MAX) -> Fields:
    """Raises BodyError unless the body is a JSON object, one that is parsed in no time.

    Commas are counted before anything is parsed: there are at most as many values as these, and one for each level that
    they are nested in, of which the parser allows few.
    """
    if len(body) > bytes_max:
        raise BodyError(f"a JSON body of {len(body)} bytes; {bytes_max} at most here")
    raw = bytes(body)
    if raw.count(b",") > values_max:
        raise BodyError(f"a JSON body of more than {values_max} values")
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise BodyError("the body is not a JSON object")
    return Fields(values)
