"""Typed headers from a command's extFields, and back: what Java does by reflection over a header class.

A header is a frozen value class; a field's name on the wire is its own in camelCase, or what `WIRE_NAMES` of the class
says; its type is `str`, `int` or `bool`, and `... | None` or a default makes it optional.

Invariants: reading ends in a header or in HeaderError, whose text is the one of the Java exception; a number is an
int64; what is not in the class is ignored.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar

H = TypeVar("H")
TEXT_SHOWN: Final = 100
_REMOTING_ERROR: Final = "org.apache.rocketmq.remoting.exception.RemotingCommandException"
_INT64: Final = 1 << 63


class HeaderError(ValueError):
    """A header that lacks a field, or has one of another kind: answered with SYSTEM_ERROR and this text."""


class _Field(typing.NamedTuple):
    attribute: str
    wire: str
    kind: type
    required: bool
    default: Any


_known: dict[type, tuple[_Field, ...]] = {}  # of the header classes that there are


def _fields_of(kind: type) -> tuple[_Field, ...]:
    if kind not in _known:
        _known[kind] = _look_up(kind)
    return _known[kind]


def _look_up(kind: type) -> tuple[_Field, ...]:
    names: Mapping[str, str] = getattr(kind, "WIRE_NAMES", {})
    hints = typing.get_type_hints(kind)
    found: list[_Field] = []
    for one in dataclasses.fields(kind):
        options = [option for option in typing.get_args(hints[one.name]) if option is not type(None)]
        optional = bool(options)
        has_default = one.default is not dataclasses.MISSING
        found.append(
            _Field(
                one.name, names.get(one.name) or camel_case(one.name), options[0] if options else hints[one.name],
                not optional and not has_default, one.default if has_default else None,
            )
        )  # fmt: skip
    return tuple(found)


def camel_case(name: str) -> str:
    """`queue_offset` is queueOffset on the wire."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def read_header(kind: type[H], said: Mapping[str, str] | None) -> H:
    """Raises HeaderError."""
    found: list[Any] = []
    said = said or {}
    for field in _fields_of(kind):
        value = said.get(field.wire)
        if value is None:
            if field.required:
                raise HeaderError(f"{_REMOTING_ERROR}: the custom field <{field.wire}> is null")
            found.append(field.default)
        elif field.kind is int:
            found.append(_number(value))
        else:
            found.append(value if field.kind is str else value.lower() == "true")  # as Boolean.parseBoolean
    return kind(*found)


def _number(value: str) -> int:
    """As Long.parseLong: ASCII digits with a sign, and nothing around them."""
    digits = value[1:] if value[:1] in ("-", "+") else value
    if digits.isascii() and digits.isdigit() and len(digits) <= 19:
        number = int(value)
        if -_INT64 <= number < _INT64:
            return number
    raise HeaderError(f'java.lang.NumberFormatException: For input string: "{value[:TEXT_SHOWN]}"')


def write_header(header: object) -> dict[str, str]:
    """The extFields; nulls are left out."""
    found: dict[str, str] = {}
    for field in _fields_of(type(header)):
        value = getattr(header, field.attribute)
        if value is not None:
            found[field.wire] = ("true" if value else "false") if field.kind is bool else str(value)
    return found
