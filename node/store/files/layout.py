"""The layout: an entry's place as a pure function of position, file size and sizes (SAFETY S5, FORMATS 3).

Invariants: an entry lies in one data file; it is placed in the current file only if `size + 8 <= remaining`, so every
full file ends in a blank filler of at least 8 bytes; a slab never crosses a file and is <= 1 MiB unless one entry is
larger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from node.protocol.entry import BLANK_BYTES, BODY_BYTES_MAX, HEAD_BYTES, SLAB_BYTES_MAX, EntryError
from node.protocol.packed_bodies import lengths_of, longest_of, size_of
from node.protocol.value_class import value_class


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


def plan_bodies(bodies: Sequence[bytes], pos: int, file_bytes: int) -> list[Run]:
    """`plan_runs` for bodies. Raises EntryError, with the limit in it, for one that no file can hold."""
    total = size_of(bodies) + HEAD_BYTES * len(bodies)
    if total <= SLAB_BYTES_MAX and total + BLANK_BYTES <= file_bytes - pos % file_bytes:
        return [Run(0, len(bodies), pos)]  # as they mostly do: then none of them is too long either
    longest, limit = longest_of(bodies), body_bytes_limit(file_bytes)
    if longest > limit:
        raise EntryError(f"a body of {longest} bytes does not fit: the limit is {limit} bytes")
    return plan_runs(np.asarray(lengths_of(bodies)) + HEAD_BYTES, pos, file_bytes)


def plan_runs(sizes_bytes: Sequence[int] | npt.NDArray[np.int64], pos: int, file_bytes: int) -> list[Run]:
    """Splits a batch of records into slabs: a new one where a file ends and before 1 MiB is exceeded."""
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
