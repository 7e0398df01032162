"""`truncated/<seq>/`: every byte that was ever cut, with who ordered it and why (SAFETY S4).

Invariants: an archive is complete and synced before its cut begins; it appears by rename, so a half written one is
never seen; size and age are bounded, and the newest archive is never the one that goes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from node.protocol.entry import (
    BODY_BYTES_MAX,
    HEAD_BYTES,
    POSITION_MAX,
    BytesLike,
    Entry,
    EntryError,
    unpack_record,
)
from node.store.errors import StoreFull, StoreIOError, StoreRefused, wrap
from node.store.files.os_files import is_zeros, make_directory, read_small, sync_directory, write_all, write_synced
from node.store.files.platform import OS, Platform
from node.store.log_store import TruncationRecord

FOLDER = "truncated"
BYTES_MAX = 1024 * 1024 * 1024
AGE_MAX_S = 30 * 24 * 3600
FILES = "files"
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS})
MAGIC_BYTES = 4
_SEQ_DIGITS = 10
_COPY_BYTES = 1024 * 1024


class TruncationArchive:
    """The archives of one store. Reading works beside a running engine."""

    def __init__(
        self,
        directory: Path,
        *,
        bytes_max: int = BYTES_MAX,
        age_max_s: float = AGE_MAX_S,
        platform: Platform = OS,
    ) -> None:
        self.folder = directory / FOLDER
        self._bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._platform = platform

    # --- reading -------------------------------------------------------------------------------------------------

    def _sequences(self) -> list[int]:
        names = self._platform.names(self.folder)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) == _SEQ_DIGITS)

    def _path(self, seq: int) -> Path:
        return self.folder / f"{seq:0{_SEQ_DIGITS}d}"

    @property
    def count(self) -> int:
        """How many truncations there ever were (removed archives included)."""
        sequences = self._sequences()
        return sequences[-1] if sequences else 0

    def records(self) -> list[TruncationRecord]:
        """Oldest first."""
        found: list[TruncationRecord] = []
        for seq in self._sequences():
            record = self.record(seq)
            if record is not None:
                found.append(record)
        return found

    def record(self, seq: int) -> TruncationRecord | None:
        """None where there is no such archive (any more), or where its meta.json is damaged; its bytes stay."""
        try:
            value = json.loads(read_small(self._path(seq) / "meta.json", self._platform))
        except (OSError, ValueError, RecursionError, StoreRefused):
            return None
        return _record(value, seq) if isinstance(value, dict) else None

    def data(self, seq: int) -> bytes:
        """The raw bytes that were cut; empty where there is no such archive, or whole files were archived."""
        try:
            return self._platform.read_bytes(self._path(seq) / "data")
        except FileNotFoundError:
            return b""

    def files(self, seq: int) -> list[Path]:
        """The data files of an archive of a whole log, in the order of their positions."""
        folder = self._path(seq) / FILES
        return [folder / name for name in self._platform.names(folder)]

    def entries(self, seq: int) -> list[Entry]:
        """All of them at once: of a cut, or of a small log."""
        return list(self.each_entry(seq))

    def each_entry(self, seq: int) -> Iterator[Entry]:
        """The whole records of an archive, read one by one; in each file, bytes that are no record end it.

        That is a torn tail, or what fills a data file behind its last record.
        """
        paths = self.files(seq)
        if self._platform.exists(self._path(seq) / "data"):
            paths.append(self._path(seq) / "data")
        for path in paths:
            fd = self._platform.open(path, os.O_RDONLY)
            try:
                yield from _entries_in(fd, self._platform)
            finally:
                self._platform.close(fd)

    def size_bytes(self, seq: int) -> int:
        """What it keeps."""
        paths = self.files(seq)
        if self._platform.exists(self._path(seq) / "data"):
            paths.append(self._path(seq) / "data")
        return sum(self._platform.path_size(path) for path in paths)

    # --- writing -------------------------------------------------------------------------------------------------

    def add(self, record: TruncationRecord, chunks: Iterable[BytesLike]) -> TruncationRecord:
        """Writes and syncs one archive. Raises StoreFull when it cannot be written: then nothing may be cut."""
        return self._add(record, lambda work, attempt: self._write_data(work / "data", chunks, attempt))

    def add_files(self, record: TruncationRecord, paths: Sequence[Path]) -> TruncationRecord:
        """The same for whole data files, however large: each gets a second name in the archive.

        From now on nobody may write to them. Where the file system has no second names they are copied.
        """

        def fill(work: Path, attempt: str) -> None:
            make_directory(work / FILES, self._platform)
            for path in paths:
                try:
                    self._platform.link(path, work / FILES / path.name)
                except OSError as error:
                    if error.errno not in NO_LINKS:
                        raise
                    pieces = _pieces_of(path, self._platform)
                    self._write_data(work / FILES / path.name, pieces, attempt)
            sync_directory(work / FILES, self._platform)

        return self._add(record, fill)

    def _add(self, record: TruncationRecord, fill: Callable[[Path, str], None]) -> TruncationRecord:
        self._clear_unfinished()
        self._make_room()
        seq = self.count + 1
        now = self._platform.wall_time().isoformat().replace("+00:00", "Z")
        stamped = replace(record, seq=seq, time=record.time or now)
        work = self.folder / f"tmp-{seq}"
        attempt = f"writing the truncation archive {self._path(seq)}"
        try:
            make_directory(work, self._platform)
            fill(work, attempt)
            write_synced(work / "meta.json", json.dumps(_meta(stamped), indent=1).encode(), self._platform)
            sync_directory(work, self._platform)
            self._platform.replace(work, self._path(seq))
            sync_directory(self.folder, self._platform)
            sync_directory(self.folder.parent, self._platform)
        except OSError as error:
            self._platform.remove_tree(work)
            raise wrap(error, attempt) from error
        except (StoreFull, StoreIOError):
            self._platform.remove_tree(work)
            raise
        return stamped

    def _write_data(self, path: Path, chunks: Iterable[BytesLike], attempt: str) -> None:
        fd = self._platform.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            offset = 0
            for chunk in chunks:
                write_all(fd, chunk, offset, attempt, self._platform)
                offset += len(chunk)
            self._platform.fsync(fd)
        finally:
            self._platform.close(fd)

    def _clear_unfinished(self) -> None:
        for name in self._platform.names(self.folder):
            if name.startswith("tmp-"):
                self._platform.remove_tree(self.folder / name)

    def _make_room(self) -> None:
        """Removes the oldest archives beyond the bounds. The newest one stays: its number must not be used twice."""
        sequences = self._sequences()[::-1]
        oldest_kept_s = self._platform.wall_time().timestamp() - self._age_max_s
        total = 0
        for number, seq in enumerate(sequences):
            path = self._path(seq)
            try:
                total += self.size_bytes(seq)
                expired = self._platform.modified_s(path / "meta.json") < oldest_kept_s
            except FileNotFoundError:
                expired = True
            if number > 0 and (expired or total > self._bytes_max):
                self._platform.remove_tree(path)


def _entries_in(fd: int, platform: Platform) -> Iterator[Entry]:
    """From the first byte on that is not zero: a log may begin inside its first file, where its group was born."""
    offset = 0
    while (piece := platform.pread(fd, _COPY_BYTES, offset)) and is_zeros(piece):
        offset += len(piece)
    # The magic of an entry is its lowest byte.
    offset = max(0, offset + len(piece) - len(piece.lstrip(b"\0")) - (MAGIC_BYTES - 1))
    while True:
        head = platform.pread(fd, HEAD_BYTES, offset)
        size = int.from_bytes(head[MAGIC_BYTES : 2 * MAGIC_BYTES], "big", signed=True)
        if len(head) < HEAD_BYTES or not HEAD_BYTES <= size <= HEAD_BYTES + BODY_BYTES_MAX:
            return
        try:
            entry = unpack_record(platform.pread(fd, size, offset))
        except EntryError:
            return
        yield entry
        offset += entry.size


def _pieces_of(path: Path, platform: Platform) -> Iterator[bytes]:
    """A file's bytes."""
    fd, offset = platform.open(path, os.O_RDONLY), 0
    try:
        while piece := platform.pread(fd, _COPY_BYTES, offset):
            yield piece
            offset += len(piece)
    finally:
        platform.close(fd)


def _record(value: dict[str, Any], seq: int) -> TruncationRecord | None:
    """The reverse of `_meta`; None for what it never wrote."""
    texts = [value.get(name) for name in ("by", "reason", "time")]
    numbers = [value.get(name) for name in ("term", "from_index", "to_index", "committed_at")]
    leader = value.get("leader")
    if not all(isinstance(one, str) for one in [*texts, leader or ""]):
        return None
    if not all(type(one) is int and -1 <= one <= POSITION_MAX for one in numbers):
        return None
    behind = value.get("begins_behind", -1)
    return TruncationRecord(
        value["by"], leader, value["term"], value["from_index"], value["to_index"], value["reason"],
        value["committed_at"], value["time"], seq, behind if type(behind) is int else -1,
    )  # fmt: skip


def _meta(record: TruncationRecord) -> dict[str, object]:
    value = asdict(record)
    replaced = {} if record.begins_behind < 0 else {"begins_behind": record.begins_behind}
    return replaced | {
        "by": value["by"], "leader": value["leader_id"], "term": value["term"], "from_index": value["from_index"],
        "to_index": value["to_index"], "reason": value["reason"], "committed_at": value["committed_index"],
        "time": value["time"],
    }  # fmt: skip
