"""Texts in many records at once: the values of the properties that count in a dispatch, keys, and Java's hashes.

Invariants: the same as `parse_properties`, `index_keys` and `string_hash` say of each record alone: a property begins
at the first byte or behind 0x02; the last of a name that has a value counts; a text that is no ASCII is hashed by
`string_hash`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from node.message_store.heads import Ints, everywhere
from node.message_store.java_text import KEY_SEPARATOR, string_hash, text_of, units_of
from node.message_store.properties import DELAY, KEYS, NAME_END, PAIR_END, TAGS, UNIQ_KEY
from node.protocol.value_class import value_class

Raw = npt.NDArray[np.uint8]
_NAMES: Final = (TAGS, KEYS, UNIQ_KEY, DELAY)
_MASK: Final = 0xFFFFFFFF
LENGTHS_AT_ONCE: Final = 16


@value_class(slots=True, frozen=True)
class Spans:
    """Bytes `begins[n]` to `ends[n]` of a buffer belong to record `rows[n]`."""

    rows: Ints
    begins: Ints
    ends: Ints

    @property
    def parts(self) -> tuple[Ints, Ints, Ints]:
        return self.rows, self.begins, self.ends

    def chosen(self, which: Ints) -> Spans:
        return Spans(self.rows[which], self.begins[which], self.ends[which])


def values_of(raw: Raw, properties: Spans) -> dict[str, Spans]:
    """The value of each property that counts, where a record has it."""
    if not len(raw):
        return dict.fromkeys(_NAMES, Spans(*(np.zeros(0, "i8") for _ in range(3))))
    signs, at = _inside(np.flatnonzero(raw == ord(NAME_END)), properties)
    pair_ends = np.append(np.flatnonzero(raw == ord(PAIR_END)), len(raw))
    owners, following = properties.rows[at], np.searchsorted(pair_ends, signs)
    values_end = np.minimum(pair_ends[following], properties.ends[at])
    before = np.where(following > 0, pair_ends[following - 1] + 1, 0)
    name_lengths = signs - np.maximum(before, properties.begins[at])
    has_value = values_end > signs + 1
    found: dict[str, Spans] = {}
    for name in _NAMES:
        named = np.flatnonzero(has_value & (name_lengths == len(name)))
        if len(named):
            texts = texts_at(raw, signs[named] - len(name), len(name))
            named = named[(texts == np.frombuffer(name.encode(), np.uint8)).all(axis=1)]
        rows = owners[named]
        is_last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, np.bool_)
        named = named[is_last]
        found[name] = Spans(rows[is_last], signs[named] + 1, values_end[named])
    return found


def _inside(places: Ints, spans: Spans) -> tuple[Ints, Ints]:
    """The places that lie within a span, and which one that is; spans ascend and do not overlap."""
    at = np.searchsorted(spans.begins, places, "right") - 1
    inside = at >= 0
    inside[inside] = places[inside] < spans.ends[at[inside]]
    return places[inside], at[inside]


def texts_at(raw: Raw, places: Ints, length: int) -> Raw:
    """The bytes of that length that begin at each place, a row for each."""
    found: Raw = everywhere(raw.data, np.dtype((np.void, length)))[places].view(np.uint8).reshape(-1, length)
    return found


def gathered(raw: Raw, spans: Spans) -> tuple[Raw, Spans]:
    """The bytes of all spans behind each other, and where each is now; empty ones are left out, and those of one length
    lie together."""
    lengths = spans.ends - spans.begins
    distinct = np.unique(lengths[lengths > 0]).tolist()
    if len(distinct) > LENGTHS_AT_ONCE:
        whole, rows = raw.tobytes(), np.flatnonzero(lengths)
        at = zip(spans.begins[rows].tolist(), spans.ends[rows].tolist(), strict=True)
        texts = np.frombuffer(b"".join([whole[begin:end] for begin, end in at]), np.uint8)
    elif distinct:
        parts = [np.flatnonzero(lengths == length) for length in distinct]
        rows = np.concatenate(parts)
        pieces = [texts_at(raw, spans.begins[part], one) for part, one in zip(parts, distinct, strict=True)]
        texts = np.concatenate([one.reshape(-1) for one in pieces])
    else:
        return np.zeros(0, np.uint8), spans.chosen(np.zeros(0, "i8"))
    upto = np.cumsum(lengths[rows])
    return texts, Spans(spans.rows[rows], upto - lengths[rows], upto)


def pieces_between_spaces(raw: Raw, spans: Spans) -> Spans:
    """KEYS is a list: what is between spaces, empty pieces passed over. Spans ascend and do not overlap."""
    if not len(_inside(np.flatnonzero(raw == ord(KEY_SEPARATOR)), spans)[0]):
        return spans.chosen(spans.ends > spans.begins)
    places, owners, first = _flat(spans)
    is_space = raw[places] == ord(KEY_SEPARATOR)
    last = np.append(first[1:], True)
    begins = ~is_space & (first | np.append(True, is_space[:-1]))
    ends = ~is_space & (last | np.append(is_space[1:], True))
    return Spans(spans.rows[owners[begins]], places[begins], places[ends] + 1)


def _flat(spans: Spans) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Every byte of every span: where it is, whose it is (a number of `spans`), whether it is the first."""
    lengths = spans.ends - spans.begins
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    owners = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(total) + (spans.begins - before)[owners]
    first = np.zeros(total, np.bool_)
    first[before[lengths > 0]] = True
    return places, owners, first


def hashes_of(raw: Raw, spans: Spans, starts: Ints | None = None) -> Ints:
    """String.hashCode() of each span's text; `starts[n]`: the hash of a text that it goes on from. No span is empty."""
    lengths = spans.ends - spans.begins
    if not len(lengths):
        return np.zeros(0, "i8")
    distinct = np.unique(lengths).tolist()
    powers = _powers(distinct[-1] + 1)
    if len(distinct) > LENGTHS_AT_ONCE:
        found, wide = _hashes_of_any(raw, spans, powers)
    else:
        found, wide = np.zeros(len(lengths), np.uint32), np.zeros(0, "i8")
        for length in distinct:
            part = np.flatnonzero(lengths == length)
            texts = texts_at(raw, spans.begins[part], length)
            found[part] = texts.astype(np.uint32) @ powers[:length][::-1]
            if (texts >= 0x80).any():
                wide = np.append(wide, part[(texts >= 0x80).any(axis=1)])
    shifts = powers[lengths]
    for at in wide.tolist():
        text = text_of(raw[spans.begins[at] : spans.ends[at]].tobytes())
        found[at] = string_hash(text) & _MASK
        shifts[at] = pow(31, units_of(text), 1 << 32)
    if starts is not None:
        found += (starts & _MASK).astype(np.uint32) * shifts
    return found.view(np.int32).astype("i8")


def _hashes_of_any(raw: Raw, spans: Spans, powers: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint32], Ints]:
    """Of texts of many lengths, byte by byte; which of them are no ASCII, whose hash this is not."""
    lengths = spans.ends - spans.begins
    places, owners, _first = _flat(spans)
    bytes_ = raw[places]
    before = np.cumsum(lengths) - lengths
    exponents = (before + lengths - 1)[owners] - np.arange(len(places))
    found = np.add.reduceat(bytes_ * powers[exponents], before, dtype=np.uint32)
    return found, np.unique(owners[bytes_ >= 0x80])


def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31 ** n for n below `count`, as int32 overflows."""
    return _powers_upto(1 << count.bit_length())[:count]


@lru_cache(maxsize=32)
def _powers_upto(count: int) -> npt.NDArray[np.uint32]:
    found = np.full(count, 31, np.uint32)
    found[0] = 1
    with np.errstate(over="ignore"):
        return np.cumprod(found, dtype=np.uint32)
