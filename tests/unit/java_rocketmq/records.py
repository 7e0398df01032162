"""CommitLog.checkMessageAndReturnSize and DLedgerCommitLog's around it, by hand: no decoder of ours is used."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from tests.unit.message_broker import java_hash

V1, V2, BLANK = 0xDAA320A7 - (1 << 32), 0xDAA320AB - (1 << 32), 0xCBD43194 - (1 << 32)
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
SCHEDULE = "SCHEDULE_TOPIC_" + "X" * 4


@dataclass
class Request:
    """DispatchRequest. `span`: bytes to go on by, 0 at the end of a file, -1 where nothing can be made of it."""

    span: int
    size: int = 0
    is_fine: bool = False
    topic: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    offset: int = 0
    sys_flag: int = 0
    store_ms: int = 0
    tags_code: int = 0
    keys: list[str] = field(default_factory=list)

    @property
    def is_rolled_back(self) -> bool:
        return self.sys_flag & 0xC == 0xC

    @property
    def is_queued(self) -> bool:
        return self.sys_flag & 0xC in (0, 8)


BAD = Request(-1)


def check_record(data: bytes, at: int, *, knows_v2: bool, checks_crc: bool) -> Request:
    """RocketMQ's own record or blank."""
    try:
        total, magic = struct.unpack_from(">ii", data, at)
        if magic == BLANK:
            return Request(0, is_fine=True)
        if magic != V1 and not (magic == V2 and knows_v2):
            return BAD
        crc, queue_id, _flag, queue_offset, physical, sys_flag = struct.unpack_from(">iiiqqi", data, at + 8)
        place = at + 48 + (20 if sys_flag & 0x10 else 8)
        store_ms = struct.unpack_from(">q", data, place)[0]
        place += 8 + (20 if sys_flag & 0x20 else 8) + 12
        length = struct.unpack_from(">i", data, place)[0]
        body = data[place + 4 : place + 4 + length]
        if length > 0 and checks_crc and zlib.crc32(body) & 0x7FFFFFFF != crc:
            return BAD
        place += 4 + length
        wide = 2 if magic == V2 else 1
        topic_bytes = struct.unpack_from(">h" if wide == 2 else ">b", data, place)[0]
        topic = data[place + wide : place + wide + topic_bytes].decode()
        place += wide + topic_bytes
        count = struct.unpack_from(">h", data, place)[0]
        text = data[place + 2 : place + 2 + count].decode()
    except (struct.error, UnicodeDecodeError, IndexError):
        return BAD
    if place + 2 + count - at != total:
        return Request(total, total)
    pairs = dict(pair.split("\x01", 1) for pair in text.split("\x02") if len(pair) >= 3 and "\x01" in pair[1:-1])
    code = java_hash(pairs["TAGS"]) if "TAGS" in pairs else 0
    if topic == SCHEDULE and int(pairs.get("DELAY", "0")) > 0:
        code = store_ms + LEVELS_S[min(int(pairs["DELAY"]), 18) - 1] * 1000
    keys = [pairs["UNIQ_KEY"]] if "UNIQ_KEY" in pairs else []
    keys += [key for key in pairs.get("KEYS", "").split(" ") if key]
    return Request(total, total, True, topic, queue_id, queue_offset, physical, sys_flag, store_ms, code, keys)


def check_entry(data: bytes, at: int, *, knows_v2: bool, checks_crc: bool) -> Request:
    """An entry of DLedger's around a record, or, in one buffer with them, RocketMQ's own."""
    if at + 8 > len(data):
        return BAD
    magic, old = struct.unpack_from(">ii", data, at)
    if old in (BLANK, V1) or (old == V2 and knows_v2):
        return check_record(data, at, knows_v2=knows_v2, checks_crc=checks_crc)
    if magic == -1:
        return Request(0, is_fine=True)
    found = check_record(data, at + 48, knows_v2=knows_v2, checks_crc=checks_crc)
    if found.span > 0:
        found.span += 48
    return found
