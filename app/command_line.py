"""The commands of `quorumscope`, put together and run (`app.cli` is the way in).

Invariants: usage errors are one line on stderr and exit 64; every other end has the exit code that `Exit` names; a
command exists here only if it works. Only the modules of the command that is asked for are imported, and they import
what they need when they run: a command begins a third sooner than with all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

import typer
from typer.exceptions import TyperException

from app.commands.endings import Exit, Failure
from app.commands.output import say
from app.refused_words import refusing

ERROR_NUMBER = re.compile(r"\[Errno -?\d+\] ")
# Each command, in the order of `--help`, and the modules of app/commands that make it up.
FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "demo": ("demo",),
    "node": ("services",),
    "console": ("services",),
    "status": ("group",),
    "transfer": ("transfer",),
    "ha": ("ha",),
    "scrub": ("scrub",),
    "restart": ("restart",),
    "trim": ("trim",),
    "pins": ("pins",),
    "append": ("ledger",),
    "members": ("members",),
    "get": ("entries",),
    "tail": ("entries",),
    "kv": ("kv",),
    "audit": ("audit",),
    "backup": ("backup",),
    "restore": ("restore",),
    "store": ("store", "store_hand_over", "store_queues"),
    "message": ("messages",),
    "topic": ("messages", "live_topics"),
    "produce": ("topics_io",),
    "consume": ("topics_io",),
    "consumer": ("consumers",),
    "broker": ("brokers",),
    "nameserver": ("nameserver",),
    "migrate": ("migrate",),
    "config": ("settings",),
    "db": ("accounts",),
    "user": ("accounts",),
    "token": ("accounts",),
    "trail": ("accounts",),
    "access": ("access_tokens",),
    "pki": ("pki",),
    "bench": ("bench",),
    "simulate": ("simulate",),
}
ALL: Final = tuple(dict.fromkeys(family for families in FAMILIES.values() for family in families))
_registered: set[str] = set()
app = typer.Typer(
    name="quorumscope",
    help="A replicated commit log in the DLedger family, and the console that its operators never had.",
    epilog=(
        "Exit codes: 0 fine; 1 a finding; 2 could not be determined; 64 usage; 69 unreachable; 75 outcome unknown;"
        " 77 denied; 130 interrupted; 143 terminated."
    ),
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"quorumscope {version('quorumscope')}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before a command."""


def bring_in(words: Sequence[str]) -> None:
    """Registers the commands that these words ask for, or all of them where they name none (`--help`, a slip)."""
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None and "--version" in words:
        return
    for family in FAMILIES.get(name or "", ALL):
        if family not in _registered:
            _registered.add(family)
            import_module(f"app.commands.{family}").register(app)


@cache
def put_together(_families: frozenset[str]) -> Any:
    """What is registered by now, which takes 0.2 s for all commands: once for each state, for who runs many."""
    return refusing(typer.main.get_command(app))


def family_in(words: Sequence[str]) -> list[str]:
    """The command that these words begin with, for an error whose own command is not known."""
    return [word for word in words[:1] if word in FAMILIES]


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        bring_in(given)
        code = put_together(frozenset(_registered)).main(args=given, prog_name="quorumscope", standalone_mode=False)
    except Failure as failure:
        say(f"quorumscope: {one_line(str(failure))}")
        return failure.code
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(str(error))
            return Exit.USAGE
        where = getattr(getattr(error, "ctx", None), "command_path", " ".join(["quorumscope", *family_in(given)]))
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        say(f"{where}: {one_line(message.replace('Value error, ', ''))} (see {where} --help)")
        return Exit.USAGE
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        quiet_broken_pipe()
        return Exit.FINE
    except SystemExit as leaving:
        # The library ends a command with 1 where its reader went away, as `head` does once it has enough.
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        quiet_broken_pipe()
        return Exit.FINE
    except OSError as error:
        with contextlib.suppress(OSError):
            flushed()  # where it was stdout that failed, what is left of it fails once more
        return refused(error)
    except Exception:
        # A mistake of ours: 1 would read as a finding. What it was made with may be a stranger's words.
        for line in traceback.format_exc().rstrip().split("\n"):
            say(f"| {line}")  # none of its lines begins as ours do
        return Exit.UNDETERMINED
    if code == Exit.INTERRUPTED:
        say("interrupted")
    return int(code) if isinstance(code, int) else Exit.FINE


def one_line(text: str) -> str:
    """The same text without line breaks, an operating system's error numbers or a trailing full stop."""
    return " ".join(ERROR_NUMBER.sub("", text).split()).rstrip(".")


def refused(error: OSError) -> Exit:
    """Says what an operating system refused, the printing of a result for one; the exit code."""
    said = one_line(str(error)) or type(error).__name__  # a time-out says nothing itself
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of no file: what getcwd raises
        said = "the current directory was removed: `cd` to one that exists, and run it again"
    say(f"quorumscope: {said}")
    return Exit.UNDETERMINED


def flushed() -> None:
    """Prints what stdout still holds. Raises OSError where it cannot be, and then no second time: it is dropped, or the
    interpreter would print a traceback of its own at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        quiet_broken_pipe()
        raise


def quiet_broken_pipe() -> None:
    """After a reader such as `head` went away: nothing more to say, and no traceback at exit either."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
