"""`DATA/lock`, the file that a RocketMQ broker locks: held by ours, so that no broker starts on the same directory.

Java's lock is an exclusive POSIX record lock of byte 0. Ours is a shared one of the same byte, so that engine and
supervisor both hold it, and so do members that share a directory; each keeps a broker out, and a broker keeps each out.
It is of Linux's kind that belongs to the open file (F_OFD_SETLK), which conflicts with Java's just the same: a lock of
the process would be gone as soon as anything in it closed any descriptor of that file.

It is not enough by itself: Java recovers, and cuts, before it locks (`files/java_files.py`). Invariants: the file's
content is Java's and never written; whose store `DATA/dledger-<id>` is, `DirectoryLock` settles.
"""

from __future__ import annotations

import os
from pathlib import Path

from node.store.errors import StoreRefused, wrap
from node.store.files.platform import OS, Platform

DATA_LOCK = "lock"


class DataLock:
    """Held until `release`, or until the process ends, however it ends."""

    def __init__(self, data: Path, platform: Platform = OS) -> None:
        """Raises StoreRefused where a broker holds it, StoreError where the file cannot be had."""
        path = data / DATA_LOCK
        self._platform = platform
        try:
            self._fd = platform.open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error
        try:
            holder = platform.lock_shared(self._fd)
        except OSError as error:
            platform.close(self._fd)
            raise wrap(error, f"locking {path}") from error
        if holder is not None:
            platform.close(self._fd)
            who = f"process {holder}" if holder > 0 else "a process on another machine, or in another container"
            raise StoreRefused(
                f"{data} is open in another process: {who} holds {path}, as a RocketMQ broker does; stop that first"
            )

    def release(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            self._platform.close(self._fd)
            self._fd = -1
