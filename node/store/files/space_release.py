"""Gives the space of large files that are removed back to the disk bit by bit, in a thread of its own.

Theory. When the last name of a file goes, the kernel drops its pages and frees its blocks in one piece: some 0.4 s a
GiB, in the thread that removed it and in the journal's commit, for which every sync of anybody waits. So the name goes
at once, which is all that a log needs, and the file stays open and is shortened in steps, with a pause behind each.

Invariants: a file is shortened only when it has no name any more (an archive may have it under another one) and nobody
else has it open or mapped (SAFETY S4: a lease for writing is given to nobody else's company); who has it open keeps all
of it, and frees it with its own last look; nobody waits for this thread, and what a process leaves undone at its end
the kernel does.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

LARGE_BYTES: Final = 64 * 1024 * 1024  # smaller files go at once
STEP_BYTES: Final = 8 * 1024 * 1024
PAUSE_S: Final = 0.01  # behind each step
ALONE_WITHIN_S: Final = 30.0  # so long others may have it open; then it is left to them
LOOK_S: Final = 0.1
NAME: Final = "store-space"


class Unnamed(NamedTuple):
    """A file that has no name any more; `left_from_s`: from then on it is left to whoever else has it open."""

    fd: int
    size_bytes: int
    left_from_s: float


class SpaceRelease:
    """One per process; its thread runs while there is something to free."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Unnamed] = deque()
        self._running = False
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """What is removed, and still counts as used."""
        return self._pending_bytes

    def remove(self, path: Path, unlink: Callable[[Path], None]) -> None:
        """The name is gone on return; one that is not there is fine. Raises OSError."""
        fd = _opened(path)
        try:
            unlink(path)
            if fd is None:
                return
            found = os.fstat(fd)
            if found.st_nlink > 0:
                os.close(fd)
                return
        except OSError:
            if fd is not None:
                os.close(fd)
            raise
        size_bytes = found.st_size
        with self._lock:
            self._waiting.append(Unnamed(fd, size_bytes, time.monotonic() + ALONE_WITHIN_S))
            self._pending_bytes += size_bytes
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name=NAME, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                one = self._waiting.popleft()
            if _is_alone(one.fd):
                self._free(one)
            elif time.monotonic() < one.left_from_s:
                with self._lock:
                    self._waiting.append(one)
                time.sleep(LOOK_S)
            else:
                self._close(one.fd, one.size_bytes)

    def _free(self, one: Unnamed) -> None:
        left_bytes = one.size_bytes
        with suppress(OSError):  # a disk that fails is seen elsewhere; the space comes back with the close
            while left_bytes > 0:
                step_bytes = min(STEP_BYTES, left_bytes)
                os.ftruncate(one.fd, left_bytes - step_bytes)
                left_bytes -= step_bytes
                self._freed(step_bytes)
                time.sleep(PAUSE_S)
        self._close(one.fd, left_bytes)

    def _close(self, fd: int, left_bytes: int) -> None:
        with suppress(OSError):
            os.close(fd)
        self._freed(left_bytes)

    def _freed(self, size_bytes: int) -> None:
        with self._lock:
            self._pending_bytes -= size_bytes


def _opened(path: Path) -> int | None:
    """A large file, for writing; None: it is none, or cannot be had, and goes at once."""
    with suppress(OSError):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_size >= LARGE_BYTES:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return None


def _is_alone(fd: int) -> bool:
    """Whether nobody else has that file open; nobody can open it any more, as it has no name."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:  # others have it; or leases are not known here
        return False
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True
