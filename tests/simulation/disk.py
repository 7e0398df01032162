"""A simulated machine's disk under the real store: a page cache that can be lost, and what is durable beneath it.

The model. A file is sectors of 512 bytes, twice: as the process reads it back (`cached`), and as it would be read
after a power loss (`durable`). A write changes the first and remembers the sectors as dirty; a sync copies them to
the second. When power is lost each dirty sector is kept or lost on its own; names and lengths that no sync covered
survive as a random prefix of what was done. After a failed fsync the pages are clean but not durable: they read well
until power is lost (Rebello et al., "Can Applications Recover from fsync Failures?", ATC '20).

Invariants: a synced sector survives everything but rot; a descriptor of a process that ended is never valid again and
no number is used twice; all chance comes from `rng`, so the same calls give the same disk.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

SECTOR_BYTES = 512
_EPOCH_S = 1_700_000_000


class SimulatedCrash(BaseException):
    """The process ends inside an I/O call; nothing in it may catch this."""


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong next; everything is off by default."""

    crash_at_op: int | None = None  # the call with this number (see `op_count`) is the process's last
    fsync_error_next: bool = False  # one fdatasync or fsync of a file fails
    enospc: bool = False  # nothing new can be allocated; what is allocated can be written
    misdirect_next: bool = False  # one write lands elsewhere in its file, the right place keeps what it had

    def clear(self) -> None:
        """Switches everything off."""
        for one in fields(self):
            setattr(self, one.name, one.default)


@dataclass(slots=True)
class _File:
    key: int
    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)  # sectors that no sync has covered
    used: set[int] = field(default_factory=set)  # sectors that were ever written: the others are holes
    reserved_to: int = 0  # bytes that fallocate took
    size_dirty: bool = False
    modified_ns: int = 0


@dataclass(slots=True)
class _Folder:
    """`journal`: renames and the like that no directory sync has covered, each all or nothing."""

    entries: dict[str, _Folder | _File] = field(default_factory=dict)
    durable: dict[str, _Folder | _File] = field(default_factory=dict)
    journal: list[list[tuple[str, _Folder | _File | None]]] = field(default_factory=list)

    def change(self, *changes: tuple[str, _Folder | _File | None]) -> None:
        """One step of the names in here."""
        self.journal.append(list(changes))
        _apply(self.entries, changes)


def _apply(names: dict[str, _Folder | _File], changes: Iterable[tuple[str, _Folder | _File | None]]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimulatedPlatform:
    """One machine's `node.store.platform.Platform`. See the module's docstring."""

    def __init__(self, rng: random.Random, clock: Callable[[], int], name: str) -> None:
        self._rng, self._clock, self._name = rng, clock, name
        self.faults = DiskFaults()
        self.op_count = 0
        self.on_op: Callable[[str, str, int], None] | None = None
        self._root = _Folder()
        self._files: dict[int, tuple[_File, str]] = {}  # by descriptor
        self._locked: dict[int, int] = {}  # file key -> descriptor
        self._next_fd = 3
        self._next_key = 1
        self._boot = 1

    # --- what happens to the machine -----------------------------------------------------------------------------
    def crash_process(self) -> None:
        """Descriptors and locks are gone; the page cache stays."""
        self._files.clear()
        self._locked.clear()

    def lose_power(self) -> None:
        """The page cache is gone, and with it a random part of what no sync covered; the machine boots anew."""
        self.crash_process()
        self._boot += 1
        self._lose(self._root, set())

    def _lose(self, folder: _Folder, seen: set[int]) -> None:
        for changes in folder.journal[: self._rng.randrange(len(folder.journal) + 1)]:
            _apply(folder.durable, changes)
        folder.journal.clear()
        folder.entries = dict(folder.durable)
        for _, node in sorted(folder.entries.items()):
            if isinstance(node, _Folder):
                self._lose(node, seen)
            elif node.key not in seen:
                seen.add(node.key)
                self._lose_pages(node)

    def _lose_pages(self, file: _File) -> None:
        size = len(file.durable)
        if file.size_dirty and self._rng.random() < 0.5:
            size = len(file.cached)
        kept = [sector for sector in sorted(file.dirty) if self._rng.random() < 0.5]
        _copy(file.cached, file.durable, kept, size)
        file.cached = bytearray(file.durable)
        file.used = {sector for sector in file.used if sector * SECTOR_BYTES < size}
        file.dirty.clear()
        file.size_dirty = False

    def flip(self, path: Path, offset: int, mask: int) -> None:
        """Rot at rest: one byte changes, on the disk and as it is read."""
        file = self._file(path)
        file.cached[offset] ^= mask
        if offset < len(file.durable):
            file.durable[offset] = file.cached[offset]

    def durable_bytes(self, path: Path) -> bytes:
        """What a power loss at this moment would leave at least. Raises FileNotFoundError where the name may go."""
        node: _Folder | _File = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Folder) or part not in node.durable:
                raise FileNotFoundError(errno.ENOENT, "not durable", str(path))
            node = node.durable[part]
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, "a directory", str(path))
        return bytes(node.durable)

    # --- I/O calls: each is counted, and may be the last ---------------------------------------------------------
    def _enter(self, what: str, path: str, size_bytes: int) -> bool:
        """Counts a call; True if the process ends right after it. It may end right before it, too."""
        self.op_count += 1
        if self.on_op is not None:
            self.on_op(what, path, size_bytes)
        at = self.faults.crash_at_op
        if at is None or self.op_count < at:
            return False
        self.faults.crash_at_op = None
        if self._rng.random() < 0.5:
            raise SimulatedCrash(f"{self._name}: before {what} of {path}")
        return True

    def _leave(self, last: bool, what: str, path: str) -> None:
        if last:
            raise SimulatedCrash(f"{self._name}: after {what} of {path}")

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file, path = self._opened(fd)
        last = self._enter("pwrite", path, len(data))
        length = len(data)
        if last and length > 1 and self._rng.random() < 0.5:
            length = self._rng.randrange(1, length)  # in the middle of it
        if self.faults.enospc:
            length = self._room(file, offset, length)
            if length == 0:
                raise OSError(errno.ENOSPC, "No space left on device", path)
        if self.faults.misdirect_next and length:
            self.faults.misdirect_next = False
            sectors = max(1, len(file.cached) // SECTOR_BYTES)
            self._write(file, data[:length], self._rng.randrange(sectors) * SECTOR_BYTES, grow=False)
        else:
            self._write(file, data[:length], offset)
        self._leave(last, "pwrite", path)
        return length

    def _room(self, file: _File, offset: int, length: int) -> int:
        """How many bytes from `offset` on go into sectors that the file has already."""
        sector = offset // SECTOR_BYTES
        while sector * SECTOR_BYTES < offset + length:
            if sector not in file.used and sector * SECTOR_BYTES >= file.reserved_to:
                return max(0, sector * SECTOR_BYTES - offset)
            sector += 1
        return length

    def _write(self, file: _File, data: bytes | memoryview, offset: int, *, grow: bool = True) -> None:
        end = offset + len(data)
        if end > len(file.cached):
            if not grow:
                data, end = data[: len(file.cached) - offset], len(file.cached)
            else:
                file.cached.extend(bytes(end - len(file.cached)))
                file.size_dirty = True
        file.cached[offset:end] = data
        sectors = range(offset // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES)
        file.dirty.update(sectors)
        file.used.update(sectors)
        file.modified_ns = self._clock()

    def fdatasync(self, fd: int) -> None:
        file, path = self._opened(fd)
        last = self._enter("fdatasync", path, len(file.dirty) * SECTOR_BYTES)
        if self.faults.fsync_error_next:
            self.faults.fsync_error_next = False
            file.dirty.clear()  # clean from now on, and yet not on the disk
            raise OSError(errno.EIO, "Input/output error", path)
        _copy(file.cached, file.durable, file.dirty, len(file.cached))
        file.dirty.clear()
        file.size_dirty = False
        self._leave(last, "fdatasync", path)

    fsync = fdatasync

    def ftruncate(self, fd: int, length: int) -> None:
        file, path = self._opened(fd)
        last = self._enter("ftruncate", path, length)
        if length < len(file.cached):
            del file.cached[length:]
            file.used = {sector for sector in file.used if sector * SECTOR_BYTES < length}
        else:
            file.cached.extend(bytes(length - len(file.cached)))
        file.size_dirty = True
        self._leave(last, "ftruncate", path)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        file, path = self._opened(fd)
        if self.faults.enospc and self._room(file, offset, length) < length:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        file.reserved_to = max(file.reserved_to, offset + length)
        if offset + length > len(file.cached):
            file.cached.extend(bytes(offset + length - len(file.cached)))
            file.size_dirty = True

    # --- reading -------------------------------------------------------------------------------------------------
    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return bytes(self._opened(fd)[0].cached[offset : offset + length])

    def seek_data(self, fd: int, offset: int) -> int:
        file = self._opened(fd)[0]
        for sector in range(offset // SECTOR_BYTES, (len(file.cached) + SECTOR_BYTES - 1) // SECTOR_BYTES):
            if sector in file.used:
                return max(offset, sector * SECTOR_BYTES)
        raise OSError(errno.ENXIO, "No such device or address")

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        """Clean pages are read from the disk again: what a failed fsync did not write is seen no more."""
        file = self._opened(fd)[0]
        for sector in range(offset // SECTOR_BYTES, (min(offset + length, len(file.cached)) - 1) // SECTOR_BYTES + 1):
            low, high = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(file.durable))
            if sector not in file.dirty and low < high:
                file.cached[low:high] = file.durable[low:high]

    def file_key(self, fd: int) -> tuple[int, int]:
        return self._opened(fd)[0].key, 0

    def file_size(self, fd: int) -> int:
        return len(self._opened(fd)[0].cached)

    # --- names ---------------------------------------------------------------------------------------------------
    def open(self, path: Path, flags: int) -> int:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            last = self._enter("create", str(path), 0)
            if self.faults.enospc:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            node = _File(self._next_key, modified_ns=self._clock())
            self._next_key += 1
            folder.change((name, node))
            self._leave(last, "create", str(path))
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if flags & os.O_TRUNC and node.cached:
            node.cached.clear()
            node.used.clear()
            node.size_dirty = True
        self._next_fd += 1
        self._files[self._next_fd] = node, str(path)
        return self._next_fd

    def close(self, fd: int) -> None:
        """One that a crash took already is fine: its owner is collected later."""
        file, _ = self._files.pop(fd, (None, ""))
        if file is not None and self._locked.get(file.key) == fd:
            del self._locked[file.key]

    def lock(self, fd: int) -> None:
        file = self._opened(fd)[0]
        if self._locked.setdefault(file.key, fd) != fd:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable")

    def names(self, directory: Path) -> list[str]:
        node = self._find(directory)
        return sorted(node.entries) if isinstance(node, _Folder) else []

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def path_size(self, path: Path) -> int:
        return len(self._file(path).cached)

    def path_key(self, path: Path) -> tuple[int, int]:
        return self._file(path).key, 0

    def modified_s(self, path: Path) -> float:
        return _EPOCH_S + self._file(path).modified_ns / 1e9

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._file(path).cached)

    def make_directory(self, path: Path) -> None:
        folder = self._root
        for part in path.parts[1:]:
            node = folder.entries.get(part)
            if node is None:
                last = self._enter("mkdir", str(path), 0)
                node = _Folder()
                folder.change((part, node))
                self._leave(last, "mkdir", str(path))
            if not isinstance(node, _Folder):
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            folder = node

    def replace(self, source: Path, target: Path) -> None:
        folder, name = self._parent(source)
        there, new_name = self._parent(target)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
        last = self._enter("rename", str(target), 0)
        if there is folder:
            folder.change((name, None), (new_name, node))
        else:
            there.change((new_name, node))
            folder.change((name, None))
        self._leave(last, "rename", str(target))

    def unlink(self, path: Path) -> None:
        folder, name = self._parent(path)
        if name in folder.entries:
            last = self._enter("unlink", str(path), 0)
            folder.change((name, None))
            self._leave(last, "unlink", str(path))

    def remove_tree(self, path: Path) -> None:
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return
        node = folder.entries.get(name)
        if isinstance(node, _Folder):
            for child in sorted(node.entries):
                self.remove_tree(path / child)
        self.unlink(path)

    def sync_directory(self, path: Path) -> None:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        last = self._enter("sync_directory", str(path), 0)
        node.durable = dict(node.entries)
        node.journal.clear()
        self._leave(last, "sync_directory", str(path))

    # --- the rest ------------------------------------------------------------------------------------------------
    def monotonic_ns(self) -> int:
        return self._clock()

    def wall_time(self) -> datetime:
        return datetime.fromtimestamp(_EPOCH_S + self._clock() / 1e9, UTC)

    def boot_id(self) -> str:
        return f"{self._name}-boot-{self._boot}"

    def new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    # --- looking up ----------------------------------------------------------------------------------------------
    def _opened(self, fd: int) -> tuple[_File, str]:
        try:
            return self._files[fd]
        except KeyError:
            raise OSError(errno.EBADF, "Bad file descriptor") from None

    def _find(self, path: Path) -> _Folder | _File | None:
        node: _Folder | _File | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Folder):
                return None
            node = node.entries.get(part)
        return node

    def _file(self, path: Path) -> _File:
        node = self._find(path)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return node

    def _parent(self, path: Path) -> tuple[_Folder, str]:
        node = self._find(path.parent)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path.parent))
        return node, path.name


def _copy(source: bytearray, target: bytearray, sectors: Iterable[int], size: int) -> None:
    """Brings `target` to `size` bytes and takes those sectors over."""
    if len(target) > size:
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))
    for sector in sectors:
        low, high = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, size)
        if low < high:
            target[low:high] = source[low:high]
