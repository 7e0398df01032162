"""Pieces of a log in a back-up: written while the records are checked, and checked again when they are read.

Invariants: nothing is written that was not checked (indexes, terms, body CRCs, the chain from the entry before on);
nothing is handed on that differs from its SHA-256, and no entry of a piece before the whole of it was compared; a piece
is under its name only once it is whole and durable.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.protocol.entry import HEAD, HEAD_BYTES, POSITION_MAX, SLAB_BYTES_MAX, EntryError, Slab, slab_of
from node.protocol.slab_verify import verify_slab
from node.store.backup.manifest import ENTRIES, BackupDamaged, LogBackup, Piece
from node.store.backup.manifest_check import PIECE_BYTES_MAX
from node.store.errors import wrap
from node.store.files.os_files import make_directory, sync_directory, write_all
from node.store.files.platform import OS, Platform
from node.store.log_store import EntryMeta

PART: Final = ".part"  # of a piece that is being written
READ_BYTES: Final = 8 * 1024 * 1024


def checked_slab(records: bytes, pos: int, before: EntryMeta, sealed_from: int) -> Slab:
    """Back-to-back records that follow the entry `before`, checked to the last bit. Raises EntryError.

    A record without seals is taken where the log has some of a Java node, below `sealed_from`.
    """
    slab = slab_of(records, pos, before.chain)
    if slab.first_index != before.index + 1:
        raise EntryError(f"entry {before.index} is followed by entry {slab.first_index}")
    if slab.first_term < before.term:
        raise EntryError(f"entry {slab.first_index} is of term {slab.first_term}, the one before of {before.term}")
    chain = verify_slab(slab, before.chain, bodies=True)
    if slab.last_index >= sealed_from:
        _refuse_unsealed(slab, sealed_from)
    assert chain is not None  # the chain before is known
    return slab_of_chain(slab, chain)


def slab_of_chain(slab: Slab, last_chain: int) -> Slab:
    return Slab(
        slab.first_index, slab.count, slab.pos, slab.data, slab.index_records, slab.first_term, slab.last_term,
        slab.prev_chain, last_chain,
    )  # fmt: skip


def _refuse_unsealed(slab: Slab, sealed_from: int) -> None:
    """Two zero fields are a seal that was wiped, where all entries have one."""
    offset = 0
    while offset < len(slab.data):
        _, size, index, _, _, _, chain_crc, body_crc, _ = HEAD.unpack_from(slab.data, offset)
        if index >= sealed_from and chain_crc == 0 and body_crc == 0:
            raise EntryError(f"entry {index} carries no checksums, all from entry {sealed_from} on should")
        offset += size


class PieceWriter:
    """Writes checked slabs into pieces of PIECE_BYTES_MAX at most; `pieces` are those that are whole and durable."""

    def __init__(self, directory: Path, before: EntryMeta, platform: Platform = OS) -> None:
        self._folder = directory / ENTRIES
        self._platform = platform
        self.last = before
        self.pieces: list[Piece] = []
        self._fd = -1
        make_directory(self._folder, platform)

    def add(self, slab: Slab) -> None:
        """Raises StoreFull, StoreIOError."""
        if self._fd >= 0 and self._size_bytes + len(slab.data) > PIECE_BYTES_MAX:
            self.finish()
        if self._fd < 0:
            self._begin(slab.first_index)
        write_all(self._fd, slab.data, self._size_bytes, f"writing {self._path}", self._platform)
        self._sha.update(slab.data)
        self._size_bytes += len(slab.data)
        self.last = EntryMeta(slab.last_index, slab.last_term, slab.last_chain)

    def _begin(self, first_index: int) -> None:
        self._first_index, self._size_bytes, self._sha = first_index, 0, hashlib.sha256()
        self._path = self._folder / f"{first_index:020d}{PART}"
        try:
            self._fd = self._platform.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise wrap(error, f"creating {self._path}") from error

    def finish(self) -> None:
        """The piece that is open gets its name, durably. Raises StoreFull, StoreIOError."""
        if self._fd < 0:
            return
        name, platform = f"{self._first_index:020d}", self._platform
        try:
            platform.fsync(self._fd)
            self.close()
            platform.replace(self._path, self._folder / name)
        except OSError as error:
            raise wrap(error, f"syncing {self._path}") from error
        sync_directory(self._folder, platform)
        assert self.last.chain is not None
        self.pieces.append(
            Piece(
                name, self._first_index, self.last.index, self._size_bytes, self._sha.hexdigest(), self.last.term,
                self.last.chain,
            )
        )  # fmt: skip

    def close(self) -> None:
        """What is open stays without a name; idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self._platform.close(fd)


def slabs_of(directory: Path, log: LogBackup, platform: Platform = OS) -> Iterator[Slab]:
    """The whole log of a back-up, checked. Positions are those in the records' heads. Raises BackupDamaged."""
    last = log.before
    for piece in log.pieces:
        path = directory / ENTRIES / piece.name
        compare_file(path, piece.size_bytes, piece.sha256, platform)
        for records in _runs(path, piece.size_bytes, platform):
            pos = HEAD.unpack_from(records)[4]
            try:
                slab = checked_slab(records, pos, last, log.sealed_from)
            except EntryError as error:
                raise BackupDamaged(f"{path}: {error}") from error
            last = EntryMeta(slab.last_index, slab.last_term, slab.last_chain)
            yield slab
        if last != EntryMeta(piece.last_index, piece.last_term, piece.last_chain):
            raise BackupDamaged(
                f"{path} ends with entry {last.index} of term {last.term}, the manifest says {piece.last_index} of term"
                f" {piece.last_term}, or another chain"
            )


def compare_file(path: Path, size_bytes: int, sha256: str, platform: Platform = OS) -> None:
    """The file is as long as it was, and its bytes are what was written. Raises BackupDamaged."""
    try:
        fd = platform.open(path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise BackupDamaged(f"{path} is missing") from error
    except OSError as error:
        raise wrap(error, f"opening {path}") from error
    found, at = hashlib.sha256(), 0
    try:
        while block := platform.pread(fd, READ_BYTES, at):
            found.update(block)
            at += len(block)
    except OSError as error:
        raise wrap(error, f"reading {path}") from error
    finally:
        platform.close(fd)
    if at != size_bytes:
        raise BackupDamaged(f"{path} has {at} bytes, it had {size_bytes}")
    if found.hexdigest() != sha256:
        raise BackupDamaged(f"{path} does not hold what was written: its SHA-256 is another one")


def _runs(path: Path, size_bytes: int, platform: Platform) -> Iterator[bytes]:
    """The records of a piece in runs of SLAB_BYTES_MAX at most, unless one alone is larger."""
    try:
        fd = platform.open(path, os.O_RDONLY)
    except OSError as error:
        raise wrap(error, f"opening {path}") from error
    try:
        rest, at = b"", 0
        while at < size_bytes:
            block = platform.pread(fd, READ_BYTES, at)
            if not block:
                raise BackupDamaged(f"{path} ends at {at}, it had {size_bytes} bytes")
            at += len(block)
            rest, taken = rest + block, 0
            for start, taken in runs_in(rest):
                yield rest[start:taken]
            rest = rest[taken:]
        if rest:
            raise BackupDamaged(f"{path} ends within a record")
    except OSError as error:
        raise wrap(error, f"reading {path}") from error
    finally:
        platform.close(fd)


def runs_in(data: bytes, last_index: int = POSITION_MAX) -> Iterator[tuple[int, int]]:
    """Where the whole records in `data` up to entry `last_index` may be cut into runs, as (start, stop).

    It ends at what is no record: a file's filler, zeros, a record that goes on behind `data`.
    """
    start = at = 0
    while at + HEAD_BYTES <= len(data):
        magic, size, index = HEAD.unpack_from(data, at)[:3]
        if magic <= 0 or size < HEAD_BYTES or at + size > len(data) or index > last_index:
            break
        if at > start and at + size - start > SLAB_BYTES_MAX:
            yield start, at
            start = at
        at += size
    if at > start:
        yield start, at
