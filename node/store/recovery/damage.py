"""Judges the bytes at a log's end: a clean end, a torn tail, a Java node's remnants, or corruption (SAFETY S3).

Invariants: only damage that is wholly explained by sectors that were never written is a torn tail; what the disk cannot
read was written, for all that is known; only bytes that the index file does not claim for the expected entry are
remnants; everything else is corruption. Reads only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from node.protocol.entry import BLANK_BYTES, HEAD, HEAD_BYTES, INDEX_UNIT, INDEX_UNIT_BYTES, Magic, pack_blank
from node.store.files.os_files import SECTOR_BYTES
from node.store.files.segment_list import SegmentList
from node.store.recovery.walk import Cursor, Stop, Walk

_ENTRY_MAGICS = (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE)
_HEAD_ZEROS = 3  # an entry's magic is big-endian and small: so many zeros begin it, and say nothing
_EMPTY_USED_BYTES = 40  # of an entry without a body: behind the chain CRC its head holds zeros only


class Ending(StrEnum):
    """What is behind the last sound record."""

    CLEAN = "clean"
    TORN = "torn tail"
    REMNANT = "stale remnants"
    CORRUPT = "corruption"


@dataclass(slots=True, frozen=True)
class IndexUnit:
    """One 32-byte unit of the index file."""

    magic: int
    pos: int
    size: int
    index: int
    term: int


def read_unit(index: SegmentList, number: int) -> IndexUnit | None:
    """The unit of entry `number`; None unless it is one."""
    raw = index.read(number * INDEX_UNIT_BYTES, INDEX_UNIT_BYTES)
    if len(raw) < INDEX_UNIT_BYTES:
        return None
    unit = IndexUnit(*INDEX_UNIT.unpack(raw))
    if unit.index != number or unit.magic not in _ENTRY_MAGICS or unit.size < HEAD_BYTES:
        return None
    return unit


def judge(data: SegmentList, index: SegmentList, stop: Stop, *, java: bool) -> tuple[Ending, int]:
    """What the bytes from the stop on are, and the last position that is not zero (-1: all zero)."""
    used = data.used_span(stop.cursor.pos)
    if used is None:
        return Ending.CLEAN, -1
    if java and _is_remnant(data, index, stop.cursor):
        return Ending.REMNANT, used[1]
    return (Ending.TORN if _is_torn(data, index, stop.cursor, used[1]) else Ending.CORRUPT), used[1]


def _is_remnant(data: SegmentList, index: SegmentList, at: Cursor) -> bool:
    """Old bytes that a truncation left: the index does not claim them for the entry that would be next."""
    raw = data.read(at.pos, HEAD_BYTES)
    if not any(raw):
        return False
    unit = read_unit(index, at.index)
    if unit is None or unit.pos != at.pos:
        return True
    if len(raw) < HEAD_BYTES:
        return False
    magic, size, number, term, *_, body_len = HEAD.unpack(raw)
    whole = magic in _ENTRY_MAGICS and size == HEAD_BYTES + body_len
    return whole and (number, term, size) == (unit.index, unit.term, unit.size) and term < at.term


def _is_torn(data: SegmentList, index: SegmentList, at: Cursor, last_used: int) -> bool:
    """Follows the damage record by record: each bad one has to be explained by itself."""
    while True:
        file_end = _torn_filler(data, at)
        if file_end is not None:
            at = _past_sound_ones(data, replace(at, pos=file_end, chain=None))
            if data.used_span(at.pos) is None:
                return True
            continue
        explained, size = _explain(data, at, last_used)
        if not explained:
            return False
        if size is None:
            unit = read_unit(index, at.index)
            if unit is None or unit.pos != at.pos:
                return True  # where the next record begins is written nowhere: nothing more can be judged
            size = unit.size
        at = _past_sound_ones(data, Cursor(at.pos + size, at.index + 1, at.term, None, at.sealed_from))
        if data.used_span(at.pos) is None:
            return True


def _past_sound_ones(data: SegmentList, at: Cursor) -> Cursor:
    walk = Walk(data, at)
    for _ in walk.slabs():
        pass
    return walk.stop.cursor


def _torn_filler(data: SegmentList, at: Cursor) -> int | None:
    """Where the file ends, if its filler begins at the cursor and was cut in two by a sector that was never written."""
    segment = data.find(at.pos)
    if segment is None:
        return None
    head = pack_blank(segment.end - at.pos)
    to_sector_end = SECTOR_BYTES - (at.pos - segment.start) % SECTOR_BYTES
    if to_sector_end >= BLANK_BYTES or any(segment.read(at.pos + to_sector_end, SECTOR_BYTES)):
        return None
    return segment.end if segment.read(at.pos, to_sector_end) == head[:to_sector_end] else None


def _explain(data: SegmentList, at: Cursor, last_used: int) -> tuple[bool, int | None]:
    """Whether never-written sectors explain the bad record at the cursor, and its size if its head tells."""
    segment = data.find(at.pos)
    if segment is None:
        return False, None
    to_sector_end = SECTOR_BYTES - (at.pos - segment.start) % SECTOR_BYTES
    raw = segment.read(at.pos, HEAD_BYTES)
    if to_sector_end > _HEAD_ZEROS and not any(segment.read(at.pos, to_sector_end)):
        return True, None
    used_bytes = last_used - at.pos + 1
    if len(raw) < HEAD_BYTES:
        return False, None
    magic, size, number, term, *_, body_len = HEAD.unpack(raw)
    head_written = min(HEAD_BYTES, used_bytes)
    if to_sector_end < HEAD_BYTES and not any(segment.read(at.pos + to_sector_end, SECTOR_BYTES)):
        head_written = min(head_written, to_sector_end)
    room = segment.end - at.pos - BLANK_BYTES
    plausible = (
        (head_written < 4 or magic in _ENTRY_MAGICS)
        and (head_written < 8 or HEAD_BYTES <= size <= room)
        and (head_written < 16 or number == at.index)
        and (head_written < 24 or term >= at.term)
        and (head_written < HEAD_BYTES or size == HEAD_BYTES + body_len)
    )
    if not plausible:
        return False, None
    if head_written < 8:
        return True, None
    if segment.cannot_read(at.pos, size):
        return False, size
    if used_bytes < (_EMPTY_USED_BYTES if size == HEAD_BYTES else size):
        return True, size
    start = at.pos + to_sector_end
    for sector in range(start, at.pos + size, SECTOR_BYTES):
        if not any(segment.read(sector, SECTOR_BYTES)):
            return True, size
    return False, size
