"""The way in: the `quorumscope` script calls `main`.

Invariants: a Ctrl-C ends every command with 130 and one line, also while modules are still being imported and while the
interpreter takes itself down; a reader that goes away (`| head`) is no error. Nothing is imported here that takes time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

INTERRUPTED: Final = 130


def leave_at_once(_number: int, _frame: Any) -> None:
    """For a Ctrl-C where no command runs: raised into an import it would be a traceback, or be swallowed."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    from app.command_line import run as run_command

    return run_command(arguments)


def main() -> None:
    """The console script."""
    # Who ignores it already (nohup, a background job) goes on ignoring it.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, leave_at_once)
    from app.command_line import run as run_command

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = int(run_command())
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            os.write(2, b"interrupted\n")
        code = INTERRUPTED
    if handled:
        signal.signal(signal.SIGINT, leave_at_once)
    from app.commands.common import quiet_broken_pipe

    try:
        sys.stdout.flush()
    except BrokenPipeError:
        quiet_broken_pipe()
    sys.exit(code)


if __name__ == "__main__":
    main()
