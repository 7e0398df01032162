"""How one event is written in a log: as JSON, or as a line for people, in colours on a terminal.

Written here, because a library for it (structlog) loads a terminal library where one is installed (rich), which was an
eighth of each process's start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from node.printable import escaped_json

Write = Callable[[Mapping[str, Any]], str]
LEVEL_WIDTH: Final = 9
EVENT_WIDTH: Final = 18
SPOKEN: Final = ("time", "level", "event", "exception")  # fields that a line for people does not name
QUOTED: Final = frozenset(" \t=\r\n\"'")
DIM, BRIGHT, CYAN, MAGENTA = "\033[2m", "\033[1m", "\033[36m", "\033[35m"
OF_LEVEL: Final = {"error": "\033[31m", "warning": "\033[33m", "info": "\033[32m", "debug": "\033[32m"}


def as_json(fields: Mapping[str, Any]) -> str:
    """One object; what JSON has no form for is written as its text."""
    return escaped_json(json.dumps(fields, ensure_ascii=False, default=str))


def for_people(*, colours: bool) -> Write:
    """`time [level] event name=value …`; an exception's traceback stands below. The first three must be there."""

    def painted(style: str, text: str) -> str:
        return f"{style}{text}\033[0m" if colours else text

    def write(fields: Mapping[str, Any]) -> str:
        level = str(fields["level"])
        words = [
            painted(DIM, str(fields["time"])),
            f"[{painted(OF_LEVEL.get(level, '') + BRIGHT, level.ljust(LEVEL_WIDTH))}]",
            painted(BRIGHT, str(fields["event"]).ljust(EVENT_WIDTH)),
        ]
        words += [
            f"{painted(CYAN, name)}={painted(MAGENTA, _value(value))}"
            for name, value in fields.items()
            if name not in SPOKEN
        ]
        line = " ".join(words).rstrip(" ")
        return f"{line}\n{fields['exception']}" if "exception" in fields else line

    return write


def _value(value: object) -> str:
    return value if isinstance(value, str) and not set(value) & QUOTED else repr(value)
