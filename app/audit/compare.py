"""The aligned comparison of one index range across all replicas, vectorized. Pure: raw bytes in, facts out.

Each pair is compared byte by byte at once; a differing byte is mapped back to its record and its field.
CRCs are computed on the first replica and wherever another one differs from it: equal bytes have equal CRCs.
Invariant: only records that are sound by themselves are compared; a broken one is blamed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from app.audit.observe import Fact, Seen
from app.audit.records import UNSOUND, Bytes, Fault, Int64, Records
from app.audit.seals import check_seals
from node.protocol.entry import crc32

Mask = npt.NDArray[np.bool_]
_POS_FIELD = (24, 32)
_CRC_FIELDS = (36, 44)

_FAULTS: tuple[tuple[Fault, Seen], ...] = (
    (Fault.MISSING, Seen.MISSING),
    (Fault.RECORD, Seen.RECORD),
    (Fault.INDEX, Seen.INDEX),
    (Fault.CRC, Seen.CRC),
    (Fault.CHAIN, Seen.CHAIN),
    (Fault.FILLER, Seen.FILLER),
    (Fault.UNREAD, Seen.UNREAD),
)


@dataclass(slots=True)
class PairDiff:
    """Where two replicas' records differ, by what the differing bytes mean."""

    content: Mask
    crcs: Mask

    @property
    def equal(self) -> Mask:
        return ~(self.content | self.crcs)


def pair_diff(a: Records, b: Records) -> PairDiff:
    """Compares the rows that both hold; `pos` inside the heads is no content (FORMATS 6.12)."""
    both = (a.sizes > 0) & (b.sizes > 0)
    content = both & (a.sizes != b.sizes)
    crcs = np.zeros(a.count, dtype=np.bool_)
    common = both & ~content
    left, right = _rows_bytes(a, common), _rows_bytes(b, common)
    if left.data != right.data:
        rows = np.flatnonzero(common)
        starts = np.zeros(len(rows), dtype=np.int64)
        np.cumsum(a.sizes[rows][:-1], out=starts[1:])
        where = np.flatnonzero(left != right)
        number = np.searchsorted(starts, where, side="right") - 1
        inside = where - starts[number]
        in_pos = (inside >= _POS_FIELD[0]) & (inside < _POS_FIELD[1])
        in_crcs = (inside >= _CRC_FIELDS[0]) & (inside < _CRC_FIELDS[1])
        crcs[rows[number[in_crcs]]] = True
        content[rows[number[~in_pos & ~in_crcs]]] = True
    return PairDiff(content, crcs)


def _rows_bytes(records: Records, mask: Mask) -> Bytes:
    found = records.sizes > 0
    if bool((mask == found).all()):
        return records.buf
    return records.buf[np.repeat(mask[found], records.sizes[found])]


def compare(
    parts: Sequence[Records], ids: Sequence[str], sealed: Sequence[tuple[int, int] | None], context: int = 0
) -> list[Fact]:
    """The facts of rows `context`.. of the aligned parts; the rows before serve only to judge the first links."""
    pairs: dict[tuple[int, int], PairDiff] = {}
    for b in range(len(parts)):
        _seal_one(parts, b, sealed, pairs)
    sound = np.array([p.held & (p.faults & UNSOUND == 0) & (p.sizes > 0) for p in parts])
    labels = _labels(parts, sound, pairs)
    facts: list[Fact] = []
    facts.extend(_fault_facts(parts, ids, sound, context))
    facts.extend(_differences(parts, ids, sound, labels, context))
    facts.extend(_histories(parts, ids, sound, labels, pairs, context))
    facts.extend(_position_facts(parts, ids, sound, labels, context))
    return facts


def _seal_one(
    parts: Sequence[Records], b: int, sealed: Sequence[tuple[int, int] | None], pairs: dict[tuple[int, int], PairDiff]
) -> None:
    """Checks CRCs of the rows that no earlier replica holds in the same bytes; copies the verdict for the others."""
    part = parts[b]
    needed = part.held.copy()
    for a in range(b):
        if not bool((needed & parts[a].held).any()):
            continue
        pairs[a, b] = diff = pair_diff(parts[a], part)
        usable = (parts[a].sizes > 0) & (part.sizes > 0)
        usable &= (parts[a].faults | part.faults) & (Fault.RECORD | Fault.MISSING | Fault.UNREAD) == 0
        same = diff.equal & usable
        same[1:] &= same[:-1] | (part.sizes[:-1] == 0)
        if sealed[a] != sealed[b]:
            same[:] = False
        take = needed & same
        part.faults[take] |= parts[a].faults[take] & int(Fault.CRC | Fault.CHAIN)
        needed &= ~same
    check_seals(part, needed, sealed[b])


def _labels(parts: Sequence[Records], sound: Mask, pairs: dict[tuple[int, int], PairDiff]) -> npt.NDArray[np.int64]:
    """For each replica and row the first sound replica with the same content; -1 where it is not sound."""
    labels = np.where(sound, np.arange(len(parts))[:, None], -1)
    for b in range(len(parts)):
        for a in range(b):
            open_rows = sound[a] & sound[b] & (labels[b] == b) & (labels[a] == a)
            if not bool(open_rows.any()):
                continue
            if (a, b) not in pairs:
                pairs[a, b] = pair_diff(parts[a], parts[b])
            labels[b][open_rows & ~pairs[a, b].content] = a
    return labels


def runs(mask: Mask, signature: npt.NDArray[np.int64], start: int) -> Iterator[tuple[int, int]]:
    """The runs of consecutive true rows from `start` on, within which the signature does not change."""
    rows = np.flatnonzero(mask[start:]) + start
    if not len(rows):
        return
    breaks = (np.diff(rows) != 1) | (np.diff(signature[rows]) != 0)
    edges = np.flatnonzero(breaks) + 1
    for run in np.split(rows, edges):
        yield int(run[0]), int(run[-1])


def _bits(matrix: Mask) -> npt.NDArray[np.int64]:
    weights = (1 << np.arange(len(matrix), dtype=np.int64))[:, None]
    return np.asarray((matrix * weights).sum(axis=0), dtype=np.int64)


def _fault_facts(parts: Sequence[Records], ids: Sequence[str], sound: Mask, start: int) -> Iterator[Fact]:
    good_bits = _bits(sound)
    notes: dict[Fault, Callable[[Records, int], str]] = {
        Fault.CRC: _crc_note, Fault.CHAIN: _chain_note, Fault.RECORD: _record_note
    }  # fmt: skip
    for number, part in enumerate(parts):
        faults = part.faults.copy()
        # A record whose link is broken disagrees with its index unit as a consequence.
        faults[faults & (Fault.CHAIN | Fault.RECORD) > 0] &= ~int(Fault.INDEX)
        if not bool(faults.any()):
            continue
        for fault, seen in _FAULTS:
            for low, high in runs(faults & fault > 0, good_bits, start):
                note = part.unread_reason if fault is Fault.UNREAD else ""
                if fault in notes:
                    note = notes[fault](part, low)
                good = tuple(ids[n] for n in range(len(ids)) if sound[n][low] and n != number)
                yield Fact(seen, part.first_index + low, part.first_index + high, (ids[number],), good, note=note)


def _crc_note(part: Records, row: int) -> str:
    return f"stored {int(part.heads['body_crc'][row]):08x}, computed {crc32(part.body(row)):08x}"


def _chain_note(part: Records, row: int) -> str:
    if not part.heads["chain_crc"][row] and not part.heads["body_crc"][row]:
        return "unsealed in the sealed part of the log"
    return f"the stored chain {int(part.heads['chain_crc'][row]):08x} does not follow from this head and the one before"


def _record_note(part: Records, row: int) -> str:
    if not part.sizes[row]:
        return "neither the data file nor the index holds a readable record"
    head = part.heads[row]
    fields = ", ".join(f"{name} {int(head[name])}" for name in ("magic", "size", "index", "term", "body_len"))
    return f"the head says {fields}"


def _differences(
    parts: Sequence[Records], ids: Sequence[str], sound: Mask, labels: npt.NDArray[np.int64], start: int
) -> Iterator[Fact]:
    top = np.where(sound, labels, -1).max(axis=0)
    bottom = np.where(sound, labels, len(ids)).min(axis=0)
    differs = (top >= 0) & (top != bottom)
    if not bool(differs.any()):
        return
    weights = ((len(ids) + 1) ** np.arange(len(ids), dtype=np.int64))[:, None]
    terms = np.array([p.heads["term"].astype(np.int64) for p in parts])
    high_term = np.where(sound, terms, -1).max(axis=0)
    low_term = np.where(sound, terms, np.iinfo(np.int64).max).min(axis=0)
    same_terms = high_term == low_term
    signature = ((labels + 1) * weights).sum(axis=0) * 2 + same_terms
    for low, high in runs(differs, signature, start):
        sides: dict[int, list[str]] = {}
        for number, replica in enumerate(ids):
            if sound[number][low]:
                sides.setdefault(int(labels[number][low]), []).append(replica)
        yield Fact(
            Seen.DIFFERS,
            parts[0].first_index + low,
            parts[0].first_index + high,
            tuple(replica for side in sides.values() for replica in side),
            sides=tuple(tuple(side) for side in sides.values()),
            terms=tuple(int(terms[number][low]) for number in sides),
            same_terms=bool(same_terms[low]),
        )


def _histories(
    parts: Sequence[Records],
    ids: Sequence[str],
    sound: Mask,
    labels: npt.NDArray[np.int64],
    pairs: dict[tuple[int, int], PairDiff],
    start: int,
) -> Iterator[Fact]:
    """Sound, sealed, equal entries that stand on different chains."""
    for (a, b), diff in sorted(pairs.items()):
        rows = sound[a] & sound[b] & ~diff.content & diff.crcs & (labels[b] == a)
        rows &= (parts[a].heads["chain_crc"] != 0) & (parts[b].heads["chain_crc"] != 0)
        for low, high in runs(rows, np.zeros(len(rows), dtype=np.int64), start):
            first = parts[a].first_index
            yield Fact(Seen.HISTORY, first + low, first + high, (ids[a], ids[b]), sides=((ids[a],), (ids[b],)))


def _position_facts(
    parts: Sequence[Records], ids: Sequence[str], sound: Mask, labels: npt.NDArray[np.int64], start: int
) -> Iterator[Fact]:
    """Equal entries at another place than where the first replica has them, or whose head names another place."""
    places: Int64 = np.array([p.positions for p in parts])
    written: Int64 = np.array([p.heads["pos"].astype(np.int64) for p in parts])
    reference = np.take_along_axis(places, np.where(sound, labels, 0), axis=0)
    moved = sound & ((places != reference) | (written != places))
    for number, replica in enumerate(ids):
        if not bool(moved[number].any()):
            continue
        for low, high in runs(moved[number], (written[number] != places[number]).astype(np.int64), start):
            first = parts[0].first_index
            at, head = int(places[number][low]), int(written[number][low])
            other = int(reference[number][low])
            note = f"entry {first + low} lies at {at}, its head says {head}"
            if other != at:
                note += f"; {ids[int(labels[number][low])]} has it at {other}"
            yield Fact(Seen.POSITION, first + low, first + high, (replica,), note=note)
