"""What the logs of a group's members tell, put together by time: the reading half of tests about logs.

Invariant: only what the processes wrote is used. Two processes' lines count as in order when the later one is at most
SLACK older: times are milliseconds, and a busy machine may stop a process between its two clocks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

SLACK: Final = timedelta(milliseconds=20)
WITHIN_S: Final = 60.0
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A line that is looked for: all of `fields` are as given, and every one of `words` is part of its reason."""

    event: str
    words: tuple[str, ...] = ()
    fields: tuple[tuple[str, Any], ...] = ()

    def __call__(self, line: Line) -> bool:
        reason = str(line.get("reason", ""))
        return (
            line["event"] == self.event
            and all(word in reason for word in self.words)
            and all(line.get(name) == value for name, value in self.fields)
        )


def said(event: str, *words: str, **fields: Any) -> Said:
    return Said(event, words, tuple(fields.items()))


def when(line: Line) -> datetime:
    return datetime.fromisoformat(line["time"])


class Story:
    """The merged logs from some moment on."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._skip: dict[Path, int] = {}

    def begin(self) -> None:
        """What was written until now is not looked at any more."""
        self._skip = {path: len(self._lines(path)) for path in self._files}

    def lines(self) -> list[Line]:
        found = [json.loads(line) for path in self._files for line in self._lines(path)[self._skip.get(path, 0) :]]
        return sorted(found, key=when)

    def _lines(self, path: Path) -> list[str]:
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [line for line in whole.splitlines() if '"time"' in line]

    def tells(self, *wanted: Callable[[Line], bool]) -> list[Line]:
        """The lines that were looked for, in that order of time; as far as they are there."""
        found: list[Line] = []
        for look in wanted:
            after = when(found[-1]) - SLACK if found else None
            line = next((one for one in self.lines() if (after is None or when(one) >= after) and look(one)), None)
            if line is None:
                break
            found.append(line)
        return found

    async def reported(self, *wanted: Callable[[Line], bool]) -> list[Line]:
        """Waits until the story is there; fails with what is there instead."""
        deadline = time.monotonic() + WITHIN_S
        while len(found := self.tells(*wanted)) < len(wanted):
            if time.monotonic() > deadline:
                text = "\n".join(json.dumps(line) for line in self.lines() if line["process"] != "control")
                raise AssertionError(f"never told: {wanted[len(found)]}\nafter {found}\n{text}")
            await asyncio.sleep(0.1)
        return found
