"""How far a commit log of ours was flushed: `quorumscope/commitlog`, one line of JSON with a CRC over it.

A recovery begins here, and what lies below is not cut: damage there is no torn end but a disk that lost what it had
taken. RocketMQ knows only times (`checkpoint`), and cuts sound messages with the damaged one.

Invariants: written when what it says is on disk; lowered before anything below it is cut; it names the last record
before it, so that a log which somebody else wrote to meanwhile is noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError, save_error
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk
from node.protocol.entry import crc32
from node.protocol.value_class import value_class

LOG_MARK: Final = "commitlog"
_BYTES_MAX: Final = 4096
_VERSION: Final = 1


@value_class(slots=True, frozen=True)
class LastRecord:
    """The last one before a place, whole; `offset` -1: there is none."""

    offset: int = -1
    size_bytes: int = 0
    crc: int = 0


@value_class(slots=True, frozen=True)
class LogMark:
    """`flushed`: a border; everything below it is on disk."""

    flushed: int
    file_bytes: int
    last: LastRecord = LastRecord()
    last_time_ms: int = -1


def log_mark_path(root: Path) -> Path:
    return root / OURS / LOG_MARK


def write_log_mark(root: Path, mark: LogMark, disk: Disk) -> None:
    """Raises OSError, of which NoSpaceToSave: the one before is there still."""
    last = mark.last
    said = json.dumps(
        {
            "version": _VERSION, "flushed": mark.flushed, "file_bytes": mark.file_bytes,
            "last": [last.offset, last.size_bytes, last.crc], "last_time_ms": mark.last_time_ms,
        }
    )  # fmt: skip
    try:
        disk.replace(log_mark_path(root), f"{crc32(said.encode()):08x} {said}\n".encode())
    except OSError as error:
        raise save_error(error) from error


def read_log_mark(root: Path, files: Files = OS) -> LogMark | None:
    """None where there is none. Raises MessageStoreError."""
    path = log_mark_path(root)
    if files.size(path) is None:
        return None
    crc, _space, said = files.read(path, 0, _BYTES_MAX).partition(b" ")
    try:
        if int(crc, 16) != crc32(said.rstrip(b"\n")):
            raise ValueError("its CRC does not agree")
        found = json.loads(said)
        if found["version"] != _VERSION:
            raise ValueError(f"it has version {found['version']}, this release reads {_VERSION}")
        last = LastRecord(*found["last"])
        return LogMark(found["flushed"], found["file_bytes"], last, found["last_time_ms"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageStoreError(
            f"{path} cannot be read ({error}): with that file removed, the log is recovered as RocketMQ does it,"
            " from its checkpoint"
        ) from error
