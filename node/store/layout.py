"""Where entries go: the layout as a pure function of position, file size and entry sizes (SAFETY S5, FORMATS 3).

Invariants: an entry lies in one data file; it is placed in the current file only if `size + 8 <= remaining`, so every
full file ends in a blank filler of at least 8 bytes; a slab never crosses a file and is <= 1 MiB unless one entry is
larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.protocol.entry import BLANK_BYTES, BODY_BYTES_MAX, HEAD_BYTES, SLAB_BYTES_MAX, EntryError


@dataclass(slots=True, frozen=True)
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


def check_fits(body_lengths: Sequence[int], file_bytes: int) -> None:
    """Refuses, before anything is written, a body that no file can hold. Raises EntryError with the limit in it."""
    limit = body_bytes_limit(file_bytes)
    longest = max(body_lengths)
    if longest > limit:
        raise EntryError(f"a body of {longest} bytes does not fit: the limit is {limit} bytes")


def plan_runs(sizes_bytes: Sequence[int], pos: int, file_bytes: int) -> list[Run]:
    """Splits a batch into slabs: a new one where a file ends and before 1 MiB is exceeded."""
    total = sum(sizes_bytes)
    if total <= SLAB_BYTES_MAX and total + BLANK_BYTES <= file_bytes - pos % file_bytes:
        return [Run(0, len(sizes_bytes), pos)]
    runs: list[Run] = []
    first, start, at = 0, place(pos, sizes_bytes[0], file_bytes), place(pos, sizes_bytes[0], file_bytes)
    for number, size in enumerate(sizes_bytes):
        target = place(at, size, file_bytes)
        if target != at or (at + size - start > SLAB_BYTES_MAX and number > first):
            runs.append(Run(first, number, start))
            first, start, at = number, target, target
        at += size
    runs.append(Run(first, len(sizes_bytes), start))
    return runs
