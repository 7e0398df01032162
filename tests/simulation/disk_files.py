"""Files and folders of a simulated disk, each of them twice: as processes see it, and as a power loss would leave it.

Invariants: only a sync, or the chance of a power loss, moves something from the first to the second; a power loss
leaves each unsynced sector whole or not at all, and of the unsynced names of a folder a prefix of what was done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SECTOR_BYTES = 512
Copy = dict[str, Any]  # by name: bytes, or a folder of the same kind


def sectors_of(offset: int, end: int) -> range:
    """The numbers of the sectors that [offset, end) touches."""
    return range(offset // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES)


@dataclass(slots=True)
class File:
    """`dirty`: sectors that no sync has covered; `used`: ever written, others are holes; `allocated`: have space."""

    key: int
    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    allocated: set[int] = field(default_factory=set)
    size_dirty: bool = False
    modified_ns: int = 0

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Into the page cache; a gap behind the old end reads as zeros."""
        end = offset + len(data)
        cached = self.cached
        if end > len(cached):
            self._grow(end)
        cached[offset:end] = data
        first, stop = offset // SECTOR_BYTES, (end + SECTOR_BYTES - 1) // SECTOR_BYTES
        if stop - first == 1:
            self.dirty.add(first)
            self.used.add(first)
        else:
            self.dirty.update(range(first, stop))
            self.used.update(range(first, stop))

    def resize(self, length: int) -> None:
        """As ftruncate does."""
        if length < len(self.cached):
            del self.cached[length:]
            for held in (self.used, self.allocated, self.dirty):
                held.difference_update([sector for sector in held if sector * SECTOR_BYTES >= length])
            self.size_dirty = True
        elif length > len(self.cached):
            self._grow(length)

    def _grow(self, length: int) -> None:
        """What comes reads as zeros. Where the disk has bytes from before a cut, a sync is to write them there."""
        self.dirty.update(sectors_of(len(self.cached), min(length, len(self.durable))))
        self.cached.extend(bytes(length - len(self.cached)))
        self.size_dirty = True

    def sync(self) -> None:
        """Everything is durable."""
        _copy(self.cached, self.durable, self.dirty, len(self.cached))
        self.dirty.clear()
        self.size_dirty = False

    def fail_to_sync(self) -> None:
        """The pages are clean from now on and read as if they were on the disk; they are not."""
        self.dirty.clear()

    def lose(self, rng: random.Random) -> None:
        """The page cache is gone."""
        size = len(self.durable)
        if self.size_dirty and rng.random() < 0.5:
            size = len(self.cached)
        kept = [sector for sector in sorted(self.dirty) if rng.random() < 0.5]
        _copy(self.cached, self.durable, kept, size)
        self.cached = bytearray(self.durable)
        for held in (self.used, self.allocated):
            held.difference_update([sector for sector in held if sector * SECTOR_BYTES >= size])
        self.dirty.clear()
        self.size_dirty = False

    def reread(self, offset: int, end: int) -> None:
        """Clean pages come from the disk again: what a failed sync did not write is seen no more.

        Those wholly in the range, as on Linux; the last one of the file ends with it.
        """
        stop = end // SECTOR_BYTES if end < len(self.cached) else sectors_of(0, len(self.cached)).stop
        for sector in range((offset + SECTOR_BYTES - 1) // SECTOR_BYTES, stop):
            low, high = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(self.durable))
            if sector not in self.dirty and low < high:
                self.cached[low:high] = self.durable[low:high]

    def rot(self, offset: int, mask: int) -> None:
        """One byte changes, on the disk and as it is read."""
        self.cached[offset] ^= mask
        if offset < len(self.durable):
            self.durable[offset] = self.cached[offset]


@dataclass(slots=True)
class Folder:
    """`journal`: renames and the like that no directory sync has covered, each all or nothing."""

    entries: dict[str, Folder | File] = field(default_factory=dict)
    durable: dict[str, Folder | File] = field(default_factory=dict)
    journal: list[list[tuple[str, Folder | File | None]]] = field(default_factory=list)

    def change(self, *changes: tuple[str, Folder | File | None]) -> None:
        """One step of the names in here."""
        self.journal.append(list(changes))
        _apply(self.entries, changes)

    def sync(self) -> None:
        """The names are durable."""
        self.durable = dict(self.entries)
        self.journal.clear()

    def lose(self, rng: random.Random, seen: set[int]) -> None:
        """What a power loss leaves in here and below. `seen`: keys of files that were done already."""
        for changes in self.journal[: rng.randrange(len(self.journal) + 1)]:
            _apply(self.durable, changes)
        self.journal.clear()
        self.entries = dict(self.durable)
        for _, node in sorted(self.entries.items()):
            if isinstance(node, Folder):
                node.lose(rng, seen)
            elif node.key not in seen:
                seen.add(node.key)
                node.lose(rng)

    def copy(self) -> Copy:
        """The content of everything in here and below, as it is read now."""
        return {
            name: node.copy() if isinstance(node, Folder) else bytes(node.cached) for name, node in self.entries.items()
        }

    @classmethod
    def of(cls, copy: Copy, new_file: Callable[[], File]) -> Folder:
        """A durable folder with that content."""
        folder = cls()
        for name, content in copy.items():
            if isinstance(content, dict):
                folder.entries[name] = cls.of(content, new_file)
                continue
            file = new_file()
            file.put(content, 0)
            file.sync()
            folder.entries[name] = file
        folder.sync()
        return folder

    def files(self) -> list[File]:
        """Every file in here and below, by name."""
        found: list[File] = []
        for _, node in sorted(self.entries.items()):
            found += node.files() if isinstance(node, Folder) else [node]
        return found


def _apply(names: dict[str, Folder | File], changes: Iterable[tuple[str, Folder | File | None]]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


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
