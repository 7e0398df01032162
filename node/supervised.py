"""Between a node's supervisor and the processes below it: one asks for another to be ended and started again.

Asking is a signal to the parent. Invariant: only to a parent that said that it is this process's supervisor, and that
it takes that signal: any other (of a part of a node that somebody started alone, of a release that does not know the
signal) would die of it.
"""

from __future__ import annotations

import os
import signal
from typing import Final

START_AGAIN: Final = signal.SIGUSR1  # the engine
BROKER_AGAIN: Final = signal.SIGUSR2
_SUPERVISOR_PID: Final = "NODE_SUPERVISOR_PID"  # QUORUMSCOPE_… are settings
_TAKES_BROKER_AGAIN: Final = "NODE_SUPERVISOR_TAKES_BROKER_AGAIN"


def supervise_children() -> None:
    """This process is the supervisor of what it starts from now on."""
    os.environ[_SUPERVISOR_PID] = os.environ[_TAKES_BROKER_AGAIN] = str(os.getpid())


def is_supervised() -> bool:
    return os.environ.get(_SUPERVISOR_PID) == str(os.getppid())


def ask_for_another_engine() -> bool:
    """False: there is no supervisor, and nothing was asked."""
    return _asked(START_AGAIN, _SUPERVISOR_PID)


def ask_for_another_broker() -> bool:
    """The same."""
    return _asked(BROKER_AGAIN, _TAKES_BROKER_AGAIN)


def _asked(number: signal.Signals, name: str) -> bool:
    parent = os.getppid()
    if os.environ.get(name) != str(parent):
        return False
    os.kill(parent, number)
    return True
