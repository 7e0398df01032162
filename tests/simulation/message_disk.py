"""A simulated disk as a message store sees it: `Disk` and `Files` of `node/message_store` over a SimulatedPlatform.

Invariants: each operation is the calls that OsDisk makes, so that a crash can come between any two of them; numbers in
place (`int32_table`) are not possible here: the index is tested elsewhere.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy.typing as npt

from node.protocol.entry import BytesLike
from tests.simulation.disk import SimulatedPlatform
from tests.simulation.disk_files import SECTOR_BYTES, sectors_of


class MessageDisk:
    """Both protocols in one."""

    def __init__(self, platform: SimulatedPlatform) -> None:
        self.platform = platform
        self._open: dict[Path, int] = {}

    def _fd(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._open[path] = self.platform.open(path, os.O_RDWR)
        return fd

    def _forget(self, path: Path) -> None:
        within = f"{path}/"
        for one in [one for one in self._open if f"{one}/".startswith(within)]:  # as text: paths compare slowly
            self.platform.close(self._open.pop(one))

    # --- Disk -----------------------------------------------------------------------------------------------------
    def create(self, path: Path, size_bytes: int) -> None:
        self._forget(path)
        fd = self.platform.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.platform.ftruncate(fd, size_bytes)
        self.platform.close(fd)

    def write(self, path: Path, offset: int, data: BytesLike) -> None:
        done = 0
        while done < len(data):
            done += self.platform.pwrite(self._fd(path), memoryview(data)[done:], offset + done)

    def zero_from(self, path: Path, offset: int) -> None:
        fd = self._fd(path)
        for number in reversed(sectors_of(offset, self.platform.file_size(fd))):
            low, high = max(offset, number * SECTOR_BYTES), (number + 1) * SECTOR_BYTES
            if self._holds_data(fd, low, high):
                self.write(path, low, bytes(min(high, self.platform.file_size(fd)) - low))

    def _holds_data(self, fd: int, low: int, high: int) -> bool:
        try:
            return self.platform.seek_data(fd, low) < high
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False

    def replace(self, path: Path, data: bytes) -> None:
        self.platform.make_directory(path.parent)
        beside = path.with_name(f"{path.name}.tmp")
        fd = self.platform.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        done = 0
        while done < len(data):
            done += self.platform.pwrite(fd, data[done:], done)
        self.platform.fsync(fd)
        self.platform.close(fd)
        self._forget(path)
        self.platform.replace(beside, path)
        self.platform.sync_directory(path.parent)

    def make_folder(self, path: Path) -> None:
        self.platform.make_directory(path)

    def rename(self, path: Path, to: Path) -> None:
        self._forget(path)
        self._forget(to)
        self.platform.replace(path, to)

    def remove(self, path: Path) -> None:
        self._forget(path)
        if self.platform.file_kind(path) == "directory":
            self.platform.remove_tree(path)
        elif self.platform.exists(path):
            self.platform.unlink(path)

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        raise NotImplementedError("no file is mapped on a simulated disk")

    def sync(self, path: Path) -> None:
        self.platform.fdatasync(self._fd(path))

    def sync_folder(self, path: Path) -> None:
        self.platform.sync_directory(path)

    def key_of(self, path: Path) -> tuple[int, int] | None:
        fd = self._open.get(path)
        return None if fd is None else self.platform.file_key(fd)

    def close(self) -> None:
        while self._open:
            self.platform.close(self._open.popitem()[1])

    # --- Files ----------------------------------------------------------------------------------------------------
    def names(self, folder: Path) -> list[str]:
        return self.platform.names(folder)

    def size(self, path: Path) -> int | None:
        return self.platform.path_size(path) if self.platform.file_kind(path) == "file" else None

    def is_folder(self, path: Path) -> bool:
        return self.platform.file_kind(path) == "directory"

    def read(self, path: Path, offset: int, length: int) -> bytes:
        return self.platform.pread(self._fd(path), length, offset) if self.size(path) is not None else b""

    def mapped(self, path: Path) -> BytesLike:
        return self.platform.read_bytes(path) if self.size(path) is not None else b""

    def locked_by(self, path: Path) -> int | None:
        return None
