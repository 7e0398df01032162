"""Files that a running process reads again when it gets SIGHUP: certificates, keys, authorities, secrets, tokens.

Each process has one `Rereading`; `add` is called beside what uses a file, and the list of all of them is the table in
docs/operations.md ("Files that are read again"). Invariants: each part is read whole and checked before any of it
counts; what cannot be read leaves in force what was read before, is said in the log, and stands in `troubles` until
it was read again; nothing that is open is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from node.background import reason_of

T = TypeVar("T")
Note = Callable[[str, str, dict[str, Any]], None]
TEXT_MAX: Final = 300
LEVELS: Final = {"info": logging.INFO, "error": logging.ERROR}
log = logging.getLogger(__name__)


def note_in_log(kind: str, severity: str, detail: dict[str, Any]) -> None:
    log.log(LEVELS[severity], "%s: %s", kind, detail["reason"])


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that could not be read again; `text` names it and says why."""

    what: str
    text: str
    since: datetime


class Rereading:
    """See the module's docstring. `note(kind, severity, detail)` is called with what came of it."""

    def __init__(self, note: Note = note_in_log) -> None:
        self.note = note
        self._parts: dict[str, Callable[[], None]] = {}
        self.troubles: dict[str, Trouble] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts)

    def add(self, what: str, read: Callable[[], T], use: Callable[[T], None]) -> None:
        """`read` gives what `use` then puts in force; it changes nothing, and raises OSError or ValueError."""
        self._parts[what] = lambda: use(read())

    def again(self) -> None:
        """Reads all of them; one that is broken does not keep the others back."""
        done = [what for what in self._parts if self._renewed(what)]
        self.note("reread", "info", {"reason": ", ".join(done) or "nothing: no file is named that could be read again"})

    def one(self, what: str) -> None:
        """Reads this one, such as a file that was seen to have changed."""
        if self._renewed(what):
            self.note("reread", "info", {"reason": what})

    def _renewed(self, what: str) -> bool:
        try:
            self._parts[what]()
        except (OSError, ValueError) as error:
            text = f"{what}: {(str(error) or reason_of(error))[:TEXT_MAX]}; what was read before stays in force"
            known = self.troubles.get(what)
            self.troubles[what] = Trouble(what, text, known.since if known else datetime.now(UTC))
            self.note("not_reread", "error", {"reason": text})
            return False
        self.troubles.pop(what, None)
        return True

    @property
    def text(self) -> str | None:
        """All troubles in one line; None where there are none."""
        return "; ".join(one.text for one in self.troubles.values()) or None

    @property
    def since(self) -> datetime | None:
        """Since when the oldest of them stands."""
        return min((one.since for one in self.troubles.values()), default=None)

    @property
    def since_text(self) -> str | None:
        """The same as RFC 3339."""
        return None if self.since is None else self.since.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HangUp:
    """Has a running loop act on SIGHUP: the files are read again, or, where it means that our terminal was closed, the
    process ends as it would with SIGTERM."""

    def __init__(self, again: Callable[[], None], end: Callable[[], None]) -> None:
        self._again, self._end = again, end
        self._terminals = [one for one in (0, 1, 2) if os.isatty(one)]

    def listen(self) -> None:
        """One that came while the process started counts now (`node.children.apart` holds it back until here)."""
        with contextlib.suppress(RuntimeError, ValueError):  # not the main thread: no signal ever comes here
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def ignore(self) -> None:
        """From here on it means nothing: the process ends, and what it still has to do is done after its loop, which
        leaves the system's way with a SIGHUP behind, to kill."""
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _on_signal(self) -> None:
        if self._terminals and not any(os.isatty(one) for one in self._terminals):
            self._end()
        else:
            self._again()
