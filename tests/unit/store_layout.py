"""A store directory built from the format's description alone: struct and zlib, nothing of the product (FORMATS 3)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

DATA_BYTES = 4096
INDEX_BYTES = 1024


@dataclass
class Built:
    """What was written where."""

    data: dict[int, bytearray] = field(default_factory=dict)
    index: dict[int, bytearray] = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    chains: list[int] = field(default_factory=list)

    def save(self, directory: Path) -> None:
        for kind, files in (("data", self.data), ("index", self.index)):
            (directory / kind).mkdir(parents=True, exist_ok=True)
            for start, content in files.items():
                (directory / kind / f"{start:020d}").write_bytes(bytes(content))


def build(
    entries: list[tuple[int, int, bytes]],
    *,
    data_bytes: int = DATA_BYTES,
    index_bytes: int = INDEX_BYTES,
    seal: bool = True,
) -> Built:
    """Lays (magic, term, body) out from position 0 and index 0 on."""
    built = Built()
    pos = chain = 0

    def put(files: dict[int, bytearray], size: int, at: int, raw: bytes) -> None:
        content = files.setdefault(at // size * size, bytearray(size))
        content[at % size : at % size + len(raw)] = raw

    for number, (magic, term, body) in enumerate(entries):
        size = 48 + len(body)
        left = data_bytes - pos % data_bytes
        if size + 8 > left:
            put(built.data, data_bytes, pos, struct.pack(">ii", -1, left))
            pos += left
        crc = zlib.crc32(body)
        chain = zlib.crc32(struct.pack(">iiqqiI", magic, size, number, term, 0, crc), chain)
        seals = (chain, crc) if seal else (0, 0)
        head = struct.pack(">iiqqqiIIi", magic, size, number, term, pos, 0, *seals, len(body))
        put(built.data, data_bytes, pos, head + body)
        put(built.index, index_bytes, number * 32, struct.pack(">iqiqq", magic, pos, size, number, term))
        built.positions.append(pos)
        built.sizes.append(size)
        built.chains.append(chain)
        pos += size
    return built


def currterm(directory: Path, term: int, vote: str = "") -> None:
    """DLedger's term file."""
    (directory / "currterm").write_text(f"voteLeader={vote}\ncurrTerm={term}\n")


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """Damages one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        (was,) = file.read(1)
        file.seek(offset)
        file.write(bytes((was ^ mask,)))


def blank_out(path: Path, start: int, stop: int) -> None:
    """Zeroes a range, as sectors that were never written read."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))
