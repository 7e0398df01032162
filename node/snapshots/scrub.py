"""One pass over a store's snapshots, a bounded step at a time: is their data still what was written (SAFETY S6).

A start reads only the newest one, and between two starts nobody does, so that rot would show when the state is needed.
A step reads on where the one before ended, past the page cache where the machine allows, and holds a snapshot's data
against its checksum at its end.

Invariants: reads only; no file stays open between two steps; one that was removed, or replaced by another one of that
name, meanwhile is no finding.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.protocol.entry import crc32
from node.snapshots.directory import DATA, FOLDER, Damage, SnapshotMeta, named_in, read_snapshot
from node.store.errors import StoreCorrupt, StoreError, wrap
from node.store.files.platform import OS, Platform

_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # says nothing of what lies there


@dataclass(slots=True, frozen=True)
class SnapshotStep:
    """What one step read and found. `snapshots`: how many it came to the end of; `is_done`: no other one is left."""

    read_bytes: int
    damaged: tuple[Damage, ...]
    snapshots: int
    is_done: bool


@dataclass(slots=True)
class _Reading:
    """One that is being read, and how far it is."""

    path: Path
    meta: SnapshotMeta
    at: int = 0
    crc: int = 0


class SnapshotScrub:
    """One pass; `step` is called from any thread, one call at a time."""

    def __init__(self, directory: Path, platform: Platform = OS) -> None:
        """`directory`: the store's. Those that are saved from now on belong to the next pass."""
        self._directory, self._platform = directory, platform
        self._left = named_in(directory, platform)  # the oldest first; None of them is opened yet
        self._reading: _Reading | None = None

    def step(self, max_bytes: int) -> SnapshotStep:
        """Reads so much at most. Raises StoreIOError where this process cannot read at all (descriptors, memory)."""
        read_bytes = snapshots = 0
        damaged: list[Damage] = []
        while self._left and read_bytes < max_bytes:
            index = self._left[0]
            path = self._directory / FOLDER / f"snapshot_{index}"
            try:
                read_bytes += self._read(path, max_bytes - read_bytes)
            except StoreError as error:
                self._left.pop(0)
                self._reading = None
                if not self._platform.exists(path):
                    continue  # newer ones took its place
                cause = error.__cause__
                if isinstance(cause, OSError) and cause.errno in _OURS:
                    raise
                damaged.append(Damage(index, f"{FOLDER}/{path.name}", str(error)))
                snapshots += 1
            else:
                if self._reading is None:
                    self._left.pop(0)
                    snapshots += 1
        return SnapshotStep(read_bytes, tuple(damaged), snapshots, not self._left)

    def _read(self, path: Path, max_bytes: int) -> int:
        """How many bytes of it were read; `_reading` is None at its end. Raises StoreError."""
        platform, data = self._platform, path / DATA
        one, meta = self._reading, read_snapshot(path, platform).meta
        if one is not None and one.meta != meta:
            self._reading = None  # another one by now, which belongs to the next pass
            return 0
        one = one or _Reading(path, meta)
        length = min(max_bytes, one.meta.data_bytes - one.at)
        try:
            fd = platform.open(data, os.O_RDONLY)
            try:
                platform.drop_cache(fd, one.at, length)
                piece = platform.pread(fd, length, one.at)
            finally:
                platform.close(fd)
        except OSError as error:
            raise wrap(error, f"reading {data} at {one.at}") from error
        if len(piece) < length:
            raise StoreCorrupt(f"{data} ends at {one.at + len(piece)}, it had {one.meta.data_bytes} bytes")
        one.at, one.crc = one.at + length, crc32(piece, one.crc)
        self._reading = one
        if one.at == one.meta.data_bytes:
            self._reading = None
            if one.meta.data_crc not in (None, one.crc):
                raise StoreCorrupt(f"{data} does not match its checksum")
        return length
