"""A snapshot on its way from one member to another: read from the sender's directory, put together in the receiver's.

What is being put together lies in `snapshot/install_tmp/`: `data` as far as it has come, and `receiving`, which says of
which snapshot; so a receiver that starts again goes on where its file ends. Once all of it is there it is read again,
held against the checksum that its sender said, synced, and described (`quorumscope-meta`): only then it is whole, and
only a whole one ever becomes one of the directory's (`take_received`), by one rename.

Invariants: pieces are appended, in order and of one snapshot; a piece that does not continue what is there changes
nothing; what differs from its checksum goes; no sync that failed is ever counted on (SAFETY S1: its pages read well
until power is lost), so what one error of the disk touched goes, and what an earlier process left is written again;
nothing is begun for which the disk has no room; a sender's file stays readable for as long as it is open, also when the
snapshot was removed meanwhile.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from node.protocol.entry import crc32
from node.snapshots.directory import (
    DATA,
    FOLDER,
    INSTALL_WORK,
    META,
    OUT_BYTES,
    PIECE_BYTES,
    SEALED,
    Snapshot,
    SnapshotMeta,
    describe,
    fields_of,
    meta_in,
    newest_index,
    set_aside,
    snapshots_in,
)
from node.store.errors import StoreCorrupt, StoreError, StoreFull, StoreRefused, wrap
from node.store.files.os_files import (
    make_directory,
    pack_sealed_json,
    read_sealed_json,
    sync_directory,
    write_all,
    write_synced,
)
from node.store.files.platform import OS, Platform

RECEIVING: Final = "receiving"
ROOM_BYTES: Final = 64 * 1024 * 1024  # stays free beside it: the log goes on


class Taken(NamedTuple):
    """How much of it is held now; `is_whole`: verified and durable. `error`: why it was thrown away."""

    held_bytes: int
    is_whole: bool = False
    error: str = ""


# --- sending ----------------------------------------------------------------------------------------------------------
class OpenedSnapshot:
    """One that is being sent."""

    def __init__(self, snapshot: Snapshot, platform: Platform = OS) -> None:
        """Raises StoreError."""
        self.meta, self._path, self._platform = snapshot.meta, snapshot.path / DATA, platform
        try:
            self._fd = platform.open(self._path, os.O_RDONLY)
        except OSError as error:
            raise wrap(error, f"opening {self._path}") from error

    def read(self, offset: int, most_bytes: int) -> bytes:
        """The piece at that offset. Raises StoreError."""
        length = min(most_bytes, self.meta.data_bytes - offset)
        try:
            piece = self._platform.pread(self._fd, length, offset)
        except OSError as error:
            raise wrap(error, f"reading {self._path}") from error
        if len(piece) != length:
            raise StoreCorrupt(f"{self._path} ends before {offset + length}")
        return piece

    def close(self) -> None:
        """Once; nothing is read behind it."""
        self._platform.close(self._fd)


def open_newest(directory: Path, from_index: int, platform: Platform = OS) -> OpenedSnapshot | None:
    """The newest one that a log can begin behind, and that goes up to `from_index` or beyond. Raises StoreError."""
    for one in snapshots_in(directory, platform):
        meta = one.meta
        if meta.index < from_index:
            return None
        if one.is_sealed and meta.chain is not None and meta.next_pos is not None:
            return OpenedSnapshot(one, platform)
    return None


# --- receiving --------------------------------------------------------------------------------------------------------
class SnapshotReceiver:
    """Of one store. One call at a time, from any thread."""

    def __init__(self, directory: Path, platform: Platform = OS) -> None:
        self._directory, self._platform = directory, platform
        self._work = directory / FOLDER / INSTALL_WORK
        self._meta: SnapshotMeta | None = None  # of the one that lies there, or is being put together

    def take(self, meta: SnapshotMeta, offset: int, data: bytes) -> Taken:
        """A piece of that snapshot (`data_bytes` and `data_crc` are the whole's); without data it begins, or is asked.

        Raises StoreFull where the disk has no room for it, StoreError; what was there is gone then.
        """
        try:
            return self._take(meta, offset, data)
        except StoreError:
            self.drop()
            raise

    def _take(self, meta: SnapshotMeta, offset: int, data: bytes) -> Taken:
        if newest_index(self._directory, self._platform) >= meta.index:
            self.drop()
            return Taken(meta.data_bytes, is_whole=True)  # never over a newer one, nor twice
        if self._meta != meta:
            if self._goes_on(meta):
                self._write_again()
            else:
                self._begin(meta)
        self._meta = meta
        if _whole_index(self._work, self._platform) == meta.index:
            return Taken(meta.data_bytes, is_whole=True)
        held_bytes = self._platform.path_size(self._work / DATA)
        if held_bytes > meta.data_bytes:
            return self._thrown_away(f"{held_bytes} bytes are there of a snapshot of {meta.data_bytes}")
        if data and offset == held_bytes and held_bytes + len(data) <= meta.data_bytes:
            self._append(data, offset)
            held_bytes += len(data)
        return self._finish(meta) if held_bytes == meta.data_bytes else Taken(held_bytes)

    def drop(self) -> None:
        """What was put together is not wanted any more; nothing there is fine."""
        self._meta = None
        self._platform.remove_tree(self._work)

    def _goes_on(self, meta: SnapshotMeta) -> bool:
        """Whether what lies there is of that snapshot."""
        try:
            value = read_sealed_json(self._work / RECEIVING, self._platform)
            return value is not None and meta_in(self._work, value) == meta and self._has_data()
        except StoreError:
            return False

    def _has_data(self) -> bool:
        return self._platform.exists(self._work / DATA)

    def _write_again(self) -> None:
        """An earlier process put this together, and may have ended because a sync failed: the data is written once
        more, so that the next sync is one of all of it, and the description follows when that is done (SAFETY S1)."""
        path, platform = self._work / DATA, self._platform
        try:
            platform.unlink(self._work / SEALED)
            fd = platform.open(path, os.O_RDWR)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error
        try:
            at = 0
            while piece := platform.pread(fd, PIECE_BYTES, at):
                write_all(fd, piece, at, f"writing {path}", platform)
                platform.write_out(fd, at, len(piece))
                at += len(piece)
        except OSError as error:
            raise wrap(error, f"writing {path} again") from error
        finally:
            platform.close(fd)

    def _begin(self, meta: SnapshotMeta) -> None:
        """Another one than what lies there, if anything does."""
        platform = self._platform
        self.drop()
        room_bytes = platform.space_left_bytes(self._directory)
        if room_bytes is not None and room_bytes < meta.data_bytes + ROOM_BYTES:
            raise StoreFull(
                f"the snapshot up to entry {meta.index} has {meta.data_bytes} bytes, and {self._directory} has room for"
                f" {room_bytes}, of which {ROOM_BYTES} stay free: make room"
            )
        make_directory(self._work, platform)
        write_synced(self._work / DATA, b"", platform)
        write_synced(self._work / RECEIVING, pack_sealed_json(fields_of(meta)), platform)
        sync_directory(self._work, platform)

    def _append(self, data: bytes, offset: int) -> None:
        path, platform = self._work / DATA, self._platform
        try:
            fd = platform.open(path, os.O_RDWR)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error
        try:
            write_all(fd, data, offset, f"writing {path}", platform)
            begin, end = offset - offset % OUT_BYTES, offset + len(data)
            if end - begin >= OUT_BYTES:  # no sync: each would make the log's own wait for the file system's journal
                platform.write_out(fd, begin, end - begin)
        except OSError as error:
            raise wrap(error, f"writing {path}") from error
        finally:
            platform.close(fd)

    def _finish(self, meta: SnapshotMeta) -> Taken:
        """All of it is there: as it lies on the disk, it has to be what its sender has."""
        if self._checksum() != meta.data_crc:
            return self._thrown_away(f"the snapshot up to entry {meta.index} does not match its checksum")
        describe(self._work, meta, self._platform)
        return Taken(meta.data_bytes, is_whole=True)

    def _checksum(self) -> int:
        """Of the bytes that are there, which are durable then. Raises StoreError."""
        path, platform = self._work / DATA, self._platform
        crc, at = 0, 0
        try:
            fd = platform.open(path, os.O_RDWR)
            try:
                platform.fsync(fd)
                while piece := platform.pread(fd, PIECE_BYTES, at):
                    crc = crc32(piece, crc)
                    at += len(piece)
            finally:
                platform.close(fd)
        except OSError as error:
            raise wrap(error, f"reading {path}") from error
        return crc

    def _thrown_away(self, error: str) -> Taken:
        self.drop()
        return Taken(0, error=error)


def take_received(directory: Path, index: int, platform: Platform = OS) -> None:
    """What was put together becomes one of the directory's snapshots, where it is whole and goes up to `index`.

    Anything else that lies there goes. May have been done before. Raises StoreError.
    """
    folder = directory / FOLDER
    work = folder / INSTALL_WORK
    if not platform.exists(folder):
        return
    if _whole_index(work, platform) != index or newest_index(directory, platform) >= index:
        platform.remove_tree(work)
    else:
        with suppress(OSError):
            platform.unlink(work / RECEIVING)
        set_aside(directory, index, platform)  # no rename replaces what stands there and cannot be read
        try:
            platform.replace(work, folder / f"snapshot_{index}")
        except OSError as error:
            raise wrap(error, f"renaming {work}") from error
    sync_directory(folder, platform)  # also where it was renamed before: a crash may have come before that sync


def _whole_index(work: Path, platform: Platform) -> int:
    """Up to which entry the whole snapshot there goes; -1: there is none."""
    try:
        value: dict[str, Any] | None = read_sealed_json(work / SEALED, platform)
        if value is None or not platform.exists(work / META):
            return -1
        meta = meta_in(work, value)
        return meta.index if platform.path_size(work / DATA) == meta.data_bytes else -1
    except (StoreRefused, StoreCorrupt, OSError):
        return -1
