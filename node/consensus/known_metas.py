"""Term and chain of entries that are cold: asked of the driver, and kept for a moment (SAFETY S9).

Whoever needs one gets it or ColdEntry, and asks again: the leader when the driver has reported, a follower when its
leader repeats what was answered "busy". Invariants: at most LOOKS_MAX looks are under way and KEPT_MAX results kept;
what a look of an earlier log epoch found is not believed.
"""

from __future__ import annotations

from typing import Final

from node.consensus.effects import LookUp
from node.store.log_store import EntryMeta

LOOKS_MAX: Final = 16
KEPT_MAX: Final = 64


class KnownMetas:
    """One member's."""

    def __init__(self) -> None:
        self._kept: dict[int, EntryMeta] = {}
        self._under_way: set[int] = set()

    def get(self, index: int) -> EntryMeta | None:
        """What was found there."""
        return self._kept.get(index)

    def keep(self, meta: EntryMeta) -> None:
        """Known without a look, and soon asked for."""
        self._kept.pop(meta.index, None)
        self._kept[meta.index] = meta
        if len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]

    def order(self, index: int, log_epoch: int) -> LookUp | None:
        """What to ask of the driver; None: that is under way, or too much is."""
        if index in self._under_way or len(self._under_way) >= LOOKS_MAX:
            return None
        self._under_way.add(index)
        return LookUp(log_epoch, index)

    def found(self, order: LookUp, meta: EntryMeta | None, log_epoch: int) -> None:
        """The driver has looked; None: it is not there, or damaged."""
        self._under_way.discard(order.index)
        if meta is not None and order.log_epoch == log_epoch:
            self.keep(meta)

    def forget(self) -> None:
        """The log was cut, damaged or mended."""
        self._kept.clear()
