"""A commit log read from one place to another, in pieces, for dispatch: both forms of log, old files first.

A piece ends where a data file does, and behind every entry that is metadata: what such an entry says (a topic was
deleted) comes between the messages before it and those behind it.

Invariants: nothing is passed over: where no entry or record begins, MessageStoreError says where; memory is one piece;
in the replicated log entries follow one another by index.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from node.message_store.blank import BLANK_MAGIC
from node.message_store.commit_log import ledger_commit_log, local_commit_log
from node.message_store.dispatch_batch import Batch
from node.message_store.dispatch_mark import LogPoint
from node.message_store.errors import MessageStoreError
from node.message_store.read_files import OS, Files, MappedFile, MappedFileQueue
from node.message_store.record import MAGIC_V2, RECORD_BYTES_MIN, SIZE_AND_MAGIC, is_record_magic
from node.protocol.entry import HEAD, HEAD_BYTES, Magic
from node.protocol.group_kind import Channel
from node.protocol.value_class import value_class

PIECE_BYTES: Final = 4 << 20
_BLANK: Final = int(Magic.BLANK)
_MAGIC_V2_LAST: Final = MAGIC_V2 & 0xFF


@value_class(slots=True, frozen=True)
class OwnRecord:
    """An entry that is no message: its record says what changed."""

    index: int
    channel: int
    record: bytes


@value_class(slots=True, frozen=True)
class LogPiece:
    """`batch`: the messages before `end`; then come `own`, of which metadata is the last."""

    batch: Batch
    end: LogPoint
    own: tuple[OwnRecord, ...] = ()
    has_version_2: bool = False


def entries_in(ledger: Path, begin: LogPoint, upto_index: int, files: Files = OS) -> Iterator[LogPiece]:
    """Entries behind `begin` up to `upto_index` of the log in `dledger-<id>/`. Raises MessageStoreError."""
    queue = ledger_commit_log(ledger, files).queue
    point, position = begin, begin.position
    while point.index < upto_index:
        file = queue.find(position)
        if file is None:
            raise MessageStoreError(f"{queue.folder} holds no entry {point.index + 1}: no file has {position}")
        data = queue.read(position, PIECE_BYTES)
        if _is_blank(data, 0):
            position = file.end
            continue
        piece = _entries(data, position, point, upto_index)
        if piece is None:  # one that is longer than what was read
            size = int.from_bytes(data[4:8], "big")
            data = queue.read(position, size)
            piece = _entries(data, position, point, upto_index) if len(data) == size else None
        if piece is None:
            raise MessageStoreError(f"{queue.folder}: no entry {point.index + 1} at position {position}")
        point, position = piece.end, piece.end.position
        yield piece


def _is_blank(data: bytes, at: int) -> bool:
    return len(data) - at >= SIZE_AND_MAGIC.size and int.from_bytes(data[at : at + 4], "big", signed=True) == _BLANK


def _entries(data: bytes, position: int, begin: LogPoint, upto_index: int) -> LogPiece | None:
    """What is whole in `data`, which lies at `position`; None where the next entry is not."""
    starts: list[int] = []
    sizes: list[int] = []
    own: list[OwnRecord] = []
    at, end = 0, begin
    while end.index < upto_index and len(data) - at >= HEAD_BYTES and not _is_blank(data, at):
        _magic, size, index, term, _pos, channel, chain, _crc, body_bytes = HEAD.unpack_from(data, at)
        fits = size == HEAD_BYTES + body_bytes and body_bytes >= 0 and size <= len(data) - at
        if index != end.index + 1 or not fits:
            break
        if channel:
            own.append(OwnRecord(index, channel, data[at + HEAD_BYTES : at + size]))
        elif body_bytes:
            starts.append(at + HEAD_BYTES)
            sizes.append(body_bytes)
        at += size
        end = LogPoint(position + at, index, term, chain)
        if channel == Channel.METADATA:
            break
    return _piece(data, position, starts, sizes, end, own) if at else None


def _piece(
    data: bytes, position: int, starts: list[int], sizes: list[int], end: LogPoint, own: list[OwnRecord]
) -> LogPiece:
    places = np.array(starts, "i8")
    has_version_2 = _MAGIC_V2_LAST in {data[start + 7] for start in starts}
    return LogPiece(Batch(data, places, np.array(sizes, "i8"), places + position), end, tuple(own), has_version_2)


def old_records(root: Path, begin: int, files: Files = OS) -> Iterator[LogPiece]:
    """Messages of a log of RocketMQ's own (`commitlog/`), from `begin` to its end. Raises MessageStoreError."""
    log = local_commit_log(root, files)
    queue, position = log.queue, begin
    while (file := queue.find(position)) is not None:
        data = queue.read(position, PIECE_BYTES)
        starts, sizes, at, reached = _records(data, position, file)
        if not at and len(data) >= SIZE_AND_MAGIC.size:
            size, magic = SIZE_AND_MAGIC.unpack_from(data)
            if is_record_magic(magic) and len(data) < size <= file.end - position:
                data = queue.read(position, size)
                starts, sizes, at, reached = _records(data, position, file)
        if reached == position:
            break
        end = LogPoint(reached)
        yield _piece(data, position, starts, sizes, end, [])
        position = reached
    if position < log.find_end():
        raise MessageStoreError(
            f"{queue.folder}: no message begins at offset {position}, but the log goes on behind it"
        )


def _records(data: bytes, position: int, file: MappedFile) -> tuple[list[int], list[int], int, int]:
    """Starts and sizes, how much of `data` they take, and from where the log goes on."""
    starts: list[int] = []
    sizes: list[int] = []
    at = 0
    while len(data) - at >= SIZE_AND_MAGIC.size:
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        if magic == BLANK_MAGIC and position + at + size == file.end:
            return starts, sizes, at + size, file.end
        if not is_record_magic(magic) or not RECORD_BYTES_MIN <= size <= len(data) - at:
            break
        starts.append(at)
        sizes.append(size)
        at += size
    return starts, sizes, at, position + at


def begin_of(queue: MappedFileQueue, files_begin: int | None = None) -> LogPoint:
    """The point before the first entry of a replicated log. Raises MessageStoreError where it holds none."""
    position = queue.min_offset if files_begin is None else files_begin
    raw = queue.read(position, HEAD_BYTES)
    if len(raw) < HEAD_BYTES:
        raise MessageStoreError(f"{queue.folder} holds no entry")
    magic, _size, index, *_rest = HEAD.unpack(raw)
    if magic not in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE):
        raise MessageStoreError(f"{queue.folder}: no entry begins at position {position}")
    return LogPoint(position, index - 1)
