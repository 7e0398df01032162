"""Encoding: bodies become the records of a slab, sealed.

Invariants: the bytes depend on nothing but the arguments; a few bodies and many give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from node.protocol.entry import CHAIN_HEAD, HEAD, HEAD_BYTES, INDEX_UNIT, EntryError, Magic, Slab, crc32
from node.protocol.slab_columns import (
    BODY_CRC_WORD,
    CHAIN_WORD,
    COLUMNS_FROM,
    RAW_HEAD,
    Heads,
    Sizes,
    chains_over,
    column_of,
    index_records_of,
    plain_heads,
)


def encode_slab(
    bodies: Sequence[bytes],
    first_index: int,
    term: int,
    pos: int,
    prev_chain: int,
    magic: int = Magic.NORMAL,
    channel: int = 0,
) -> Slab:
    """Encodes and seals `bodies` as consecutive entries of one term at absolute position `pos`.

    The caller has made sure that they fit one data file and that none is over BODY_BYTES_MAX. Raises EntryError where
    there are none.
    """
    if not bodies:
        raise EntryError("a slab holds at least one entry")
    count = len(bodies)
    if count < COLUMNS_FROM:
        data, records, chain = _encode_loop(bodies, first_index, term, pos, prev_chain, magic, channel)
    else:
        data, records, chain = _encode_columns(bodies, first_index, term, pos, prev_chain, magic, channel)
    return Slab(first_index, count, pos, data, records, term, term, prev_chain, chain)


def _encode_loop(
    bodies: Sequence[bytes], index: int, term: int, pos: int, chain: int, magic: int, channel: int
) -> tuple[bytes, bytes, int]:
    parts: list[bytes] = []
    records: list[bytes] = []
    for body in bodies:
        body_crc = crc32(body)
        size = HEAD_BYTES + len(body)
        chain = crc32(CHAIN_HEAD.pack(magic, size, index, term, channel, body_crc), chain)
        parts.append(HEAD.pack(magic, size, index, term, pos, channel, chain, body_crc, len(body)))
        parts.append(body)
        records.append(INDEX_UNIT.pack(magic, pos, size, index, term))
        index += 1
        pos += size
    return b"".join(parts), b"".join(records), chain


def _encode_columns(
    bodies: Sequence[bytes], first_index: int, term: int, pos: int, prev_chain: int, magic: int, channel: int
) -> tuple[bytes, bytes, int]:
    lengths = np.fromiter(map(len, bodies), np.int64, len(bodies))
    heads, records, chain = seal(lengths + HEAD_BYTES, bodies, first_index, term, pos, prev_chain, magic, channel)
    return interleave(heads, bodies), records, chain


def seal(
    sizes: Sizes,
    bodies: Sequence[bytes],
    first_index: int,
    term: int,
    pos: int,
    prev_chain: int,
    magic: int,
    channel: int = 0,
) -> tuple[Heads, bytes, int]:
    """Heads and index records of consecutive entries with these bodies, and the chain after the last."""
    heads = plain_heads(len(bodies), sizes, first_index, term, pos, magic, channel)
    heads[:, BODY_CRC_WORD] = column_of(map(crc32, bodies))
    chains = chains_over(heads, prev_chain)
    heads[:, CHAIN_WORD] = column_of(chains)[1:]
    return heads, index_records_of(heads), chains[-1]


def interleave(heads: Heads, bodies: Sequence[bytes]) -> bytes:
    """Each head before its body: one join, one allocation of the slab's size."""
    parts: list[bytes] = [b""] * (2 * len(bodies))
    parts[0::2] = heads.view(RAW_HEAD).ravel().tolist()
    parts[1::2] = bodies
    return b"".join(parts)
