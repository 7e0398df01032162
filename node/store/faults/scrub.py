"""One step of a scrub: entries read from the disk itself and held against everything that is known of them (SAFETY S6).

Bodies, heads, the chain and the index records; only what is durable, nothing that is known to be damaged. A step reads
a bounded number of bytes and says where the next one begins, so a pass over any log is cheap and can be resumed.

Invariants: reads only, past the page cache where the machine allows, but for what no sync has covered: after one that
failed those pages are clean, and nothing else holds what was written (S1). A range that is cut or trimmed meanwhile is
no finding (the caller looks at the cuts).
"""

from __future__ import annotations

from collections.abc import Iterator

from node.protocol.entry import HEAD, INDEX_UNIT, INDEX_UNIT_BYTES, Magic, Slab
from node.store.faults.ranges import merged
from node.store.faults.results import Fault
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit
from node.store.recovery.survey import FaultCollector, Survey, Trust
from node.store.recovery.walk import Cursor
from node.store.slab_pieces import wrong_positions
from node.store.sync_ticket import Synced

_SLAB_BYTES = 1024 * 1024


def scrub_range(
    data: SegmentList,
    index: SegmentList,
    start: Cursor,
    last_index: int,
    max_bytes: int,
    straight_from: int,
    synced: Synced,
) -> tuple[int, tuple[Fault, ...], int]:
    """From the cursor's entry up to `last_index` at most: the next index, the faults, the bytes read."""
    data.drop_cache(start.pos, min(max_bytes + _SLAB_BYTES, synced.data_pos - start.pos))
    at = start.index * INDEX_UNIT_BYTES
    index.drop_cache(at, min(max_bytes, synced.index_pos - at))
    survey = Survey(data, index, start, java=False, trust=Trust(last_index), last_index=last_index)
    collector = FaultCollector()
    found: list[Fault] = []
    read_bytes, is_done = 0, True
    for item in survey.run():
        collector.add(item)
        if isinstance(item, Slab):
            read_bytes += len(item.data)
            found.extend(index_faults(index, item))
            found.extend(position_faults(item, straight_from))
            if read_bytes >= max_bytes:
                is_done = False
                break
    stopped_at = survey.stop.cursor.index
    if is_done and stopped_at <= last_index:  # nothing at all is left from there on
        found.append(Fault(stopped_at, last_index, survey.stop.problem or "missing", survey.stop.detail))
    next_index = last_index + 1 if is_done else survey.end.index
    found.extend(collector.faults(start.index, next_index - 1))
    return next_index, merged(found, start.index, next_index - 1), read_bytes


def index_faults(index: SegmentList, slab: Slab) -> Iterator[Fault]:
    """The entries of a sound slab whose index records say something else."""
    raw = index.read_across(slab.first_index * INDEX_UNIT_BYTES, len(slab.index_records))
    if raw == slab.index_records:
        return
    pairs = zip(INDEX_UNIT.iter_unpack(raw), INDEX_UNIT.iter_unpack(slab.index_records), strict=True)
    for number, (stored, wanted) in enumerate(pairs, slab.first_index):
        # A Java leader writes NORMAL for its own NOOP (FORMATS 3).
        if stored[1:] != wanted[1:] or stored[0] not in (wanted[0], Magic.NORMAL):
            detail = f"its index record says {stored}, the record {wanted}"
            yield Fault(number, number, "index_record_mismatch", detail)


def position_faults(slab: Slab, straight_from: int) -> Iterator[Fault]:
    """The one field of a head that no CRC covers: from the layout's border on it says where the record is (S6)."""
    for number in wrong_positions(slab, straight_from):
        at = slab.first_index + number
        lies = INDEX_UNIT.unpack_from(slab.index_records, number * INDEX_UNIT_BYTES)[1]
        said = HEAD.unpack_from(slab.data, lies - slab.pos)[4]
        yield Fault(at, at, "position_mismatch", f"its head says position {said}, it is at {lies}")


def cursor_behind_fault(index: SegmentList, number: int, term: int, sealed_from: int) -> Cursor | None:
    """Where the first entry behind a fault lies, by its index record; None where that is broken too."""
    unit = read_unit(index, number)
    return Cursor(unit.pos, number, term, None, sealed_from) if unit is not None else None
