"""A store's `snapshot/` directory: snapshots are written whole, listed, verified, read, and kept by count.

Layout: DLedger's (`snapshot_<last included index>/` with `snapshot_meta` and `data`), and beside these two files a
third, `quorumscope-meta`, with what a log that begins behind the snapshot needs, and the checksum of `data`. A Java
node takes no notice of it; a snapshot that a Java node wrote has none, and is listed with `is_sealed` False.

Invariants: a snapshot is complete under its name or not there at all (written under another name, synced, renamed); one
is never put in the place of, or below, a newer one, unless that one is known to be damaged; nothing is believed whose
checksum or length differs.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.protocol.entry import POSITION_MAX, TERM_MAX, crc32
from node.store.errors import StoreCorrupt, StoreError, StoreRefused, wrap
from node.store.files.os_files import (
    make_directory,
    pack_sealed_json,
    read_sealed_json,
    sync_directory,
    write_all,
    write_synced,
)
from node.store.files.platform import FILE, LINK, OS, Platform

FOLDER: Final = "snapshot"
DATA, META, SEALED = "data", "snapshot_meta", "quorumscope-meta"
DAMAGED: Final = "damaged_"  # and an index: one that cannot be used any more
WORK: Final = "tmp"  # where one is saved
INSTALL_WORK: Final = "install_tmp"  # where one from another member is put together
KEPT: Final = 3  # DLedger's maxSnapshotReservedNum
PIECE_BYTES: Final = 1024 * 1024
OUT_BYTES: Final = 1024 * 1024  # written out as it grows: others' syncs never wait for all of it
META_BYTES_MAX: Final = 64 * 1024
_NAME: Final = re.compile(r"snapshot_(0|[1-9]\d{0,18})")


@dataclass(slots=True, frozen=True)
class SnapshotMeta:
    """What the snapshot stands for: every entry up to `index`.

    `chain`: that entry's, `next_pos`: where its record ends in the log; None: not known (a Java node's snapshot).
    `more`: what others keep with it, by name (a configuration, the group's id).
    """

    index: int
    term: int
    chain: int | None = None
    next_pos: int | None = None
    data_bytes: int = 0
    data_crc: int | None = None  # None: never computed
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Snapshot:
    """One that is there, complete as far as its name and its two small files tell."""

    path: Path
    meta: SnapshotMeta

    @property
    def is_sealed(self) -> bool:
        """Whether its data has a checksum."""
        return self.meta.data_crc is not None


class SnapshotWriter:
    """One snapshot being written; `commit` makes it one of the directory's, `abandon` leaves nothing."""

    def __init__(self, directory: Path, platform: Platform = OS, *, work: str = WORK) -> None:
        """`directory`: the store's. What an earlier one left unfinished under that name goes. Raises StoreError."""
        self._folder, self._platform = directory / FOLDER, platform
        self._work = self._folder / work
        platform.remove_tree(self._work)
        make_directory(self._work, platform)
        try:
            self._fd = platform.open(self._work / DATA, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        except OSError as error:
            raise wrap(error, f"creating {self._work / DATA}") from error
        self.data_bytes = 0
        self.data_crc = 0
        self._out_bytes = 0
        self._open = True

    def write(self, piece: bytes | memoryview) -> int:
        """The next bytes of `data`. Raises StoreError."""
        write_all(self._fd, piece, self.data_bytes, f"writing {self._work / DATA}", self._platform)
        self.data_bytes += len(piece)
        self.data_crc = crc32(piece, self.data_crc)
        if self.data_bytes - self._out_bytes > OUT_BYTES:
            self._write_out()
        return len(piece)

    def commit(self, meta: SnapshotMeta, damaged: Collection[int] = ()) -> Snapshot:
        """Durable under its name on return; those known to be `damaged` (by their last included index) count for
        nothing, and are set aside then. Raises StoreRefused where one as new is there, StoreError."""
        platform, folder = self._platform, self._folder
        newest = newest_index(folder.parent, platform, but=damaged)
        if newest >= meta.index:
            self.abandon()
            raise StoreRefused(f"{folder} holds a snapshot up to entry {newest}: one up to {meta.index} is not newer")
        whole = SnapshotMeta(
            meta.index, meta.term, meta.chain, meta.next_pos, self.data_bytes, self.data_crc, meta.more
        )
        path = folder / f"snapshot_{meta.index}"
        self._sync()
        self._close()
        describe(self._work, whole, platform)
        for index in sorted({*damaged, meta.index}):  # what stands under this one's name is none that can be read
            set_aside(folder.parent, index, platform)
        try:
            platform.replace(self._work, path)
        except OSError as error:
            raise wrap(error, f"renaming {self._work}") from error
        try:
            sync_directory(folder, platform)
        except StoreError:
            platform.remove_tree(path)  # a name that power may take back: nobody trims the log for it
            raise
        return Snapshot(path, whole)

    def _write_out(self) -> None:
        """Not a sync: each would make the log's own wait for a commit of the file system's journal."""
        begin, self._out_bytes = self._out_bytes, self.data_bytes
        try:
            self._platform.write_out(self._fd, begin, self.data_bytes - begin)
        except OSError as error:
            raise wrap(error, f"writing {self._work / DATA}") from error

    def _sync(self) -> None:
        try:
            self._platform.fsync(self._fd)
        except OSError as error:
            raise wrap(error, f"syncing {self._work / DATA}") from error

    def abandon(self) -> None:
        """It is not wanted any more; idempotent."""
        self._close()
        self._platform.remove_tree(self._work)

    def _close(self) -> None:
        if self._open:
            self._open = False
            self._platform.close(self._fd)


def describe(folder: Path, meta: SnapshotMeta, platform: Platform = OS) -> None:
    """Writes what stands beside a snapshot's data, which is durable: Java's description, and last ours. Raises
    StoreError."""
    text = json.dumps({"lastIncludedIndex": meta.index, "lastIncludedTerm": meta.term}, separators=(",", ":"))
    write_synced(folder / META, text.encode(), platform)
    write_synced(folder / SEALED, pack_sealed_json(fields_of(meta)), platform)
    sync_directory(folder, platform)


def fields_of(meta: SnapshotMeta) -> dict[str, Any]:
    """The reverse of `meta_in`."""
    return {
        "index": meta.index, "term": meta.term, "chain": meta.chain, "next_pos": meta.next_pos,
        "data_bytes": meta.data_bytes, "data_crc": meta.data_crc, "more": dict(meta.more),
    }  # fmt: skip


def named_in(directory: Path, platform: Platform = OS) -> list[int]:
    """The last included index of every snapshot by its name, whatever is under it; the oldest first."""
    names = platform.names(directory / FOLDER)
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def snapshots_in(directory: Path, platform: Platform = OS) -> list[Snapshot]:
    """The store's, newest first; what is incomplete or damaged is left out."""
    found: list[Snapshot] = []
    for index in reversed(named_in(directory, platform)):
        with suppress(StoreError):
            found.append(read_snapshot(directory / FOLDER / f"snapshot_{index}", platform))
    return found


def newest_index(directory: Path, platform: Platform = OS, *, but: Collection[int] = ()) -> int:
    """The last entry that the newest snapshot stands for, without those of `but`; -1: there is none."""
    return max((one.meta.index for one in snapshots_in(directory, platform) if one.meta.index not in but), default=-1)


def read_snapshot(path: Path, platform: Platform = OS) -> Snapshot:
    """What stands under that name. Raises StoreError where that is no whole snapshot."""
    for name in (META, DATA, SEALED):
        kind = platform.file_kind(path / name)
        if kind not in ("", FILE, LINK):  # opening a FIFO waits for its writer
            raise StoreCorrupt(f"{path / name} is a {kind}, not a file of this store")
    try:
        for name in (META, SEALED):  # whole in memory, once it is read
            if platform.exists(path / name) and (length := platform.path_size(path / name)) > META_BYTES_MAX:
                raise StoreCorrupt(f"{path / name} is of another format: it is {length} bytes long")
        value = json.loads(platform.read_bytes(path / META))
        index, term = value["lastIncludedIndex"], value["lastIncludedTerm"]
        data_bytes = platform.path_size(path / DATA)
    except FileNotFoundError as error:
        raise StoreCorrupt(f"{path} is not whole: {error.filename} is not there") from error
    except OSError as error:
        raise wrap(error, f"reading {path}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreCorrupt(f"{path / META} is of another format: {error}") from error
    for number, most in ((index, POSITION_MAX), (term, TERM_MAX)):
        if type(number) is not int or not 0 <= number <= most:
            raise StoreCorrupt(f"{path / META} is of another format: {value}")
    if path.name != f"snapshot_{index}":
        raise StoreCorrupt(f"{path} says that it goes up to entry {index}")
    sealed = read_sealed_json(path / SEALED, platform)
    if sealed is None:
        return Snapshot(path, SnapshotMeta(index, term, data_bytes=data_bytes))
    meta = meta_in(path, sealed)
    if (meta.index, meta.term, meta.data_bytes) != (index, term, data_bytes):
        raise StoreCorrupt(f"{path}: its two descriptions, or the length of its data, differ")
    return Snapshot(path, meta)


def meta_in(path: Path, value: dict[str, Any]) -> SnapshotMeta:
    """What such a description in `path` says. Raises StoreCorrupt."""
    more = value.get("more", {})
    numbers = [value.get(name) for name in ("index", "term", "data_bytes", "data_crc")]
    chain, next_pos = value.get("chain"), value.get("next_pos")
    if any(type(one) is not int for one in numbers) or not isinstance(more, dict):
        raise StoreCorrupt(f"{path / SEALED} is of another format: {value}")
    if any(one is not None and type(one) is not int for one in (chain, next_pos)):
        raise StoreCorrupt(f"{path / SEALED} is of another format: {value}")
    index, term, data_bytes, data_crc = numbers
    assert index is not None and term is not None and data_bytes is not None
    return SnapshotMeta(index, term, chain, next_pos, data_bytes, data_crc, more)


def pieces_of(snapshot: Snapshot, offset: int = 0, platform: Platform = OS) -> Iterator[bytes]:
    """Its data from there on. From the start on it is held against its checksum: StoreCorrupt behind the last piece.

    So whoever takes in what it says does not act on it before the end. Raises StoreError.
    """
    path, meta = snapshot.path / DATA, snapshot.meta
    try:
        fd = platform.open(path, os.O_RDONLY)
    except OSError as error:
        raise wrap(error, f"opening {path}") from error
    crc, at = 0, offset
    try:
        while at < meta.data_bytes:
            piece = platform.pread(fd, min(PIECE_BYTES, meta.data_bytes - at), at)
            if not piece:
                raise StoreCorrupt(f"{path} ends at {at}, it had {meta.data_bytes} bytes")
            crc = crc32(piece, crc)
            at += len(piece)
            yield piece
    except OSError as error:
        if error.errno == errno.EIO:
            raise StoreCorrupt(f"the disk cannot read {path} at {at}") from error
        raise wrap(error, f"reading {path}") from error
    finally:
        platform.close(fd)
    if offset == 0 and meta.data_crc not in (None, crc):
        raise StoreCorrupt(f"{path} does not match its checksum")


def verify(snapshot: Snapshot, platform: Platform = OS) -> None:
    """Reads all of its data. Raises StoreCorrupt where that is not what was written, StoreError."""
    for _piece in pieces_of(snapshot, platform=platform):
        pass


@dataclass(slots=True, frozen=True)
class Damage:
    """What is wrong with the snapshot up to `index`; `file` is named from the store's directory on."""

    index: int
    file: str
    detail: str


def damaged_in(directory: Path, platform: Platform = OS) -> list[Damage]:
    """Reads all data of all snapshots, oldest first; changes nothing, and may run beside whoever writes them.

    Raises StoreError where one that is still there cannot be read.
    """
    found: list[Damage] = []
    for index in named_in(directory, platform):
        path = directory / FOLDER / f"snapshot_{index}"
        try:
            verify(read_snapshot(path, platform), platform)
        except StoreError as error:
            if not platform.exists(path):
                continue  # newer ones took its place meanwhile
            if not isinstance(error, StoreCorrupt | StoreRefused):
                raise
            found.append(Damage(index, f"{FOLDER}/{path.name}", str(error)))
    return found


def foreign_in(
    directory: Path, held: Callable[[int], tuple[int, int | None] | None], platform: Platform = OS
) -> list[Damage]:
    """The snapshots, oldest first, that end with another entry than the log has there: of another group, or of another
    history. `held`: an entry's term and chain in this log; None where it does not have it."""
    found: list[Damage] = []
    for index in named_in(directory, platform):
        path = directory / FOLDER / f"snapshot_{index}"
        try:
            meta, here = read_snapshot(path, platform).meta, held(index)
        except StoreError:
            continue  # damaged, or an entry that is: said elsewhere
        if meta.chain is None or here is None or here[1] is None or here == (meta.term, meta.chain):
            continue
        detail = f"it ends with an entry {index} of term {meta.term} and chain {meta.chain}; in this log that one is of"
        found.append(Damage(index, f"{FOLDER}/{path.name}", f"{detail} term {here[0]} and chain {here[1]}"))
    return found


def newest_sound(
    directory: Path, platform: Platform = OS, *, sets_aside: bool = False
) -> tuple[Snapshot | None, list[str]]:
    """The newest one whose data is what was written, and what was wrong with newer ones.

    `sets_aside`: these get another name, so that they stand in no other one's way; only by their writer.
    """
    wrong: list[str] = []
    for index in reversed(named_in(directory, platform)):
        try:
            one = read_snapshot(directory / FOLDER / f"snapshot_{index}", platform)
            verify(one, platform)
            return one, wrong
        except StoreError as error:
            wrong.append(str(error))
            if sets_aside and isinstance(error, StoreCorrupt | StoreRefused):
                set_aside(directory, index, platform)
    return None, wrong


def set_aside(directory: Path, index: int, platform: Platform = OS) -> None:
    """Of what stands under that snapshot's name and cannot be used the last one stays, under another name, for whoever
    wants to know what happened to it; nothing there is fine."""
    folder = directory / FOLDER
    path = folder / f"snapshot_{index}"
    if not platform.exists(path):
        return
    for name in platform.names(folder):
        if name.startswith(DAMAGED):
            platform.remove_tree(folder / name)
    with suppress(OSError):
        platform.replace(path, folder / f"{DAMAGED}{index}")


def keep_newest(directory: Path, count: int = KEPT, platform: Platform = OS) -> list[int]:
    """Removes all but the newest; which ones went, by their last included index. Raises ValueError."""
    if count < 1:
        raise ValueError(f"{count} snapshots are to be kept: one at the least")
    gone: list[int] = []
    for one in snapshots_in(directory, platform)[count:]:
        # Renamed first: a name is complete or not there, also where the machine stops in the middle.
        rest = one.path.with_name(f"removed_{one.meta.index}")
        with suppress(OSError):
            platform.replace(one.path, rest)
            gone.append(one.meta.index)
        platform.remove_tree(rest)
    return gone


def clean(directory: Path, work: str = WORK, platform: Platform = OS) -> None:
    """Removes what a stop in the middle left under that name, or of one that was being removed; only by its writer.

    The names that stay are durable on return: the stop may have come between a rename and its sync, and the log is
    trimmed for what lies there. Raises StoreIOError.
    """
    folder = directory / FOLDER
    if not platform.exists(folder):
        return
    for name in platform.names(folder):
        if name == work or name.startswith("removed_"):
            platform.remove_tree(folder / name)
    sync_directory(folder, platform)
