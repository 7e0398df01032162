"""A member's disk that fills up and gets space again.

Where this process may mount: a tmpfs of a few MiB under the member's data, filled by a file beside the store. Elsewhere
a quota: RLIMIT_FSIZE of the running engine, set just above what its files hold, so that the next allocation is refused
(EFBIG, which the store takes as no space) while everything that is allocated can still be written.

Invariant: `free` undoes `fill` entirely, also after the engine was started anew in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from app.demo.processes import descendants_of
from tests.process.net_namespaces import tool

FILLER: Final = "somebody-elses-file"
_CHUNK: Final = bytes(64 * 1024)
_HEADROOM_BYTES: Final = 4096


class SmallDisk(Protocol):
    """`about` says what stands in for a full disk here."""

    about: str

    async def make(self) -> None: ...

    def fill(self) -> None:
        """No space from now on; call it again to take what was freed meanwhile."""
        ...

    def free(self) -> None: ...


class TmpfsDisk:
    """Mounted at `directory`, which it makes; it ends with this process's mount namespace."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory, self._size_bytes = directory, size_bytes
        self.about = f"a tmpfs of {size_bytes >> 20} MiB, filled by a file beside the store"

    async def make(self) -> None:
        self.directory.mkdir(parents=True)
        await tool("mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "none", str(self.directory))

    def fill(self) -> None:
        fd = os.open(self.directory / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while True:
                os.write(fd, _CHUNK)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(fd)

    def free(self) -> None:
        (self.directory / FILLER).unlink(missing_ok=True)


class QuotaDisk:
    """RLIMIT_FSIZE of what runs below the member's supervisor, and of the supervisor itself for what it starts."""

    about = "a quota: RLIMIT_FSIZE of the engine, just above what its files hold"

    def __init__(self, store: Path, supervisor: Callable[[], int | None]) -> None:
        self._store, self._supervisor = store, supervisor
        self._limit = resource.RLIM_INFINITY

    async def make(self) -> None:
        """Nothing to make."""

    def fill(self) -> None:
        if self._limit == resource.RLIM_INFINITY:
            held = [_held_bytes(path) for folder in ("data", "index") for path in (self._store / folder).glob("[0-9]*")]
            self._limit = max(held, default=0) + _HEADROOM_BYTES
        self._set(self._limit)

    def free(self) -> None:
        self._limit = resource.RLIM_INFINITY
        self._set(self._limit)

    def _set(self, limit: int) -> None:
        pid = self._supervisor()
        if pid is None:
            return
        for one in (pid, *descendants_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(one, resource.RLIMIT_FSIZE)
                resource.prlimit(one, resource.RLIMIT_FSIZE, (limit, hard))


def _held_bytes(path: Path) -> int:
    """The length up to which a sparse file is allocated."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0
