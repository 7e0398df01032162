"""A state machine's snapshot in a back-up: where the log was trimmed, its state comes from there.

The newest sound one is taken along that ends within the log of the back-up; one that is there is not read again.
Invariant: its data is held against its own checksum, and each file has a SHA-256 in the manifest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app.backup.source import Source, SourceError
from node.protocol.group_kind import has_state_machine
from node.snapshots.directory import read_snapshot, verify
from node.store.backup.manifest import SNAPSHOT, File, LogBackup, SnapshotFiles
from node.store.backup.manifest_check import SNAPSHOT_FILES
from node.store.errors import StoreError, wrap
from node.store.files.os_files import make_directory, sync_directory, write_all
from node.store.files.platform import OS

PIECE_BYTES = 8 * 1024 * 1024


def with_snapshot(
    source: Source, directory: Path, log: LogBackup, held: LogBackup | None
) -> tuple[LogBackup, list[str]]:
    """The log with the snapshot that belongs to it, and remarks. Raises SourceError, StoreError."""
    if not has_state_machine(log.kind):
        return log, []
    known = None if held is None else held.snapshot
    fits = [one for one in source.snapshots() if log.before.index <= one.index <= log.end_index]
    notes: list[str] = []
    for one in sorted(fits, key=lambda saved: saved.index, reverse=True):
        if known is not None and known.index >= one.index:
            break
        try:
            return replace(log, snapshot=_taken(source, directory, one.index, one.files)), notes
        except (SourceError, StoreError) as error:
            OS.remove_tree(directory / f"{SNAPSHOT}{one.index}")
            notes.append(f"the snapshot up to entry {one.index} is not in the back-up: {error}")
    return replace(log, snapshot=known), notes


def _taken(source: Source, directory: Path, index: int, names: Sequence[tuple[str, int]]) -> SnapshotFiles:
    if not {name for name, _ in names} <= set(SNAPSHOT_FILES):  # names are a member's words, and become a path
        raise SourceError(f"its files are {', '.join(repr(name)[:80] for name, _ in names[:8])}")
    folder = directory / f"{SNAPSHOT}{index}"
    # Under the name that a store has it by, so that it can be read like any other.
    place = folder / f"snapshot_{index}"
    OS.remove_tree(folder)
    make_directory(place)
    files = tuple(_copied(source, index, name, size, place, directory) for name, size in names)
    sync_directory(place)
    sync_directory(folder)
    sync_directory(directory)
    verify(read_snapshot(place))
    return SnapshotFiles(index, files)


def _copied(source: Source, index: int, name: str, size_bytes: int, place: Path, directory: Path) -> File:
    path, found, at = place / name, hashlib.sha256(), 0
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while at < size_bytes:
                piece = source.read_snapshot(index, name, at, min(PIECE_BYTES, size_bytes - at))
                if not piece:
                    raise SourceError(f"its file {name} ends at {at}, it had {size_bytes} bytes")
                write_all(fd, piece, at, f"writing {path}")
                found.update(piece)
                at += len(piece)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise wrap(error, f"writing {path}") from error
    return File(str(path.relative_to(directory)), size_bytes, found.hexdigest())
