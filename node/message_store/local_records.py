"""Raw bytes of a commit log, judged where they lie: whole records, the blank at a file's end, what is torn or bad.

Recovery, a slave that gets bytes from its master, and dispatch all go through a log this way. RocketMQ looks at size,
magic, lengths and the body's CRC; here a record also has to say itself that it lies where it does, so that bytes of
another history, or of the same place before a cut, are never taken for the log's own.

Invariants: what passes is whole, lies where it says, and its body is the one that was sent; nothing is copied; a record
torn by a power loss does not pass, also where only its properties are gone, which no CRC covers.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from node.message_store.blank import BLANK_BYTES, BLANK_MAGIC
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.record import (
    CRC_MASK,
    HEAD,
    HEAD_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    V1_TOPIC_UNITS_MAX,
)
from node.protocol.entry import BytesLike, crc32
from node.protocol.value_class import value_class

SECTOR_BYTES: Final = 512  # what a disk writes whole or not at all
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_V6: Final = _BORN_V6 | _STORE_V6
_COMMON: Final = struct.Struct(">iiii4xqqi8x8xq8x12xi")  # up to the body, behind two IPv4 hosts


class Stop(Enum):
    """Why a walk went no further."""

    END = "end"  # of the bytes, at a border
    PARTIAL = "partial"  # the next record or blank is not whole in these bytes
    UNWRITTEN = "unwritten"
    BAD = "bad"


@value_class(slots=True, frozen=True)
class Walked:
    """`starts`, `sizes`: of the whole records, in the bytes; `at`: behind the last whole record or blank.

    `needs`: how many bytes from `at` on have to be there before a walk can go on; `why`: what is bad about them.
    """

    starts: list[int]
    sizes: list[int]
    at: int
    stop: Stop
    needs: int = 0
    why: str = ""


def walk(data: BytesLike, place: int, file_bytes: int, *, torn_from: int | None = None) -> Walked:
    """Through bytes that begin at `place` of a log whose files have `file_bytes`; `place` is a border.

    From `torn_from` on, records may have lost sectors (recovery); None: they have not.
    """
    starts: list[int] = []
    sizes: list[int] = []
    at, end = 0, len(data)
    if torn_from is None:
        at = _common(data, place, file_bytes, starts, sizes)
    while at < end:
        if end - at < BLANK_BYTES:
            return Walked(starts, sizes, at, Stop.PARTIAL, BLANK_BYTES)
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        left = file_bytes - (place + at) % file_bytes
        if magic in _MAGICS:
            if not RECORD_BYTES_MIN <= size <= min(left - BLANK_BYTES, MESSAGE_BYTES_MAX):
                why = f"a record of {size} bytes, where {left} are left in the file"
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            if size > end - at:
                return Walked(starts, sizes, at, Stop.PARTIAL, size)
            why = flaw_of(data, at, place + at)
            if not why and torn_from is not None and place + at >= torn_from:
                why = _hole_in(data, at, size, place + at)
            if why:
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            starts.append(at)
            sizes.append(size)
            at += size
        elif magic == BLANK_MAGIC:
            if size != left:
                why = f"a blank of {size} bytes, where {left} are left in the file"
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            if size > end - at:
                return Walked(starts, sizes, at, Stop.PARTIAL, size)
            at += size
        elif not size and not magic:
            return Walked(starts, sizes, at, Stop.UNWRITTEN)
        else:
            why = f"neither a record nor a blank: magic {magic & 0xFFFFFFFF:#010x}"
            return Walked(starts, sizes, at, Stop.BAD, why=why)
    return Walked(starts, sizes, at, Stop.END)


def _common(data: BytesLike, place: int, file_bytes: int, starts: list[int], sizes: list[int]) -> int:
    """Past the records that nearly all are: version 1, IPv4 hosts, sound; its end. The rest is judged with care.

    Every record that a slave takes comes through here: one look at its fields, then at its body.
    """
    at, view = 0, memoryview(data)
    end = min(len(view), file_bytes - place % file_bytes - BLANK_BYTES)
    fields, short = _COMMON.unpack_from, _SHORT.unpack_from
    while end - at >= RECORD_BYTES_MIN:
        size, magic, crc, queue_id, queue_offset, physical, sys_flag, stored_ms, body_bytes = fields(view, at)
        stop, topic_at = at + size, at + _COMMON.size + body_bytes
        if (
            magic != MAGIC_V1 or sys_flag & _V6 or physical != place + at or stop > end or size > MESSAGE_BYTES_MAX
            or body_bytes < 0 or topic_at + 3 >= stop or stored_ms <= 0 or queue_id < 0 or queue_offset < 0
        ):  # fmt: skip
            break
        topic_bytes = view[topic_at]
        properties_at = topic_at + 1 + topic_bytes
        if (
            not 0 < topic_bytes <= V1_TOPIC_UNITS_MAX or properties_at + 2 > stop
            or short(view, properties_at)[0] != stop - properties_at - 2
            or crc32(view[at + _COMMON.size : topic_at]) & CRC_MASK != crc
        ):  # fmt: skip
            break
        starts.append(at)
        sizes.append(size)
        at = stop
    return at


def flaw_of(data: BytesLike, at: int, place: int) -> str:
    """What is wrong with the record at `at`, which is whole there and lies at `place`; empty: nothing."""
    size, magic, crc, queue_id, _flag, queue_offset, physical, sys_flag, _born_ms = HEAD.unpack_from(data, at)
    if physical != place:
        return f"the record at {place} says that it lies at {physical}"
    end = at + size
    here = at + HEAD_BYTES + (20 if sys_flag & _BORN_V6 else 8)
    stored_ms = _LONG.unpack_from(data, here)[0]
    here += 8 + (20 if sys_flag & _STORE_V6 else 8) + 12
    wide = magic == MAGIC_V2
    if here + 4 > end:
        return f"the record at {place} ends within its fields"
    body_bytes = _INT.unpack_from(data, here)[0]
    here += 4
    if not 0 <= body_bytes <= end - here - (5 if wide else 4):
        return f"the record at {place} has {size} bytes, and no room for its topic behind a body of {body_bytes}"
    if crc32(memoryview(data)[here : here + body_bytes]) & CRC_MASK != crc:
        return f"the body of the record at {place} is not the one that was sent: its CRC is another"
    here += body_bytes
    topic_bytes = _SHORT.unpack_from(data, here)[0] if wide else data[here]
    here += 2 if wide else 1
    if not 0 < topic_bytes <= end - here - 2 or (topic_bytes > V1_TOPIC_UNITS_MAX and not wide):
        return f"the record at {place} has a topic of {topic_bytes} bytes"
    here += topic_bytes
    if _SHORT.unpack_from(data, here)[0] != end - here - 2:
        return f"the properties of the record at {place} do not end with it"
    if stored_ms <= 0 or queue_id < 0 or queue_offset < 0:
        return f"the record at {place} has a time or a queue that no broker writes"
    return ""


def _hole_in(data: BytesLike, at: int, size: int, place: int) -> str:
    """Whether a sector's part of the topic or the properties, which no CRC covers, is zeros: a power loss took it."""
    sys_flag = HEAD.unpack_from(data, at)[7]
    here = at + HEAD_BYTES + (20 if sys_flag & _BORN_V6 else 8) + 8 + (20 if sys_flag & _STORE_V6 else 8) + 12
    here += 4 + _INT.unpack_from(data, here)[0]
    wide = SIZE_AND_MAGIC.unpack_from(data, at)[1] == MAGIC_V2
    topic_bytes = _SHORT.unpack_from(data, here)[0] if wide else data[here]
    topic_at = here + (2 if wide else 1)
    for begin, end in ((topic_at, topic_at + topic_bytes), (topic_at + topic_bytes + 2, at + size)):
        part = begin
        while part < end:
            upto = min(end, part + SECTOR_BYTES - (place - at + part) % SECTOR_BYTES)
            if not any(data[part:upto]):
                return f"the record at {place} has a hole {part - at} bytes behind its beginning"
            part = upto
    return ""


def border_flaw(data: BytesLike, place: int, file_bytes: int) -> str:
    """Why no record or blank begins at `place`; `data`: a whole record from there on. Empty: one does."""
    found = walk(data, place, file_bytes)
    if found.at or (found.stop is Stop.PARTIAL and _is_blank(data)):
        return ""
    return found.why or f"neither a record nor a blank begins at {place}"


def _is_blank(data: BytesLike) -> bool:
    return len(data) >= BLANK_BYTES and SIZE_AND_MAGIC.unpack_from(data)[1] == BLANK_MAGIC
