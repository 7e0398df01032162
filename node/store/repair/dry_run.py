"""A platform on which everything may be tried and nothing happens: what is written stays aside and goes with it.

`store repair` runs every action here first. So `--dry-run` says what the action itself would say, and an action that
refuses half-way has changed nothing.

Invariants: the machine below is only ever read: no file is made, written, renamed, removed or synced, and a lock is
only tried, never kept. What is written over a file that exists is kept page by page, and not at all where it is what
is there already; a new file's bytes go to an unnamed temporary file, so memory does not grow with an archive.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TypeVar

from node.protocol.entry import POSITION_MAX
from node.store.files.platform import FILE, OS, Platform

T = TypeVar("T")
_PAGE_BYTES = 4096
_ZERO_PAGE = bytes(_PAGE_BYTES)


@dataclass(slots=True)
class _Layer:
    """What was written over one file that exists."""

    path: Path  # where it is on the machine below
    length: int
    below: int  # bytes of the file below that still count
    pages: dict[int, bytes] = field(default_factory=dict)
    written_from: int = POSITION_MAX  # nothing before it was written, not even as it is


@dataclass(slots=True)
class _Fresh:
    """A file that exists only here."""

    held: IO[bytes]
    length: int = 0


@dataclass(slots=True)
class _Open:
    file: _Layer | _Fresh
    below_fd: int  # -1: nothing is below


class DryRun:
    """A `Platform` over another one. See the module's docstring."""

    def __init__(self, below: Platform = OS) -> None:
        self._below = below
        self._files: dict[Path, _Layer | _Fresh] = {}
        self._folders: set[Path] = set()
        self._gone: set[Path] = set()  # of the machine below, with all that is in it
        self._opened: dict[int, _Open] = {}
        self._next_fd = 1 << 20

    # --- files ---------------------------------------------------------------------------------------------------
    def open(self, path: Path, flags: int) -> int:
        file = self._files.get(path)
        if file is not None and flags & os.O_EXCL and flags & os.O_CREAT:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        if file is None and self._is_below(path):
            if flags & os.O_EXCL and flags & os.O_CREAT:
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            size = self._below.path_size(path)
            file = self._files[path] = _Layer(path, size, size)
        if file is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            file = self._files[path] = _Fresh(tempfile.TemporaryFile())  # noqa: SIM115 - lives as long as this
        self._next_fd += 1
        below_fd = self._below.open(file.path, os.O_RDONLY) if isinstance(file, _Layer) else -1
        self._opened[self._next_fd] = _Open(file, below_fd)
        if flags & os.O_TRUNC:
            self.ftruncate(self._next_fd, 0)
        return self._next_fd

    def close(self, fd: int) -> None:
        opened = self._opened.pop(fd)
        if opened.below_fd >= 0:
            self._below.close(opened.below_fd)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        opened = self._opened[fd]
        file = opened.file
        length = max(0, min(length, file.length - offset))
        if isinstance(file, _Fresh):
            held = OS.pread(file.held.fileno(), length, offset)
            return held + bytes(length - len(held))
        return self._layered(opened.below_fd, file, length, offset)

    def _layered(self, below_fd: int, file: _Layer, length: int, offset: int) -> bytes:
        from_below = max(0, min(length, file.below - offset))
        content = bytearray(self._below.pread(below_fd, from_below, offset)) if from_below else bytearray()
        content += bytes(length - len(content))
        for number in range(offset // _PAGE_BYTES, (offset + length + _PAGE_BYTES - 1) // _PAGE_BYTES):
            page = file.pages.get(number)
            if page is not None:
                start = number * _PAGE_BYTES
                low, high = max(start, offset), min(start + _PAGE_BYTES, offset + length)
                content[low - offset : high - offset] = page[low - start : high - start]
        return bytes(content)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        opened = self._opened[fd]
        file, end = opened.file, offset + len(data)
        if isinstance(file, _Fresh):
            done = OS.pwrite(file.held.fileno(), data, offset)
            file.length = max(file.length, offset + done)
            return done
        file.length = max(file.length, end)
        file.written_from = min(file.written_from, offset)
        for number in range(offset // _PAGE_BYTES, (end + _PAGE_BYTES - 1) // _PAGE_BYTES):
            start = number * _PAGE_BYTES
            low, high = max(start, offset), min(start + _PAGE_BYTES, end)
            page = bytearray(self._layered(opened.below_fd, file, _PAGE_BYTES, start))
            page[low - start : high - start] = data[low - offset : high - offset]
            self._keep(opened.below_fd, file, number, bytes(page))
        return len(data)

    def _keep(self, below_fd: int, file: _Layer, number: int, page: bytes) -> None:
        start = number * _PAGE_BYTES
        there = self._below.pread(below_fd, _PAGE_BYTES, start) if start < file.below else b""
        there = there[: max(0, file.below - start)]
        if page == there + bytes(_PAGE_BYTES - len(there)):
            file.pages.pop(number, None)
        else:
            file.pages[number] = _ZERO_PAGE if page == _ZERO_PAGE else page

    def fdatasync(self, fd: int) -> None:
        """Nothing of this is meant to last."""

    def fsync(self, fd: int) -> None:
        """Nothing of this is meant to last."""

    def write_out(self, fd: int, offset: int, length: int) -> None:
        """Nothing of this is meant to last."""

    def ftruncate(self, fd: int, length: int) -> None:
        file = self._opened[fd].file
        file.length = length
        if isinstance(file, _Fresh):
            OS.ftruncate(file.held.fileno(), length)
            return
        file.below = min(file.below, length)
        for number in [number for number in file.pages if (number + 1) * _PAGE_BYTES > length]:
            start = number * _PAGE_BYTES
            page = file.pages.pop(number)
            if start < length:
                file.pages[number] = page[: length - start] + bytes(_PAGE_BYTES - (length - start))

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        """Whether there is space is the one thing that only the real run finds out."""
        if self._opened[fd].file.length < offset + length:
            self.ftruncate(fd, offset + length)

    def seek_data(self, fd: int, offset: int) -> int:
        opened = self._opened[fd]
        if isinstance(opened.file, _Fresh):
            return OS.seek_data(opened.file.held.fileno(), offset)
        if offset < opened.file.length and offset // _PAGE_BYTES in opened.file.pages:
            return offset
        found: list[int] = []
        with suppress(OSError):
            at = self._below.seek_data(opened.below_fd, offset)
            if at == offset < opened.file.below:
                return at
            if at < opened.file.below:
                found.append(at)
        found += [number * _PAGE_BYTES for number in opened.file.pages if number * _PAGE_BYTES > offset]
        if not found:
            raise OSError(errno.ENXIO, "No such device or address")
        return min(found)

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        """Reads of what is below come from the disk, as in the real run, but for what that one would write again:
        after a failed sync its pages are clean, and nothing else holds it (SAFETY S1)."""
        opened = self._opened[fd]
        if isinstance(opened.file, _Layer) and offset < opened.file.written_from:
            self._below.drop_cache(opened.below_fd, offset, min(length, opened.file.written_from - offset))

    def file_key(self, fd: int) -> tuple[int, int]:
        return id(self._opened[fd].file), -1

    def file_size(self, fd: int) -> int:
        return self._opened[fd].file.length

    def lock(self, fd: int) -> None:
        """Whether nobody else holds it now; it is released at once."""
        self._try(fd, os.O_RDONLY, self._below.lock)

    def lock_first_byte(self, fd: int, *, alone: bool) -> int | None:
        return self._try(fd, os.O_RDWR, lambda tried: self._below.lock_first_byte(tried, alone=alone))

    def _try(self, fd: int, flags: int, lock: Callable[[int], T]) -> T | None:
        """A lock of the file below, where there is one: taken and given up."""
        file = self._opened[fd].file
        if not isinstance(file, _Layer):
            return None
        tried = self._below.open(file.path, flags)
        try:
            return lock(tried)
        finally:
            self._below.close(tried)

    def space_left_bytes(self, directory: Path) -> int | None:
        return self._below.space_left_bytes(directory)

    def space_total_bytes(self, directory: Path) -> int | None:
        return self._below.space_total_bytes(directory)

    # --- names ---------------------------------------------------------------------------------------------------
    def _is_below(self, path: Path) -> bool:
        """Whether it is on the machine below and has not been removed here."""
        return not self._is_gone(path) and self._below.exists(path)

    def _is_gone(self, path: Path) -> bool:
        return path in self._gone or not self._gone.isdisjoint(path.parents)

    def names(self, directory: Path) -> list[str]:
        """Also of links that lead nowhere."""
        found = {name for name in self._below.names(directory) if not self._is_gone(directory / name)}
        found |= {path.name for path in (*self._files, *self._folders) if path.parent == directory}
        return sorted(found)

    def exists(self, path: Path) -> bool:
        return path in self._files or path in self._folders or self._is_below(path)

    def file_kind(self, path: Path) -> str:
        if path in self._files:
            return FILE
        return "" if self._is_gone(path) else self._below.file_kind(path)

    def path_size(self, path: Path) -> int:
        file = self._files.get(path)
        return file.length if file is not None else self._below.path_size(self._sure(path))

    def path_key(self, path: Path) -> tuple[int, int]:
        file = self._files.get(path)
        return (id(file), -1) if file is not None else self._below.path_key(self._sure(path))

    def modified_s(self, path: Path) -> float:
        if path in self._files:
            return self.wall_time().timestamp()
        return self._below.modified_s(self._sure(path))

    def _sure(self, path: Path) -> Path:
        if not self._is_below(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return path

    def read_bytes(self, path: Path) -> bytes:
        if path not in self._files:
            return self._below.read_bytes(self._sure(path))
        fd = self.open(path, os.O_RDONLY)
        try:
            return self.pread(fd, self.file_size(fd), 0)
        finally:
            self.close(fd)

    def make_directory(self, path: Path) -> None:
        if not self._is_below(path):
            self._folders.add(path)

    def replace(self, source: Path, target: Path) -> None:
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
        if source not in self._files and source not in self._folders:  # a file of the machine below
            self.close(self.open(source, os.O_RDONLY))
        self.unlink(target)
        moved = {path: file for path, file in self._files.items() if path == source or source in path.parents}
        for path, file in moved.items():
            del self._files[path]
            self._files[target / path.relative_to(source)] = file
        if source in self._folders:
            self._folders.remove(source)
            self._folders.add(target)
        self._gone.add(source)

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(target))  # so it is copied

    def unlink(self, path: Path) -> None:
        self._files.pop(path, None)
        self._gone.add(path)

    def remove_large(self, path: Path) -> None:
        self.unlink(path)

    def space_coming_bytes(self) -> int:
        return 0

    def remove_tree(self, path: Path) -> None:
        for one in [one for one in self._files if path in one.parents]:
            del self._files[one]
        self._folders = {one for one in self._folders if one != path and path not in one.parents}
        self._gone.add(path)

    def sync_directory(self, path: Path) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    # --- the rest ------------------------------------------------------------------------------------------------
    def monotonic_ns(self) -> int:
        return self._below.monotonic_ns()

    def wall_time(self) -> datetime:
        return self._below.wall_time()

    def boot_id(self) -> str:
        return self._below.boot_id()

    def new_id(self) -> str:
        return self._below.new_id()
