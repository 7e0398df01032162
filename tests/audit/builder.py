"""Store directories built from the format's description alone (struct and zlib), to test the audit's reading against.

Nothing of the product is used: FORMATS 3 and SAFETY "The chain" are written down here a second time.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.audit.fence import Fence, ReplicaFence
from app.audit.segments import Segment

NORMAL, NOOP = 1, 2
FILE_BYTES = 4096
INDEX_FILE_BYTES = 32 * 16


@dataclass(frozen=True)
class Written:
    """One entry as a test wants it written; None = computed as it should be."""

    body: bytes
    term: int = 1
    magic: int = NORMAL
    channel: int = 0
    body_crc: int | None = None
    chain_crc: int | None = None
    head_pos: int | None = None
    unit_magic: int | None = None


@dataclass
class Store:
    """Builds `root/data` and `root/index`; remembers where each entry went."""

    root: Path
    begin_index: int = 0
    sealed: bool = True
    file_bytes: int = FILE_BYTES
    index_file_bytes: int = INDEX_FILE_BYTES
    start_pos: int = 0
    chain: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    end_index: int = -1

    def write(self, entries: list[Written]) -> Store:
        data: dict[int, bytearray] = {}
        units: dict[int, bytes] = {}
        pos = self.start_pos
        chain = self.chain
        for number, entry in enumerate(entries):
            index = self.begin_index + number
            size = 48 + len(entry.body)
            left = self.file_bytes - pos % self.file_bytes
            if size + 8 > left:
                self._put(data, pos, struct.pack(">ii", -1, left))
                pos += left
            true_crc = zlib.crc32(entry.body)
            head = struct.pack(">iiqqiI", entry.magic, size, index, entry.term, entry.channel, true_crc)
            chain = zlib.crc32(head, chain)
            body_crc = entry.body_crc if entry.body_crc is not None else (true_crc if self.sealed else 0)
            chain_crc = entry.chain_crc if entry.chain_crc is not None else (chain if self.sealed else 0)
            head_pos = pos if entry.head_pos is None else entry.head_pos
            record = struct.pack(
                ">iiqqqiIIi", entry.magic, size, index, entry.term, head_pos, entry.channel, chain_crc, body_crc,
                len(entry.body),
            )  # fmt: skip
            self._put(data, pos, record + entry.body)
            magic = entry.magic if entry.unit_magic is None else entry.unit_magic
            units[index] = struct.pack(">iqiqq", magic, pos, size, index, entry.term)
            self.positions[index], self.sizes[index] = pos, size
            pos += size
        self.end_index = self.begin_index + len(entries) - 1
        for kind in ("data", "index"):
            (self.root / kind).mkdir(parents=True, exist_ok=True)
        for start, content in data.items():
            (self.root / "data" / f"{start:020d}").write_bytes(content)
        per_file = self.index_file_bytes // 32
        first_file = self.begin_index // per_file
        for file in range(first_file, max(self.end_index, 0) // per_file + 1):
            raw = b"".join(units.get(i, bytes(32)) for i in range(file * per_file, (file + 1) * per_file))
            (self.root / "index" / f"{file * self.index_file_bytes:020d}").write_bytes(raw)
        return self

    def _put(self, data: dict[int, bytearray], pos: int, raw: bytes) -> None:
        start = pos - pos % self.file_bytes
        content = data.setdefault(start, bytearray(self.file_bytes))
        content[pos - start : pos - start + len(raw)] = raw

    def _file(self, kind: str, offset: int, file_bytes: int) -> tuple[Path, int]:
        start = offset - offset % file_bytes
        return self.root / kind / f"{start:020d}", offset - start

    def flip(self, index: int, byte: int, mask: int = 0x01) -> None:
        """Flips bits of one byte of a record; `byte` counts from its head (48 = first byte of the body)."""
        path, offset = self._file("data", self.positions[index] + byte, self.file_bytes)
        content = bytearray(path.read_bytes())
        content[offset] ^= mask
        path.write_bytes(content)

    def put_record(self, index: int, raw: bytes) -> None:
        path, offset = self._file("data", self.positions[index], self.file_bytes)
        content = bytearray(path.read_bytes())
        content[offset : offset + len(raw)] = raw
        path.write_bytes(content)

    def put_unit(self, index: int, raw: bytes) -> None:
        path, offset = self._file("index", index * 32, self.index_file_bytes)
        content = bytearray(path.read_bytes())
        content[offset : offset + 32] = raw
        path.write_bytes(content)

    def unit(self, index: int) -> bytes:
        path, offset = self._file("index", index * 32, self.index_file_bytes)
        return path.read_bytes()[offset : offset + 32]

    def fence(self, name: str, committed: int | None = None, **more: object) -> ReplicaFence:
        segments = tuple(
            Segment(kind, path.name, int(path.name), path.stat().st_size)  # type: ignore[arg-type]
            for kind in ("data", "index")
            for path in sorted((self.root / kind).iterdir())
        )
        fence = ReplicaFence(
            name, str(self.root), "directory", begin_index=self.begin_index, end_index=self.end_index,
            committed_index=committed, segments=segments, java=not self.sealed,
        )  # fmt: skip
        return replace(fence, **more)  # type: ignore[arg-type]


def entries(count: int, body_bytes: int = 100, term: int = 1) -> list[Written]:
    """A plain run: a NOOP, then bodies that differ from each other."""
    return [
        Written(b"", term, NOOP) if i == 0 else Written(f"{i:06d}".encode().ljust(body_bytes, b"."), term)
        for i in range(count)
    ]


def fence_of(*replicas: ReplicaFence, asked_from: int | None = None, asked_to: int | None = None) -> Fence:
    return Fence(tuple(replicas), asked_from, asked_to, "2026-11-21T00:00:00.000Z")
