"""Ends what a process has started, and what that started in turn, when the process is gone, however it went (Linux).

A parent-death signal (`node.children`) ends direct children; it is tied to one thread, and a child that is stopped, or
that made a session of its own, or whose parent was ended first, can outlive it. A guardian finds all of them: they
carry a mark in their environment, which children inherit. It is a small process that waits for the end of a pipe.

Invariants: only processes with that very mark are ended, by their id; marks of guardians above are kept, so that theirs
still hold; the guardian itself outlives its owner by the few seconds that it needs.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MARKS: Final = "QS_STARTED_BY"  # no QUORUMSCOPE_ name: it is no setting
WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 0.05
CALM_LOOKS: Final = 2  # so often nothing was found: whatever was just being started is seen


class Guardian:
    """Watches over what this process starts from now on; `close` ends what is left of it."""

    def __init__(self) -> None:
        self._pipe: subprocess.Popen[bytes] | None = None
        if not Path("/proc/self/environ").exists():
            return
        self.mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        # Isolated, without site: it starts in a few milliseconds, and nothing of the current folder can reach it.
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), self.mark]
        self._pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        os.environ[MARKS] = ":".join([mark for mark in (os.environ.get(MARKS), self.mark) if mark])
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A fork of the owner must not hold the pipe open when the owner itself is gone."""
        if self._pipe is not None and self._pipe.stdin is not None:
            self._pipe.stdin.close()
            self._pipe = None

    def close(self) -> None:
        """Ends what is left, and returns when that is done."""
        if self._pipe is None:
            return
        marks = [mark for mark in os.environ.get(MARKS, "").split(":") if mark and mark != self.mark]
        os.environ[MARKS] = ":".join(marks)
        self._pipe.communicate(timeout=2 * WITHIN_S)
        self._pipe = None


def marked(mark: str) -> Iterator[int]:
    """The processes that carry it, but for ourselves."""
    wanted = mark.encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone by now, or somebody else's
            variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            found = next((one for one in variables if one.startswith(MARKS.encode() + b"=")), b"")
            if wanted in found.partition(b"=")[2].split(b":"):
                yield int(entry.name)


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return ""


def end_all(mark: str) -> None:
    """SIGKILL for each, until none is found any more: what is stopped dies of that too."""
    deadline = time.monotonic() + WITHIN_S
    calm, terminated = 0, set()
    while calm < CALM_LOOKS and time.monotonic() < deadline:
        found = list(marked(mark))
        for pid in found:
            if pid not in terminated:
                terminated.add(pid)
                print(f"ending what was left running: {pid} {command_of(pid)}", file=sys.stderr, flush=True)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        calm = 0 if found else calm + 1
        time.sleep(LOOK_EVERY_S)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    with contextlib.suppress(BrokenPipeError):
        end_all(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
