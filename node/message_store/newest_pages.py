"""The part of a commit log that stays in the page cache: its newest bytes (`[store] page_cache_bytes`).

As in a member's log (`node/store/files/cache_window.py`): a log is written once and read mostly while it is new, yet
the kernel keeps all of it for as long as there is memory, and takes pages back at the writers' cost. What is before the
window is dropped once it is on the disk; who reads it makes the kernel fetch it again.

Invariants: only what a flush has synced is dropped; dropping changes no byte and never fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from node.message_store.local_recovery import file_name
from node.message_store.write_files import Disk

FOLIO_BYTES_MAX: Final = 2 << 20  # the kernel drops nothing of what is only partly in a range
STEPS: Final = 64  # in so many parts a window moves on


class NewestPages:
    """Of the files in a folder. `keep_bytes` 0: everything stays as long as the kernel likes."""

    def __init__(self, folder: Path, file_bytes: int, end: int) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self.keep_bytes = 0
        self._end = end  # where the window ended last; what an earlier process left behind is not looked for

    def leaving(self, end: int) -> Callable[[Disk], None]:
        """For a thread, once all below `end` is on the disk: what leaves the window goes from the page cache."""
        if not self.keep_bytes or end - self._end < max(1, self.keep_bytes // STEPS):
            self._end = min(self._end, end)  # it was cut
            return _nothing
        first, upto = self._end - self.keep_bytes - FOLIO_BYTES_MAX, end - self.keep_bytes
        self._end = end
        return lambda _disk: self._drop(max(0, first), upto)

    def _drop(self, first: int, upto: int) -> None:
        for start in range(first - first % self._file_bytes, upto, self._file_bytes):
            begin, end = max(first, start), min(upto, start + self._file_bytes)
            with contextlib.suppress(OSError):  # it has expired
                fd = os.open(self._folder / file_name(start), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(fd, begin - start, end - begin, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)


def _nothing(_disk: Disk) -> None: ...
