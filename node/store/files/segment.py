"""One file of the data or the index: fixed size, sparse, written with pwrite and read with pread.

Invariants: the file has its full length from the first moment and is never shortened (others may have it mapped); space
is allocated ahead in steps, so that a full disk is met before a record is half written (SAFETY S8).
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from node.store.errors import StoreIOError, is_unreadable, wrap
from node.store.files.os_files import SECTOR_BYTES, is_zeros, sync_fd, write_all, zero
from node.store.files.platform import OS, Platform, leads_to

NAME_DIGITS = 20
_SCAN_BYTES = 1024 * 1024
_PAGE_BYTES = 4096  # what a file system takes for one byte written
UNREADABLE = b"\xee"  # stands for bytes that the disk cannot read: not zeros, which would look like space never used


class Segment:
    """`start` is the absolute position of the file's first byte, `end` the one right after the file.

    `on_unreadable`: gets each page that the disk cannot read (EIO), which is then read around; None: that is an error.
    Such a page takes no part of itself either, for which it would be read first: it is written whole, once.
    """

    __slots__ = (
        "_ahead_bytes", "_allocated_bytes", "_fd", "_platform", "_whole_pages", "end", "on_unreadable", "path",
        "size_bytes", "start",
    )  # fmt: skip

    def __init__(
        self,
        path: Path,
        start: int,
        size_bytes: int,
        *,
        ahead_bytes: int = 0,
        writable: bool = True,
        platform: Platform = OS,
    ) -> None:
        self.path = path
        self.start = start
        self.size_bytes = size_bytes
        self.end = start + size_bytes
        self._ahead_bytes = ahead_bytes
        self._platform = platform
        self._allocated_bytes = 0
        self._whole_pages = threading.Lock()  # a thread mends beside the loop's appends
        self.on_unreadable: Callable[[str], None] | None = None
        try:
            self._fd = platform.open(path, os.O_RDWR if writable else os.O_RDONLY)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error

    @classmethod
    def create(
        cls, directory: Path, start: int, size_bytes: int, *, ahead_bytes: int, platform: Platform = OS
    ) -> Segment:
        """A new file of full (sparse) length; the caller syncs the directory."""
        path = directory / f"{start:0{NAME_DIGITS}d}"
        try:
            fd = platform.open(path, os.O_RDWR | os.O_CREAT)
            try:
                platform.ftruncate(fd, size_bytes)
                platform.fsync(fd)  # a file that a power cut leaves without its length would be taken for none
            finally:
                platform.close(fd)
        except OSError as error:
            raise wrap(error, f"creating {path}") from error
        return cls(path, start, size_bytes, ahead_bytes=ahead_bytes, platform=platform)

    def write(self, pos: int, data: bytes | memoryview, *, takes_ahead: bool = True) -> None:
        """`takes_ahead`: space for what comes behind, too. Raises StoreFull (nothing of it stays, unless that says so)
        or StoreIOError."""
        offset = pos - self.start
        if offset + len(data) > self._allocated_bytes:
            self._allocate(offset, len(data), self._ahead_bytes if takes_ahead else 0)
        try:
            done = self._platform.pwrite(self._fd, data, offset)
        except OSError as error:
            if error.errno == errno.EIO and self.on_unreadable is not None:
                self._write_by_pages(data, offset)
                return
            raise wrap(error, self._attempt(data, offset)) from error
        if done != len(data):
            write_all(self._fd, data, offset, self._attempt(data, offset), self._platform, done)

    def _write_by_pages(self, data: bytes | memoryview, offset: int) -> None:
        """A page that cannot be read is written whole, zeros around what it gets: the rest of it is lost as it is.

        Nobody else writes to it meanwhile: what does not come by here needs a page that can be read. Raises StoreFull,
        StoreIOError.
        """
        attempt = self._attempt(data, offset)
        with self._whole_pages:
            done = 0
            while done < len(data):
                page = (offset + done) // _PAGE_BYTES * _PAGE_BYTES
                before = offset + done - page
                part = bytes(data[done : done + _PAGE_BYTES - before])
                try:
                    write_all(self._fd, part, offset + done, attempt, self._platform)
                except StoreIOError as error:
                    if not is_unreadable(error):
                        raise
                    whole = (bytes(before) + part).ljust(min(_PAGE_BYTES, self.size_bytes - page), b"\0")
                    write_all(self._fd, whole, page, attempt, self._platform)
                done += len(part)

    def _attempt(self, data: bytes | memoryview, offset: int) -> str:
        return f"writing {len(data)} bytes at {offset} of {self.path}"

    def _allocate(self, offset: int, length: int, ahead_bytes: int) -> None:
        """Takes space up to so far beyond the write; a file system that cannot is left to its own ways."""
        if not self._ahead_bytes:
            self._allocated_bytes = self.size_bytes
            return
        end = min(self.size_bytes, offset + length + ahead_bytes)
        try:
            self._platform.posix_fallocate(self._fd, offset, end - offset)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                end = self.size_bytes
            else:
                raise wrap(error, f"allocating {end - offset} bytes for {self.path}") from error
        self._allocated_bytes = end

    def zero(self, pos: int, length: int, *, zeros_too: bool = False, unread: bool = False) -> None:
        """Makes a range zeros. What is zeros already is left: on a full disk holes stay.

        From the back to the front, a sector at a time: a process that ends in the middle leaves a log with a torn tail,
        never sound records behind zeros, which would look like damage (SAFETY S3).

        `zeros_too`: but zeros that were written are written again, as a sync that failed may not have taken them along.
        `unread`: nothing is read to see what is zeros already (the loop reads no file, SAFETY S9); holes still stay.
        """
        attempt = f"zeroing in {self.path}"
        for first, last in reversed(self._data_runs(pos - self.start, length, zeros_too or unread)):
            if zeros_too:
                self._zero(first, last - first, attempt)
                continue
            while last > first:
                low = max(first, (last - 1) // SECTOR_BYTES * SECTOR_BYTES)
                self._zero(low, last - low, attempt)
                last = low

    def _zero(self, offset: int, length: int, attempt: str) -> None:
        try:
            zero(self._fd, offset, length, attempt, self._platform)
        except StoreIOError as error:
            if self.on_unreadable is None or not is_unreadable(error):
                raise
            end = offset + length
            while end > offset:
                low = max(offset, (end - 1) // _PAGE_BYTES * _PAGE_BYTES)
                self._write_by_pages(bytes(end - low), low)
                end = low

    def _data_runs(self, offset: int, length: int, unread: bool) -> list[tuple[int, int]]:
        """The parts of a range that hold bytes, as (from, to) in ascending order, in whole pages but for the ends; with
        `unread` all that is no hole."""
        runs: list[tuple[int, int]] = []
        end = offset + length
        while offset < end:
            try:
                offset = self._platform.seek_data(self._fd, offset)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise StoreIOError(f"looking for data in {self.path}: {error.strerror}") from error
            if offset >= end:
                break
            page_end = min(end, (offset // _PAGE_BYTES + 1) * _PAGE_BYTES)
            if not unread and is_zeros(self.read(self.start + offset, page_end - offset)):
                pass  # space that was allocated ahead and read since may count as data; it is zeros all the same
            elif runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], page_end)
            else:
                runs.append((offset, page_end))
            offset = page_end
        return runs

    def read(self, pos: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the file's end. Raises StoreIOError."""
        length = max(0, min(length, self.end - pos))
        try:
            return self._platform.pread(self._fd, length, pos - self.start)
        except OSError as error:
            if error.errno == errno.EIO and self.on_unreadable is not None:
                return self._read_around(pos - self.start, length, self.on_unreadable)
            raise StoreIOError(f"reading {length} bytes at {pos} of {self.path}: {error.strerror}") from error

    def cannot_read(self, pos: int, length: int) -> bool:
        """Whether a part of that range is on a page that the disk cannot read. Raises StoreIOError."""
        try:
            self._platform.pread(self._fd, max(0, min(length, self.end - pos)), pos - self.start)
        except OSError as error:
            if error.errno == errno.EIO:
                return True
            raise StoreIOError(f"reading {length} bytes at {pos} of {self.path}: {error.strerror}") from error
        return False

    def _read_around(self, offset: int, length: int, note: Callable[[str], None]) -> bytes:
        """Page by page: a sector that is lost must not take its neighbours along. Raises StoreIOError."""
        pieces: list[bytes] = []
        end = offset + length
        while offset < end:
            step = min(end, (offset // _PAGE_BYTES + 1) * _PAGE_BYTES) - offset
            try:
                piece = self._platform.pread(self._fd, step, offset)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise StoreIOError(f"reading {step} bytes of {self.path}: {error.strerror}") from error
                piece = UNREADABLE * step
                page = offset // _PAGE_BYTES * _PAGE_BYTES
                note(f"the disk cannot read {_PAGE_BYTES} bytes at {page} of {self.path} ({error.strerror})")
            pieces.append(piece)
            offset += step
            if len(piece) < step:
                break
        return b"".join(pieces)

    def drop_cache(self, pos: int, length: int) -> None:
        """Asks that the next read comes from the disk itself; a file system may decline."""
        low, high = max(pos, self.start), min(pos + length, self.end)
        if low < high:
            with suppress(OSError):
                self._platform.drop_cache(self._fd, low - self.start, high - low)

    def next_data(self, pos: int) -> int | None:
        """The first position from `pos` on that is no hole (it may still read as zeros); None: only holes follow.

        Raises StoreIOError.
        """
        if pos >= self.end:
            return None
        try:
            return self.start + self._platform.seek_data(self._fd, pos - self.start)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise StoreIOError(f"looking for data in {self.path}: {error.strerror}") from error

    def has_bytes(self, pos: int) -> bool:
        """Whether any byte from `pos` on is not zero; ends at the first one, holes are skipped."""
        at = self.next_data(pos)
        while at is not None:
            chunk = self.read(at, _SCAN_BYTES)
            if not is_zeros(chunk):
                return True
            at = self.next_data(at + len(chunk)) if chunk else None
        return False

    def sync(self) -> None:
        """fdatasync; also called from a thread while the loop goes on writing."""
        sync_fd(self._fd, f"syncing {self.path}", self._platform)

    def used_span(self, pos: int) -> tuple[int, int] | None:
        """First and last position with a byte that is not zero, from `pos` on; holes are skipped, not read."""
        first, last, at = -1, -1, self.next_data(pos)
        while at is not None:
            chunk = self.read(at, _SCAN_BYTES)
            if not is_zeros(chunk):
                last = at + len(chunk.rstrip(b"\0")) - 1
                if first < 0:
                    first = at + len(chunk) - len(chunk.lstrip(b"\0"))
            at = self.next_data(at + len(chunk)) if chunk else None
        return (first, last) if first >= 0 else None

    def is_at(self, path: Path | None) -> bool:
        """Whether this is still the file that is there (a cut file may have been created anew)."""
        if path is None:
            return False
        try:
            return self._platform.path_key(path) == self._platform.file_key(self._fd)
        except OSError:
            return False

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to it; where it does not, what is written to it ends with this process."""
        return leads_to(self.path, self._platform.file_key(self._fd), self._platform)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            self._platform.close(self._fd)
            self._fd = -1
