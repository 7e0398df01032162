"""The demo's processes: started so that none outlives the demo, stopped within three seconds.

Invariants: every process started here gets SIGTERM when the demo dies, however it dies (Linux: parent-death signal); a
stop never waits longer than STOP_WITHIN_S before it kills, and what it kills it kills with all descendants.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from node.children import apart, environment, how_ended, python

STOP_WITHIN_S: Final = 2.3


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in thread.read_text().split()]
    return found


def descendants_of(pid: int) -> Iterator[int]:
    """All descendants, nearest first."""
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def command_of(pid: int) -> list[str]:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def engine_of(supervisor_pid: int) -> int | None:
    """The engine's process id under a node's supervisor."""
    return next((pid for pid in children_of(supervisor_pid) if "node.server" in command_of(pid)), None)


def broker_of(supervisor_pid: int) -> int | None:
    """The broker's, where the node has one."""
    return next((pid for pid in children_of(supervisor_pid) if "node.broker" in command_of(pid)), None)


@dataclass(slots=True)
class Processes:
    """What the demo started, by name; each writes to its own file in `logs`."""

    logs: Path
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(
        self,
        name: str,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> asyncio.subprocess.Process:
        """Starts `python ARGUMENTS` with our own interpreter, and no settings but the ones on its command line.

        `prefix` is a command that ends by becoming the one behind it, in the same process: `nsenter --net=…`.
        """
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("QUORUMSCOPE_")}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *prefix,
                *python(*arguments),
                env=environment(inherited) | dict(variables or {}) | {"PYTHONUNBUFFERED": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=apart(signal.SIGTERM),
            )
        self.running[name] = process
        return process

    def last_words(self, name: str, lines: int = 3) -> str:
        """The end of a process's output, for an error message."""
        with contextlib.suppress(OSError):
            said = (self.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
            return " / ".join(said[-lines:])
        return ""

    def ended(self) -> dict[str, str]:
        """Those that run no more, each with how it ended."""
        codes = {name: one.returncode for name, one in self.running.items() if one.returncode is not None}
        return {name: f"{name} {how_ended(code)}" for name, code in codes.items()}

    async def stop(self) -> None:
        """Ends all of them, together, within STOP_WITHIN_S and a moment."""
        living = [process for process in self.running.values() if process.returncode is None]
        below = {process.pid: list(descendants_of(process.pid)) for process in living}
        for pid in (pid for pids in below.values() for pid in pids):
            _signal(pid, signal.SIGCONT)  # a paused one could not hear the rest
        for process in living:
            _signal(process.pid, signal.SIGTERM)
        ends = [asyncio.create_task(process.wait()) for process in living]
        if ends:
            await asyncio.wait(ends, timeout=STOP_WITHIN_S)
        for process in living:
            if process.returncode is None:
                for pid in (*descendants_of(process.pid), process.pid):
                    _signal(pid, signal.SIGKILL)
        await asyncio.gather(*ends)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
