"""The newest slabs, in memory and bounded: what followers are fed from without touching a disk (SAFETY S9).

Invariants: the slabs are consecutive and end at the log's end; what they take in memory is at most `bytes_max`, except
that the newest slab always stays; `piece_of` never re-encodes, it only cuts and joins.
"""

from __future__ import annotations

from bisect import bisect_right

from node.protocol.entry import SLAB_BYTES_MAX, Slab
from node.store.log_store import EntryMeta
from node.store.slab_pieces import cut_slab, cut_to_bytes, join_slabs, slab_meta

RING_BYTES = 48 * 1024 * 1024
SLAB_OVERHEAD_BYTES = 512  # the objects around a slab's bytes: what counts where every slab is a single entry
_DROP_SHARE = 16  # removing from a list's front costs its length: do it only for one part in this many


def _memory_of(slab: Slab) -> int:
    """A slab that came over a connection is in its whole frame, where its index records are once more."""
    return len(slab.data) + 2 * len(slab.index_records) + SLAB_OVERHEAD_BYTES


class RecentSlabs:
    """A ring of slabs, found by index."""

    def __init__(self, bytes_max: int = RING_BYTES) -> None:
        self._bytes_max = bytes_max
        self._slabs: list[Slab] = []
        self._firsts: list[int] = []
        self._from = 0  # slabs before this place in the lists count as gone already
        self._bytes = 0  # of those that count
        self._gone_bytes = 0  # of those before them
        self._floor = -1  # what is below is not given from memory any more: see `forget_through`

    @property
    def size_bytes(self) -> int:
        """All the memory that is held on to."""
        return self._bytes + self._gone_bytes

    def add(self, slab: Slab) -> None:
        """The next slab of the log."""
        self._slabs.append(slab)
        self._firsts.append(slab.first_index)
        self._bytes += _memory_of(slab)
        while self._bytes > self._bytes_max and self._from < len(self._slabs) - 1:
            gone = _memory_of(self._slabs[self._from])
            self._bytes -= gone
            self._gone_bytes += gone
            self._from += 1
        if self._gone_bytes > self._bytes_max // _DROP_SHARE:
            del self._slabs[: self._from], self._firsts[: self._from]
            self._from = self._gone_bytes = 0

    def forget_through(self, index: int) -> None:
        """Entries up to `index` are read from the disk from now on; called by a thread, beside the loop's `add`."""
        self._floor = max(self._floor, index + 1)

    def cut(self, cut_index: int) -> RecentSlabs:
        """Another ring without the entries from `cut_index` on: cuts happen in a thread, and this one is being read."""
        kept = RecentSlabs(self._bytes_max)
        kept._floor = self._floor
        for slab in self._slabs[self._from :]:
            if slab.last_index < cut_index:
                kept.add(slab)
            elif slab.first_index < cut_index:
                kept.add(cut_slab(slab, slab.first_index, cut_index - slab.first_index))
        return kept

    def _place(self, index: int) -> int:
        """Where in the lists `index` lies, or -1."""
        slabs = self._slabs
        if not slabs or index > slabs[-1].last_index or index < self._floor:
            return -1
        if index >= slabs[-1].first_index:
            return len(slabs) - 1
        place = bisect_right(self._firsts, index) - 1
        return place if place >= self._from else -1

    def holding(self, index: int) -> Slab | None:
        """The slab that holds `index`."""
        place = self._place(index)
        return self._slabs[place] if place >= 0 else None

    def meta(self, index: int) -> EntryMeta | None:
        """Term and chain at `index`, from memory."""
        slab = self.holding(index)
        if slab is None:
            return None
        if index == slab.last_index:
            return EntryMeta(index, slab.last_term, slab.last_chain)
        return slab_meta(slab, index)

    def piece_of(self, first_index: int, max_bytes: int) -> Slab | None:
        """A slab from `first_index` on, of at most `max_bytes` (at least one entry), joined from neighbours."""
        place = self._place(first_index)
        if place < 0:
            return None
        limit = min(max_bytes, SLAB_BYTES_MAX)
        slab = self._slabs[place]
        if slab.first_index != first_index or len(slab.data) > limit:
            return cut_to_bytes(slab, first_index, limit)
        if place == len(self._slabs) - 1:
            return slab
        total, pos, stop = len(slab.data), slab.end_pos, place + 1
        while stop < len(self._slabs):
            after = self._slabs[stop]
            if after.pos != pos or total + len(after.data) > limit:
                break
            total, pos, stop = total + len(after.data), after.end_pos, stop + 1
        return join_slabs(self._slabs[place:stop])
