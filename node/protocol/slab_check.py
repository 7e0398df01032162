"""`verify_slab` for the hot path: the same verdict, sooner for slabs as our own leaders make them.

An entry of ours is wholly determined by its slab's place, its size, its term and its two CRCs: so what the heads and
the index records should be is worked out and compared as bytes, where `verify_slab` compares column by column.
Invariant: the quick way only ever says "sound, sealed, and lying where every head says"; whatever it does not recognise
is looked at closely, and refused there.
"""

from __future__ import annotations

import numpy as np

from node.protocol.entry import (
    CHAIN_HEAD,
    HEAD,
    HEAD_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    POSITION_MAX,
    Magic,
    Slab,
    crc32,
)
from node.protocol.slab_columns import (
    BODY_CRC_WORD,
    CHAIN_WORD,
    HEAD_WORDS,
    RAW_HEAD,
    WORD,
    chain_heads_of,
    index_records_of,
    plain_heads,
)
from node.protocol.slab_verify import verify_slab

_MAGICS = frozenset(map(int, (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE)))
_COLUMNS_FROM = 8  # below this many entries one at a time is quicker (measured)


def check_slab(slab: Slab, prev_chain: int | None) -> tuple[int | None, bool]:
    """What `verify_slab(slab, prev_chain)` returns or raises; and whether the quick way said so: then every entry is
    sealed, and its head's position is the one that its index record gives."""
    if prev_chain is not None and slab.first_term == slab.last_term >= 0:
        if slab.count == 1:
            if _is_one_sound(slab, prev_chain):
                return slab.last_chain, True
        elif slab.count >= _COLUMNS_FROM and _are_all_sound(slab, prev_chain):
            return slab.last_chain, True
    return verify_slab(slab, prev_chain), False


def _is_one_sound(slab: Slab, prev_chain: int) -> bool:
    if len(slab.index_records) != INDEX_UNIT_BYTES or len(slab.data) < HEAD_BYTES:
        return False
    unit_magic, unit_pos, unit_size, unit_index, unit_term = INDEX_UNIT.unpack(slab.index_records)
    magic, size, index, term, pos, channel, chain, body_crc, length = HEAD.unpack_from(slab.data)
    return bool(
        unit_pos == slab.pos == pos
        and unit_magic == magic
        and magic in _MAGICS
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
    raw = np.ndarray(count, RAW_HEAD, slab.data, 0, size).tobytes()
    heads = np.frombuffer(raw, WORD).reshape(count, HEAD_WORDS)
    expected = plain_heads(count, size, slab.first_index, slab.first_term, slab.pos, Magic.NORMAL)
    crcs = heads[:, CHAIN_WORD : BODY_CRC_WORD + 1]
    expected[:, CHAIN_WORD : BODY_CRC_WORD + 1] = crcs
    return bool(
        expected.tobytes() == raw
        and index_records_of(heads) == slab.index_records
        and int(crcs[-1, 0]) == slab.last_chain == crc32(chain_heads_of(heads), prev_chain)
        and (crcs[:, 0].astype(bool) | crcs[:, 1].astype(bool)).all()
    )
