"""Which snapshots a broker group's log holds, as far as this process saw them get into it.

Once the messages of a queue have expired, its next offset is in a snapshot and nowhere else. So of such a log nothing
may go, not by force either, that the newest complete committed snapshot needs: its parts, and the entries to go on with
behind its as-of index (`FoundSnapshot.keep_from`). What lies in the log since before this start is not looked for: it
has to grow by a snapshot first, which one begins with every data file.

Invariant: what is reported was in the log, whole, and nothing of it has been cut since.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import numpy as np

from node.protocol.broker_state import BodyInvalid
from node.protocol.entry import INDEX_DTYPE, Slab, unpack_record
from node.protocol.group_kind import Channel
from node.protocol.inert_records import content_of
from node.protocol.snapshot_parts import FoundSnapshot, SnapshotFinder

CHANNEL_AT: Final = 35  # the lowest byte of a head's channel, which tells the few channels apart
KEPT: Final = 8  # snapshots that wait for their commit: they are megabytes apart


class SnapshotMarks:
    """Of one log."""

    def __init__(self) -> None:
        self._finder = SnapshotFinder(keep=False)
        self._found: list[FoundSnapshot] = []
        self._parts_upto = -1

    def note(self, slab: Slab) -> None:
        """These entries are in the log now."""
        for offset in _parts_in(slab):
            entry = unpack_record(slab.data, offset)
            self._parts_upto = entry.index
            with suppress(BodyInvalid):  # then it is no part of anything
                found = self._finder.add(entry.index, content_of(entry.body))
                if found is not None:
                    self._found = [*self._found, found][-KEPT:]

    def cut(self, index: int) -> None:
        """Entries from `index` on are gone."""
        if self._parts_upto >= index:
            self._finder = SnapshotFinder(keep=False)
            self._found = [one for one in self._found if one.last_index < index]

    def keep_from(self, committed_index: int) -> int:
        """The first entry that must stay; 0: all of them."""
        return max((one.keep_from for one in self._found if one.last_index <= committed_index), default=0)


def _parts_in(slab: Slab) -> list[int]:
    """Where in the slab's data the records of snapshot parts begin."""
    if slab.count == 1:
        return [0] if slab.data[CHANNEL_AT] == Channel.SNAPSHOT_PART else []
    offsets = np.frombuffer(slab.index_records, INDEX_DTYPE)["pos"].astype(np.int64) - slab.pos
    channels = np.frombuffer(slab.data, np.uint8)[offsets + CHANNEL_AT]
    return [int(offsets[at]) for at in np.flatnonzero(channels == Channel.SNAPSHOT_PART)]
