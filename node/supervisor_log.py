"""The supervisor's part of a member's log.

It passes its arguments on unread and loads no configuration, so what its log needs is picked from them: `--log-level`,
`--log-format`, `--id` and `--group`, or their QUORUMSCOPE_NODE__ variables (`quorumscope node` always names all four).
Invariants: whatever it finds, there is a log; who judges the arguments is the engine. A supervisor with nothing
to say loads nothing either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.logs import Log


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """What a flag says, `--set` and the environment included; the last one counts."""
    flag, setting = f"--{name.replace('_', '-')}", f"node.{name}="
    found = os.environ.get(f"QUORUMSCOPE_NODE__{name.upper()}")
    for number, word in enumerate(arguments):
        after = arguments[number + 1] if number + 1 < len(arguments) else None
        if word == flag:
            found = after
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == "--set" and after is not None and after.startswith(setting):
            found = after.removeprefix(setting)
    return found


def open_log(arguments: Sequence[str]) -> Log:
    from node.logs import LEVELS, Log

    level = value_of(arguments, "log_level")
    return Log(
        "supervisor",
        level if level in LEVELS else "info",  # type: ignore[arg-type]
        "json" if value_of(arguments, "log_format") == "json" else "console",
        member=value_of(arguments, "id"),
        group=value_of(arguments, "group"),
    )


class SupervisorLog:
    """Opened by its first line."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments
        self._log: Log | None = None

    def note(self, event: str, severity: str = "info", **fields: Any) -> None:
        if self._log is None:
            self._log = open_log(self._arguments)
        self._log.note(event, severity, **fields)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


OURS = SupervisorLog(sys.argv[1:])
note = OURS.note
