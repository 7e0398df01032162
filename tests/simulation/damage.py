"""What was done to one member's disk that no crash explains: which bytes rotted, and whether that stands.

Invariants: a flipped byte counts as damage until the file says what it said before, or is not there any more; a
misdirected write until the disk is replaced, because nobody knows where it went.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from node.store.disk_log import find_record
from node.store.errors import StoreError
from node.store.files.checkpoint import CHECKPOINT

if TYPE_CHECKING:
    from node.store.file_store import FileStore
    from tests.simulation.disk import SimulatedPlatform

# Faults after which a disk does not hold what was written to it.
DAMAGE = ("rot", "misdirected_write", "lost_write", "lost_tail", "lost_checkpoint", "lost_file")
_HEAD_BYTES = 8  # a record's magic and size: never zeros
ROTTING_FILES = (CHECKPOINT, "currterm", "hardstate", "quorumscope.json")


class Flipped(NamedTuple):
    """A byte that rotted; `byte`: what it was before; `entry`: whose it is, or -1."""

    path: Path
    offset: int
    byte: int
    entry: int


class Damage:
    """One disk's. `entries`: indexes of entries that were hit on purpose, and may be mended since."""

    def __init__(self, platform: SimulatedPlatform, directory: Path) -> None:
        self._platform, self._directory = platform, directory
        self._flipped: list[Flipped] = []
        self._gone: list[tuple[Path, int, int]] = []  # path, offset, entry: of files that were removed or shortened
        self.misdirected = False
        self.has_no_checkpoint = False
        self._checkpoint = directory / CHECKPOINT
        self._checkpoints: list[bytes] = []

    def _standing(self) -> list[Flipped]:
        self._flipped = [one for one in self._flipped if self._stands(one)]
        return self._flipped

    def _stands(self, flipped: Flipped) -> bool:
        path, offset, byte, _ = flipped
        if not self._platform.exists(path):
            return False
        content = self._platform.read_bytes(path)
        return offset >= len(content) or content[offset] != byte

    @property
    def anywhere(self) -> bool:
        """Whether something may be wrong that is not known to be one entry's bytes."""
        return self.misdirected or any(entry < 0 for _, _, _, entry in self._standing())

    @property
    def rotten(self) -> bool:
        """Whether a byte that was flipped is still so."""
        return bool(self._standing()) or bool(self.missing)

    @property
    def entries(self) -> list[int]:
        """Entries whose bytes are not what was written."""
        return [entry for _, _, _, entry in self._standing() if entry >= 0] + self.missing

    def rotten_at(self, pos: int, size: int) -> bool:
        """Whether a byte of these of the log is not what was written, on purpose or by chance."""
        at = [int(path.name) + offset for path, offset, _, _ in self._standing() if path.parent.name == "data"]
        return any(pos <= one < pos + size for one in at)

    @property
    def missing(self) -> list[int]:
        """Entries of lost files that are not back."""
        self._gone = [one for one in self._gone if not self._is_back(one[0], one[1])]
        return [entry for _, _, entry in self._gone]

    def _is_back(self, path: Path, offset: int) -> bool:
        return self._platform.exists(path) and any(self._platform.read_bytes(path)[offset : offset + _HEAD_BYTES])

    def lose_file(self, path: Path, keep_bytes: int, entries: list[tuple[int, int]]) -> None:
        """A file is gone, or all of it behind `keep_bytes`; `entries`: offset and index of what it held."""
        if keep_bytes:
            self._platform.shorten(path, keep_bytes)
        else:
            self._platform.remove(path)
        self._gone += [(path, offset, index) for offset, index in entries if not self._is_back(path, offset)]

    def flip(self, path: Path, offset: int, mask: int, entry: int = -1) -> None:
        """One byte rots. Of one that is rotten already what it was at first counts: it may come back so."""
        was = {(one.path, one.offset): one for one in self._standing()}.get((path, offset))
        byte = self._platform.read_bytes(path)[offset] if was is None else was.byte
        self._flipped.append(Flipped(path, offset, byte, entry))
        self._platform.flip(path, offset, mask)

    def any_spot(self, rng: random.Random) -> tuple[Path, int] | None:
        """A byte of this member's files that is not zero: where a flipped bit may matter."""
        places: list[Path] = []
        for folder, weight in (("data", 5), ("index", 2), ("", 1)):
            directory = self._directory / folder if folder else self._directory
            names = [
                name
                for name in self._platform.names(directory)
                if (name.isdigit() if folder else name in ROTTING_FILES)
            ]
            places += [directory / name for name in names] * weight
        if not places:
            return None
        path = places[rng.randrange(len(places))]
        content = self._platform.read_bytes(path)
        spots = [at for at in (rng.randrange(len(content)) for _ in range(40)) if content[at]] if content else []
        return (path, spots[0]) if spots else None

    def started(self) -> None:
        """A process opened this disk, and made sure of its checkpoint."""
        self.has_no_checkpoint = False

    def cutting(self) -> None:
        """The log is cut next: what its checkpoint says now may come back later."""
        if self._platform.exists(self._checkpoint):
            self._checkpoints.append(self._platform.read_bytes(self._checkpoint))

    def lose_checkpoint(self, rng: random.Random) -> str:
        """Both slots are gone, or what they said before a cut is back; says which."""
        self.has_no_checkpoint = True
        earlier = rng.choice(self._checkpoints) if self._checkpoints and rng.random() < 0.7 else b""
        self._platform.rewrite(self._checkpoint, earlier)
        return "earlier" if earlier else "gone"

    def lose_tail(self, store: FileStore, rng: random.Random) -> int:
        """Some of the last entries read as if they had never been written; the first index lost, 0 for none."""
        slot = store.durability.checkpoint.last
        last = -1 if slot is None else min(slot.durable_index, store.end_index)
        if last <= store.begin_index:
            return 0
        first = rng.randrange(max(store.begin_index, last - 8) + 1, last + 1)
        try:
            unit, _ = find_record(store.files.data, store.files.index, first)
        except StoreError:
            return 0
        self.misdirected = True
        for segment in store.files.data:
            offset = max(0, unit.pos - segment.start)
            self._platform.forget(segment.path, offset, max(0, segment.end - segment.start - offset))
        return first

    def spot_of(self, store: FileStore, index: int, rng: random.Random) -> tuple[Path, int] | None:
        """A byte of this entry's record."""
        try:
            unit, _ = find_record(store.files.data, store.files.index, index)
        except StoreError:
            return None
        segment = store.files.data.find(unit.pos)
        if segment is None:
            return None
        return segment.path, unit.pos - segment.start + rng.randrange(unit.size)
