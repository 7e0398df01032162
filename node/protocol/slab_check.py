"""`verify_slab` for the hot path: the same verdict, sooner for slabs as our own leaders make them.

An entry of ours is wholly determined by its slab's place, its size, its term and its two CRCs: so what the heads and
the index records should be is worked out and compared as bytes, where `verify_slab` compares column by column.
Invariant: the quick way only ever says "sound"; whatever it does not recognise is looked at closely, and refused there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from node.protocol.entry import (
    CHAIN_DTYPE,
    CHAIN_HEAD,
    HEAD,
    HEAD_BYTES,
    HEAD_DTYPE,
    INDEX_DTYPE,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    POSITION_MAX,
    Magic,
    Slab,
    crc32,
    verify_slab,
)

_COLUMNS_FROM = 12  # below this many entries one at a time is quicker (measured)
_FRAMES_MAX = 4  # each takes 112 bytes an entry, of which a slab of 1 MiB has some 20,000 at the most
_frames: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = {}


def check_slab(slab: Slab, prev_chain: int | None) -> int | None:
    """What `verify_slab(slab, prev_chain)` returns or raises."""
    if prev_chain is not None and slab.first_term == slab.last_term >= 0:
        if slab.count == 1:
            if _is_one_sound(slab, prev_chain):
                return slab.last_chain
        elif slab.count >= _COLUMNS_FROM and _are_all_sound(slab, prev_chain):
            return slab.last_chain
    return verify_slab(slab, prev_chain)


def _is_one_sound(slab: Slab, prev_chain: int) -> bool:
    if len(slab.index_records) != INDEX_UNIT_BYTES or len(slab.data) < HEAD_BYTES:
        return False
    unit_magic, unit_pos, unit_size, unit_index, unit_term = INDEX_UNIT.unpack(slab.index_records)
    magic, size, index, term, _pos, channel, chain, body_crc, length = HEAD.unpack_from(slab.data)
    return bool(
        unit_pos == slab.pos
        and unit_magic == magic
        and Magic.NORMAL <= magic <= Magic.CONFIG_CHANGE
        and size == unit_size == len(slab.data) == length + HEAD_BYTES
        and index == unit_index == slab.first_index
        and term == unit_term == slab.first_term
        and (chain or body_crc)
        and chain == slab.last_chain == crc32(CHAIN_HEAD.pack(magic, size, index, term, channel, body_crc), prev_chain)
    )


def _are_all_sound(slab: Slab, prev_chain: int) -> bool:
    """For entries of one size, one term and kind NORMAL, all sealed, at the positions that their heads say."""
    count = slab.count
    size, rest = divmod(len(slab.data), count)
    if rest or size < HEAD_BYTES or len(slab.index_records) != count * INDEX_UNIT_BYTES:
        return False
    if not 0 <= slab.first_index <= POSITION_MAX - count or not 0 <= slab.pos <= POSITION_MAX - len(slab.data):
        return False
    expected_heads, chain_heads, records = (array.copy() for array in _frame_of(count, size))
    rows = np.frombuffer(slab.data, np.uint8).reshape(count, size)
    heads = np.ascontiguousarray(rows[:, :HEAD_BYTES]).reshape(-1).view(HEAD_DTYPE)
    indexes = np.arange(slab.first_index, slab.first_index + count)
    body_crcs, chains = heads["body_crc"], heads["chain_crc"]
    for array in (expected_heads, chain_heads, records):
        array["index"] = indexes
        array["term"] = slab.first_term
    expected_heads["pos"] += slab.pos
    records["pos"] = expected_heads["pos"]
    expected_heads["body_crc"] = chain_heads["body_crc"] = body_crcs
    expected_heads["chain_crc"] = chains
    if expected_heads.tobytes() != heads.tobytes() or records.tobytes() != slab.index_records:
        return False
    chain = int(chains[-1])
    if not chain == slab.last_chain == crc32(chain_heads.tobytes(), prev_chain):
        return False
    return bool((chains.astype(bool) | body_crcs.astype(bool)).all())


def _frame_of(count: int, size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Heads, chain heads and index records of so many entries of that size, as far as they depend on nothing else."""
    known = _frames.get(size)
    if known is None or len(known[0]) < count:
        if len(_frames) >= _FRAMES_MAX:
            del _frames[next(iter(_frames))]
        known = _frames[size] = _new_frame(max(count, 1024), size)
    heads, chain_heads, records = known
    return heads[:count], chain_heads[:count], records[:count]


def _new_frame(count: int, size: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    heads = np.zeros(count, HEAD_DTYPE)
    heads["pos"] = np.arange(count) * size
    heads["body_len"] = size - HEAD_BYTES
    chain_heads, records = np.zeros(count, CHAIN_DTYPE), np.zeros(count, INDEX_DTYPE)
    for array in (heads, chain_heads, records):
        array["magic"] = Magic.NORMAL
        array["size"] = size
    return heads, chain_heads, records
