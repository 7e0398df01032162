"""One replica's records of an index range as numpy columns, decoded from raw segment bytes.

The index file says where each record should lie. While its units tile the data files (each record right behind the one
before, or at a file's start) they are believed and checked against the heads all at once; where they do not, the data
file is walked record by record, so that a damaged index file never hides a sound record nor the other way round.

Invariants: all columns have one row per index of the range; `sizes` is 0 where nothing was found; `buf` holds exactly
the found records, back to back, and `offsets` says where; a row with `held` False is outside the replica's range and
carries no fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from app.audit.segments import WINDOW_BYTES, ReadFailed, SegmentGone, SegmentIO, SegmentMap, Window
from node.protocol.entry import BODY_BYTES_MAX, HEAD, HEAD_BYTES, HEAD_DTYPE, INDEX_DTYPE, INDEX_UNIT_BYTES, Magic

RECORD_BYTES_MAX = HEAD_BYTES + BODY_BYTES_MAX
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Fault(IntFlag):
    """What is wrong with one record by itself."""

    NONE = 0
    MISSING = 1  # no record where the range says that there is one
    RECORD = 2  # the head is broken
    INDEX = 4  # the index unit disagrees with a sound record
    CRC = 8  # the body does not match its CRC
    CHAIN = 16  # the stored chain does not follow from the head and the entry before
    FILLER = 32  # the blank record behind it, at the file's end, is broken
    UNREAD = 64  # could not be read: no statement


# With one of these the record's content cannot be believed and takes no part in the comparison.
UNSOUND = Fault.MISSING | Fault.RECORD | Fault.CRC | Fault.CHAIN | Fault.UNREAD


@dataclass(slots=True)
class Records:
    """See the module's docstring."""

    first_index: int
    held: npt.NDArray[np.bool_]
    positions: Int64
    sizes: Int64
    offsets: Int64
    buf: Bytes
    heads: npt.NDArray[Any]
    faults: Int64
    unread_reason: str = ""

    @property
    def count(self) -> int:
        return len(self.sizes)

    def body(self, row: int) -> memoryview:
        offset = int(self.offsets[row])
        return self.buf.data[offset + HEAD_BYTES : offset + int(self.sizes[row])]


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """What a reader of one replica's records needs."""

    io: SegmentIO
    data: SegmentMap
    index: SegmentMap
    begin_index: int
    end_index: int


def read_units(files: ReplicaFiles, first_index: int, last_index: int) -> npt.NDArray[Any]:
    """The index units of a range inside the replica's own; zeros where an index file is missing."""
    count = last_index - first_index + 1
    try:
        raw = files.index.read(files.io, first_index * INDEX_UNIT_BYTES, count * INDEX_UNIT_BYTES)
    except SegmentGone:
        raw = b"".join(_unit_or_zeros(files, index) for index in range(first_index, last_index + 1))
    return np.frombuffer(raw, dtype=INDEX_DTYPE)


def _unit_or_zeros(files: ReplicaFiles, index: int) -> bytes:
    if files.index.at(index * INDEX_UNIT_BYTES) is None:
        return bytes(INDEX_UNIT_BYTES)
    try:
        return files.index.read(files.io, index * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
    except SegmentGone:
        return bytes(INDEX_UNIT_BYTES)


def plausible_sizes(units: npt.NDArray[Any]) -> Int64:
    """The units' record sizes, clamped to what a record can be: for planning how much to read."""
    return np.clip(units["size"].astype(np.int64), HEAD_BYTES, RECORD_BYTES_MAX)


def load(
    files: ReplicaFiles, first_index: int, last_index: int, units: npt.NDArray[Any] | None, units_first: int
) -> Records:
    """The records of [first_index, last_index]; `units` (from `units_first`) must cover the part that is held."""
    count = last_index - first_index + 1
    low = max(first_index, files.begin_index)
    high = min(last_index, files.end_index)
    held = np.zeros(count, dtype=np.bool_)
    positions = np.full(count, -1, dtype=np.int64)
    sizes = np.zeros(count, dtype=np.int64)
    faults = np.zeros(count, dtype=np.int64)
    buf = np.zeros(0, dtype=np.uint8)
    reason = ""
    if units is not None and low <= high:
        rows = slice(low - first_index, high - first_index + 1)
        held[rows] = True
        part = units[low - units_first : high - units_first + 1]
        try:
            positions[rows], sizes[rows], faults[rows] = locate(files, part, low)
            buf = _gather(files, positions, sizes, faults)
        except ReadFailed as failed:
            reason = str(failed)
            sizes[:] = 0
            faults[rows] = Fault.UNREAD
    offsets = np.zeros(count, dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    records = Records(first_index, held, positions, sizes, offsets, buf, _heads(buf, sizes, offsets), faults, reason)
    if units is not None and low <= high and not reason:
        _check_heads(records, units[low - units_first : high - units_first + 1], low - first_index)
        _check_fillers(files, records)
    return records


def locate(files: ReplicaFiles, units: npt.NDArray[Any], first_index: int) -> tuple[Int64, Int64, Int64]:
    """Position, size and first faults of every record of a range."""
    if _units_tile(files.data, units, first_index):
        faults = np.zeros(len(units), dtype=np.int64)
        return units["pos"].astype(np.int64), units["size"].astype(np.int64), faults
    return _walk(files, units, first_index)


def _units_tile(data: SegmentMap, units: npt.NDArray[Any], first_index: int) -> bool:
    sizes = units["size"].astype(np.int64)
    positions = units["pos"].astype(np.int64)
    sound = (
        (units["index"] == np.arange(first_index, first_index + len(units)))
        & (units["magic"] >= Magic.NORMAL)
        & (units["magic"] <= Magic.CONFIG_CHANGE)
        & (sizes >= HEAD_BYTES)
        & (sizes <= RECORD_BYTES_MAX)
        & (positions >= 0)
    )
    if not data.segments or not bool(sound.all()):
        return False
    starts = np.array(data.starts, dtype=np.int64)
    ends = np.array([s.end for s in data.segments], dtype=np.int64)
    numbers = np.searchsorted(starts, positions, side="right") - 1
    if bool((numbers < 0).any()) or bool((positions + sizes > ends[numbers]).any()):
        return False
    follows = positions[1:] == positions[:-1] + sizes[:-1]
    rolls = (positions[1:] == starts[numbers[1:]]) & (numbers[1:] == numbers[:-1] + 1)
    return bool((follows | rolls).all())


def _walk(files: ReplicaFiles, units: npt.NDArray[Any], first_index: int) -> tuple[Int64, Int64, Int64]:
    """Finds records one by one: right behind the one before, otherwise where the index unit says."""
    count = len(units)
    positions = np.full(count, -1, dtype=np.int64)
    sizes = np.zeros(count, dtype=np.int64)
    faults = np.zeros(count, dtype=np.int64)
    window = Window(files.io, files.data)
    cursor: int | None = None
    if first_index == files.begin_index and files.data.segments:
        cursor = _first_place(window)
    for row in range(count):
        index = first_index + row
        unit = tuple(int(value) for value in units[row].tolist())
        plausible = _unit_plausible(unit, index)
        cursor = _skip_blank(window, cursor)
        found = next(
            (
                (place, head)
                for place in (cursor, unit[1] if plausible else None)
                if place is not None and (head := _head_at(window, place)) is not None and head[2] == index
            ),
            None,
        )
        if found is not None:
            positions[row], sizes[row] = found[0], found[1][1]
            cursor = found[0] + found[1][1]
            if not plausible or (unit[1], unit[2]) != (positions[row], sizes[row]):
                faults[row] = Fault.INDEX
        elif plausible and files.data.at(unit[1]) is not None:
            positions[row], sizes[row], faults[row] = unit[1], unit[2], Fault.RECORD
            cursor = unit[1] + unit[2]
        else:
            nothing = cursor is None or _head_at(window, cursor) is not None or not any(window.read(cursor, HEAD_BYTES))
            faults[row] = Fault.MISSING if nothing else Fault.RECORD
            if not nothing:
                cursor = None  # the broken record does not say where the next one starts
    return positions, sizes, faults


def _first_place(window: Window) -> int:
    """Where a log's first record lies: at its first file's start, or behind zeros where it began inside that file."""
    segment = window.data.segments[0]
    at = segment.start
    while piece := window.read(at, WINDOW_BYTES):
        written = piece.lstrip(b"\0")
        if written:
            # A head begins with its magic: four bytes, of which only the last is not zero.
            return max(segment.start, at + len(piece) - len(written) - 3)
        at += len(piece)
    return segment.start


def _unit_plausible(unit: tuple[int, ...], index: int) -> bool:
    magic, position, size, unit_index, _term = unit
    return (
        unit_index == index
        and Magic.NORMAL <= magic <= Magic.CONFIG_CHANGE
        and HEAD_BYTES <= size <= RECORD_BYTES_MAX
        and position >= 0
    )


def _head_at(window: Window, position: int) -> tuple[int, ...] | None:
    """The head at `position` if it is well-formed."""
    raw = window.read(position, HEAD_BYTES)
    if len(raw) < HEAD_BYTES:
        return None
    head = HEAD.unpack(raw)
    magic, size, index, term = head[0], head[1], head[2], head[3]
    if not Magic.NORMAL <= magic <= Magic.CONFIG_CHANGE or size != head[8] + HEAD_BYTES:
        return None
    return head if HEAD_BYTES <= size <= RECORD_BYTES_MAX and index >= 0 and term >= 0 else None


def _skip_blank(window: Window, cursor: int | None) -> int | None:
    """Past filler: to the next file at a file's end, past the removed prefix at a file's start."""
    for _ in range(len(window.data.segments) + 1):
        if cursor is None:
            return None
        raw = window.read(cursor, 8)
        if len(raw) < 8 or int.from_bytes(raw[:4], "big", signed=True) != Magic.BLANK:
            return cursor
        size = int.from_bytes(raw[4:], "big", signed=True)
        if size < 8:
            return cursor
        cursor += size
    return cursor


def _gather(files: ReplicaFiles, positions: Int64, sizes: Int64, faults: Int64) -> Bytes:
    """Reads the located records in as few ranges as they lie in."""
    rows = np.flatnonzero(sizes)
    if not len(rows):
        return np.zeros(0, dtype=np.uint8)
    starts = positions[rows]
    ends = starts + sizes[rows]
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    parts: list[bytes] = []
    for run in np.split(np.arange(len(rows)), breaks):
        begin, end = int(starts[run[0]]), int(ends[run[-1]])
        try:
            parts.append(files.data.read(files.io, begin, end - begin))
        except SegmentGone:
            faults[rows[run]] = Fault.MISSING
            sizes[rows[run]] = 0
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.uint8)


def _heads(buf: Bytes, sizes: Int64, offsets: Int64) -> npt.NDArray[Any]:
    heads = np.zeros(len(sizes), dtype=HEAD_DTYPE)
    rows = np.flatnonzero(sizes)
    if not len(rows):
        return heads
    width = int(sizes[rows[0]])
    if bool((sizes[rows] == width).all()):
        raw = np.ascontiguousarray(buf.reshape(len(rows), width)[:, :HEAD_BYTES])
    else:
        raw = buf[offsets[rows][:, None] + np.arange(HEAD_BYTES)]
    heads[rows] = raw.reshape(-1).view(HEAD_DTYPE)
    return heads


def _check_heads(records: Records, units: npt.NDArray[Any], start: int) -> None:
    rows = slice(start, start + len(units))
    heads = records.heads[rows]
    faults = records.faults[rows]
    found = records.sizes[rows] > 0
    indexes = np.arange(len(units)) + records.first_index + start
    broken = found & (
        (heads["index"] != indexes)
        | (heads["magic"] < Magic.NORMAL)
        | (heads["magic"] > Magic.CONFIG_CHANGE)
        | (heads["size"] != records.sizes[rows])
        | (heads["body_len"].astype(np.int64) + HEAD_BYTES != heads["size"])
        | (heads["term"] < 0)
    )
    faults[broken] = Fault.RECORD
    # A Java leader's index unit says NORMAL for its own NOOP (FORMATS 3): no disagreement.
    disagrees = (heads["term"] != units["term"]) | (
        (heads["magic"] != units["magic"]) & (units["magic"] != Magic.NORMAL)
    )
    faults[found & ~broken & disagrees & (faults & Fault.RECORD == 0)] |= Fault.INDEX


def _check_fillers(files: ReplicaFiles, records: Records) -> None:
    """Each full data file ends in a blank record that covers the rest of it (FORMATS 3)."""
    rows = np.flatnonzero(records.sizes)
    ends = records.positions[rows] + records.sizes[rows]
    for number in np.flatnonzero(records.positions[rows][1:] != ends[:-1]):
        end, row = int(ends[number]), int(rows[number])
        segment = files.data.at(end)
        # Only a step to the start of the next file is a roll; anything else has been judged already.
        if segment is None or int(records.positions[rows[number + 1]]) != segment.end:
            continue
        raw = files.data.read(files.io, end, 8)
        if raw != Magic.BLANK.to_bytes(4, "big", signed=True) + (segment.end - end).to_bytes(4, "big", signed=True):
            records.faults[row] |= Fault.FILLER
