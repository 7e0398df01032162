"""A directory in memory, as a Platform: one input of the store's fuzz targets costs no file system.

Only what a store does is here; a file is its bytes, a name is its path. Nothing is ever lost: what crashes do to a
disk is the simulator's business.
"""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from node.store.files.platform import FILE, OsPlatform


class HeldFiles(OsPlatform):
    """`files` maps paths to contents; directories exist by what lies in them."""

    def __init__(self, files: dict[Path, bytes]) -> None:
        self.files: dict[Path, bytearray] = {path: bytearray(data) for path, data in files.items()}
        self.made: set[Path] = set()
        self._open: dict[int, bytearray] = {}
        self._fds = count(3)
        self._ids = count(1)

    # --- files ---------------------------------------------------------------------------------------------------
    def open(self, path: Path, flags: int) -> int:
        if path not in self.files:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self.files[path] = bytearray()
        if flags & os.O_TRUNC:
            self.files[path] = bytearray()
        fd = next(self._fds)
        self._open[fd] = self.files[path]
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        del self._open[fd]

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        return bytes(self._open[fd][offset : offset + length])

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        content = self._open[fd]
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        return len(data)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        assert fd in self._open

    fsync = fdatasync  # type: ignore[assignment]

    def write_out(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        assert fd in self._open

    def ftruncate(self, fd: int, length: int) -> None:  # type: ignore[override]
        content = self._open[fd]
        del content[length:]
        content.extend(bytes(length - len(content)))

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        assert fd in self._open

    def seek_data(self, fd: int, offset: int) -> int:
        if offset >= len(self._open[fd]):
            raise OSError(errno.ENXIO, "no data there")
        return offset

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        assert fd in self._open

    def file_key(self, fd: int) -> tuple[int, int]:
        return id(self._open[fd]), 0

    def file_size(self, fd: int) -> int:
        return len(self._open[fd])

    def lock_first_byte(self, fd: int, *, alone: bool) -> int | None:
        return None  # no broker beside us

    def lock(self, fd: int) -> None:
        assert fd in self._open

    # --- names ---------------------------------------------------------------------------------------------------
    def names(self, directory: Path) -> list[str]:
        depth = len(directory.parts)
        inside = (path for path in self.files if path.parts[:depth] == directory.parts and len(path.parts) > depth)
        return sorted({path.parts[depth] for path in inside})

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.made or path == path.parent or bool(self.names(path))

    def _content(self, path: Path) -> bytearray:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self.files[path]

    def file_kind(self, path: Path) -> str:
        return FILE if path in self.files else ("directory" if self.exists(path) else "")

    def path_size(self, path: Path) -> int:
        return len(self._content(path))

    def path_key(self, path: Path) -> tuple[int, int]:
        return id(self._content(path)), 0

    def modified_s(self, path: Path) -> float:
        self._content(path)
        return self.wall_time().timestamp()

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._content(path))

    def make_directory(self, path: Path) -> None:
        self.made.add(path)

    def replace(self, source: Path, target: Path) -> None:
        moved = [path for path in self.files if path == source or source in path.parents]
        for path in moved:
            self.files[target / path.relative_to(source) if path != source else target] = self.files.pop(path)

    def unlink(self, path: Path) -> None:
        self.files.pop(path, None)

    def remove_large(self, path: Path) -> None:
        self.unlink(path)

    def space_coming_bytes(self) -> int:
        return 0

    def remove_tree(self, path: Path) -> None:
        for gone in [one for one in self.files if path in one.parents]:
            del self.files[gone]

    def sync_directory(self, path: Path) -> None:
        pass

    # --- the rest ------------------------------------------------------------------------------------------------
    def monotonic_ns(self) -> int:
        return 0

    def wall_time(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def boot_id(self) -> str:
        return "boot-1"

    def new_id(self) -> str:
        return f"{next(self._ids):032x}"
