"""Entries, their records, the chain over them, and slabs of them.

The record and index layouts are DLedger's (FORMATS 3); `body_crc` and `chain_crc`, which DLedger leaves 0, are filled
(SAFETY, "The chain"). A slab is a run of consecutive encoded entries inside one data file: the unit of writing, of
pushing and of reading.

Invariants: a slab is never empty; its indexes are consecutive, its terms never decrease, its records lie back to back;
`index_records` holds exactly `count` units that agree with the records' heads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np

from node.protocol.value_class import value_class

try:  # the same CRC-32 at three times the speed
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # pragma: no cover - isal ships wheels for every platform we test on
    from zlib import crc32 as crc32

# A view is of memory that nobody writes to any more: what a socket was read into, or what a slab was made in.
BytesLike = bytes | memoryview


class Magic(IntEnum):
    """The first int32 of a record."""

    NORMAL = 1
    NOOP = 2
    CONFIG_CHANGE = 3
    BLANK = -1


HEAD: Final = struct.Struct(">iiqqqiIIi")
HEAD_BYTES: Final = HEAD.size  # 48
INDEX_UNIT: Final = struct.Struct(">iqiqq")
INDEX_UNIT_BYTES: Final = INDEX_UNIT.size  # 32
BLANK_BYTES: Final = 8
BODY_BYTES_MAX: Final = 4 * 1024 * 1024 - HEAD_BYTES  # DLedger's buffer of 4 MiB holds head and body
SLAB_BYTES_MAX: Final = 1024 * 1024  # unless a single entry is larger
CHAIN_START: Final = 0
POSITION_MAX: Final = (1 << 63) - 1  # of an index too: what an int64 holds
TERM_LEAP_MAX: Final = 1 << 20  # so far above the own term one may be taken over from a single peer (SAFETY E10)
TERM_MAX: Final = 1 << 62  # of a message: whoever adopts it must be able to count on

CHAIN_HEAD = struct.Struct(">iiqqiI")

HEAD_DTYPE: Final = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_len", ">i4"),
    ]
)
INDEX_DTYPE: Final = np.dtype([("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")])


class EntryError(ValueError):
    """A record or slab breaks the format; the message says which rule, and nothing of it may be used."""


class Seal(StrEnum):
    """What a record's two CRC fields say (SAFETY, "The chain")."""

    SEALED = "sealed"
    UNSEALED = "unsealed"
    INVALID = "invalid"


@value_class(slots=True, frozen=True)
class Entry:
    """One log entry. `pos` is the absolute data offset written in its head; CRCs are unsigned 32-bit."""

    magic: int
    index: int
    term: int
    pos: int
    body: bytes
    channel: int = 0
    body_crc: int = 0
    chain_crc: int = 0

    @property
    def size(self) -> int:
        """Bytes of the whole record, head included."""
        return HEAD_BYTES + len(self.body)


@value_class(slots=True, frozen=True)
class Slab:
    """A run of `count` >= 1 consecutive records at absolute position `pos`, all inside one data file.

    `prev_chain` and `last_chain` are the chain before the first and after the last entry, computed also where the
    records are unsealed; None where the slab comes from a place that cannot vouch for one.
    """

    first_index: int
    count: int
    pos: int
    data: BytesLike
    index_records: bytes
    first_term: int
    last_term: int
    prev_chain: int | None
    last_chain: int | None

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def end_pos(self) -> int:
        """The position right after the last record."""
        return self.pos + len(self.data)


def chain_next(prev_chain: int, magic: int, size: int, index: int, term: int, channel: int, body_crc: int) -> int:
    """The chain after one more entry: crc32 over its head, started from the chain before (SAFETY, "The chain")."""
    return crc32(CHAIN_HEAD.pack(magic, size, index, term, channel, body_crc), prev_chain)


def chain_of(entry: Entry, prev_chain: int) -> int:
    """`chain_next` for an entry, with the CRC computed from its body (so that unsealed entries take part too)."""
    return chain_next(prev_chain, entry.magic, entry.size, entry.index, entry.term, entry.channel, crc32(entry.body))


def seal_of(entry: Entry, prev_chain: int | None) -> Seal:
    """Whether an entry's stored CRCs are right; with `prev_chain` None only the body CRC is checked."""
    body_crc = crc32(entry.body)
    if entry.body_crc == body_crc and (prev_chain is None or entry.chain_crc == chain_of(entry, prev_chain)):
        return Seal.SEALED
    if entry.body_crc == 0 and entry.chain_crc == 0:
        return Seal.UNSEALED
    return Seal.INVALID


def pack_record(entry: Entry) -> bytes:
    """The record's bytes, exactly as given: nothing is computed."""
    head = HEAD.pack(
        entry.magic, entry.size, entry.index, entry.term, entry.pos,
        entry.channel, entry.chain_crc, entry.body_crc, len(entry.body),
    )  # fmt: skip
    return head + entry.body


def unpack_record(data: BytesLike, offset: int = 0) -> Entry:
    """The record at `offset`. Raises EntryError unless it is a whole, well-formed entry (not a blank)."""
    if offset < 0 or len(data) - offset < HEAD_BYTES:
        raise EntryError(f"record at {offset}: {len(data) - offset} bytes left, a head needs {HEAD_BYTES}")
    magic, size, index, term, pos, channel, chain_crc, body_crc, body_len = HEAD.unpack_from(data, offset)
    if magic not in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE):
        raise EntryError(f"record at {offset}: magic {magic} is not an entry's")
    if body_len < 0 or size != HEAD_BYTES + body_len:
        raise EntryError(f"record at {offset}: size {size} does not fit body length {body_len}")
    if len(data) - offset < size:
        raise EntryError(f"record at {offset}: size {size} goes past the {len(data) - offset} bytes left")
    if index < 0 or term < 0:
        raise EntryError(f"record at {offset}: index {index} or term {term} is negative")
    body = bytes(data[offset + HEAD_BYTES : offset + size])
    return Entry(magic, index, term, pos, body, channel, body_crc, chain_crc)


def unpack_records(data: BytesLike, count: int) -> Iterator[Entry]:
    """So many records, one right behind the other. Raises EntryError."""
    offset = 0
    for _ in range(count):
        entry = unpack_record(data, offset)
        offset += entry.size
        yield entry


def pack_index_unit(magic: int, pos: int, size: int, index: int, term: int) -> bytes:
    """One 32-byte unit of the index file."""
    return INDEX_UNIT.pack(magic, pos, size, index, term)


def pack_blank(size: int) -> bytes:
    """The 8 leading bytes of a blank record (a file's end filler) that covers `size` bytes."""
    return struct.pack(">ii", Magic.BLANK, size)


def iter_bodies(slab: Slab) -> Iterator[memoryview]:
    """The bodies of a slab's entries, in order, without copying."""
    view = memoryview(slab.data)
    offset = 0
    for _magic, _pos, size, _index, _term in INDEX_UNIT.iter_unpack(slab.index_records):
        yield view[offset + HEAD_BYTES : offset + size]
        offset += size


def decode_slab(slab: Slab) -> list[Entry]:
    """All entries of a slab. Raises EntryError at the first bad record."""
    entries: list[Entry] = []
    offset = 0
    while offset < len(slab.data):
        entry = unpack_record(slab.data, offset)
        entries.append(entry)
        offset += entry.size
    return entries


def slab_of(records: BytesLike, pos: int, prev_chain: int | None, last_chain: int | None = None) -> Slab:
    """A slab from back-to-back records at physical position `pos`; raises EntryError where they are malformed."""
    if not 0 <= pos <= POSITION_MAX - len(records):
        raise EntryError(f"no file holds {len(records)} bytes at position {pos}")
    units: list[bytes] = []
    offset = 0
    first: Entry | None = None
    entry: Entry | None = None
    while offset < len(records):
        entry = unpack_record(records, offset)
        first = first or entry
        units.append(INDEX_UNIT.pack(entry.magic, pos + offset, entry.size, entry.index, entry.term))
        offset += entry.size
    if first is None or entry is None:
        raise EntryError("a slab holds at least one entry")
    return Slab(first.index, len(units), pos, records, b"".join(units), first.term, entry.term, prev_chain, last_chain)
