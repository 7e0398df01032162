"""Where entries go: the layout as a pure function of position, file size and entry sizes (SAFETY S5, FORMATS 3).

Invariants: an entry lies in one data file; it is placed in the current file only if `size + 8 <= remaining`, so every
full file ends in a blank filler of at least 8 bytes; a slab never crosses a file and is <= 1 MiB unless one entry is
larger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from node.protocol.entry import BLANK_BYTES, BODY_BYTES_MAX, HEAD_BYTES, SLAB_BYTES_MAX, EntryError
from node.protocol.value_class import value_class

Sizes = Sequence[int] | npt.NDArray[np.int64]  # one per entry


@value_class(slots=True, frozen=True)
class Run:
    """The entries [first, stop) of a batch, back to back from absolute position `pos`."""

    first: int
    stop: int
    pos: int


def place(pos: int, size_bytes: int, file_bytes: int) -> int:
    """The position at which a record of `size_bytes` goes when the next free byte is `pos`."""
    remaining = file_bytes - pos % file_bytes
    return pos if size_bytes + BLANK_BYTES <= remaining else pos + remaining


def body_bytes_limit(file_bytes: int) -> int:
    """The longest body that fits a data file at all."""
    return min(BODY_BYTES_MAX, file_bytes - HEAD_BYTES - BLANK_BYTES)


def plan_bodies(lengths_bytes: Sizes, pos: int, file_bytes: int) -> list[Run]:
    """`plan_runs` for bodies. Raises EntryError, with the limit in it, for one that no file can hold."""
    if isinstance(lengths_bytes, np.ndarray):
        longest = int(lengths_bytes.max())
        sizes: Sizes = lengths_bytes + HEAD_BYTES
    else:
        longest = max(lengths_bytes)
        sizes = [HEAD_BYTES + length for length in lengths_bytes]
    if longest > body_bytes_limit(file_bytes):
        raise EntryError(f"a body of {longest} bytes does not fit: the limit is {body_bytes_limit(file_bytes)} bytes")
    return plan_runs(sizes, pos, file_bytes)


def plan_runs(sizes_bytes: Sizes, pos: int, file_bytes: int) -> list[Run]:
    """Splits a batch into slabs: a new one where a file ends and before 1 MiB is exceeded."""
    total = int(sizes_bytes.sum()) if isinstance(sizes_bytes, np.ndarray) else sum(sizes_bytes)
    if total <= SLAB_BYTES_MAX and total + BLANK_BYTES <= file_bytes - pos % file_bytes:
        return [Run(0, len(sizes_bytes), pos)]
    runs: list[Run] = []
    ends = np.cumsum(np.asarray(sizes_bytes, dtype=np.int64))
    first, before, at = 0, 0, pos  # `before`: the bytes of all entries ahead of `first`
    while first < len(ends):
        start = place(at, int(ends[first]) - before, file_bytes)
        room = min(SLAB_BYTES_MAX, file_bytes - start % file_bytes - BLANK_BYTES)
        stop = max(int(np.searchsorted(ends, before + room, side="right")), first + 1)
        runs.append(Run(first, stop, start))
        at = start + int(ends[stop - 1]) - before
        first, before = stop, int(ends[stop - 1])
    return runs
