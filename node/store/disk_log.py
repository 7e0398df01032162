"""Looking entries up in the files: the engine's cold reads and the read-only reader go through here.

Invariants: each look-up through the index file is checked against the record's own head (SAFETY S7); nothing is
written, and files that vanish or change underneath give StoreCorrupt or None, never a crash or a wrong entry.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from node.protocol.entry import (
    HEAD,
    HEAD_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    SLAB_BYTES_MAX,
    Entry,
    EntryError,
    Magic,
    Slab,
    unpack_record,
)
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import IndexUnit, read_unit

_UNITS_AT_ONCE = 4096
ENTRY_MAGICS: Final = (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE)


class Head(NamedTuple):
    """What a record's first bytes say."""

    term: int
    chain_crc: int
    body_crc: int


def find_place(index: SegmentList, number: int) -> IndexUnit:
    """The index unit of an entry. Raises StoreCorrupt."""
    unit = read_unit(index, number)
    if unit is None:
        raise _corrupt(number, "index_record_mismatch", f"entry {number}: its index record is broken")
    return unit


def find_head(data: SegmentList, index: SegmentList, number: int) -> Head:
    """An entry's head, without its body. Raises StoreCorrupt where it and its index record do not agree."""
    unit = find_place(index, number)
    raw = data.read(unit.pos, HEAD_BYTES)
    if len(raw) < HEAD_BYTES:
        raise _corrupt(
            number, "record_invalid", f"entry {number} at position {unit.pos}: the file ends inside its head"
        )
    magic, size, at, term, _pos, _channel, chain_crc, body_crc, body_bytes = HEAD.unpack(raw)
    if magic not in ENTRY_MAGICS or size != HEAD_BYTES + body_bytes:
        text = (
            f"entry {number} at position {unit.pos}: magic {magic}, size {size}, body length {body_bytes} are no head"
        )
        raise _corrupt(number, "record_invalid", text)
    if (at, term, size) != (number, unit.term, unit.size):
        raise _disagree(number, unit, (at, term, size))
    return Head(term, chain_crc, body_crc)


def find_record(data: SegmentList, index: SegmentList, number: int) -> tuple[IndexUnit, Entry]:
    """The index unit and the whole record of an entry. Raises StoreCorrupt where the two do not agree."""
    unit = find_place(index, number)
    raw = data.read(unit.pos, unit.size)
    try:
        entry = unpack_record(raw)
    except EntryError as error:
        raise _corrupt(number, "record_invalid", f"entry {number} at position {unit.pos}: {error}") from error
    if (entry.index, entry.term, entry.size) != (number, unit.term, unit.size):
        raise _disagree(number, unit, (entry.index, entry.term, entry.size))
    return unit, entry


def _disagree(number: int, unit: IndexUnit, said: tuple[int, int, int]) -> StoreCorrupt:
    text = (
        f"entry {number} at position {unit.pos}: its head says index {said[0]}, term {said[1]}, "
        f"size {said[2]}; its index record says term {unit.term}, size {unit.size}"
    )
    return _corrupt(number, "index_record_mismatch", text)


def _corrupt(number: int, kind: str, text: str) -> StoreCorrupt:
    return StoreCorrupt(text, [Fault(number, number, kind, text)])


def read_raw_slab(
    data: SegmentList, index: SegmentList, first_index: int, last_index: int, max_bytes: int = SLAB_BYTES_MAX
) -> Slab:
    """A run from `first_index` on, inside one file, at least one entry and at most `max_bytes`; nothing is verified.

    It ends before the first index record that does not continue. Raises StoreCorrupt where already the first is broken.
    """
    count = min(last_index - first_index + 1, _UNITS_AT_ONCE, max(1, max_bytes // HEAD_BYTES))
    raw = index.read_across(first_index * INDEX_UNIT_BYTES, count * INDEX_UNIT_BYTES)
    units = np.frombuffer(raw, dtype=INDEX_DTYPE)
    positions = units["pos"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    segment = data.find(int(positions[0]))
    sound = (units["index"] == np.arange(first_index, first_index + count)) & (sizes >= HEAD_BYTES)
    sound &= (units["magic"] >= 1) & (units["magic"] <= 3)
    if segment is None or not bool(sound[0]) or int(positions[0] + sizes[0]) > segment.end:
        raise _corrupt(first_index, "index_record_mismatch", f"entry {first_index}: its index record is broken")
    ends = positions + sizes
    sound[1:] &= positions[1:] == ends[:-1]
    sound[1:] &= (ends[1:] - positions[0] <= max_bytes) & (ends[1:] <= segment.end)
    kept = count if bool(sound.all()) else int(np.argmin(sound))
    start, end = int(positions[0]), int(ends[kept - 1])
    records = data.read(start, end - start)
    if len(records) != end - start:
        text = f"entries {first_index}..{first_index + kept - 1}: the file ends inside them"
        raise StoreCorrupt(text, [Fault(first_index, first_index + kept - 1, "record_invalid", text)])
    return Slab(
        first_index, kept, start, records, raw[: kept * INDEX_UNIT_BYTES], int(units["term"][0]),
        int(units["term"][kept - 1]), None, None,
    )  # fmt: skip
