"""The thorough check of a slab: its heads, its index records, its chain and, where asked, its bodies.

Invariants: a slab that passes is exactly what `entry` says of one; nothing is made up for what is missing.
"""

from __future__ import annotations

import struct
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from node.protocol.entry import (
    HEAD,
    HEAD_BYTES,
    HEAD_DTYPE,
    INDEX_DTYPE,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    BytesLike,
    EntryError,
    Magic,
    Slab,
    chain_next,
    crc32,
    iter_bodies,
)
from node.protocol.slab_columns import (
    BODY_CRC_WORD,
    CHAIN_WORD,
    COLUMNS_FROM,
    HEAD_WORDS,
    Heads,
    chain_heads_of,
    chains_over,
    column_of,
)


def slab_heads(slab: Slab) -> npt.NDArray[Any]:
    """The records' heads as a structured array of HEAD_DTYPE, gathered through the index records.

    Raises EntryError when the index records do not tile the slab's bytes.
    """
    if slab.count < 1 or len(slab.index_records) != slab.count * INDEX_UNIT_BYTES:
        raise EntryError(
            f"slab at {slab.first_index}: {len(slab.index_records)} bytes of index for {slab.count} entries"
        )
    units = np.frombuffer(slab.index_records, dtype=INDEX_DTYPE)
    sizes = units["size"].astype(np.int64)
    if bool((sizes < HEAD_BYTES).any()) or int(sizes.sum()) != len(slab.data):
        raise EntryError(f"slab at {slab.first_index}: record sizes do not add up to its {len(slab.data)} bytes")
    offsets = np.zeros(slab.count, dtype=np.int64)
    np.cumsum(sizes[:-1], out=offsets[1:])
    if bool((units["pos"] != offsets + slab.pos).any()):
        raise EntryError(f"slab at {slab.first_index}: index positions are not back to back")
    raw = np.frombuffer(slab.data, dtype=np.uint8)
    if bool((sizes == sizes[0]).all()):
        gathered = np.ascontiguousarray(raw.reshape(slab.count, int(sizes[0]))[:, :HEAD_BYTES])
    else:
        gathered = raw[offsets[:, None] + np.arange(HEAD_BYTES)]
    return gathered.reshape(-1).view(HEAD_DTYPE)


def verify_slab(slab: Slab, prev_chain: int | None, *, bodies: bool = False) -> int | None:
    """Checks a slab's heads, its index records and its chain; returns the chain after it (None if unknown).

    `prev_chain` None: the chain has no anchor before the slab. `bodies=True` is for slabs read from a disk: every body
    CRC is checked, and the chain that each sealed entry says, not only the last one's, so that rot never travels
    (SAFETY "Frames"). Positions inside heads may differ from the slab's (FORMATS 6.12). Raises EntryError.
    """
    if slab.count < COLUMNS_FROM:
        return _verify_loop(slab, prev_chain, bodies=bodies)
    return _verify_columns(slab, prev_chain, bodies=bodies)


def _verify_loop(slab: Slab, prev_chain: int | None, *, bodies: bool) -> int | None:
    """The same checks one record at a time: a single append must not pay for numpy's set-up."""
    where = f"slab {slab.first_index}..{slab.last_index}"
    if slab.count < 1 or len(slab.index_records) != slab.count * INDEX_UNIT_BYTES:
        raise EntryError(f"{where}: {len(slab.index_records)} bytes of index for {slab.count} entries")
    heads: list[tuple[int, ...]] = []
    offset, index, term = 0, slab.first_index, slab.first_term
    for unit_magic, unit_pos, unit_size, unit_index, unit_term in INDEX_UNIT.iter_unpack(slab.index_records):
        if unit_size < HEAD_BYTES or offset + unit_size > len(slab.data):
            raise EntryError(f"{where}: record sizes do not add up to its {len(slab.data)} bytes")
        if unit_pos != slab.pos + offset:
            raise EntryError(f"{where}: index positions are not back to back")
        head = HEAD.unpack_from(slab.data, offset)
        if head[2] != index:
            raise EntryError(f"{where}: indexes are not consecutive")
        if head[3] < max(term, 0) or (not heads and head[3] != term):
            raise EntryError(f"{where}: terms go backwards or differ from the slab's")
        if not Magic.NORMAL <= head[0] <= Magic.CONFIG_CHANGE:
            raise EntryError(f"{where}: a record's magic is not an entry's")
        if head[1] != head[8] + HEAD_BYTES:
            raise EntryError(f"{where}: a record's size does not fit its body length")
        if (head[1], head[2], head[3]) != (unit_size, unit_index, unit_term):
            raise EntryError(f"{where}: index records and heads disagree")
        # A Java leader's index unit says NORMAL for its own NOOP (FORMATS 3): not a disagreement.
        if head[0] != unit_magic != Magic.NORMAL:
            raise EntryError(f"{where}: index records and heads disagree in magic")
        heads.append(head)
        index, term = index + 1, head[3]
        offset += unit_size
    if offset != len(slab.data) or term != slab.last_term:
        raise EntryError(f"{where}: its records end at {offset} of {len(slab.data)} bytes, in term {term}")
    unsealed = [head[6] == 0 == head[7] and head[8] > 0 for head in heads]
    body_crcs = [head[7] for head in heads]
    if bodies or any(unsealed):
        computed = [crc32(body) for body in iter_bodies(slab)]
        for number, plain in enumerate(unsealed):
            if not plain and computed[number] != body_crcs[number]:
                bad = slab.first_index + number
                raise EntryError(f"{where}: the body of entry {bad} does not match its CRC")
        body_crcs = computed
    chain = prev_chain
    for head, body_crc in zip(heads, body_crcs, strict=True) if bodies or prev_chain is not None else ():
        if chain is not None:
            chain = chain_next(chain, head[0], head[1], head[2], head[3], head[5], body_crc)
        if bodies and (head[6] or head[7]):
            if chain not in (None, head[6]):
                raise EntryError(f"{where}: the chain of entry {head[2]} is {head[6]:08x}, computed {chain:08x}")
            chain = head[6]
    if prev_chain is None or chain is None:
        return None
    stored, last_unsealed = heads[-1][6], heads[-1][6] == 0 == heads[-1][7]
    if stored != chain and not last_unsealed:
        raise EntryError(f"{where}: the chain ends in {stored:08x}, computed {chain:08x}")
    return chain


def _verify_columns(slab: Slab, prev_chain: int | None, *, bodies: bool) -> int | None:
    heads = slab_heads(slab)
    units = np.frombuffer(slab.index_records, dtype=INDEX_DTYPE)
    where = f"slab {slab.first_index}..{slab.last_index}"
    if bool((heads["index"] != np.arange(slab.first_index, slab.first_index + slab.count)).any()):
        raise EntryError(f"{where}: indexes are not consecutive")
    terms = heads["term"].astype(np.int64)
    backwards = int(terms[0]) < 0 or bool((terms[1:] < terms[:-1]).any())  # a difference of int64s may wrap
    if backwards or int(terms[0]) != slab.first_term or int(terms[-1]) != slab.last_term:
        raise EntryError(f"{where}: terms go backwards or differ from the slab's")
    if bool((heads["magic"] < Magic.NORMAL).any()) or bool((heads["magic"] > Magic.CONFIG_CHANGE).any()):
        raise EntryError(f"{where}: a record's magic is not an entry's")
    if bool((heads["size"] != heads["body_len"] + HEAD_BYTES).any()):
        raise EntryError(f"{where}: a record's size does not fit its body length")
    for name in ("size", "index", "term"):
        if bool((heads[name] != units[name]).any()):
            raise EntryError(f"{where}: index records and heads disagree in {name}")
    # A Java leader's index unit says NORMAL for its own NOOP (FORMATS 3): not a disagreement.
    if bool(((heads["magic"] != units["magic"]) & (units["magic"] != Magic.NORMAL)).any()):
        raise EntryError(f"{where}: index records and heads disagree in magic")
    unsealed = (heads["body_crc"] == 0) & (heads["chain_crc"] == 0) & (heads["body_len"] > 0)
    body_crcs = heads["body_crc"].astype(np.uint32)
    if bodies or bool(unsealed.any()):
        computed = _crcs_of_bodies(slab.data, units["size"].astype(np.int64))
        if bool(((computed != body_crcs) & ~unsealed).any()):
            bad = slab.first_index + int(np.argmax((computed != body_crcs) & ~unsealed))
            raise EntryError(f"{where}: the body of entry {bad} does not match its CRC")
        body_crcs = computed
    words = heads.view(">u4").reshape(slab.count, HEAD_WORDS)
    if bodies:
        _verify_each_chain(where, slab.first_index, words, body_crcs, prev_chain)
    if prev_chain is None:
        return None
    chain_heads = chain_heads_of(words)
    chain_heads[:, -1] = body_crcs  # computed where they are not stored
    chain = crc32(chain_heads, prev_chain)
    stored = int(heads["chain_crc"][-1])
    last_unsealed = stored == 0 and int(heads["body_crc"][-1]) == 0
    if stored != chain and not last_unsealed:
        raise EntryError(f"{where}: the chain ends in {stored:08x}, computed {chain:08x}")
    return chain


def _verify_each_chain(
    where: str, first_index: int, words: Heads, body_crcs: npt.NDArray[np.uint32], prev_chain: int | None
) -> None:
    """What each sealed entry says of the chain; without an anchor before them, from the first sealed one on."""
    sealed = (words[:, CHAIN_WORD] != 0) | (words[:, BODY_CRC_WORD] != 0)
    begin, chain = 0, prev_chain
    if chain is None:
        if not sealed.any():
            return
        anchor = int(np.argmax(sealed))
        begin, chain = anchor + 1, int(words[anchor, CHAIN_WORD])
    rest = words[begin:].copy()
    rest[:, BODY_CRC_WORD] = body_crcs[begin:]  # computed where they are not stored
    computed = column_of(chains_over(rest, chain)[1:])
    wrong = (rest[:, CHAIN_WORD] != computed) & sealed[begin:]
    if wrong.any():
        bad = int(np.argmax(wrong))
        said = f"is {int(rest[bad, CHAIN_WORD]):08x}, computed {int(computed[bad]):08x}"
        raise EntryError(f"{where}: the chain of entry {first_index + begin + bad} {said}")


def _crcs_of_bodies(data: BytesLike, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Of records that tile `data`. No bytecode per entry: half the time, and a reading thread hinders the loop less."""
    if bool((sizes == sizes[0]).all()):
        each = struct.iter_unpack(f"{HEAD_BYTES}x{int(sizes[0]) - HEAD_BYTES}s", data)
        return np.fromiter(starmap(crc32, each), np.uint32, len(sizes))
    ends = np.cumsum(sizes)
    parts = map(slice, (ends - sizes + HEAD_BYTES).tolist(), ends.tolist())
    return np.fromiter(map(crc32, map(data.__getitem__, parts)), np.uint32, len(sizes))
