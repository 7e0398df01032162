"""The store's whole outside in one interface: files, names, the clock, the machine's boot, new identities.

Everything that the store does to the world goes through a `Platform`; `OS` is the real one, the simulator brings its
own with a page cache that can be lost. Calls are named as in `os` and raise OSError as those do.

Invariants: nothing in `node/store` besides this file (and `space_release.py` and `write_out.py`, for it) calls into
`os`, reads a clock or makes identities; a `Platform` keeps no state about the store's files.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import struct
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from node.store.files.space_release import SpaceRelease
from node.store.files.write_out import write_out

FILE = "file"
LINK = "symbolic link"
_KINDS = {
    stat.S_IFREG: FILE, stat.S_IFLNK: LINK, stat.S_IFDIR: "directory", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device", stat.S_IFCHR: "device",
}  # fmt: skip
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, process
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Platform(Protocol):
    """What a store needs of its machine. Descriptors are small integers, offsets and lengths are in bytes."""

    # --- files ---------------------------------------------------------------------------------------------------
    def open(self, path: Path, flags: int) -> int:
        """A descriptor; `flags` as in os.open (O_RDONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_WRONLY)."""
        ...

    def close(self, fd: int) -> None: ...

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes; shorter only at the file's end."""
        ...

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """How many bytes were written, into the page cache."""
        ...

    def fdatasync(self, fd: int) -> None:
        """The file's bytes and length are durable on return."""
        ...

    def fsync(self, fd: int) -> None: ...

    def write_out(self, fd: int, offset: int, length: int) -> None:
        """This range is on its way out of memory on return, which promises nothing: a sync has to follow."""
        ...

    def ftruncate(self, fd: int, length: int) -> None: ...

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None: ...

    def seek_data(self, fd: int, offset: int) -> int:
        """The next offset at or after `offset` that may hold data; OSError ENXIO where there is none."""
        ...

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        """Asks that the next read of the pages wholly in this range comes from the disk itself; may do nothing."""
        ...

    def file_key(self, fd: int) -> tuple[int, int]:
        """What tells an open file from every other (inode, device)."""
        ...

    def file_size(self, fd: int) -> int: ...

    def space_left_bytes(self, directory: Path) -> int | None:
        """What this process may still allocate there; None where the system does not say."""
        ...

    def space_total_bytes(self, directory: Path) -> int | None:
        """How large the disk is; None where the system does not say."""
        ...

    def lock(self, fd: int) -> None:
        """Takes the file's exclusive lock or raises OSError; it ends with the descriptor."""
        ...

    def lock_first_byte(self, fd: int, *, alone: bool) -> int | None:
        """Takes a record lock of byte 0, shared or exclusive (`alone`), which ends with the descriptor.

        None, or the process that keeps it out. -1: a lock like ours does, which belongs to an open file. 0 or less
        otherwise: that process is not one of this machine that can be named.
        """
        ...

    # --- names ---------------------------------------------------------------------------------------------------
    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted; empty where there is no such directory."""
        ...

    def exists(self, path: Path) -> bool: ...

    def file_kind(self, path: Path) -> str:
        """What is there, a link not followed: FILE, LINK, "directory", "FIFO" or the like; "" for nothing."""
        ...

    def path_size(self, path: Path) -> int:
        """Length of the file in bytes. Raises FileNotFoundError."""
        ...

    def path_key(self, path: Path) -> tuple[int, int]:
        """`file_key` of the file that is there now."""
        ...

    def modified_s(self, path: Path) -> float:
        """When the file was written last, in seconds of wall time."""
        ...

    def read_bytes(self, path: Path) -> bytes: ...

    def make_directory(self, path: Path) -> None:
        """With its parents; one that exists is fine."""
        ...

    def replace(self, source: Path, target: Path) -> None:
        """Renames, over a file that may be there."""
        ...

    def link(self, source: Path, target: Path) -> None:
        """A second name of the same file."""
        ...

    def unlink(self, path: Path) -> None:
        """Removes a name; one that is not there is fine."""
        ...

    def remove_large(self, path: Path) -> None:
        """Removes a name, fine if it is not there; the space of a large file comes back by and by."""
        ...

    def space_coming_bytes(self) -> int:
        """How much of what this process removed still counts as used."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Removes a directory with what is in it, large files as above; errors are ignored."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Names in this directory are durable on return."""
        ...

    # --- the rest ------------------------------------------------------------------------------------------------
    def monotonic_ns(self) -> int: ...

    def wall_time(self) -> datetime:
        """For display and for the age of archives only; in UTC."""
        ...

    def boot_id(self) -> str:
        """The machine's boot; "" where the system does not say (then every unclean stop counts as the same boot)."""
        ...

    def new_id(self) -> str:
        """An identity that no other store has."""
        ...


SPACE: Final = SpaceRelease()


class OsPlatform:
    """The machine that this process runs on."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o600)  # bodies are somebody's data: other users of this machine read none

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    write_out = staticmethod(write_out)
    ftruncate = staticmethod(os.ftruncate)
    posix_fallocate = staticmethod(os.posix_fallocate)

    def seek_data(self, fd: int, offset: int) -> int:
        return os.lseek(fd, offset, os.SEEK_DATA)

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def file_key(self, fd: int) -> tuple[int, int]:
        status = os.fstat(fd)
        return status.st_ino, status.st_dev

    def file_size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def space_left_bytes(self, directory: Path) -> int | None:
        try:
            found = os.statvfs(directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def space_total_bytes(self, directory: Path) -> int | None:
        try:
            found = os.statvfs(directory)
        except OSError:
            return None
        return found.f_blocks * found.f_frsize

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lock_first_byte(self, fd: int, *, alone: bool) -> int | None:
        wanted = _FLOCK.pack(fcntl.F_WRLCK if alone else fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return int(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, wanted))[4])
        return None

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def file_kind(self, path: Path) -> str:
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return ""
        return _KINDS.get(stat.S_IFMT(mode), "thing of its own kind")

    def path_size(self, path: Path) -> int:
        return path.stat().st_size

    def path_key(self, path: Path) -> tuple[int, int]:
        status = path.stat()
        return status.st_ino, status.st_dev

    def modified_s(self, path: Path) -> float:
        return path.stat().st_mtime

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_large(self, path: Path) -> None:
        SPACE.remove(path, self.unlink)

    def space_coming_bytes(self) -> int:
        return SPACE.pending_bytes

    def remove_tree(self, path: Path) -> None:
        for folder, _folders, files in os.walk(path):
            for name in files:
                with suppress(OSError):
                    SPACE.remove(Path(folder, name), Path.unlink)
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_time(self) -> datetime:
        return datetime.now(UTC)

    def boot_id(self) -> str:
        with suppress(OSError):
            return _BOOT_ID.read_text().strip()
        return ""

    def new_id(self) -> str:
        return uuid.uuid4().hex


OS: Platform = OsPlatform()


def leads_to(path: Path, key: tuple[int, int], platform: Platform) -> bool:
    """Whether the path still leads to the open file of that key: not where it, or a directory above it, was removed,
    renamed or replaced."""
    try:
        return platform.path_key(path) == key
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # it cannot be looked at, which makes it no other file; a sync fails by itself
        return True
