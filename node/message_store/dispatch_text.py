"""Texts in many records at once: the values of the properties that count in a dispatch, keys, and Java's hashes.

Invariants: the same as `parse_properties`, `index_keys` and `string_hash` say of each record alone: a property begins
at the first byte or behind 0x02; the last of a name that has a value counts; a text that is no ASCII is hashed by
`string_hash`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.java_text import KEY_SEPARATOR, string_hash, text_of, units_of
from node.message_store.properties import DELAY, KEYS, NAME_END, PAIR_END, TAGS, UNIQ_KEY
from node.protocol.value_class import value_class

Ints = npt.NDArray[Any]
Raw = npt.NDArray[np.uint8]
_NAMES: Final = (TAGS, KEYS, UNIQ_KEY, DELAY)
_MASK: Final = 0xFFFFFFFF


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
    signs, owners = _inside(np.flatnonzero(raw == ord(NAME_END)), properties)
    pair_ends = np.append(np.flatnonzero(raw == ord(PAIR_END)), len(raw))
    begins = properties.begins[owners]
    values_end = np.minimum(pair_ends[np.searchsorted(pair_ends, signs)], properties.ends[owners])
    has_value = values_end > signs + 1
    found: dict[str, Spans] = {}
    for name in _NAMES:
        named = has_value & _names_there(raw, signs, begins, name.encode())
        rows, at = owners[named], np.flatnonzero(named)
        is_last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.zeros(0, np.bool_)
        at = at[is_last]
        found[name] = Spans(rows[is_last], signs[at] + 1, values_end[at])
    return found


def _inside(places: Ints, spans: Spans) -> tuple[Ints, Ints]:
    """The places that lie within a span, and the rows of those spans; spans ascend and do not overlap."""
    at = np.searchsorted(spans.begins, places, "right") - 1
    inside = at >= 0
    inside[inside] = places[inside] < spans.ends[at[inside]]
    return places[inside], spans.rows[at[inside]]


def _names_there(raw: Raw, signs: Ints, begins: Ints, name: bytes) -> npt.NDArray[np.bool_]:
    """Whether the bytes before each sign are `name`, from the beginning of a property on."""
    begin = signs - len(name)
    found: npt.NDArray[np.bool_] = begin >= begins
    found &= (begin == begins) | (raw[np.maximum(begin - 1, 0)] == ord(PAIR_END))
    for at, byte in enumerate(name):
        rows = np.flatnonzero(found)
        found[rows] = raw[begin[rows] + at] == byte
    return found


def pieces_between_spaces(raw: Raw, spans: Spans) -> Spans:
    """KEYS is a list: what is between spaces, empty pieces passed over."""
    places, owners, first = _flat(spans)
    if not len(places):
        return spans
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
    places, owners, _first = _flat(spans)
    bytes_ = raw[places]
    powers = _powers(int(lengths.max()) + 1)
    before = np.cumsum(lengths) - lengths
    exponents = (before + lengths - 1)[owners] - np.arange(len(places))
    found = np.add.reduceat(bytes_ * powers[exponents], before, dtype=np.uint32)
    shifts = powers[lengths]
    for at in np.unique(owners[bytes_ >= 0x80]).tolist():
        text = text_of(raw[spans.begins[at] : spans.ends[at]].tobytes())
        found[at] = string_hash(text) & _MASK
        shifts[at] = pow(31, units_of(text), 1 << 32)
    if starts is not None:
        found += (starts & _MASK).astype(np.uint32) * shifts
    return found.view(np.int32).astype("i8")


def _powers(count: int) -> npt.NDArray[np.uint32]:
    """31 ** n for n below `count`, as int32 overflows."""
    return _powers_upto(1 << count.bit_length())[:count]


@lru_cache(maxsize=32)
def _powers_upto(count: int) -> npt.NDArray[np.uint32]:
    found = np.full(count, 31, np.uint32)
    found[0] = 1
    with np.errstate(over="ignore"):
        return np.cumprod(found, dtype=np.uint32)
