"""Entries without seals: what a Java node wrote takes part in the chain with its computed CRC (SAFETY, "The chain").

Invariants: the memory taken is bounded (anchors thin out as they grow); a log whose chain has no anchor stays unsealed
until a base is known.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from dataclasses import replace

from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES, Slab
from node.store.files.segment_list import SegmentList
from node.store.recovery.walk import Cursor, Walk
from node.store.slab_pieces import slab_meta

_ANCHORS_MAX = 1024
_CRCS_OFFSET, _CRCS_END = 36, 44
_NO_SEALS = bytes(8)
_POS, _POS_OFFSET = struct.Struct(">q"), 4  # inside an index record


class UnsealedChains:
    """Chains inside the unsealed part of a log, computed from the nearest anchor below."""

    def __init__(self, data: SegmentList, begin: Cursor) -> None:
        self._data = data
        self._anchors = [begin]
        self._lock = threading.Lock()

    def chain_at(self, index: int) -> int | None:
        """The chain after entry `index`; None without an anchor. The loop and a reading thread may both ask."""
        with self._lock:
            return self._chain_at(index)

    def _chain_at(self, index: int) -> int | None:
        place = bisect_right(self._anchors, index, key=lambda anchor: anchor.index) - 1
        start = self._anchors[place]
        if start.chain is None:
            return None
        walk = Walk(self._data, start, last_index=index)
        chain: int | None = None
        for slab in walk.slabs():
            if slab.last_index >= index:
                chain = slab_meta(slab, index).chain
            if slab.last_index + 1 > self._anchors[-1].index:
                self._anchors.append(Cursor(slab.end_pos, slab.last_index + 1, slab.last_term, slab.last_chain))
        if len(self._anchors) > _ANCHORS_MAX:
            del self._anchors[1:-1:2]
        return chain

    def cut(self, cut_index: int) -> None:
        """Anchors behind a cut are void."""
        with self._lock:
            while len(self._anchors) > 1 and self._anchors[-1].index > cut_index:
                self._anchors.pop()

    def restart(self, begin: Cursor) -> None:
        """The log begins later now."""
        with self._lock:
            self._anchors = [begin]


def is_unsealed(slab: Slab) -> bool:
    """Whether the last record carries no seal (seals never stop once they began)."""
    (pos,) = _POS.unpack_from(slab.index_records, (slab.count - 1) * INDEX_UNIT_BYTES + _POS_OFFSET)
    at = pos - slab.pos
    return slab.data[at + _CRCS_OFFSET : at + _CRCS_END] == _NO_SEALS


def strip_seals(slab: Slab) -> Slab:
    """The same records with both CRC fields 0, as a Java node writes them."""
    data = bytearray(slab.data)
    for _, pos, _, _, _ in INDEX_UNIT.iter_unpack(slab.index_records):
        at = pos - slab.pos
        data[at + _CRCS_OFFSET : at + _CRCS_END] = _NO_SEALS
    return replace(slab, data=bytes(data), prev_chain=None, last_chain=None)
