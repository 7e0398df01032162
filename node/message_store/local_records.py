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
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from node.message_store.blank import BLANK_BYTES, BLANK_MAGIC
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.heads import Heads, everywhere
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
COMMON_BYTES: Final = 88  # up to the body, behind two IPv4 hosts
_COMMON: Final = struct.Struct(">4xiii4xqqi8x8xq8x12xi")
_FIELDS: Final = np.dtype(
    {
        "names": ["magic", "crc", "queue_id", "queue_offset", "physical", "sys_flag", "store_ms", "body_bytes"],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": COMMON_BYTES,
    }
)  # fmt: skip
_BYTE: Final = np.dtype("u1")
_SIGNED_SHORT: Final = np.dtype(">i2")
FEW: Final = 8  # up to so many borders, records are judged one by one


class Stop(Enum):
    """Why a walk went no further."""

    END = "end"  # of the bytes, at a border
    PARTIAL = "partial"  # the next record or blank is not whole in these bytes
    UNWRITTEN = "unwritten"
    BAD = "bad"


@value_class(slots=True, frozen=True)
class Walked:
    """`starts`, `sizes`: of the whole records, in the bytes; `at`: behind the last whole record or blank.

    `needs`: how many bytes from `at` on have to be there before a walk can go on; `why`: what is bad about them;
    `heads`: of all these records, where there are many and all are such as nearly all are.
    """

    starts: list[int]
    sizes: list[int]
    at: int
    stop: Stop
    needs: int = 0
    why: str = ""
    heads: Heads | None = None


def walk(data: BytesLike, place: int, file_bytes: int, *, torn_from: int | None = None) -> Walked:
    """Through bytes that begin at `place` of a log whose files have `file_bytes`; `place` is a border.

    From `torn_from` on, records may have lost sectors (recovery); None: they have not.
    """
    at, end = 0, len(data)
    starts, sizes, heads = ([], [], None) if torn_from is not None else _common(data, place, file_bytes)
    if starts:
        at = starts[-1] + sizes[-1]
    while at < end:
        if end - at < BLANK_BYTES:
            return Walked(starts, sizes, at, Stop.PARTIAL, BLANK_BYTES, heads=heads)
        size, magic = SIZE_AND_MAGIC.unpack_from(data, at)
        left = file_bytes - (place + at) % file_bytes
        if magic in _MAGICS:
            if not RECORD_BYTES_MIN <= size <= min(left - BLANK_BYTES, MESSAGE_BYTES_MAX):
                why = f"a record of {size} bytes, where {left} are left in the file"
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            if size > end - at:
                return Walked(starts, sizes, at, Stop.PARTIAL, size, heads=heads)
            why = flaw_of(data, at, place + at)
            if not why and torn_from is not None and place + at >= torn_from:
                why = _hole_in(data, at, size, place + at)
            if why:
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            heads = None
            starts.append(at)
            sizes.append(size)
            at += size
        elif magic == BLANK_MAGIC:
            if size != left:
                why = f"a blank of {size} bytes, where {left} are left in the file"
                return Walked(starts, sizes, at, Stop.BAD, why=why)
            if size > end - at:
                return Walked(starts, sizes, at, Stop.PARTIAL, size, heads=heads)
            at += size
        elif not size and not magic:
            return Walked(starts, sizes, at, Stop.UNWRITTEN)
        else:
            why = f"neither a record nor a blank: magic {magic & 0xFFFFFFFF:#010x}"
            return Walked(starts, sizes, at, Stop.BAD, why=why)
    return Walked(starts, sizes, at, Stop.END, heads=heads)


def _common(data: BytesLike, place: int, file_bytes: int) -> tuple[list[int], list[int], Heads | None]:
    """The records from the beginning on that are as nearly all are: version 1, IPv4 hosts, sound. Where each begins,
    and its size; of many, their fields. The rest is judged with care.

    Every record that a slave takes comes through here: a field of many is looked at in all of them at once.
    """
    view = memoryview(data)
    borders = _borders(view, min(len(view), file_bytes - place % file_bytes - BLANK_BYTES))
    if len(borders) > FEW:
        count, heads = _sound_at_once(view, place, borders)
        return borders[:count], (heads.ends - heads.starts).tolist(), heads
    count = _sound_one_by_one(view, place, borders)
    return borders[:count], [stop - at for at, stop in pairwise(borders[: count + 1])], None


def _borders(view: memoryview, end: int) -> list[int]:
    """Where records begin if the sizes that they say are right, and where the last one ends: `end` at most."""
    found = [0]
    at, size_of, add, last, size_min = 0, _INT.unpack_from, found.append, end - RECORD_BYTES_MIN, RECORD_BYTES_MIN
    while at <= last:
        size = size_of(view, at)[0]
        at += size
        if size < size_min or at > end:
            break
        add(at)
    return found


def _sound_one_by_one(view: memoryview, place: int, borders: list[int]) -> int:
    """How many records between `borders` are sound: up to the first that is not."""
    fields, short = _COMMON.unpack_from, _SHORT.unpack_from
    for number, (at, stop) in enumerate(pairwise(borders)):
        magic, crc, queue_id, queue_offset, physical, sys_flag, stored_ms, body_bytes = fields(view, at)
        topic_at = at + COMMON_BYTES + body_bytes
        if (
            magic != MAGIC_V1 or sys_flag & _V6 or physical != place + at or stop - at > MESSAGE_BYTES_MAX
            or body_bytes < 0 or topic_at + 3 > stop or stored_ms <= 0 or queue_id < 0 or queue_offset < 0
        ):  # fmt: skip
            return number
        topic_bytes = view[topic_at]
        properties_at = topic_at + 1 + topic_bytes
        if (
            not 0 < topic_bytes <= V1_TOPIC_UNITS_MAX or properties_at + 2 > stop
            or short(view, properties_at)[0] != stop - properties_at - 2
            or crc32(view[at + COMMON_BYTES : topic_at]) & CRC_MASK != crc
        ):  # fmt: skip
            return number
    return len(borders) - 1


def _sound_at_once(view: memoryview, place: int, borders: list[int]) -> tuple[int, Heads]:
    """The same of many, and their fields. Each look is at all that passed the one before: no length is trusted."""
    starts = np.array(borders, "i8")
    ends, starts = starts[1:], starts[:-1]
    fields = everywhere(view, _FIELDS)[starts]
    queue_id, queue_offset = fields["queue_id"].astype("i4"), fields["queue_offset"].astype("i8")
    sys_flag, store_ms = fields["sys_flag"].astype("i4"), fields["store_ms"].astype("i8")
    body_bytes = fields["body_bytes"].astype("i8")
    length_at = starts + COMMON_BYTES + body_bytes  # of the topic
    count = _leading(
        (fields["magic"] == MAGIC_V1) & (sys_flag & _V6 == 0) & (fields["physical"] == starts + place)
        & (ends - starts <= MESSAGE_BYTES_MAX) & (body_bytes >= 0) & (length_at + 3 <= ends)
        & (store_ms > 0) & (queue_id >= 0) & (queue_offset >= 0)
    )  # fmt: skip
    topic_bytes = everywhere(view, _BYTE)[length_at[:count]].astype("i8")
    topic_end = length_at[:count] + 1 + topic_bytes
    count = _leading((topic_bytes > 0) & (topic_bytes <= V1_TOPIC_UNITS_MAX) & (topic_end + 2 <= ends[:count]))
    properties_bytes = everywhere(view, _SIGNED_SHORT)[topic_end[:count]]
    count = _leading(properties_bytes == ends[:count] - topic_end[:count] - 2)
    bodies = zip((starts[:count] + COMMON_BYTES).tolist(), length_at[:count].tolist(), strict=True)
    crcs = np.array([crc32(view[begin:end]) for begin, end in bodies], "i8")
    count = _leading(crcs & CRC_MASK == fields["crc"][:count])
    columns = (starts, ends, queue_id, queue_offset, sys_flag, store_ms, length_at + 1, topic_end)
    return count, Heads(*(one[:count] for one in columns))


def _leading(fine: npt.NDArray[np.bool_]) -> int:
    """How many are fine before the first that is not."""
    return len(fine) if fine.all() else int(np.argmin(fine))


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
