"""Many entries at once, as columns: their heads, what the index and the chain take of a head, the chain itself.

A head is twelve words of four bytes, and both an index record and a chain head are eight of those words: so they are
picked from finished heads, not written anew. Invariant: whoever encodes and whoever checks gets heads from here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.protocol.entry import CHAIN_HEAD, HEAD_BYTES, crc32

COLUMNS_FROM: Final = 24  # below this many entries a loop beats numpy columns (measured, DESIGN 4)
HEAD_WORDS: Final = HEAD_BYTES // 4
CHAIN_WORD: Final = 9
BODY_CRC_WORD: Final = 10
_INDEX_WORDS: Final = np.array((0, 6, 7, 1, 2, 3, 4, 5))  # magic, pos, size, index, term
_CHAIN_WORDS: Final = np.array((0, 1, 2, 3, 4, 5, 8, 10))  # magic, size, index, term, channel, body CRC
WORD: Final = np.dtype(">u4")
RAW_HEAD: Final = np.dtype(f"V{HEAD_BYTES}")
_BIG_PAIR: Final = np.dtype(">i8")
_RAW_CHAIN_HEAD: Final = np.dtype(f"V{CHAIN_HEAD.size}")

Sizes = int | npt.NDArray[np.int64]  # of records, head included: one for all of them, or one for each
Heads = npt.NDArray[Any]  # (entries, HEAD_WORDS) of 4 bytes each, big-endian, as they lie in the file


def plain_heads(count: int, sizes: Sizes, first_index: int, term: int, pos: int, magic: int, channel: int = 0) -> Heads:
    """Heads (WORD) of consecutive entries of one term, back to back from `pos` on; both CRCs are 0."""
    pairs = np.zeros((count, HEAD_WORDS // 2), np.int64)  # native, and turned round once at the end
    pairs[:, 0] = sizes + (int(magic) << 32)
    pairs[:, 1] = np.arange(first_index, first_index + count)
    pairs[:, 2] = term
    if isinstance(sizes, int):
        pairs[:, 3] = np.arange(pos, pos + count * sizes, sizes)
    else:
        pairs[:, 3] = np.cumsum(sizes) - sizes + pos
    if channel:
        pairs[:, 4] = int(channel) << 32
    pairs[:, 5] = sizes - HEAD_BYTES
    return pairs.astype(_BIG_PAIR).view(WORD)


def index_records_of(heads: Heads) -> bytes:
    """The index records of entries that lie where their heads say."""
    return heads.take(_INDEX_WORDS, axis=1).tobytes()


def chain_heads_of(heads: Heads) -> npt.NDArray[Any]:
    """What the chain runs over, a row for each entry."""
    return heads.take(_CHAIN_WORDS, axis=1)


def chains_over(heads: Heads, prev_chain: int) -> list[int]:
    """`prev_chain`, and the chain after each entry. The one part that is no column: each needs the one before."""
    chains = [prev_chain]
    pieces = chain_heads_of(heads).view(_RAW_CHAIN_HEAD).ravel().tolist()
    chains.extend(map(crc32, pieces, chains))  # reads what it appends: no bytecode per entry
    return chains


def column_of(crcs: Iterable[int]) -> npt.NDArray[np.uint32]:
    """CRCs as a column; quicker than np.fromiter."""
    return np.frombuffer(array("I", crcs), np.uint32)
