"""`nameserver`: RocketMQ's name service, stand-alone.

Invariant: the command line is checked here, completely, before anything starts; the server is then *this* process
(`python -m node.name_service` by exec), so that a service manager's signals reach it directly.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.services import LogFormatOption, LogLevelOption
from node.children import environment, python
from node.protocol.peers import split_address

DEFAULT_LISTEN: Final = "127.0.0.1:9876"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("console", "json")


def nameserver(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where brokers and clients find it; this machine alone by default.")
    ] = DEFAULT_LISTEN,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:
    """Run RocketMQ's name service, stand-alone.

    Its protocol knows no passwords: whoever reaches the port may register brokers.
    """
    try:
        split_address(listen)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--listen: {error}") from error
    level, form = log_level or "info", log_format or "console"
    if level not in LEVELS:
        raise Failure(Exit.USAGE, f"--log-level {level}: one of {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise Failure(Exit.USAGE, f"--log-format {form}: one of {', '.join(FORMATS)}")
    arguments = ["--listen", listen, "--log-level", level, "--log-format", form]
    # A Ctrl-C that comes while the server's modules are imported waits until it can end in order.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execve(sys.executable, python("-m", "node.name_service", *arguments), environment())


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(nameserver)
