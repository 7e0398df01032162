"""Cutting, joining and placing slabs without encoding anything again.

Invariants: records keep their bytes; chains are taken from the seals where there are any and computed where not; index
records say where a record truly is. The one field of a head that no checksum covers is `pos`: `wrong_positions` and
`straightened` hold it against the place of the record (SAFETY S6).
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from node.protocol.entry import (
    BLANK_BYTES,
    HEAD_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    EntryError,
    Slab,
    chain_of,
    unpack_record,
)
from node.store.files.layout import place, plan_runs
from node.store.log_store import EntryMeta

_CRCS = struct.Struct(">II")
_CRCS_OFFSET = 36
_POS = struct.Struct(">q")
_POS_OFFSET = 24
_COLUMNS_FROM = 8  # below this many entries one at a time is quicker


def join_slabs(slabs: list[Slab]) -> Slab:
    """One slab out of neighbours that lie back to back in one file."""
    if len(slabs) == 1:
        return slabs[0]
    first, last = slabs[0], slabs[-1]
    return Slab(
        first.first_index, last.last_index - first.first_index + 1, first.pos, b"".join(slab.data for slab in slabs),
        b"".join(slab.index_records for slab in slabs), first.first_term, last.last_term, first.prev_chain,
        last.last_chain,
    )  # fmt: skip


def _unit(slab: Slab, index: int) -> tuple[int, int, int, int, int]:
    """Magic, pos, size, index, term of an entry in a slab."""
    magic, pos, size, at, term = INDEX_UNIT.unpack_from(
        slab.index_records, (index - slab.first_index) * INDEX_UNIT_BYTES
    )
    return magic, pos, size, at, term


def slab_meta(slab: Slab, index: int) -> EntryMeta:
    """Term and chain of an entry in a slab: stored where it is sealed, computed where it is not."""
    _, pos, _, _, term = _unit(slab, index)
    chain_crc, body_crc = _CRCS.unpack_from(slab.data, pos - slab.pos + _CRCS_OFFSET)
    if chain_crc or body_crc:
        return EntryMeta(index, term, chain_crc)
    chain = slab.prev_chain
    offset = 0
    while chain is not None and offset <= pos - slab.pos:
        entry = unpack_record(slab.data, offset)
        chain = chain_of(entry, chain)
        offset += entry.size
    return EntryMeta(index, term, chain)


def cut_to_bytes(slab: Slab, first_index: int, max_bytes: int) -> Slab:
    """As many entries from `first_index` on as fit `max_bytes`, at least one."""
    start = _unit(slab, first_index)[1]
    low, high = first_index, slab.last_index
    while low < high:  # the last entry whose end is within the limit
        middle = (low + high + 1) // 2
        _, pos, size, _, _ = _unit(slab, middle)
        low, high = (middle, high) if pos + size - start <= max_bytes else (low, middle - 1)
    return cut_slab(slab, first_index, low - first_index + 1)


def cut_slab(slab: Slab, first_index: int, count: int) -> Slab:
    """`count` entries of a slab, from `first_index` on; a copy, so that a part does not hold the whole."""
    last_index = first_index + count - 1
    start = _unit(slab, first_index)[1]
    _, last_pos, last_size, _, last_term = _unit(slab, last_index)
    before = slab.prev_chain if first_index == slab.first_index else slab_meta(slab, first_index - 1).chain
    units_from = (first_index - slab.first_index) * INDEX_UNIT_BYTES
    return Slab(
        first_index, count, start, bytes(slab.data[start - slab.pos : last_pos + last_size - slab.pos]),
        slab.index_records[units_from : units_from + count * INDEX_UNIT_BYTES], _unit(slab, first_index)[4], last_term,
        before, slab.last_chain if last_index == slab.last_index else slab_meta(slab, last_index).chain,
    )  # fmt: skip


def wrong_positions(slab: Slab, straight_from: int) -> list[int]:
    """Which records of a slab (0 is its first) say another position than their index records do.

    Only from entry `straight_from` on: before it nobody knows which positions were meant.
    """
    if slab.last_index < straight_from:
        return []
    skipped = straight_from - slab.first_index
    return [at for at in _elsewhere(slab) if at >= skipped]


def _elsewhere(slab: Slab) -> list[int]:
    if slab.count < _COLUMNS_FROM:
        units = enumerate(INDEX_UNIT.iter_unpack(slab.index_records))
        return [at for at, (_, pos, *_) in units if _POS.unpack_from(slab.data, pos - slab.pos + _POS_OFFSET)[0] != pos]
    positions = np.frombuffer(slab.index_records, dtype=INDEX_DTYPE)["pos"].astype(np.int64)
    said = _said_positions(slab, positions - slab.pos)
    return [int(at) for at in np.flatnonzero(said != positions)] if bool((said != positions).any()) else []


def _said_positions(slab: Slab, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    size, rest = divmod(len(slab.data), slab.count)
    if not rest and size >= HEAD_BYTES and bool((offsets == np.arange(slab.count) * size).all()):
        return np.ndarray(slab.count, ">i8", slab.data, _POS_OFFSET, size).astype(np.int64)
    raw = np.frombuffer(slab.data, dtype=np.uint8)
    eight = raw[(offsets + _POS_OFFSET)[:, None] + np.arange(_POS.size)]
    return np.ascontiguousarray(eight).reshape(-1).view(">i8").astype(np.int64)


def straightened(slab: Slab, straight_from: int) -> Slab:
    """The slab with the positions in its heads that its index records give: itself, where they are right already."""
    wrong = wrong_positions(slab, straight_from)
    if not wrong:
        return slab
    data = bytearray(slab.data)
    for at in wrong:
        pos = INDEX_UNIT.unpack_from(slab.index_records, at * INDEX_UNIT_BYTES)[1]
        _POS.pack_into(data, pos - slab.pos + _POS_OFFSET, pos)
    return replace(slab, data=bytes(data))


def settle(slab: Slab, end_pos: int, file_bytes: int) -> list[Slab]:
    """The slab where the layout wants it after `end_pos`; moved only where a Java heritage made positions differ (S5).

    Heads keep their bytes, index records get the true position. Raises EntryError for a record that fits no file.
    """
    # A slab that fits what is left of its file is right there; in a new file where not even its first record fits.
    pos = end_pos
    if slab.pos != pos:
        pos = place(end_pos, _unit(slab, slab.first_index)[2], file_bytes)
    if slab.pos == pos and len(slab.data) + BLANK_BYTES <= file_bytes - pos % file_bytes:
        return [slab]
    units = list(INDEX_UNIT.iter_unpack(slab.index_records))
    sizes = [size for _, _, size, _, _ in units]
    if max(sizes) + BLANK_BYTES > file_bytes:
        raise EntryError(f"slab {slab.first_index}: a record of {max(sizes)} bytes fits no file here")
    moved: list[Slab] = []
    for run in plan_runs(sizes, end_pos, file_bytes):
        piece = cut_slab(slab, slab.first_index + run.first, run.stop - run.first)
        at, records = run.pos, []
        for magic, _, size, index, term in units[run.first : run.stop]:
            records.append(INDEX_UNIT.pack(magic, at, size, index, term))
            at += size
        moved.append(replace(piece, pos=run.pos, index_records=b"".join(records)))
    return moved
