"""The commands of `quorumscope`, put together and run (`app.cli` is the way in).

Invariants: usage errors are one line on stderr and exit 64; every other end has the exit code that `Exit` names; a
command exists here only if it works. Commands import what they need when they run, so that `--help` is quick.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from app.commands import (
    access_tokens,
    accounts,
    audit,
    backup,
    bench,
    brokers,
    consumers,
    demo,
    entries,
    group,
    ha,
    kv,
    ledger,
    live_topics,
    members,
    messages,
    migrate,
    nameserver,
    pki,
    restart,
    restore,
    scrub,
    services,
    simulate,
    store,
    store_hand_over,
    store_queues,
    topics_io,
    transfer,
    trim,
)
from app.commands import settings as settings_commands
from app.commands.common import Exit, Failure, quiet_broken_pipe, say
from app.empty_words import refusing_empty

ERROR_NUMBER = re.compile(r"\[Errno -?\d+\] ")
app = typer.Typer(
    name="quorumscope",
    help="A replicated commit log in the DLedger family, and the console that its operators never had.",
    epilog=(
        "Exit codes: 0 fine; 1 a finding; 2 could not be determined; 64 usage; 69 unreachable; 75 outcome unknown;"
        " 77 denied; 130 interrupted."
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


for part in (
    demo,
    services,
    group,
    transfer,
    ha,
    scrub,
    restart,
    trim,
    ledger,
    members,
    entries,
    kv,
    audit,
    backup,
    restore,
    store,
    store_hand_over,
    store_queues,
    messages,
    live_topics,
    topics_io,
    consumers,
    brokers,
    nameserver,
    migrate,
    settings_commands,
    accounts,
    access_tokens,
    pki,
    bench,
    simulate,
):
    part.register(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    try:
        command = refusing_empty(typer.main.get_command(app))
        given = None if arguments is None else list(arguments)
        code = command.main(args=given, prog_name="quorumscope", standalone_mode=False)
    except Failure as failure:
        say(f"quorumscope: {one_line(str(failure))}")
        return failure.code
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(str(error))
            return Exit.USAGE
        where = getattr(getattr(error, "ctx", None), "command_path", "quorumscope")
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
        say(f"quorumscope: {one_line(str(error)) or type(error).__name__}")  # a time-out says nothing itself
        return Exit.UNDETERMINED
    except Exception:
        # A mistake of ours: 1 would read as a finding.
        traceback.print_exc()
        return Exit.UNDETERMINED
    if code == Exit.INTERRUPTED:
        say("interrupted")
    return int(code) if isinstance(code, int) else Exit.FINE


def one_line(text: str) -> str:
    """The same text without line breaks, an operating system's error numbers or a trailing full stop."""
    return " ".join(ERROR_NUMBER.sub("", text).split()).rstrip(".")
