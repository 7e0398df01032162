"""The file of an SQLite database as it was when this process first opened it.

A file that is removed or replaced goes on taking writes from whoever has it open, and nobody ever reads them again. So
what would be written then is refused instead, and no connection begins an empty file in its place.
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


class OpenedFile:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.known: tuple[int, int] | None = None

    def found(self) -> tuple[int, int] | None:
        try:
            seen = os.stat(self.path)
        except OSError:
            return None
        return seen.st_dev, seen.st_ino

    def check(self) -> None:
        """Raises sqlite3.OperationalError."""
        if self.known is not None and self.found() != self.known:
            raise sqlite3.OperationalError(GONE)

    def connecting(self, *_: Any) -> None:
        """Before SQLite makes a file where none is."""
        self.check()

    def connected(self, *_: Any) -> None:
        self.known = self.known or self.found()
