"""The files of an SQLite database as they were when this process first opened them.

A file that is removed or replaced goes on taking writes from whoever has it open, and nobody ever reads them again. So
what would be written then is refused instead, and no connection begins an empty file in its place. The same is true of
its write-ahead log, which SQLite itself removes only once nobody has the database open any more.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final

GONE: Final = (
    "its file was removed or replaced while it was open;"
    " put it back as it was, or stop the console, put another one there, and start it"
)
LOG_GONE: Final = (
    "its write-ahead log (-wal) was removed or replaced while it was open;"
    " stop the console, which saves what it can, and start it"
)
Found = tuple[int, int] | None


def found(path: Path) -> Found:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


class OpenedFile:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.log = Path(f"{self.path}-wal")
        self.known: Found = None
        self.known_log: Found = None
        self.open = 0  # connections of this process

    def check(self) -> None:
        """Raises sqlite3.OperationalError."""
        if self.known is not None and found(self.path) != self.known:
            raise sqlite3.OperationalError(GONE)
        log = found(self.log)
        if self.open and self.known_log is not None and log != self.known_log:
            raise sqlite3.OperationalError(LOG_GONE)
        self.known_log = log if self.open else None

    def connecting(self, *_: Any) -> None:
        """Before SQLite makes a file where none is."""
        self.check()

    def connected(self, *_: Any) -> None:
        self.known = self.known or found(self.path)
        self.open += 1

    def closed(self, *_: Any) -> None:
        self.open -= 1
        if not self.open:  # the last one takes the log with it
            self.known_log = None
