"""One consume queue for reading, and reads of messages through it.

Invariants: nothing is written; a queue's first message is behind its pre-fill and not below the commit log's first
byte; its end is behind the last unit that says something, wherever the commit log ends (units beyond it are what a
recovery left: `store verify` names them).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

import numpy as np

from node.message_store.commit_log import CommitLog, Placed
from node.message_store.errors import MessageStoreError
from node.message_store.java_text import tags_code
from node.message_store.queue_units import UNIT_BYTES, Units, decode_units, prefill_of, said_count, said_rows
from node.message_store.read_files import OS, Files, MappedFile, MappedFileQueue
from node.protocol.value_class import value_class

PULL_BYTES_MAX: Final = 262_144
PULL_MESSAGES_MAX: Final = 32
_PIECE_UNITS: Final = 65_536
_LOOK_UNITS: Final = 4096


class ConsumeQueue:
    """`consumequeue/TOPIC/ID/`."""

    def __init__(self, folder: Path, topic: str, queue_id: int, files: Files = OS) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue = MappedFileQueue(folder, files)

    def max_offset(self) -> int:
        """The number of the unit that comes next."""
        for file in reversed(self.queue.files):
            said = self._said_in(file)
            if said or file is self.queue.files[0]:
                return file.start // UNIT_BYTES + said
        return 0

    def _said_in(self, file: MappedFile) -> int:
        """How many units of a file say something, up to the first that does not: no more is read."""
        said = 0
        while True:
            units = decode_units(self.queue.read(file.start + said * UNIT_BYTES, _LOOK_UNITS * UNIT_BYTES))
            count = said_count(units)
            said += count
            if not count or count < len(units) or len(units) < _LOOK_UNITS:
                return said

    def min_offset(self, min_physical_offset: int = 0) -> int:
        """The first unit whose message the commit log holds; `max_offset` where it holds none."""
        at = 0
        for at, units in self.pieces():
            there = ~prefill_of(units) & (units["offset"] >= min_physical_offset)
            if there.any():
                return at + int(np.argmax(there))
            at += len(units)
        return max(at, self.queue.min_offset // UNIT_BYTES)

    def units(self, first: int, count: int) -> Units:
        """Up to `count` units from `first` on, of one file: none beyond the end, or where no file is."""
        found = (
            decode_units(self.queue.read(first * UNIT_BYTES, count * UNIT_BYTES)) if first >= 0 else decode_units(b"")
        )
        return found[: said_count(found)]

    def rows(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """The same as `units`: offset, size and tags code of each."""
        return said_rows(self.queue.read(first * UNIT_BYTES, count * UNIT_BYTES)) if first >= 0 else []

    def pieces(self) -> Iterator[tuple[int, Units]]:
        """All that the queue says, in pieces, each with the number of its first unit; files may be missing between."""
        end = self.max_offset()
        for file in self.queue.files:
            at, stop = file.start // UNIT_BYTES, min(end, file.end // UNIT_BYTES)
            while at < stop:
                data = self.queue.read(at * UNIT_BYTES, min(stop - at, _PIECE_UNITS) * UNIT_BYTES)
                units = decode_units(data)
                if not len(units):
                    break
                yield at, units
                at += len(units)


class PullStatus(Enum):
    """GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@value_class(slots=True, frozen=True)
class Pulled:
    """What a consumer that asks for a queue from an offset on gets."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[Placed, ...] = ()


def pull(
    log: CommitLog, queue: ConsumeQueue | None, offset: int, count: int, tags: frozenset[str] | None = None
) -> Pulled:
    """As a broker that has everything in memory answers: 32 messages and 256 KiB at most, of one file of the queue.

    `tags` None: all. Messages are chosen by the hash of their tags alone, as there: the consumer compares the tags.
    """
    high = queue.max_offset() if queue is not None else 0
    if queue is None or high == 0:
        return Pulled(PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    low = queue.min_offset(log.min_offset)
    if offset < low:
        return Pulled(PullStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset >= high:
        status = PullStatus.OFFSET_OVERFLOW_ONE if offset == high else PullStatus.OFFSET_OVERFLOW_BADLY
        return Pulled(status, high, low, high)
    units = queue.units(offset, _PIECE_UNITS)
    if not len(units):
        return Pulled(PullStatus.OFFSET_FOUND_NULL, offset, low, high)
    codes = None if tags is None else {tags_code(one) for one in tags}
    found: list[Placed] = []
    size, upto, gone = 0, offset, False
    for at, (place, bytes_, code) in enumerate(units.tolist(), start=offset):
        if found and (len(found) >= min(count, PULL_MESSAGES_MAX) or size + bytes_ > PULL_BYTES_MAX):
            break
        upto = at + 1
        if codes is None or code in codes:
            try:
                found.append(log.message_at(place))
                size += bytes_
            except MessageStoreError:
                gone = True
    missed = PullStatus.MESSAGE_WAS_REMOVING if gone else PullStatus.NO_MATCHED_MESSAGE
    return Pulled(PullStatus.FOUND if found else missed, upto, low, high, tuple(found))
