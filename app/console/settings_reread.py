"""The console's configuration, read again on SIGHUP: what differs is said, for a console is made once, at its start.

Invariant: nothing that differs goes without a word: it is in
the log, and a problem of the console itself until a later SIGHUP finds it back at what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from app.console.console import Console
from node.changing_keys import differences
from node.config import Settings
from node.logs import Log

TABLES: Final = ("console", "oidc")
CONFIGURATION: Final = "the configuration"


class SettingsReread:
    """One per console. `read` gives what is wanted by now. Raises ConfigError."""

    def __init__(self, loaded: Settings, read: Callable[[], Settings], log: Log) -> None:
        self._in_force, self._read, self._log = loaded, read, log

    def follow(self, console: Console) -> None:
        """With the other files of that console, which is there once its app has started."""
        console.rereading.add(CONFIGURATION, self._read, partial(self.use, console))

    def use(self, console: Console, wanted: Settings) -> None:
        """Says what may not change."""
        needed = tuple(differences(self._in_force, wanted, TABLES))
        if needed:
            self._log.note("settings_not_changed", "warning", reason=f"restart needed: {', '.join(needed)}")
        console.restart_needed = needed
