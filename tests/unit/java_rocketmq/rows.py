"""Rows of mapped files as Java has them: a write position moves, bytes stay (MappedFileQueue, MmapFileList)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path


class WillNotStart(Exception):
    """Java ends here: nothing was recovered, cut or dispatched."""


class Row:
    """All files of one directory. `written`: where the next byte goes."""

    def __init__(self, folder: Path, file_bytes: int, *, drops_empty: bool = False) -> None:
        self.folder, self.file_bytes = folder, file_bytes
        self.files: dict[int, bytearray] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            size = path.stat().st_size
            if drops_empty and not size:
                path.unlink()
                continue
            if size != file_bytes:
                raise WillNotStart(f"{path.name} has {size} bytes, not {file_bytes}")
            if not path.name.isdigit():
                raise WillNotStart(f"{path.name} is no number")
            self.files[int(path.name)] = _content(path, size)
        starts = sorted(self.files)
        if any(after - before != file_bytes for before, after in itertools.pairwise(starts)):
            raise WillNotStart(f"files of {folder.name} do not follow one another")
        self.written = starts[-1] + file_bytes if starts else 0

    @property
    def starts(self) -> list[int]:
        return sorted(self.files)

    def read(self, offset: int, length: int) -> bytes:
        start = offset // self.file_bytes * self.file_bytes
        first = self.starts[0] % self.file_bytes if self.files else 0
        start = (offset - first) // self.file_bytes * self.file_bytes + first
        data = self.files.get(start, b"")
        length = min(length, start + self.file_bytes - offset) if start in self.files else 0
        return bytes(data[offset - start : offset - start + length]).ljust(length, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        first = self.starts[0] % self.file_bytes if self.files else 0
        start = (offset - first) // self.file_bytes * self.file_bytes + first
        if start not in self.files:
            self.files[start] = bytearray(self.file_bytes)
        found = self.files[start]
        found.extend(bytes(max(offset - start - len(found), 0)))
        found[offset - start : offset - start + len(data)] = data

    def truncate(self, offset: int) -> None:
        """Files that begin behind it go; of the others no byte changes."""
        for start in self.starts:
            if start > offset:
                del self.files[start]
        self.written = offset

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = {f"{start:020d}": data for start, data in self.files.items()}
        for path in self.folder.iterdir():
            if path.name not in names:
                path.unlink()
        for name, data in names.items():
            (self.folder / name).write_bytes(data)
            os.truncate(self.folder / name, self.file_bytes)


def _content(path: Path, size: int) -> bytearray:
    """Of a large file up to its first hole: an index file of DLedger's has 160 MiB, nearly all of it never written."""
    if size < 1 << 24:
        return bytearray(path.read_bytes())
    fd = os.open(path, os.O_RDONLY)
    try:
        return bytearray(os.pread(fd, os.lseek(fd, 0, os.SEEK_HOLE), 0))
    finally:
        os.close(fd)
