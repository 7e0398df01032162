"""The file that a row of segments goes on in, made before it is needed, so that no append waits for a disk (SAFETY S9).

It is beside the folder (`next-data`, `next-index`), where nobody takes it for a part of the log, synced at its full
length. An append that needs it renames it into the row, and the group commit that makes that append durable syncs the
folder. Invariants: only who may wait makes one (the writer's thread, an open); a leftover of an earlier process is
never used, as after a power cut its name may be a second one of a file in the row.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from node.store.errors import StoreFull, wrap
from node.store.files.platform import Platform


class NextFile:
    """One per row of segments that is written to."""

    def __init__(self, path: Path, size_bytes: int, platform: Platform) -> None:
        self.path, self._size_bytes, self._platform = path, size_bytes, platform
        self._made: deque[Path] = deque(maxlen=1)  # made by the writer, taken by the loop: its own steps need no lock

    @property
    def is_there(self) -> bool:
        return bool(self._made)

    def make(self) -> None:
        """Creates and syncs it, unless it is there. Raises StoreIOError; a full disk is met by who writes to it."""
        if self._made:
            return
        platform = self._platform
        with suppress(StoreFull):
            try:
                self._remove()
                fd = platform.open(self.path, os.O_RDWR | os.O_CREAT)
                try:
                    platform.ftruncate(fd, self._size_bytes)
                    platform.fsync(fd)
                finally:
                    platform.close(fd)
            except OSError as error:
                raise wrap(error, f"creating {self.path}") from error
            self._made.append(self.path)

    def take(self, target: Path) -> bool:
        """Puts it into the row; its new name is not durable yet. False: there is none. Raises StoreIOError."""
        try:
            made = self._made.popleft()
        except IndexError:
            return False
        try:
            self._platform.replace(made, target)
        except OSError as error:
            raise wrap(error, f"renaming {made} to {target}") from error
        return True

    def discard(self) -> None:
        """Removes what was made, or what an earlier process left. Raises StoreIOError."""
        self._made.clear()
        try:
            self._remove()
        except OSError as error:
            raise wrap(error, f"removing {self.path}") from error

    def _remove(self) -> None:
        if self._platform.exists(self.path):
            self._platform.unlink(self.path)
