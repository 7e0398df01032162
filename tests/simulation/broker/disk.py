"""A broker's files on a simulated machine: its own on one platform, its engine's log on the other, which it only reads.

The two processes share a machine's page cache and its power, but each has descriptors of its own, and each can end in
the middle of a call of its own. Invariants: a broker that is gone changes nothing any more; it never writes where its
engine does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from node.message_store.commit_log import COMMIT_LOG
from node.protocol.entry import BytesLike
from tests.simulation.driver.callers import DriverPlatform
from tests.simulation.message_disk import MessageDisk


class Table:
    """Numbers in place: every look is a read of the file, every change a write into it."""

    def __init__(self, disk: MessageDisk, path: Path, offset: int, count: int) -> None:
        self._disk, self._path, self._offset, self._bytes = disk, path, offset, count * 4

    def _all(self) -> npt.NDArray[Any]:
        return np.frombuffer(self._disk.read(self._path, self._offset, self._bytes), ">i4").copy()

    def __getitem__(self, chosen: Any) -> Any:
        return self._all()[chosen]

    def __setitem__(self, chosen: Any, numbers: Any) -> None:
        table = self._all()
        table[chosen] = numbers
        self._disk.write(self._path, self._offset, table.tobytes())


class BrokerDisk(MessageDisk):
    """See the module's docstring. `log`: the engine's directory, on `engines`; beside it lies the file by which a Java
    broker refuses the store and ours knows it as one."""

    def __init__(self, own: DriverPlatform, engines: DriverPlatform, log: Path) -> None:
        super().__init__(own)
        self._engines, self._log = engines, log
        self._owned = log.parent / COMMIT_LOG
        self._places = {str(one) for one in (self._log, self._owned)}
        self._below = tuple(f"{one}/" for one in self._places)

    def _is_log(self, path: Path) -> bool:
        """Asked with every access: as text, which a path keeps, and not by paths made of its parents."""
        text = str(path)
        return text in self._places or text.startswith(self._below)

    def int32_table(self, path: Path, offset: int, count: int) -> npt.NDArray[Any]:
        table: Any = Table(self, path, offset, count)
        return table  # type: ignore[no-any-return]

    def write(self, path: Path, offset: int, data: BytesLike) -> None:
        assert not self._is_log(path), f"a broker writes {path}, which is its engine's"
        super().write(path, offset, data)

    # --- reading, also what the engine writes -----------------------------------------------------------------------
    def names(self, folder: Path) -> list[str]:
        if self._is_log(folder):
            return self._engines.names(folder)
        beside = (self._log, self._owned) if folder == self._log.parent else ()
        return sorted({*super().names(folder), *(one.name for one in beside if self._engines.exists(one))})

    def size(self, path: Path) -> int | None:
        if self._is_log(path):
            return self._engines.path_size(path) if self._engines.file_kind(path) == "file" else None
        return super().size(path)

    def is_folder(self, path: Path) -> bool:
        return self._engines.file_kind(path) == "directory" if self._is_log(path) else super().is_folder(path)

    def read(self, path: Path, offset: int, length: int) -> bytes:
        """By its name: the file of that name now, whoever made it."""
        return bytes(self.mapped(path)[offset : offset + length])

    def mapped(self, path: Path) -> BytesLike:
        if self._is_log(path):
            return self._engines.read_bytes(path) if self.size(path) is not None else b""
        return super().mapped(path)
