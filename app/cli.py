"""Entry point of the command line: the `quorumscope` script calls `main`.

Invariants: a Ctrl-C ends every command with 130 and one line, also while modules are still being imported and while the
interpreter takes itself down; so do SIGHUP (its terminal was closed, an SSH connection broke) and, with 143, SIGTERM,
for what was done by then is to be said; a reader that goes away (`| head`) is no error. Nothing is imported here that
the interpreter has not imported for itself: `signal`, `contextlib` and `typing` take longer than all before, and a
Ctrl-C that comes meanwhile is a traceback. What is left of that is the interpreter's own start, `site` most of all.
"""

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIG_IGN,
    SIGHUP,
    SIGINT,
    SIGTERM,
    default_int_handler,
    getsignal,
    raise_signal,
)
from _signal import signal as handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
TERMINATED = 143
_asked_to_end: "list[int]" = []  # each SIGTERM


def leave_at_once(_number: int, _frame: object) -> None:
    """For a Ctrl-C where no command runs: raised into an import it would be a traceback, or be swallowed."""
    say_interrupted()
    os._exit(TERMINATED if _asked_to_end else INTERRUPTED)


def end_in_order(number: int, _frame: object) -> None:
    """SIGTERM and SIGHUP are a Ctrl-C to whatever runs; where that one is ignored (a job in the background), it is
    raised here."""
    if number == SIGTERM:
        _asked_to_end.append(number)
    if getsignal(SIGINT) in (SIG_IGN, None):
        raise KeyboardInterrupt
    raise_signal(SIGINT)


def say_interrupted() -> None:
    try:  # noqa: SIM105 (contextlib is not at hand yet)
        os.write(2, b"interrupted\n")
    except OSError:
        pass  # nobody listens


def open_what_is_closed() -> None:
    """Where a shell closed standard input, output or errors (`>&-`), the next file to be opened would take that number,
    and get what is printed, or what a child process prints."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (as long as the process)


def run(arguments: "Sequence[str] | None" = None) -> int:
    """Runs one command; returns its exit code."""
    from app.command_line import run as run_command

    return run_command(arguments)


def main() -> None:
    """The console script."""
    open_what_is_closed()
    # Who ignores it already (nohup, a background job) goes on ignoring it.
    handled = getsignal(SIGINT) is default_int_handler
    if handled:
        handle(SIGINT, leave_at_once)
    for number in (SIGTERM, SIGHUP):
        if getsignal(number) == SIG_DFL:
            handle(number, end_in_order)
    # What stdout has no character for (no UTF-8, a path's bytes that are none) is escaped, as on stderr.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    from app.command_line import flushed, refused
    from app.command_line import run as run_command

    try:
        if handled:
            handle(SIGINT, default_int_handler)
        code = int(run_command())
    except KeyboardInterrupt:
        say_interrupted()
        code = INTERRUPTED
    if code == INTERRUPTED and _asked_to_end:
        code = TERMINATED
    if handled:
        handle(SIGINT, leave_at_once)
    try:
        flushed()
    except BrokenPipeError:
        pass  # a reader such as `head` has enough
    except OSError as error:
        code = refused(error)
    sys.exit(code)


if __name__ == "__main__":
    main()
