"""Bodies as fastjson writes and reads them: JSON, but for the names of a map, which may be numbers or whole objects.

`{"offsetTable":{0:5}}` has a number for a name, `{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}` an
object. Both are written where Java writes them, and read wherever they come.

Invariants: whatever the bytes, reading ends in a value or in BodyError; nothing is parsed before its length and the
count of its values are bounded; a name that is a number reads as that number, one that is an object as a `Name`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from node.protocol.entry import BytesLike

BODY_BYTES_MAX: Final = 64 * 1024
VALUES_MAX: Final = 16_384
DEPTH_MAX: Final = 16
_encode_text = json.JSONEncoder(ensure_ascii=False).encode
_read_text = json.JSONDecoder().raw_decode
_NUMBER: Final = re.compile(r"-?\d{1,19}(?![\d.eE])")
_OTHER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


class BodyError(ValueError):
    """A body that is not what its request's code says."""


Name = tuple[tuple[str, Any], ...]
"""An object as a name: its fields in their order."""


def dump(value: Any) -> bytes:
    """As fastjson writes it: no spaces, names that are numbers bare, names that are tuples of fields as objects."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8", "replace")


def bean(**fields: Any) -> dict[str, Any]:
    """An object as fastjson writes a Java bean: names in alphabetical order, nulls left out."""
    return {name: fields[name] for name in sorted(fields) if fields[name] is not None}


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(_encode_text(value))
    elif value is None or isinstance(value, bool):
        parts.append("null" if value is None else "true" if value else "false")
    elif isinstance(value, int | float):
        parts.append(repr(value))
    elif isinstance(value, Mapping):
        parts.append("{")
        for at, (name, item) in enumerate(value.items()):
            parts.append("," if at else "")
            _write(dict(name) if isinstance(name, tuple) else name, parts)
            parts.append(":")
            _write(item, parts)
        parts.append("}")
    else:
        parts.append("[")
        for at, item in enumerate(value):
            parts.append("," if at else "")
            _write(item, parts)
        parts.append("]")


def load(body: BytesLike, bytes_max: int = BODY_BYTES_MAX, values_max: int = VALUES_MAX) -> dict[Any, Any]:
    """The object that the body is. Raises BodyError.

    Commas are counted before anything is parsed: there are at most as many values as these, and one for each level.
    """
    if len(body) > bytes_max:
        raise BodyError(f"a body of {len(body)} bytes; {bytes_max} at most here")
    raw = bytes(body)
    if raw.count(b",") > values_max:
        raise BodyError(f"a body of more than {values_max} values")
    text = raw.decode("utf-8", "replace")
    try:
        found = json.loads(text)
    except RecursionError:
        raise BodyError("the body is nested too deeply") from None
    except ValueError:
        found = _Reader(text).whole()
    if not isinstance(found, dict):
        raise BodyError("the body is no object")
    return found


class _Reader:
    """For what `json` does not read; slower, and so only tried then."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> Any:
        try:
            found = self._value(0)
            self._space()
        except (ValueError, IndexError) as error:
            reason = error if isinstance(error, BodyError) else f"the body is not JSON at character {self._at}"
            raise BodyError(str(reason)) from None
        if self._at != len(self._text):
            raise BodyError(f"the body goes on behind its end, at character {self._at}")
        return found

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _takes(self, sign: str) -> bool:
        self._space()
        if self._text[self._at] != sign:
            return False
        self._at += 1
        return True

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BodyError("the body is nested too deeply")
        self._space()
        sign = self._text[self._at]
        if sign == '"':
            found, self._at = _read_text(self._text, self._at)
            return found
        if sign == "{":
            self._at += 1
            return self._object(depth + 1)
        if sign == "[":
            self._at += 1
            return self._items(depth + 1)
        match = _OTHER.match(self._text, self._at)
        if match is None:
            raise BodyError(f"the body is not JSON at character {self._at}")
        self._at = match.end()
        return json.loads(match[0])

    def _items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        if self._takes("]"):
            return found
        while True:
            found.append(self._value(depth))
            if self._takes("]"):
                return found
            if not self._takes(","):
                raise BodyError(f"no comma at character {self._at} of the body")

    def _object(self, depth: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        if self._takes("}"):
            return found
        while True:
            name = self._name(depth)
            if not self._takes(":"):
                raise BodyError(f"no colon at character {self._at} of the body")
            found[name] = self._value(depth)
            if self._takes("}"):
                return found
            if not self._takes(","):
                raise BodyError(f"no comma at character {self._at} of the body")

    def _name(self, depth: int) -> Any:
        self._space()
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._at = number.end()
            return int(number[0])
        name = self._value(depth)
        if isinstance(name, dict):
            name = tuple(name.items())
        if not isinstance(name, str | tuple):
            raise BodyError(f"no name at character {self._at} of the body")
        try:
            hash(name)
        except TypeError:
            raise BodyError("a name that is an object of objects") from None
        return name


# --- fields of an object --------------------------------------------------------------------------------------------
# As fastjson's TypeUtils.cast: clients in other languages write numbers as texts, and enums as their ordinals (the C++
# client says `"subVersion":"1795391713349"` and `"messageModel":1`).
def text_in(said: Mapping[Any, Any], name: str, default: str | None = None) -> str:
    """A text, or what fastjson makes one of. Raises BodyError where it is missing without a default, or an object."""
    value = said.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        raise BodyError(f"{name} is no text")
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def number_in(said: Mapping[Any, Any], name: str, default: int | None = None) -> int:
    """An int64, also one that is written as a text. Raises BodyError."""
    value = said.get(name)
    if isinstance(value, str):
        if value in ("", "null"):
            value = None
        elif _NUMBER.fullmatch(value) and value.isascii():
            value = int(value)
    if value is None and default is not None:
        return default
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise BodyError(f"{name} is no int64")
    return value


def flag_in(said: Mapping[Any, Any], name: str, default: bool = False) -> bool:
    """True or false, also as 1 and 0 and as texts. Raises BodyError."""
    value = said.get(name)
    if isinstance(value, str):
        value = _FLAGS.get(value.lower(), value)
    elif type(value) is int:
        value = _FLAGS.get(str(value), value)
    if value is None or value == "":
        return default
    if not isinstance(value, bool):
        raise BodyError(f"{name} is not true or false")
    return value


def choice_in(said: Mapping[Any, Any], name: str, choices: Sequence[str], default: str) -> str:
    """A Java enum's constant by its name (an unknown one as it stands), or by its ordinal. Raises BodyError."""
    value = said.get(name)
    if type(value) is not int:
        return text_in(said, name, default)
    if not 0 <= value < len(choices):
        raise BodyError(f"{name} is {value}: 0 to {len(choices) - 1} are known")
    return choices[value]


def items_in(said: Mapping[Any, Any], name: str) -> list[Any]:
    """Empty where it is missing. Raises BodyError."""
    value = said.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BodyError(f"{name} is no list")
    return value


def object_in(said: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """Empty where it is missing. Raises BodyError."""
    value = said.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BodyError(f"{name} is no object")
    return value
