"""`DATA/lock`, the file that a RocketMQ broker locks: held by ours, so that no broker starts on the same directory.

Java's lock is an exclusive POSIX record lock of byte 0. Engine and supervisor hold a shared one of the same byte, and
so do members that share a directory; each keeps a broker out, and a broker keeps each out. A repair by hand holds an
exclusive one while it writes, so it keeps everybody out, and everybody keeps it out. Ours are of Linux's kind that
belongs to the open file (F_OFD_SETLK), which conflicts with Java's just the same: a lock of the process would be gone
as soon as anything in it closed any descriptor of that file.

It is not enough by itself: Java recovers, and cuts, before it locks (`files/java_files.py`). Invariants: the file's
content is Java's and never written; whose store `DATA/dledger-<id>` is, `DirectoryLock` settles.
"""

from __future__ import annotations

from pathlib import Path

from node.store.errors import StoreRefused, wrap
from node.store.files.lock_file import LockFile
from node.store.files.platform import OS, Platform

DATA_LOCK = "lock"
OF_AN_OPEN_FILE = -1  # what the system says in place of a process: only ours take such locks


class DataLock:
    """Held until `release`, or until the process ends, however it ends. `alone`: also against others of ours."""

    def __init__(self, data: Path, platform: Platform = OS, *, alone: bool = False) -> None:
        """Raises StoreRefused where somebody holds it who keeps us out, StoreError where the file cannot be had."""
        path = data / DATA_LOCK

        def take(fd: int) -> None:
            try:
                holder = platform.lock_first_byte(fd, alone=alone)
            except OSError as error:
                raise wrap(error, f"locking {path}") from error
            if holder is not None:
                raise StoreRefused(f"{data} is open in another process: {_who(holder, path, alone=alone)}")

        self._file = LockFile(path, platform, take)

    def release(self) -> None:
        """Idempotent."""
        self._file.release()


def _who(holder: int, path: Path, *, alone: bool) -> str:
    """Who keeps us out, and what to do."""
    if holder == OF_AN_OPEN_FILE and alone:
        who = "an engine, a supervisor (`quorumscope node`) or another repair"
        return f"{who} holds {path}; stop every member that keeps its store there, then give this command again"
    if holder == OF_AN_OPEN_FILE:
        return f"`store repair` or `store adopt` holds {path}; start the member when that has ended"
    who = f"process {holder}" if holder > 0 else "a process on another machine, or in another container"
    return f"{who} holds {path}, as a RocketMQ broker does; stop that first"
