"""Input of `produce`: a body a line, or a JSON object a line, as `consume --json` prints them.

Invariant: a line that no message can be made of ends the input there, with its number; what lay before it is sent.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from app.commands.endings import Exit, Failure

if TYPE_CHECKING:
    from node.message_client import OutgoingMessage

LINE_BYTES_MAX: Final = 8 * 1024 * 1024  # 4 MiB in base64, and more
# Of a message that was consumed: where it lay says nothing of where it is to go.
_ELSEWHERE: Final = frozenset({"topic", "queue_id", "queue_offset", "message_id"})


class Form(StrEnum):
    """How a line becomes a message."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Line:
    """A message, and which line it was, from 1."""

    number: int
    message: OutgoingMessage


def lines_of(source: BinaryIO) -> Iterator[bytes]:
    """Raises Failure for one that is too long."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise Failure(Exit.USAGE, f"line {number}: it is longer than {LINE_BYTES_MAX} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def messages_of(
    lines: Iterator[bytes], form: Form, plain: OutgoingMessage, level_of: Callable[[str | None], int]
) -> Iterator[Line]:
    """`plain`: what each has that says nothing else. An empty line of JSON is none. Raises Failure."""
    for number, line in enumerate(lines, 1):
        if form is Form.TEXT:
            yield Line(number, replace_body(plain, line))
        elif line.strip():
            try:
                yield Line(number, message_in(line, plain, level_of))
            except (ValueError, Failure) as error:
                raise Failure(Exit.USAGE, f"line {number}: {error}") from error


def replace_body(plain: OutgoingMessage, body: bytes) -> OutgoingMessage:
    return replace(plain, body=body)


def message_in(line: bytes, plain: OutgoingMessage, level_of: Callable[[str | None], int]) -> OutgoingMessage:
    """`body` (text) or `base64`; `keys`, `tags`, `shard`, `delay` and `properties` where they are there. Raises
    ValueError."""
    try:
        said = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(said, dict):
        raise ValueError('it is no object, as {"body": "text", "keys": ["N123"], "tags": "AA"}')
    said = {name: value for name, value in said.items() if name not in _ELSEWHERE and value is not None}
    changes: dict[str, Any] = {"body": _body(said)}
    if "keys" in said:
        changes["keys"] = _keys(said.pop("keys"))
    for name in ("tags", "shard"):
        if name in said:
            changes[name] = _text(name, said.pop(name)) or None
    if "delay" in said:
        changes["delay_level"] = level_of(_text("delay", said.pop("delay")))
    if "properties" in said:
        changes["properties"] = _properties(said.pop("properties"))
    if said:
        raise ValueError(f"{sorted(said)[0]!r} is nothing that a message has")
    return replace(plain, **changes)


def _body(said: dict[str, Any]) -> bytes:
    if ("body" in said) == ("base64" in said):
        raise ValueError('it needs "body" (text) or "base64", one of the two')
    if "body" in said:
        return _text("body", said.pop("body")).encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(_text("base64", said.pop("base64")), validate=True)
    except binascii.Error as error:
        raise ValueError(f"base64: {error}") from None


def _keys(value: Any) -> tuple[str, ...]:
    """A list, or separated by blanks as RocketMQ keeps them."""
    if isinstance(value, list):
        return tuple(_text("keys", one) for one in value)
    return tuple(_text("keys", value).split())


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {json.dumps(value)[:40]} is no text")
    return value


def _properties(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise ValueError("properties: it is no object")
    return tuple((name, _text(name, one)) for name, one in value.items())
