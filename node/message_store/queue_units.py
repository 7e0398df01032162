"""The units of a consume queue: where a message lies, how long it is, and what its tags hash to.

Invariants: unit n stands at byte n * 20 over all of a queue's files; a unit that says something has a size above 0 and
an offset of at least 0; a queue ends at the first that says nothing. Units before the first message of a queue that
was born late are pre-fill: offset 0, the largest size.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.java_text import tags_code
from node.message_store.properties import DELAY, TAGS
from node.message_store.record import TRANSACTION_BITS, MessageRecord, TransactionType

UNIT_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
UNIT_BYTES: Final = UNIT_DTYPE.itemsize  # 20
PREFILL_SIZE: Final = 0x7FFFFFFF
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_" + "X" * 4  # so it is called, to the letter

UNIT: Final = struct.Struct(">qiq")
_QUEUED: Final = (int(TransactionType.NONE), int(TransactionType.COMMIT))
_ROLLED_BACK: Final = int(TransactionType.ROLLBACK)

Units = npt.NDArray[Any]


def decode_units(data: bytes) -> Units:
    """What whole units are in `data`; a piece of one at its end is left out."""
    return np.frombuffer(data, UNIT_DTYPE, len(data) // UNIT_BYTES)


def encode_units(rows: Any) -> bytes:
    """Rows of (offset, size, tags code)."""
    return np.array(list(rows), UNIT_DTYPE).tobytes()


def said_rows(data: bytes) -> list[tuple[int, int, int]]:
    """Offset, size and tags code of each unit up to the first that says nothing: for few, sooner made than an array."""
    rows: list[tuple[int, int, int]] = []
    for row in UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES]):
        if row[0] < 0 or row[1] <= 0:
            break
        rows.append(row)
    return rows


def said_count(units: Units) -> int:
    """How many units there are before the first that says nothing."""
    silent = (units["offset"] < 0) | (units["size"] <= 0)
    return int(np.argmax(silent)) if silent.any() else len(units)


def prefill_of(units: Units) -> npt.NDArray[np.bool_]:
    """Which units are pre-fill."""
    return np.asarray((units["offset"] == 0) & (units["size"] == PREFILL_SIZE))


def is_queued(record: MessageRecord) -> bool:
    """Whether a consume queue has a unit for it."""
    return record.sys_flag & TRANSACTION_BITS in _QUEUED


def is_indexed(record: MessageRecord) -> bool:
    """Whether an index has its keys: also of half messages, not of those that were rolled back."""
    return record.sys_flag & TRANSACTION_BITS != _ROLLED_BACK


def unit_tags_code(
    record: MessageRecord, delay_levels_ms: tuple[int, ...], properties: Mapping[str, str] | None = None
) -> int:
    """The hash of the tags; for a message that waits for its time, when it is due. `properties`: the record's."""
    known = record.properties if properties is None else properties
    if record.topic == SCHEDULE_TOPIC:
        level = known.get(DELAY, "")
        if level.isascii() and level.isdigit() and len(level) < 10 and int(level) > 0 and delay_levels_ms:
            return record.store_timestamp_ms + delay_levels_ms[min(int(level), len(delay_levels_ms)) - 1]
    return tags_code(known.get(TAGS))
