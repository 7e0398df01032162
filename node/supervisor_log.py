"""The supervisor's part of a member's log.

It passes its arguments on unread and loads no configuration, so what its log needs is picked from them: `--log-level`,
`--log-format`, `--id` and `--group`, else their QUORUMSCOPE_NODE__ variables, else the file that they name.
Invariants: whatever it finds, there is a log; who judges the arguments is the engine. A supervisor with nothing
to say loads nothing either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.regular_file import CONFIG_BYTES_MAX, read_regular

if TYPE_CHECKING:
    from node.logs import Log


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """What a flag says, `--set`, the environment and the file included; the last one counts."""
    flag, setting = f"--{name.replace('_', '-')}", f"node.{name}="
    found = in_file(arguments, name)
    for variable in (f"QUORUMSCOPE_NODE_{name.upper()}", f"QUORUMSCOPE_NODE__{name.upper()}"):
        found = os.environ.get(variable, found)
    for number, word in enumerate(arguments):
        after = arguments[number + 1] if number + 1 < len(arguments) else None
        if word == flag:
            found = after
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
        elif word == "--set" and after is not None and after.startswith(setting):
            found = after.removeprefix(setting)
    return found


def in_file(arguments: Sequence[str], name: str) -> str | None:
    """What [node] says in the configuration file; None where it says nothing, or is none (the engine says so)."""
    path = os.environ.get("QUORUMSCOPE_CONFIG", "")
    for number, word in enumerate(arguments):
        if word == "--config" and number + 1 < len(arguments):
            path = arguments[number + 1]
        elif word.startswith("--config="):
            path = word.partition("=")[2]
    if not path:
        return None
    import tomllib

    try:
        found = tomllib.loads(read_regular(Path(path), CONFIG_BYTES_MAX).decode()).get("node", {}).get(name)
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def open_log(arguments: Sequence[str]) -> Log:
    from node.logs import LEVELS, Log

    level = value_of(arguments, "log_level")
    return Log(
        "supervisor",
        level if level in LEVELS else "info",  # type: ignore[arg-type]
        "json" if value_of(arguments, "log_format") == "json" else "console",
        member=value_of(arguments, "id"),
        group=value_of(arguments, "group") or "default",
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
