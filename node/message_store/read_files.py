"""Files of a store that somebody else may be writing: names, lengths, bytes; nothing else, and nothing is written.

RocketMQ's files have one length from birth, and a name that is the offset of their first byte: a row of them is one
space of bytes (MappedFileQueue there, and here).

Invariants: no read is longer than was asked for; a file that goes away meanwhile reads as nothing, never as an error;
`MappedFileQueue` holds files of one length only, others are listed in `odd_files` and not read.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import stat
import struct
from collections import Counter
from pathlib import Path
from typing import Final, Protocol

from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

NAME_DIGITS: Final = 20
POSITION_MAX: Final = (1 << 63) - 1
FILE_BYTES_MAX: Final = (1 << 31) - 1  # an int there; of more, whoever made it wants it to be read for hours
OWNER_FILE: Final = "quorumscope-owns"  # keeps a Java broker out of a directory of ours; holds nothing


class Files(Protocol):
    """What is read of a file system."""

    def names(self, folder: Path) -> list[str]:
        """Sorted; empty where there is no such directory."""

    def size(self, path: Path) -> int | None:
        """A file's length; None where there is no file of that name."""

    def is_folder(self, path: Path) -> bool: ...

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """Fewer bytes at the end of the file; none where it is gone."""

    def mapped(self, path: Path) -> BytesLike:
        """All of a file, read where it is looked at; empty where it is gone."""

    def locked_by(self, path: Path) -> int | None:
        """The process that holds a record lock on the file, -1 where it cannot be named; None: nobody does."""


class OsFiles:
    """The files of this machine. Raises OSError where one is there and cannot be read."""

    def names(self, folder: Path) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, path: Path) -> int | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def read(self, path: Path, offset: int, length: int) -> bytes:
        fd = _opened(path)
        if fd is None:
            return b""
        try:
            found = os.pread(fd, length, offset)
            while 0 < len(found) < length and (more := os.pread(fd, length - len(found), offset + len(found))):
                found += more
            return found
        finally:
            os.close(fd)

    def mapped(self, path: Path) -> BytesLike:
        """A file that expires stays until the last look at it; nobody shortens one."""
        fd = _opened(path)
        if fd is None:
            return b""
        try:
            return memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ)) if os.fstat(fd).st_size else b""
        finally:
            os.close(fd)

    def locked_by(self, path: Path) -> int | None:
        try:
            fd = _opened(path)
        except PermissionError:
            return None
        if fd is None:
            return None
        try:  # asks, and takes none
            wanted = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
            kind, _whence, _start, _length, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))
        finally:
            os.close(fd)
        return None if kind == fcntl.F_UNLCK else pid if pid > 0 else -1


def _opened(path: Path) -> int | None:
    """A descriptor; None where there is no file of that name: a FIFO would be waited for, a device read, for ever."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


_FLOCK: Final = struct.Struct("hhqqi4x")
OS: Final[Files] = OsFiles()


@value_class(slots=True, frozen=True)
class MappedFile:
    """One file of a row. `end` is the offset behind its last byte."""

    name: str
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


class MappedFileQueue:
    """See the module's docstring."""

    def __init__(self, folder: Path, files: Files = OS) -> None:
        self.folder = folder
        self._files = files
        self.rescan()

    def rescan(self) -> None:
        """Looks again which files there are."""
        found: list[MappedFile] = []
        self.odd_files: list[tuple[str, str]] = []
        for name in self._files.names(self.folder):
            if not (name.isascii() and name.isdigit() and len(name) == NAME_DIGITS and int(name) <= POSITION_MAX):
                if name != OWNER_FILE:
                    self.odd_files.append((name, "is no name of a file in this row (20 digits)"))
                continue
            size = self._files.size(self.folder / name)
            if size is None:
                self.odd_files.append((name, "is no file"))
            elif size > FILE_BYTES_MAX:
                self.odd_files.append((name, f"has {size} bytes, more than RocketMQ's files can have"))
            else:
                found.append(MappedFile(name, int(name), size))
        lengths = Counter(one.size_bytes for one in found if one.size_bytes)
        self.file_size_bytes = lengths.most_common(1)[0][0] if lengths else 0
        self.files: list[MappedFile] = []
        for one in found:
            if one.size_bytes == self.file_size_bytes and not (self.files and one.start < self.files[-1].end):
                self.files.append(one)
            elif one.size_bytes != self.file_size_bytes:
                text = f"has {one.size_bytes} bytes, the files of this row have {self.file_size_bytes}"
                self.odd_files.append((one.name, text))
            else:
                self.odd_files.append((one.name, f"begins within the file before it, {self.files[-1].name}"))
        self._starts = [one.start for one in self.files]

    @property
    def min_offset(self) -> int:
        """Where the first file begins; 0 without files."""
        return self._starts[0] if self._starts else 0

    @property
    def end_offset(self) -> int:
        """Behind the last byte of the last file."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file in which `offset` lies."""
        at = bisect.bisect_right(self._starts, offset) - 1
        return self.files[at] if at >= 0 and offset < self.files[at].end else None

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of one file: fewer where it ends, none where there is no file."""
        file = self.find(offset)
        if file is None or length <= 0:
            return b""
        return self._files.read(self.folder / file.name, offset - file.start, min(length, file.end - offset))

    def is_gone(self, file: MappedFile) -> bool:
        """Whether a file of this row has expired meanwhile."""
        return self._files.size(self.folder / file.name) is None


class Window:
    """Reads forward through one file, a large piece at a time."""

    PIECE_BYTES: Final = 1 << 20

    def __init__(self, queue: MappedFileQueue) -> None:
        self._queue = queue
        self._data = b""
        self._begin = 0

    def read(self, offset: int, length: int) -> tuple[bytes, int]:
        """A piece that has `length` bytes from `offset` on, or as many as the file has, and where in it they begin."""
        at = offset - self._begin
        if not 0 <= at <= len(self._data) - length:
            self._data = self._queue.read(offset, max(length, self.PIECE_BYTES))
            self._begin, at = offset, 0
        return self._data, at
