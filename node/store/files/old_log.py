"""RocketMQ's old commit log beside a broker group's log: the front of one space of bytes (dividedCommitlogOffset).

A broker that had a commit log of its own went over to the replicated log, or its directory did here: its files stay in
`DATA/commitlog`, are never written again, and are read below the place where entry 0 lies. As in RocketMQ they go
before any file of the replicated log, by the same rules, whole and from the front, also the last one; until then no
file of the replicated log goes.

Invariant: none is touched that does not end at or below the place of entry 0; they go in order.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from node.protocol.value_class import value_class
from node.store.files.java_files import COMMIT_LOG
from node.store.files.os_files import sync_directory
from node.store.files.platform import OS, Platform
from node.store.retention import DataFile

BEFORE_ENTRY_0: Final = -1
_NAME_DIGITS: Final = 20


@value_class(slots=True, frozen=True)
class OldFile:
    """One of them; `start` is its first byte's place."""

    path: Path
    start: int
    size_bytes: int
    modified_s: float


class OldLog:
    """Beside the log in `directory` (`DATA/dledger-<id>`), whose entry 0 lies at `origin_pos`; 0: there is none."""

    def __init__(self, directory: Path, origin_pos: int, platform: Platform = OS) -> None:
        self._folder = directory.parent / COMMIT_LOG
        self._origin_pos, self._platform = origin_pos, platform

    def files(self) -> list[OldFile]:
        """In their order. Raises OSError."""
        if not self._origin_pos or not self._platform.exists(self._folder):
            return []
        found: list[OldFile] = []
        for name in sorted(self._platform.names(self._folder)):
            if not (name.isascii() and name.isdigit() and len(name) == _NAME_DIGITS):
                continue
            path = self._folder / name
            with suppress(FileNotFoundError):  # somebody removed it by hand
                one = OldFile(path, int(name), self._platform.path_size(path), self._platform.modified_s(path))
                if one.start + one.size_bytes <= self._origin_pos:
                    found.append(one)
        return found

    def front(self, files: list[OldFile], files_max: int) -> tuple[DataFile, ...]:
        """The oldest, as retention judges them: as if they held an entry before the first one."""
        return tuple(
            DataFile(BEFORE_ENTRY_0, BEFORE_ENTRY_0, one.size_bytes, one.modified_s) for one in files[:files_max]
        )

    def remove_first(self) -> None:
        """The oldest, durably; nothing where there is none. Raises OSError."""
        files = self.files()
        if files:
            self._platform.remove_large(files[0].path)
            sync_directory(self._folder, self._platform)

    def remove_all(self) -> None:
        """Raises OSError."""
        while self.files():
            self.remove_first()
