"""A file that is kept open for the lock on it: which lock, its taker knows (`DirectoryLock`, `DataLock`).

Invariants: the lock ends with the descriptor, so with the process, however it ends; where it is not had, nothing is
held.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from node.store.errors import wrap
from node.store.files.platform import Platform, leads_to


class LockFile:
    """Held until `release`. `take`: locks the descriptor, or raises."""

    def __init__(self, path: Path, platform: Platform, take: Callable[[int], None]) -> None:
        """Raises StoreError where the file cannot be had, and what `take` raises."""
        self._platform, self._path = platform, path
        try:
            self._fd = platform.open(path, os.O_RDWR | os.O_CREAT)
            self._key = platform.file_key(self._fd)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error
        try:
            take(self._fd)
        except BaseException:
            self.release()
            raise

    def is_in_place(self) -> bool:
        """Whether its path still leads to it."""
        return leads_to(self._path, self._key, self._platform)

    def release(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            self._platform.close(self._fd)
            self._fd = -1
