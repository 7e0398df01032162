"""After damage: where the next record is that can be trusted again (SAFETY S3, S6).

A record is placed by evidence, never by guessing: its own head where the chain proves it, an index record and a head
that agree, a head whose successor continues its chain, or the checkpoint slot. Reads only.

Invariants: a place is behind the stop, in position and (but for a damaged filler) in index; the first record at a
place has a head that two copies or a chain vouch for, so that a flipped term is never taken over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from node.protocol.entry import (
    BLANK_BYTES,
    HEAD,
    HEAD_BYTES,
    INDEX_DTYPE,
    INDEX_UNIT_BYTES,
    Magic,
    chain_next,
)
from node.store.files.os_files import is_zeros
from node.store.files.segment import Segment
from node.store.files.segment_list import SegmentList
from node.store.recovery.damage import read_unit
from node.store.recovery.walk import Cursor, Stop

_UNITS_AT_ONCE = 4096
_SEARCH_BYTES = 1024 * 1024
_HEAD_ZEROS = 3  # the magic is big-endian and small
_HEAD_START = re.compile(rb"\x00\x00\x00[\x01-\x03]")


@dataclass(slots=True, frozen=True)
class Head:
    """The 48 bytes of a record that are well formed; `pos` is where they lie."""

    pos: int
    magic: int
    size: int
    index: int
    term: int
    said_pos: int
    channel: int
    chain_crc: int
    body_crc: int

    def continues(self, chain: int) -> bool:
        """Whether the chain before this record leads to the one that it says."""
        return self.chain_after(chain) == self.chain_crc

    def chain_after(self, chain: int) -> int:
        """The chain after this record, by its own body CRC."""
        return chain_next(chain, self.magic, self.size, self.index, self.term, self.channel, self.body_crc)


def read_head(data: SegmentList, pos: int) -> Head | None:
    """The head at `pos`; None unless it is well formed and its record is inside its file."""
    segment = data.find(pos)
    return _head_in(segment.read(pos, HEAD_BYTES), pos, segment) if segment is not None else None


def _head_in(raw: bytes | memoryview, pos: int, segment: Segment) -> Head | None:
    if len(raw) < HEAD_BYTES:
        return None
    magic, size, index, term, said, channel, chain_crc, body_crc, body_len = HEAD.unpack_from(raw)
    if magic not in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE) or body_len < 0 or size != HEAD_BYTES + body_len:
        return None
    if index < 0 or term < 0 or size + BLANK_BYTES > segment.end - pos:
        return None
    return Head(pos, magic, size, index, term, said, channel, chain_crc, body_crc)


class Resync:
    """Finds the next place. `vouched` is the cursor that a trusted checkpoint slot gives, if there is one."""

    def __init__(self, data: SegmentList, index: SegmentList, vouched: Cursor | None = None) -> None:
        self._data = data
        self._index = index
        self._vouched = vouched

    def after(self, stop: Stop) -> tuple[Cursor, bool] | None:
        """The next place, and whether what is before it is proven to be just one damaged body; None: nowhere."""
        at = stop.cursor
        filler = self._behind_filler(at)
        if filler is not None:
            return filler, True
        own = self._by_own_head(stop)
        if own is not None:
            return own, True
        place = self._by_index(at) or self._by_bytes(at)
        vouched = self._vouched
        if vouched is None or vouched.index <= at.index or vouched.pos <= at.pos or vouched.term < at.term:
            vouched = None
        if vouched is not None and (place is None or place.index >= vouched.index or place.pos >= vouched.pos):
            return replace(vouched, sealed_from=at.sealed_from), True
        return (place, False) if place is not None else None

    def _behind_filler(self, at: Cursor) -> Cursor | None:
        """Only the filler at a file's end is damaged: the expected record opens the next file."""
        segment = self._data.find(at.pos)
        if segment is None or segment.start == at.pos:
            return None
        head = read_head(self._data, segment.end)
        if (
            head is None
            or head.index != at.index
            or head.term < at.term
            or head.size + BLANK_BYTES <= (segment.end - at.pos)
        ):
            return None
        if at.chain is not None and head.chain_crc and head.continues(at.chain):
            return replace(at, pos=segment.end)
        return replace(at, pos=segment.end) if self._agrees(head) and not head.chain_crc else None

    def _by_own_head(self, stop: Stop) -> Cursor | None:
        """Only the body is damaged: the chain proves the head, and with it size, term and body CRC."""
        at = stop.cursor
        head = read_head(self._data, at.pos) if stop.problem == "crc_invalid" else None
        if head is None or at.chain is None or head.index != at.index or not head.chain_crc:
            return None
        if not head.continues(at.chain):
            return None
        return Cursor(at.pos + head.size, at.index + 1, head.term, head.chain_crc, at.sealed_from)

    def _agrees(self, head: Head) -> bool:
        """Whether the index file says the same of this record."""
        unit = read_unit(self._index, head.index)
        return unit is not None and (unit.pos, unit.size, unit.term) == (head.pos, head.size, head.term)

    # --- by the index file -----------------------------------------------------------------------------------------

    def _by_index(self, at: Cursor) -> Cursor | None:
        """The first following entry whose index record and head agree, and whose successor continues its chain."""
        number = at.index + 1
        while True:
            raw = self._index.read_across(number * INDEX_UNIT_BYTES, _UNITS_AT_ONCE * INDEX_UNIT_BYTES)
            if is_zeros(raw):
                if not self._index.has_bytes(number * INDEX_UNIT_BYTES):
                    return None
                number += _UNITS_AT_ONCE
                continue
            units = np.frombuffer(raw, dtype=INDEX_DTYPE)
            claims = units["index"] == np.arange(number, number + _UNITS_AT_ONCE)
            claims &= (units["pos"] > at.pos) & (units["term"] >= at.term)
            for place in np.flatnonzero(claims):
                head = read_head(self._data, int(units["pos"][place]))
                if head is None or head.index != number + int(place) or not self._agrees(head):
                    continue
                if not head.chain_crc or self._is_continued(head, last_is_fine=True):
                    return Cursor(head.pos, head.index, at.term, None, at.sealed_from)
            number += _UNITS_AT_ONCE

    def _is_continued(self, head: Head, *, last_is_fine: bool) -> bool:
        """Whether the record behind continues this one's chain, or (if that is fine) nothing is behind it."""
        vouched = self._vouched
        if vouched is not None and vouched.index == head.index + 1:
            return vouched.chain is None or vouched.chain == head.chain_crc
        pos = head.pos + head.size
        segment = self._data.find(pos)
        following = read_head(self._data, pos)
        if following is None or following.index != head.index + 1:
            following = read_head(self._data, segment.end) if segment is not None else None
        if following is not None and following.index == head.index + 1:
            return following.continues(head.chain_crc)
        return last_is_fine and not self._data.has_bytes(pos)

    # --- without it ------------------------------------------------------------------------------------------------

    def _by_bytes(self, at: Cursor) -> Cursor | None:
        """Searches for a head that says its own position and is continued by its successor: that one is proven.

        Its own term is vouched for by nothing, so the place is the one behind it.
        """
        for segment in self._data:
            if segment.end <= at.pos:
                continue
            for head in self._heads(segment, max(at.pos + 1, segment.start)):
                fits = head.index > at.index and head.said_pos == head.pos and head.term >= at.term
                if fits and head.chain_crc and self._is_continued(head, last_is_fine=False):
                    return Cursor(head.pos + head.size, head.index + 1, at.term, head.chain_crc, at.sealed_from)
        return None

    @staticmethod
    def _heads(segment: Segment, pos: int) -> Iterator[Head]:
        """Everything in a file that looks like a head. Holes are not read: a log's last file is mostly one."""
        at = segment.next_data(pos)
        while at is not None:
            # A head opens with three zero bytes, which may be the last ones of a hole before the data.
            pos = max(pos, at - _HEAD_ZEROS)
            raw = segment.read(pos, _SEARCH_BYTES + HEAD_BYTES)
            for match in _HEAD_START.finditer(raw) if not is_zeros(raw) else ():
                if match.start() >= _SEARCH_BYTES:
                    break
                head = _head_in(memoryview(raw)[match.start() :], pos + match.start(), segment)
                if head is not None:
                    yield head
            pos += _SEARCH_BYTES
            at = segment.next_data(pos)
