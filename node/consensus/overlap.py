"""A slab that overlaps what a follower holds: up to where the two are equal, and what of it is new. No I/O.

Theory. Equal term and chain at an index mean equal prefixes, so one look at the last common entry mostly settles it;
where it does not, bisection finds the first entry that differs with a few looks more (each may be at a cold page).

Invariant: nothing is taken for equal that was not compared, but for what is before something equal; a damaged entry
is not compared, the next intact one speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from node.protocol.entry import (
    HEAD,
    HEAD_BYTES,
    INDEX_UNIT,
    INDEX_UNIT_BYTES,
    EntryError,
    Slab,
    chain_of,
    unpack_record,
)
from node.protocol.messages import PushRequest
from node.store.log_store import EntryMeta

Look = Callable[[int], EntryMeta | None]  # our own; may raise ColdEntry


class Overlap(NamedTuple):
    """`equal_upto`: the last entry that is equal (below the slab: none). `differs`: the first that is not, ours there,
    and whether that is of another term. `rest`: what is beyond our end, where all before is equal."""

    equal_upto: int
    differs: tuple[int, EntryMeta | None, bool] | None = None
    rest: Slab | None = None


def overlap_of(slab: Slab, end_index: int, damaged: Callable[[int], bool], look: Look) -> Overlap:
    """Raises EntryError for a slab whose records are not what they say, and whatever `look` raises."""
    if slab.last_index <= end_index and not damaged(slab.last_index) and _same_at_last(slab, look(slab.last_index)):
        return Overlap(slab.last_index)
    theirs, offset, chain = _heads(slab, end_index)
    compared = [one for one in theirs if not damaged(one.index)]
    differs = _first_difference(compared, look)
    if differs is not None:
        number, ours = differs
        equal_upto = compared[number - 1].index if number else slab.first_index - 1
        other_term = ours is None or ours.term != compared[number].term
        return Overlap(equal_upto, (compared[number].index, ours, other_term))
    equal_upto = compared[-1].index if compared else slab.first_index - 1
    rest = _tail_of(slab, len(theirs), offset, chain) if len(theirs) < slab.count else None
    return Overlap(equal_upto, None, rest)


def behind_base(push: PushRequest, slab: Slab, base_index: int) -> tuple[PushRequest, Slab]:
    """An APPEND as if it followed our log's base, which is one of its entries: so it is compared. Raises EntryError."""
    heads, offset, chain = _heads(slab, base_index)
    base = heads[-1]
    push = replace(push, prev_index=base.index, prev_term=base.term, prev_chain=base.chain)
    return push, _tail_of(slab, len(heads), offset, chain)


def _heads(slab: Slab, end_index: int) -> tuple[list[EntryMeta], int, int | None]:
    """The slab's entries up to `end_index`; where the next one begins, and the chain before it."""
    found: list[EntryMeta] = []
    offset, chain = 0, slab.prev_chain
    for index in range(slab.first_index, min(slab.last_index, end_index) + 1):
        entry = unpack_record(slab.data, offset)
        if entry.index != index:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index}: entry {entry.index} in place of {index}")
        chain = None if chain is None else chain_of(entry, chain)
        offset += entry.size
        found.append(EntryMeta(index, entry.term, chain))
    return found, offset, chain


def _first_difference(compared: list[EntryMeta], look: Look) -> tuple[int, EntryMeta | None] | None:
    """The place of the first entry that is not ours, and ours; None: all are."""
    low, high, at_high = -1, len(compared), None
    number = len(compared) - 1  # the last one first: mostly it is equal
    while high - low > 1:
        ours = look(compared[number].index)
        if ours is not None and _equal(ours, compared[number]):
            low = number
        else:
            high, at_high = number, ours
        number = (low + high) // 2
    return None if high == len(compared) else (high, at_high)


def _equal(ours: EntryMeta, theirs: EntryMeta) -> bool:
    unknown = ours.chain is None or theirs.chain is None
    return ours.term == theirs.term and (unknown or ours.chain == theirs.chain)


def _same_at_last(slab: Slab, ours: EntryMeta | None) -> bool:
    """Whether the slab's last record is ours, by its own seal.

    Slabs that were sent again while this member stood still come by the megabyte, and must not keep it from its
    heartbeats: nothing else of them is looked at.
    """
    _magic, pos, _size, _index, _term = INDEX_UNIT.unpack_from(slab.index_records, -INDEX_UNIT_BYTES)
    if not 0 <= pos - slab.pos <= len(slab.data) - HEAD_BYTES:
        return False
    _, _, index, term, _, _, chain, body_crc, _ = HEAD.unpack_from(slab.data, pos - slab.pos)
    if ours is None or ours.chain is None or not (chain or body_crc):
        return False
    return (index, term, chain) == (slab.last_index, ours.term, ours.chain)


def _tail_of(slab: Slab, number: int, offset: int, chain: int | None) -> Slab:
    """The slab without its first `number` records, which take `offset` bytes and end in `chain`; a copy."""
    records = slab.index_records[number * INDEX_UNIT_BYTES :]
    _magic, _pos, size, _index, term = INDEX_UNIT.unpack_from(records)
    if size < HEAD_BYTES:
        raise EntryError(f"slab {slab.first_index}..{slab.last_index}: a record of {size} bytes")
    return Slab(
        slab.first_index + number, slab.count - number, slab.pos + offset, bytes(slab.data[offset:]), records,
        term, slab.last_term, chain, slab.last_chain,
    )  # fmt: skip
