"""A member's disk that fills up and gets space again.

Where this process may mount: a tmpfs of a few MiB under the member's data, filled by a file beside the store. Elsewhere
a quota: RLIMIT_FSIZE of the running engine, one byte below the length of a data file, so that the next file cannot be
had (EFBIG, which the store takes as no space) while all small files and those that are there can be written. As on a
full disk: what an engine that is started anew has to zero in them is space that it has.

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

    def __init__(self, data_file_bytes: int, supervisor: Callable[[], int | None]) -> None:
        self._limit, self._supervisor = data_file_bytes - 1, supervisor
        self.about = f"a quota: RLIMIT_FSIZE of {self._limit} bytes, too few for another data file"

    async def make(self) -> None:
        """Nothing to make."""

    def fill(self) -> None:
        self._set(self._limit)

    def free(self) -> None:
        self._set(resource.RLIM_INFINITY)

    def _set(self, limit: int) -> None:
        pid = self._supervisor()
        if pid is None:
            return
        for one in (pid, *descendants_of(pid)):
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(one, resource.RLIMIT_FSIZE)
                resource.prlimit(one, resource.RLIMIT_FSIZE, (limit, hard))
