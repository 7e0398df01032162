"""An index file: from a key's hash to the places of the messages that have it.

A head of 40 bytes, `slot_count` slots (the newest entry's number each), then entries of 20 bytes: hash, place, seconds
after the head's first time, the entry before it in the same slot. Entry 0 is not used.

Invariants: a look-up takes no more steps than there are entries, whatever the links say; it compares hashes only, so
the caller compares keys; `index_count` in the head counts the unused entry (a file that was never put to has 0 there).
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left
from collections.abc import Iterator, Set
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from node.message_store.errors import MessageFormatError
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

HEAD: Final = struct.Struct(">qqqqii")
HEAD_BYTES: Final = HEAD.size  # 40
SLOT_BYTES: Final = 4
ENTRY: Final = struct.Struct(">iqii")  # the same as a row of
ENTRY_DTYPE: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_BYTES: Final[int] = ENTRY_DTYPE.itemsize  # 20
LOOKED_AT: Final = 256  # entries by which the number of slots is found
STEP_ENTRIES: Final = 1024  # that are looked at in one step: some 2 ms
ENTRIES_A_SLOT: Final = 4  # maxIndexNum 20,000,000 / maxHashSlotNum 5,000,000, RocketMQ's defaults


@value_class(slots=True, frozen=True)
class IndexHead:
    """Times in ms, offsets in the commit log, of the first and the last entry."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_offset: int
    end_offset: int
    slots_in_use: int
    index_count: int

    @property
    def entries(self) -> int:
        return max(self.index_count - 1, 0)


def decode_head(data: BytesLike) -> IndexHead:
    """Raises MessageFormatError."""
    if len(data) < HEAD_BYTES:
        raise MessageFormatError(f"{len(data)} bytes, the head of an index file has {HEAD_BYTES}")
    return IndexHead(*HEAD.unpack_from(data, 0))


def encode_head(head: IndexHead) -> bytes:
    return HEAD.pack(
        head.begin_timestamp_ms, head.end_timestamp_ms, head.begin_offset, head.end_offset,
        head.slots_in_use, head.index_count,
    )  # fmt: skip


class IndexFile:
    """One file's bytes. Raises MessageFormatError where the length does not fit any number of slots and entries."""

    def __init__(self, data: BytesLike, slot_count: int | None = None) -> None:
        self.head = decode_head(data)
        self.slot_count = slots_of(len(data)) if slot_count is None else slot_count
        begin = HEAD_BYTES + self.slot_count * SLOT_BYTES
        if self.slot_count < 1 or len(data) < begin + ENTRY_BYTES:
            raise MessageFormatError(f"{len(data)} bytes have no room for {self.slot_count} slots and an entry")
        self.slots: npt.NDArray[Any] = np.frombuffer(data, ">i4", self.slot_count, HEAD_BYTES)
        self.capacity = (len(data) - begin) // ENTRY_BYTES
        if not 0 <= self.head.index_count <= self.capacity:
            raise MessageFormatError(f"{self.head.index_count} entries in a file that has room for {self.capacity}")
        self._data, self._begin = data, begin
        self._entries: npt.NDArray[Any] = np.frombuffer(data, ENTRY_DTYPE, max(self.head.index_count, 1), begin)

    @property
    def entries(self) -> npt.NDArray[Any]:
        """Entry 1 first: entry 0 is not used."""
        return self._entries[1:]

    def has(self, offset: int, key_hashes: Set[int]) -> bool:
        """Whether the message at `offset` is here under one of these, found by its place among the entries.

        Not by its keys: of a key that a million messages have, the oldest message is the last of a million entries.
        Entries are in the order of offsets, but where messages were dispatched again.
        """
        count, row = self.head.entries, ENTRY.unpack_from
        if not key_hashes or not self.head.begin_offset <= offset <= self.head.end_offset:
            return False

        def entry(number: int) -> tuple[int, int]:
            found = row(self._data, self._begin + (1 + number) * ENTRY_BYTES)
            return found[1], found[0]

        at = bisect_left(range(count), offset, key=lambda number: entry(number)[0])
        for number in range(at, count):
            place, key_hash = entry(number)
            if place != offset:
                break
            if key_hash in key_hashes:
                return True
        mine = self.entries[self.entries["offset"] == offset]
        return any(int(one) in key_hashes for one in mine["hash"])

    def places(self, key_hash: int, begin_ms: int | None = None, end_ms: int | None = None) -> Iterator[int]:
        """Offsets of the messages whose key may hash so, newest first, stored in `begin_ms`..`end_ms`."""
        return (offset for offset in self.steps(key_hash, begin_ms, end_ms) if offset is not None)

    def steps(self, key_hash: int, begin_ms: int | None = None, end_ms: int | None = None) -> Iterator[int | None]:
        """The same, with a None after each STEP_ENTRIES: all messages of a queue may have one key, and most of these
        may have been stored later than is asked for."""
        count, first_ms, row = self.head.index_count, self.head.begin_timestamp_ms, ENTRY.unpack_from
        number = int(self.slots[key_hash % self.slot_count])
        for looked_at in range(1, count + 1):
            if not 0 < number < count:
                return
            found, offset, seconds, previous = row(self._data, self._begin + number * ENTRY_BYTES)
            if seconds < 0:
                return
            at_ms = first_ms + seconds * 1000
            if begin_ms is not None and at_ms < begin_ms - 999:
                return
            if found == key_hash and (end_ms is None or at_ms <= end_ms):
                yield offset
            if previous == number:
                return
            number = previous
            if not looked_at % STEP_ENTRIES:
                yield None


def file_bytes(slots: int, entries: int) -> int:
    """The length of a file with so many slots, and room for so many entries (maxHashSlotNum, maxIndexNum)."""
    return HEAD_BYTES + slots * SLOT_BYTES + entries * ENTRY_BYTES


def slots_of(size_bytes: int) -> int:
    """How many slots a file of this length has where each has room for four entries, as by RocketMQ's defaults.

    Raises MessageFormatError where that does not come out even; then the caller has to say.
    """
    slots, rest = divmod(size_bytes - HEAD_BYTES, SLOT_BYTES + ENTRIES_A_SLOT * ENTRY_BYTES)
    if slots < 1 or rest:
        raise MessageFormatError(f"an index file of {size_bytes} bytes: say how many slots it has (maxHashSlotNum)")
    return slots


def slots_shown_by(data: BytesLike) -> int:
    """The number of slots that a file's own links show, `slots_of` where they show none.

    With the right number, each entry's slot leads to it or to a newer one that belongs there. Raises
    MessageFormatError.
    """
    with contextlib.suppress(MessageFormatError):
        guess = slots_of(len(data))
        if _agrees(data, guess):
            return guess
    for slots in _COMMON_SLOTS:
        if _agrees(data, slots):
            return slots
    return slots_of(len(data))


_COMMON_SLOTS: Final[tuple[int, ...]] = tuple(10**power * factor for power in range(1, 8) for factor in (1, 2, 5))


def _agrees(data: BytesLike, slots: int) -> bool:
    """Whether the last entry is the head's, and entries lie where their slots lead: some, from the first to the last.

    A broker may be writing meanwhile: a slot may already lead to an entry that the head does not count yet, the head
    may count one whose offset it has not got yet (RocketMQ counts first), and no more is looked at than a few places.
    In a file of few entries the links alone do not tell: what lies there for too small a number are empty slots.
    """
    room = len(data) - HEAD_BYTES - slots * SLOT_BYTES
    if room < ENTRY_BYTES or room % ENTRY_BYTES:
        return False
    try:
        file = IndexFile(data, slots)
    except MessageFormatError:
        return False
    count = file.head.entries
    if not count:
        return False
    table = np.frombuffer(data, ENTRY_DTYPE, file.capacity, HEAD_BYTES + slots * SLOT_BYTES)
    if file.head.end_offset not in table["offset"][max(count - 1, 1) : count + 1]:
        return False
    hashes = table["hash"]
    numbers = np.unique(np.linspace(1, count, min(count, LOOKED_AT)).astype(np.int64))
    at = hashes[numbers] % slots
    newest = file.slots[at].astype(np.int64)
    if ((newest < numbers) | (newest >= file.capacity)).any():
        return False
    return bool((hashes[newest] % slots == at).all())
