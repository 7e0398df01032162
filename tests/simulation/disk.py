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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from node.store.files.platform import FILE
from tests.simulation.disk_faults import AFTER, BEFORE, MIDDLE, DiskFaults, SimulatedCrash
from tests.simulation.disk_files import SECTOR_BYTES, Copy, File, Folder, sectors_of

__all__ = ["SECTOR_BYTES", "DiskFaults", "SimulatedCrash", "SimulatedPlatform"]
_EPOCH_S = 1_700_000_000
_CALL_NS, _NS_PER_BYTE = 2_000, 1  # of a disk that is well
_SYNC_NS = 300_000


class SimulatedPlatform:
    """One machine's `node.store.files.platform.Platform`. See the module's docstring."""

    def __init__(self, rng: random.Random, clock: Callable[[], int], name: str) -> None:
        self._rng, self._clock, self._name = rng, clock, name
        self.faults = DiskFaults()
        self.op_count = 0
        self.on_op: Callable[[str, str, int], None] | None = None
        self._root = Folder()
        self._files: dict[int, tuple[File, str]] = {}  # by descriptor
        self._locked: dict[int, int] = {}  # file key -> descriptor
        self._next_fd = 3
        self._next_key = 1
        self._boot = 1
        self._how = ""  # how the last call ends the process

    # --- what happens to the machine -----------------------------------------------------------------------------
    def crash_process(self) -> None:
        """Descriptors and locks are gone; the page cache stays."""
        self._files.clear()
        self._locked.clear()

    def lose_power(self) -> None:
        """The page cache is gone, and with it a random part of what no sync covered; the machine boots anew."""
        self.crash_process()
        self._boot += 1
        self._root.lose(self._rng, set())

    def flip(self, path: Path, offset: int, mask: int) -> None:
        """Rot at rest: one byte changes, on the disk and as it is read."""
        self._file(path).rot(offset, mask)

    def scramble(self, path: Path, offset: int, length: int) -> None:
        """Rot at rest: a range of bytes becomes noise."""
        for at, mask in enumerate(self._rng.randbytes(length), offset):
            self._file(path).rot(at, mask)

    def forget(self, path: Path, offset: int, length: int) -> None:
        """Rot at rest: a range of bytes reads as if it had never been written."""
        file = self._file(path)
        for held in (file.cached, file.durable):
            stop = min(len(held), offset + length)
            held[offset:stop] = bytes(max(0, stop - offset))

    def remove(self, path: Path) -> None:
        """A file is gone, on the disk and in memory."""
        folder, name = self._parent(path)
        for names in (folder.entries, folder.durable):
            names.pop(name, None)
        folder.journal = [[(one, node) for one, node in step if one != name] for step in folder.journal]

    def shorten(self, path: Path, length: int) -> None:
        """A file lost its end."""
        file = self._file(path)
        for held in (file.cached, file.durable):
            del held[length:]

    def rewrite(self, path: Path, content: bytes) -> None:
        """A file is what it was at another time; zeros behind `content`, and no file is made."""
        if self.exists(path):
            file = self._file(path)
            for held in (file.cached, file.durable):
                held[:] = content.ljust(len(held), b"\0")[: len(held)]

    def copy_of(self, path: Path) -> Copy:
        """A directory as processes see it at this moment."""
        node = self._find(path)
        assert isinstance(node, Folder)
        return node.copy()

    def put_back(self, path: Path, copy: Copy) -> None:
        """That copy and nothing else lies there, durably."""
        folder, name = self._parent(path)
        restored = Folder.of(copy, self._new_file)
        folder.entries[name] = folder.durable[name] = restored
        folder.journal.clear()

    def _new_file(self) -> File:
        self._next_key += 1
        return File(self._next_key - 1, modified_ns=self._clock())

    def duration_ns(self, what: str, size_bytes: int) -> int:
        """How long a call of this kind takes in simulated time; whoever simulates time may ask."""
        sync_ns = _SYNC_NS if "sync" in what else 0
        return _CALL_NS + sync_ns + size_bytes * _NS_PER_BYTE + self.faults.slow_ns

    def durable_bytes(self, path: Path) -> bytes:
        """What a power loss at this moment would leave at least. Raises FileNotFoundError where the name may go."""
        node: Folder | File = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Folder) or part not in node.durable:
                raise FileNotFoundError(errno.ENOENT, "not durable", str(path))
            node = node.durable[part]
        if isinstance(node, Folder):
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
        self._how = self.faults.crash_how or (BEFORE if self._rng.random() < 0.5 else "")
        if self._how == BEFORE:
            raise SimulatedCrash(f"{self._name}: before {what} of {path}")
        return True

    def _leave(self, last: bool, what: str, path: str) -> None:
        if last:
            raise SimulatedCrash(f"{self._name}: after {what} of {path}")

    def _written_before_the_end(self, offset: int, length: int) -> int:
        """How much of the last write is done when the process ends in it: a kernel copies whole pages at the least."""
        borders = range(offset // SECTOR_BYTES + 1, (offset + length - 1) // SECTOR_BYTES + 1)
        if borders and (self._how == MIDDLE or (self._how != AFTER and self._rng.random() < 0.5)):
            return borders[self._rng.randrange(len(borders))] * SECTOR_BYTES - offset
        return length

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        file, path = self._opened(fd)
        length = len(data)
        last = self._enter("pwrite", path, length)
        if last:
            length = self._written_before_the_end(offset, length)
        faults = self.faults
        if faults.short_write_next:
            faults.short_write_next = False
            length = self._rng.randrange(1, length) if length > 1 else length
        if faults.no_space_for and length:
            taken, faults.no_space_in = faults.no_space_in > 0, max(0, faults.no_space_in - 1)
            if not taken:
                faults.no_space_for -= 1
                raise OSError(errno.ENOSPC, "No space left on device", path)
        if faults.enospc or faults.free_bytes is not None:
            length = self._allocate(file, offset, length)
            if length == 0 and len(data):
                raise OSError(errno.ENOSPC, "No space left on device", path)
        file.modified_ns = self._clock()
        if (faults.misdirect_next or faults.misdirect_to_other_file_next) and length:
            self._misdirect(file, data[:length])
        else:
            file.put(data if length == len(data) else data[:length], offset)
        self._leave(last, "pwrite", path)
        return length

    def _misdirect(self, file: File, data: bytes | memoryview) -> None:
        """It lands at the start of some sector that is there; what reaches beyond the file's end is lost."""
        if self.faults.misdirect_to_other_file_next:
            others = [other for other in self._root.files() if other is not file and other.cached]
            file = others[self._rng.randrange(len(others))] if others else file
        self.faults.misdirect_next = self.faults.misdirect_to_other_file_next = False
        offset = self._rng.randrange(max(1, len(file.cached) // SECTOR_BYTES)) * SECTOR_BYTES
        file.put(data[: max(0, len(file.cached) - offset)], offset)

    def _allocate(self, file: File, offset: int, length: int) -> int:
        """Takes space for a range, sector by sector; how many of its bytes have space then."""
        faults = self.faults
        for sector in sectors_of(offset, offset + length):
            if sector in file.used or sector in file.allocated:
                continue
            if faults.enospc or (faults.free_bytes is not None and faults.free_bytes < SECTOR_BYTES):
                return max(0, sector * SECTOR_BYTES - offset)
            if faults.free_bytes is not None:
                faults.free_bytes -= SECTOR_BYTES
            file.allocated.add(sector)
        return length

    def _release(self, file: File) -> None:
        """A file without a name gives its space back."""
        if self.faults.free_bytes is not None:
            self.faults.free_bytes += len(file.used | file.allocated) * SECTOR_BYTES

    def fdatasync(self, fd: int) -> None:
        file, path = self._opened(fd)
        last = self._enter("fdatasync", path, len(file.dirty) * SECTOR_BYTES)
        if self.faults.fsync_error_next:
            self.faults.fsync_error_next = False
            file.fail_to_sync()
            raise OSError(errno.EIO, "Input/output error", path)
        if self.faults.lose_writes_of and self.faults.lose_writes_of in path and file.dirty:
            self.faults.lose_writes_of = ""
            file.fail_to_sync()
        else:
            file.sync()
        self._leave(last, "fdatasync", path)

    fsync = fdatasync

    def write_out(self, fd: int, offset: int, length: int) -> None:
        """Promises nothing: what is not synced may be lost."""
        self._opened(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        file, path = self._opened(fd)
        last = self._enter("ftruncate", path, length)
        file.resize(length)
        self._leave(last, "ftruncate", path)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        """All of it or ENOSPC, as the real one does where its file system can."""
        file, path = self._opened(fd)
        faults = self.faults
        if faults.enospc or faults.free_bytes is not None:
            wanted = [n for n in sectors_of(offset, offset + length) if n not in file.used and n not in file.allocated]
            if wanted and (faults.enospc or len(wanted) * SECTOR_BYTES > (faults.free_bytes or 0)):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            self._allocate(file, offset, length)
        else:
            file.allocated.update(sectors_of(offset, offset + length))
        if offset + length > len(file.cached):
            file.resize(offset + length)

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
        self._opened(fd)[0].reread(offset, offset + length)

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
            if self.faults.enospc or (self.faults.free_bytes is not None and self.faults.free_bytes < SECTOR_BYTES):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            node = self._new_file()
            folder.change((name, node))
            self._leave(last, "create", str(path))
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        if flags & os.O_TRUNC and node.cached:
            self._release(node)
            node.resize(0)
        self._next_fd += 1
        self._files[self._next_fd] = node, str(path)
        return self._next_fd

    def close(self, fd: int) -> None:
        """One that a crash took already is fine: its owner is collected later."""
        file, _ = self._files.pop(fd, (None, ""))
        if file is not None and self._locked.get(file.key) == fd:
            del self._locked[file.key]

    def space_left_bytes(self, directory: Path) -> int | None:
        self._find(directory)
        return 0 if self.faults.enospc else self.faults.free_bytes

    def space_total_bytes(self, directory: Path) -> int | None:
        return None

    def lock_first_byte(self, fd: int, *, alone: bool) -> int | None:
        return None  # no broker beside us

    def lock(self, fd: int) -> None:
        file = self._opened(fd)[0]
        if self._locked.setdefault(file.key, fd) != fd:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable")

    def names(self, directory: Path) -> list[str]:
        node = self._find(directory)
        return sorted(node.entries) if isinstance(node, Folder) else []

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def file_kind(self, path: Path) -> str:
        node = self._find(path)
        return "" if node is None else ("directory" if isinstance(node, Folder) else FILE)

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
                node = Folder()
                folder.change((part, node))
                self._leave(last, "mkdir", str(path))
            if not isinstance(node, Folder):
                raise FileExistsError(errno.EEXIST, "File exists", str(path))
            folder = node

    def replace(self, source: Path, target: Path) -> None:
        folder, name = self._parent(source)
        there, new_name = self._parent(target)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
        last = self._enter("rename", str(target), 0)
        replaced = there.entries.get(new_name)
        if isinstance(replaced, File):
            self._release(replaced)
        if there is folder:
            folder.change((name, None), (new_name, node))
        else:
            there.change((new_name, node))
            folder.change((name, None))
        self._leave(last, "rename", str(target))

    def link(self, source: Path, target: Path) -> None:
        folder, name = self._parent(source)
        there, new_name = self._parent(target)
        node = folder.entries.get(name)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(source))
        if new_name in there.entries:
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        last = self._enter("link", str(target), 0)
        there.change((new_name, node))
        self._leave(last, "link", str(target))

    def unlink(self, path: Path) -> None:
        folder, name = self._parent(path)
        if name in folder.entries:
            last = self._enter("unlink", str(path), 0)
            node = folder.entries[name]
            if isinstance(node, File):
                self._release(node)
            folder.change((name, None))
            self._leave(last, "unlink", str(path))

    def remove_large(self, path: Path) -> None:
        self.unlink(path)

    def space_coming_bytes(self) -> int:
        return 0

    def remove_tree(self, path: Path) -> None:
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return
        node = folder.entries.get(name)
        if isinstance(node, Folder):
            for child in sorted(node.entries):
                self.remove_tree(path / child)
        self.unlink(path)

    def sync_directory(self, path: Path) -> None:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        last = self._enter("sync_directory", str(path), 0)
        node.sync()
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
    def _opened(self, fd: int) -> tuple[File, str]:
        try:
            return self._files[fd]
        except KeyError:
            raise OSError(errno.EBADF, "Bad file descriptor") from None

    def _find(self, path: Path) -> Folder | File | None:
        node: Folder | File | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                return None
            node = node.entries.get(part)
        return node

    def _file(self, path: Path) -> File:
        node = self._find(path)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return node

    def _parent(self, path: Path) -> tuple[Folder, str]:
        node = self._find(path.parent)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path.parent))
        return node, path.name
