"""The lock of a broker's store: the file `lock`, held as RocketMQ holds it, so that two never write to one directory.

Invariants: held from before anything is changed until the process ends or lets go; the lock is of the open file, so
asking for it in the same process fails too.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from node.message_store.errors import MessageStoreError, StoreMoved
from node.message_store.store_files import LOCK_CONTENT
from node.message_store.write_files import leads_to

LOCK: Final = "lock"
_FLOCK: Final = struct.Struct("hhqqi4x")


class StoreLock:
    """Raises MessageStoreError where another process holds it."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = root / LOCK
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(self._fd)
            raise MessageStoreError(f"another broker runs in {root}: it holds {self._path}") from error
        os.pwrite(self._fd, LOCK_CONTENT, 0)

    def check_place(self) -> None:
        """Files that are open outlast their names, and end with this process. Raises StoreMoved."""
        found = os.fstat(self._fd)
        if not leads_to(self._path, (found.st_ino, found.st_dev)):
            raise StoreMoved(f"{self._path.parent} is not the directory any more that was opened")

    def release(self) -> None:
        os.close(self._fd)
