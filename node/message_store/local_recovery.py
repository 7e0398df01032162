"""Where a commit log of RocketMQ's own ends, found when it is opened for writing, and what lies behind it cut off.

With a mark of ours (`local_mark.py`) the way begins there. Without one it begins as RocketMQ's does: after a clean stop
at the third file from the end; with `abort` at the newest file whose first message is older than `checkpoint` by three
seconds. From there each record is judged, up to the first that is not sound.

Invariants: nothing below a mark is cut: damage there refuses to open. What is cut is zeroed, to the end of its file,
and the files behind it are gone before anything is written (RocketMQ leaves the bytes, and takes them up again: oddity
4). Sound records behind a cut are kept aside in `quorumscope/cut/`. Nothing is written before all was judged.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from node.message_store.commit_log import COMMIT_LOG
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.local_mark import LastRecord, LogMark, read_log_mark
from node.message_store.local_records import Stop, walk
from node.message_store.read_files import FILE_BYTES_MAX, NAME_DIGITS, OS, OWNER_FILE, POSITION_MAX, Files
from node.message_store.record import RECORD_BYTES_MIN
from node.message_store.record_check import store_timestamp_ms
from node.message_store.store_files import CHECKPOINT_BYTES, decode_checkpoint
from node.message_store.write_files import Disk
from node.protocol.entry import crc32
from node.protocol.value_class import value_class

FILE_BYTES_MIN: Final = 512
ABORT: Final = "abort"
CHECKPOINT: Final = "checkpoint"
CUT: Final = "cut"
PIECE_BYTES: Final = 1 << 20
CUT_PIECE_BYTES: Final = 64 << 20
MAGIC_BEGINS: Final = b"\xda\xa3\x20"  # of both versions of a record
_RECENT_FILES: Final = 3


@value_class(slots=True, frozen=True)
class Recovered:
    """`end`: behind the last sound record or blank. `cut_bytes`: of what looked written behind it."""

    starts: list[int]
    end: int
    last: LastRecord
    last_time_ms: int
    was_clean: bool
    begin: int = 0  # where the way began
    records: int = 0  # looked at
    cut_bytes: int = 0
    why: str = ""  # what ended the way, where that was no unwritten place


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def recover(root: Path, file_bytes: int, disk: Disk, files: Files = OS) -> Recovered:
    """Raises MessageStoreError where this log cannot be written on: nothing was changed then. OSError."""
    if not FILE_BYTES_MIN <= file_bytes <= FILE_BYTES_MAX:
        raise MessageStoreError(f"files of {file_bytes} bytes: {FILE_BYTES_MIN} to {FILE_BYTES_MAX} are possible")
    folder = root / COMMIT_LOG
    mark = read_log_mark(root, files)
    if mark is not None and mark.file_bytes != file_bytes:
        raise MessageStoreError(
            f"{folder} has files of {mark.file_bytes} bytes, {file_bytes} are asked for (mappedFileSizeCommitLog):"
            " a commit log keeps the size that it began with"
        )
    starts, empty, short = _files_in(folder, file_bytes, files)
    clean = files.size(root / ABORT) is None
    begin = _begin_of(root, folder, starts, mark, clean, files)
    found = _walked(folder, file_bytes, starts, begin, mark, clean, files)
    is_sound_behind = bool(found.why) and sound_behind(folder, file_bytes, starts, found.end, files)
    if clean and mark is None and is_sound_behind:
        raise MessageStoreError(
            f"{folder}: {found.why}, and sound messages lie behind it, though the last broker stopped cleanly: take a"
            f" copy, see `quorumscope store verify`; with a file {ABORT} in {root} everything from {found.end} on is"
            f" cut, and kept in {OURS}/{CUT}/"
        )
    if empty is not None:
        disk.remove(folder / file_name(empty))
    if short is not None:  # the process ended while it zeroed what was cut
        disk.write(folder / file_name(short), file_bytes - 1, b"\0")
    return cut_behind(root, file_bytes, found, disk, files, keeps=is_sound_behind)


def _files_in(folder: Path, file_bytes: int, files: Files) -> tuple[list[int], int | None, int | None]:
    """Where each file begins; the last one where it is empty, and where it is not yet, or no more, of its length."""
    found: list[tuple[int, int]] = []
    for name in files.names(folder):
        if name == OWNER_FILE:
            raise MessageStoreError(f"{folder} belongs to a broker group ({OWNER_FILE} is there)")
        if not (name.isascii() and name.isdigit() and len(name) == NAME_DIGITS and int(name) <= POSITION_MAX):
            raise MessageStoreError(f"{folder / name} is no file of a commit log: move it away")
        found.append((int(name), files.size(folder / name) or 0))
    empty = found.pop()[0] if found and not found[-1][1] else None
    short = found[-1][0] if found and found[-1][1] < file_bytes else None
    for start, size in found:
        if size != file_bytes and start != short:
            raise MessageStoreError(
                f"{folder / file_name(start)} has {size} bytes, the files of this log have {file_bytes}"
                " (mappedFileSizeCommitLog)"
            )
        if start % file_bytes:
            raise MessageStoreError(f"{folder / file_name(start)}: {start} is no multiple of {file_bytes}")
    starts = [start for start, _size in found]
    for before, start in pairwise(starts):
        if start != before + file_bytes:
            raise MessageStoreError(f"{folder}: the file {file_name(before + file_bytes)} is missing")
    return starts, empty, short


def _begin_of(
    root: Path, folder: Path, starts: list[int], mark: LogMark | None, clean: bool, files: Files
) -> int:  # fmt: skip
    """From where on the log is looked at."""
    if mark is not None and (starts or mark.flushed):
        _check_mark(folder, starts, mark, files)
        return max(mark.flushed, starts[0] if starts else 0)
    if not starts:
        return 0
    if clean:
        return starts[max(0, len(starts) - _RECENT_FILES)]
    data = files.read(root / CHECKPOINT, 0, CHECKPOINT_BYTES + 1)
    try:
        upto_ms = decode_checkpoint(data).min_timestamp_ms if data else 0
    except MessageFormatError:
        upto_ms = 0
    for start in reversed(starts):
        if 0 < store_timestamp_ms(files.read(folder / file_name(start), 0, 128)) <= upto_ms:
            return start
    return starts[0]


def _check_mark(folder: Path, starts: list[int], mark: LogMark, files: Files) -> None:
    """What it vouches for is there. Raises MessageStoreError."""
    end = (starts[-1] if starts else -mark.file_bytes) + mark.file_bytes
    if mark.flushed > end:
        raise MessageStoreError(
            f"{folder} was flushed up to {mark.flushed}, its files end at {end}: bring the missing files back, or empty"
            " the directory and copy the whole log from the master or a slave"
        )
    last = mark.last
    if last.offset < 0 or last.offset < (starts[0] if starts else 0):
        return
    start = last.offset - last.offset % mark.file_bytes
    data = files.read(folder / file_name(start), last.offset - start, last.size_bytes)
    if len(data) != last.size_bytes or crc32(data) != last.crc:
        raise MessageStoreError(
            f"the record at {last.offset} in {folder} is not the one that was flushed: the disk lost it, or another"
            f" broker wrote here; `quorumscope store verify` says what is there, and with quorumscope/commitlog removed"
            " the log is recovered as RocketMQ does it"
        )


def _walked(
    folder: Path, file_bytes: int, starts: list[int], begin: int, mark: LogMark | None, clean: bool, files: Files
) -> Recovered:  # fmt: skip
    """On to the first place that holds no sound record."""
    place, records, why = begin, 0, ""
    last = LastRecord() if mark is None else mark.last
    last_ms = -1 if mark is None else mark.last_time_ms
    while starts and starts[0] <= place < starts[-1] + file_bytes:
        start = place - place % file_bytes
        data = files.read(folder / file_name(start), place - start, PIECE_BYTES)
        found = walk(data, place, file_bytes, torn_from=begin)
        if not found.at and found.stop is Stop.PARTIAL and found.needs > len(data):
            data = files.read(folder / file_name(start), place - start, found.needs)
            found = walk(data, place, file_bytes, torn_from=begin)
        if found.starts:
            at, size = found.starts[-1], found.sizes[-1]
            last = LastRecord(place + at, size, crc32(data[at : at + size]))
            records += len(found.starts)
            last_ms = max(last_ms, *(store_timestamp_ms(data[one : one + 128]) for one in found.starts))
        place += found.at
        if found.stop in (Stop.BAD, Stop.UNWRITTEN) or not found.at:
            why = found.why
            break
    return Recovered(starts, place, last, last_ms, clean, begin, records, 0, why)


def cut_behind(
    root: Path, file_bytes: int, found: Recovered, disk: Disk, files: Files = OS, *, keeps: bool = True
) -> Recovered:  # fmt: skip
    """Zeros behind `found.end`, and no file behind its own; on disk when this returns. `keeps`: a copy of it."""
    folder, end = root / COMMIT_LOG, found.end
    kept = [start for start in found.starts if start < end or start == end == found.starts[0]]
    written = _written_behind(folder, file_bytes, found, files)
    if not written and kept == found.starts:
        return found
    if keeps:
        keep_aside(root, file_bytes, found, disk, files)
    for start in reversed(found.starts[len(kept) :]):
        disk.remove(folder / file_name(start))
    if len(kept) < len(found.starts):  # or a power loss could leave them behind a file that is being zeroed
        disk.sync_folder(folder)
    if kept and end < kept[-1] + file_bytes:
        disk.zero_from(folder / file_name(kept[-1]), end - kept[-1])
        disk.sync(folder / file_name(kept[-1]))
    disk.sync_folder(folder)
    return replace(found, starts=kept, cut_bytes=written)


def sound_behind(folder: Path, file_bytes: int, starts: list[int], end: int, files: Files = OS) -> bool:
    """Whether a sound record lies anywhere behind `end`."""
    for start in starts:
        at = max(end, start)
        while at < start + file_bytes:
            data = files.read(folder / file_name(start), at - start, PIECE_BYTES)
            found = data.find(MAGIC_BEGINS)
            while found >= 4:
                place = at + found - 4
                size = int.from_bytes(data[found - 4 : found], "big")
                if RECORD_BYTES_MIN <= size <= min(MESSAGE_BYTES_MAX, start + file_bytes - place):
                    record = files.read(folder / file_name(start), place - start, size)
                    if len(record) == size and walk(record, place, file_bytes).starts:
                        return True
                found = data.find(MAGIC_BEGINS, found + 1)
            if len(data) < PIECE_BYTES:
                break
            at += len(data) - 8
    return False


def _written_behind(folder: Path, file_bytes: int, found: Recovered, files: Files) -> int:
    """Up to the last byte behind the end that is no zero."""
    written = 0
    for start in found.starts:
        at = max(found.end, start)
        while start + file_bytes > at:
            data = files.read(folder / file_name(start), at - start, PIECE_BYTES)
            if not data:
                break
            used = len(data.rstrip(b"\0"))
            if used:
                written = at + used - found.end
            at += len(data)
    return written


def keep_aside(root: Path, file_bytes: int, found: Recovered, disk: Disk, files: Files = OS) -> None:
    """What lies behind `found.end`, in pieces, each in a file of its own. OSError: nothing else was changed."""
    folder, at = root / COMMIT_LOG, found.end
    upto = at + _written_behind(folder, file_bytes, found, files)
    while at < upto:
        start = at - at % file_bytes
        length = min(start + file_bytes, upto, at + CUT_PIECE_BYTES) - at
        data = files.read(folder / file_name(start), at - start, length)
        disk.replace(cut_path(root, at, crc32(data)), data)
        at += length


def cut_path(root: Path, offset: int, crc: int) -> Path:
    """Where bytes that were cut are kept: by their first offset, and by what they are."""
    return root / OURS / CUT / f"{file_name(offset)}-{crc:08x}"
