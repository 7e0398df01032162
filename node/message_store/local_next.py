"""The commit log's next file, made ahead in a thread under another name (RocketMQ's AllocateMappedFileService).

A roll is a rename then: nothing is synced by whoever puts. The new name is on disk with the next flush, which syncs the
folder; until then no further file is begun this way, or of two new names a power loss could leave the later one alone.

Invariants: the file that stands ready has its length, and zeros only, on disk; it is never one of the log's before it
has its name; what a start finds of it is removed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import StoreMoved
from node.message_store.read_files import Files
from node.message_store.write_files import Disk

NAME: Final = "next-file"


class NextFile:
    """See the module's docstring. `folder`: the commit log's."""

    def __init__(self, root: Path, folder: Path, file_bytes: int, disk: Disk, files: Files) -> None:
        self._path, self._folder, self._file_bytes = root / OURS / NAME, folder, file_bytes
        self._disk = disk
        self.is_ready = False
        self.is_named = False  # one has its name, which no flush has synced yet
        if files.size(self._path) is not None:
            disk.remove(self._path)

    def make(self, disk: Disk) -> None:
        """In any thread, with a disk of its own; then `is_ready` is set by the owner. Raises OSError, StoreMoved."""
        try:
            disk.create(self._path, self._file_bytes)
        except FileNotFoundError as error:
            raise StoreMoved(f"{self._path.parent} is not there any more") from error
        disk.sync(self._path)
        disk.sync_folder(self._path.parent)

    def take(self, path: Path) -> bool:
        """It is the file of that name from now on; False: none is ready."""
        if not self.is_ready or self.is_named:
            return False
        self.is_ready = False
        try:
            self._disk.rename(self._path, path)
        except OSError:  # a folder of its own mount, for example
            return False
        self.is_named = True
        return True

    def sync_name(self, disk: Disk) -> None:
        """In any thread, as part of a flush. Raises OSError."""
        disk.sync_folder(self._folder)

    def remove(self) -> None:
        """A clean stop leaves what RocketMQ would."""
        self.is_ready = False
        self._disk.remove(self._path)
