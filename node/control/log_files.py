"""The store's files, read by the control plane itself: read-only, off the loop, safe beside a running engine.

Invariants: one thread at a time works with a reader (it keeps look-up tables); bulk reads (digests, segments) have a
reader of their own, so that an audit never makes somebody who looks at one entry wait. What is served ends at the
durable index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from node.config import Settings
from node.control.problems import Problem
from node.protocol.codes import ResponseCode
from node.store.errors import StoreError, StoreRefused
from node.store.files.platform import OS, Platform
from node.store.files.segment import NAME_DIGITS
from node.store.reader import StoreReader

Result = TypeVar("Result")
IDENTITY_FILE = "quorumscope.json"


@dataclass(frozen=True, slots=True)
class FileMarks:
    """What the files alone tell of the log; `committed_index` None: unknown."""

    begin_index: int
    end_index: int
    durable_index: int | None
    committed_index: int | None


class LogFiles:
    """One reader behind one lock; opened when the directory exists, and again after an error."""

    def __init__(self, settings: Settings, platform: Platform = OS) -> None:
        self.directory, self._platform = settings.store_directory, platform
        self.reader: StoreReader | None = None
        self.lock = asyncio.Lock()

    async def read(self, work: Callable[[StoreReader], Result], *, upto_index: int | None = None) -> Result:
        """Runs `work` in a thread with a reader that has seen the files' newest end."""
        async with self.lock:
            return await asyncio.to_thread(self.in_thread, work, upto_index)

    def in_thread(self, work: Callable[[StoreReader], Result], upto_index: int | None) -> Result:
        try:
            if (
                self.reader is not None
                and self.reader.is_java
                and self._platform.exists(self.directory / IDENTITY_FILE)
            ):
                self.reader = None  # opened before the engine had written whose store it is
            if self.reader is None:
                self.reader = StoreReader(self.directory, platform=self._platform)
            self.reader.refresh(upto_index)
            return work(self.reader)
        except (FileNotFoundError, StoreRefused) as error:
            self.reader = None
            raise Problem(503, "No log yet", f"The store at {self.directory} cannot be read: {error}") from None
        except StoreError as error:
            self.reader = None
            raise Problem(500, "The log cannot be read", str(error), code=int(ResponseCode.DISK_ERROR)) from None

    async def are_all_read(self) -> bool:
        """Whether no data file lies there that a reader leaves out, because it has another length than the store's."""
        try:
            return await self.read(self._are_all_read)
        except Problem:
            return False

    def _are_all_read(self, reader: StoreReader) -> bool:
        known = {one.name for one in reader.segments() if one.kind == "data"}
        folder = self.directory / "data"
        names = [name for name in self._platform.names(folder) if len(name) == NAME_DIGITS and name.isdigit()]
        return all(name in known or not self._platform.path_size(folder / name) for name in names)

    async def marks(self) -> FileMarks | None:
        """None when they cannot be read."""
        try:
            return await self.read(
                lambda reader: FileMarks(
                    begin_index=reader.begin_index,
                    end_index=reader.end_index,
                    durable_index=reader.durable_index,
                    committed_index=reader.committed_index,
                )
            )
        except Problem:
            return None
