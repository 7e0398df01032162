"""What the index files say, as a start and `store verify` look at it. Reads only."""

from __future__ import annotations

from node.protocol.entry import INDEX_UNIT_BYTES, Magic
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit


def last_claimed(index: SegmentList, from_index: int) -> int | None:
    """The last entry from `from_index` on of which there is an index record; None: there is none."""
    span = index.used_span(from_index * INDEX_UNIT_BYTES)
    numbers = range(from_index, from_index if span is None else span[1] // INDEX_UNIT_BYTES + 1)
    return next((number for number in reversed(numbers) if read_unit(index, number) is not None), None)


def gone_without_checkpoint(index: SegmentList, stop_index: int) -> str:
    """Why more than a log's data may have been history, where no checkpoint says that it ended before `stop_index`.

    Empty: the index names nothing behind that end. A power cut may leave such records, too; who may have acknowledged
    what they name does not vote (SAFETY E8).
    """
    claimed = last_claimed(index, stop_index)
    if claimed is None:
        return ""
    return f"the log ends at {stop_index - 1}, its index names entries up to {claimed}, and there is no checkpoint"


def units(raw: bytes) -> list[bytes]:
    """Index records, one by one."""
    return [raw[at : at + INDEX_UNIT_BYTES] for at in range(0, len(raw), INDEX_UNIT_BYTES)]


def keep_java_magic(stored: bytes, wanted: bytes) -> bytes:
    """A Java leader writes NORMAL for its own NOOP (FORMATS 3): that is no reason to rewrite its index."""
    return stored if stored[4:] == wanted[4:] and stored[:4] == Magic.NORMAL.to_bytes(4, "big") else wanted
