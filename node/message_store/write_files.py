"""Files of a store of ours that are written: the few operations that there are, and nothing else.

Invariants: a file has its full length from birth; every operation either happened or raised OSError; nothing is on
disk before `sync` of the file (and `sync_folder` of where its name stands) returned; few files are open at once.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from node.message_store.errors import StoreMoved
from node.private_files import private_folder
from node.protocol.entry import BytesLike

OPEN_MAX: Final = 128
PIECE_BYTES: Final = 1024 * 1024


class Disk(Protocol):
    """What is done to files."""

    def create(self, path: Path, size_bytes: int) -> None:
        """A new file of zeros in a directory that is there; one that is there is emptied."""

    def write(self, path: Path, offset: int, data: BytesLike) -> None:
        """Into a file that is there."""

    def zero_from(self, path: Path, offset: int) -> None:
        """All bytes from `offset` to the end of the file, from the back to the front; its length stays as it is."""

    def replace(self, path: Path, data: bytes) -> None:
        """A small file, whole and on disk, or what was there before."""

    def make_folder(self, path: Path) -> None:
        """With those above it; nothing where it is there."""

    def rename(self, path: Path, to: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """A file or a directory with all that is in it; nothing where there is none."""

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        """Big-endian numbers in a file, to be changed in place; their room on the disk is taken first."""

    def sync(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def key_of(self, path: Path) -> tuple[int, int] | None:
        """What tells the file that is open here by that path from every other (inode, device). None: none is."""

    def close(self) -> None: ...


def leads_to(path: Path, key: tuple[int, int]) -> bool:
    """Whether the path still leads to the open file of that key (inode, device): not where it, or a directory above it,
    was removed, renamed or replaced."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it cannot be looked at, which makes it no other file; a sync fails by itself
        return True
    return (found.st_ino, found.st_dev) == key


def sync_same(disk: Disk, path: Path, key: tuple[int, int] | None) -> None:
    """All of a file is on disk, and its name still leads to the one of that key, which was written to. Raises OSError:
    StoreMoved where it was removed or replaced, so that the next process would not find what was written."""
    try:
        disk.sync(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreMoved(f"{path} is not there any more") from error
    if key not in (None, disk.key_of(path)):
        raise StoreMoved(f"{path} is not the file any more that was written to")


class Unsynced(NamedTuple):
    """Files with content, and folders with names, that are not on disk for sure."""

    files: list[Path]
    folders: list[Path]

    def sync(self, disk: Disk) -> None:
        """All of it is on disk, but for what was removed meanwhile. Raises OSError."""
        for path in self.files:
            with contextlib.suppress(FileNotFoundError):
                disk.sync(path)
        for path in self.folders:
            with contextlib.suppress(FileNotFoundError):
                disk.sync_folder(path)


class OsDisk:
    """The files of this machine."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def _fd(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._open[path] = fd
        if len(self._open) > OPEN_MAX:
            os.close(self._open.popitem(last=False)[1])
        return fd

    def _forget(self, path: Path) -> None:
        for one in [one for one in self._open if one == path or path in one.parents]:
            os.close(self._open.pop(one))

    def create(self, path: Path, size_bytes: int) -> None:
        self._forget(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size_bytes)
        finally:
            os.close(fd)

    def write(self, path: Path, offset: int, data: BytesLike) -> None:
        fd = self._fd(path)
        view = memoryview(data)
        try:
            done = os.pwrite(fd, view, offset)
            while done < len(view):
                done += os.pwrite(fd, view[done:], offset + done)
        except OSError as error:
            raise _named(error, path) from error

    def zero_from(self, path: Path, offset: int) -> None:
        fd = self._fd(path)
        # In place: a process that ended between cutting a file off and making it long again would leave a short one.
        for first, last in reversed(_written(fd, offset)):
            while last > first:
                low = max(first, last - PIECE_BYTES)
                self.write(path, low, bytes(last - low))
                last = low

    def replace(self, path: Path, data: bytes) -> None:
        private_folder(path.parent)
        beside = path.with_name(f"{path.name}.tmp")
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError as error:
            raise _named(error, path) from error
        finally:
            os.close(fd)
        self._forget(path)
        os.replace(beside, path)
        self.sync_folder(path.parent)

    def make_folder(self, path: Path) -> None:
        private_folder(path)

    def rename(self, path: Path, to: Path) -> None:
        self._forget(path)
        self._forget(to)
        os.replace(path, to)

    def remove(self, path: Path) -> None:
        self._forget(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        fd = self._fd(path)
        os.posix_fallocate(fd, 0, offset + count * 4)  # or a full disk would end the process at the first look
        shared = mmap.mmap(fd, offset + count * 4, access=mmap.ACCESS_WRITE)
        return np.frombuffer(shared, ">i4", count, offset)

    def sync(self, path: Path) -> None:
        os.fdatasync(self._fd(path))

    def sync_folder(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def key_of(self, path: Path) -> tuple[int, int] | None:
        fd = self._open.get(path)
        if fd is None:
            return None
        found = os.fstat(fd)
        return found.st_ino, found.st_dev

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def _named(error: OSError, path: Path) -> OSError:
    """What a descriptor raises names no file."""
    return OSError(error.errno, error.strerror, str(path))


def _written(fd: int, offset: int) -> list[tuple[int, int]]:
    """The ranges of a file from `offset` on that are no holes, as (from, to) in ascending order."""
    found: list[tuple[int, int]] = []
    size = os.fstat(fd).st_size
    while offset < size:
        try:
            first = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        offset = os.lseek(fd, first, os.SEEK_HOLE)
        found.append((first, offset))
    return found
