"""Data and index files of another length than the store's, set right at open (SAFETY S6).

A file that somebody shortened gets its length back, and what it lost reads as zeros: damage like any other, which peers
heal. What somebody put behind a file's end goes to the archive. Invariants: before a length changes it is on disk that
the next start reads everything; no file is shortened that others may have mapped: a copy takes the name of one that is
too long, and its surplus is archived before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from node.store.errors import wrap
from node.store.faults.known_faults import save_known_faults
from node.store.faults.results import Fault
from node.store.files.os_files import sync_directory, write_all
from node.store.files.platform import Platform
from node.store.files.segment_list import SegmentList
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import TruncationRecord

_COPY_BYTES = 1024 * 1024


def set_lengths_right(
    directory: Path, segments: SegmentList, archive: TruncationArchive, node_id: str, platform: Platform
) -> list[str]:
    """Takes the files that `segments.open` left out; what was wrong, in words. Raises StoreFull, StoreIOError: then no
    length has changed that the next start will not look behind."""
    reports: list[str] = []
    for path, has_bytes in segments.odd:
        file = f"{segments.kind}/{path.name}"
        if not reports:
            save_known_faults(directory, [Fault(0, 0, "missing")], platform)
        if has_bytes < segments.file_bytes:
            _lengthen(path, segments.file_bytes, platform)
        else:
            surplus = has_bytes - segments.file_bytes
            reason = f"{surplus} bytes too many at the end of {file}"
            record = TruncationRecord(node_id, None, -1, -1, -1, reason, -1)
            if any(any(chunk) for chunk in _chunks(path, segments.file_bytes, has_bytes, platform)):
                archive.add(record, _chunks(path, segments.file_bytes, has_bytes, platform))
            _copy_start(path, segments.file_bytes, platform)
        segments.take(path)
        reports.append(f"{file} had {has_bytes} bytes instead of {segments.file_bytes}: what it held is looked at anew")
    segments.odd.clear()
    return reports


def _lengthen(path: Path, length: int, platform: Platform) -> None:
    try:
        fd = platform.open(path, os.O_RDWR)
        try:
            platform.ftruncate(fd, length)
            platform.fsync(fd)
        finally:
            platform.close(fd)
    except OSError as error:
        raise wrap(error, f"giving {path} its length") from error


def _copy_start(path: Path, length: int, platform: Platform) -> None:
    copy = path.with_name(f"{path.name}.copy")
    attempt = f"writing {copy}"
    try:
        fd = platform.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            offset = 0
            for chunk in _chunks(path, 0, length, platform):
                if any(chunk):  # holes stay
                    write_all(fd, chunk, offset, attempt, platform)
                offset += len(chunk)
            platform.ftruncate(fd, length)
            platform.fsync(fd)
        finally:
            platform.close(fd)
        platform.replace(copy, path)
    except OSError as error:
        raise wrap(error, attempt) from error
    sync_directory(path.parent, platform)


def _chunks(path: Path, offset: int, end: int, platform: Platform) -> Iterator[bytes]:
    try:
        fd = platform.open(path, os.O_RDONLY)
        try:
            while offset < end:
                chunk = platform.pread(fd, min(_COPY_BYTES, end - offset), offset)
                if not chunk:
                    return
                yield chunk
                offset += len(chunk)
        finally:
            platform.close(fd)
    except OSError as error:
        raise wrap(error, f"reading {path}") from error
