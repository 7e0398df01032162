"""How a command ends: the exit codes, and the failures that carry them.

Invariant: a command ends with one of `Exit`'s codes and says why in one line when that is not 0 (1 and 2 speak through
the result itself).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Exit(IntEnum):
    """The exit codes (INTERFACES, "Command line")."""

    FINE = 0
    FINDING = 1
    UNDETERMINED = 2
    USAGE = 64
    UNREACHABLE = 69
    UNKNOWN_OUTCOME = 75
    DENIED = 77
    INTERRUPTED = 130


class Failure(Exception):
    """Ends a command with `code`; the message is the one line that stderr gets."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotThere(Failure):
    """A control plane answered 404."""


class Silence(StrEnum):
    """Why nothing was heard."""

    NOTHING_LISTENS = "nothing_listens"  # a machine answers there, and the process does not run
    NO_WORD = "no_word"  # who was asked, or its machine, says nothing in time: nobody knows whether it runs
    BROKEN = "broken"  # a connection that ended, TLS that does not fit, a name that is none


class Unheard(Failure):
    """A control plane gave no answer; of a change that left nobody knows whether it was made."""

    def __init__(self, code: Exit, message: str, silence: Silence) -> None:
        super().__init__(code, message)
        self.silence = silence


class ClassicBroker(Failure):
    """The control plane is that of a master or slave in classic mode, no group's."""

    def __init__(self, url: str) -> None:
        text = f"{url} is a broker in classic mode, no member of a group: `quorumscope ha status --node {url}`"
        super().__init__(Exit.USAGE, text)
