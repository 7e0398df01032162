"""A sync ticket: one group commit, taken on the loop, run in a thread, finished on the loop.

Invariants: `run` touches nothing that the loop writes, only descriptors and the checkpoint; a slot is written after the
data it speaks of is synced, or left out where there is no space for it (the older one goes on saying less); an error is
remembered, so that no later close promises anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from node.protocol.value_class import value_class
from node.store.errors import StoreFull, StoreIOError
from node.store.files.cache_window import Stale
from node.store.files.checkpoint import Slot
from node.store.files.next_file import NextFile


class Syncable(Protocol):
    """A file, or the names in a folder."""

    def sync(self) -> None: ...


class Files(Protocol):
    """What a ticket needs to know of the log's files."""

    cuts: int
    failed: bool

    def keep_layout(self) -> None: ...
    def check_place(self) -> None: ...


class Syncing(Protocol):
    """What a ticket needs of the log's durability."""

    @property
    def files(self) -> Files: ...

    def write_slot(self, slot: Slot) -> None: ...


@value_class(slots=True, frozen=True)
class Mark:
    """An entry's end: what a checkpoint slot says of it."""

    index: int
    end_pos: int
    term: int
    chain: int | None


class Synced(NamedTuple):
    """The positions in the data and in the index up to which all is on the disk."""

    data_pos: int
    index_pos: int


class FileTicket:
    """One group commit. `run` touches nothing that the loop writes: only descriptors and the checkpoint."""

    __slots__ = (
        "_data", "_index", "_next_files", "_slot", "_stale", "_syncing", "cuts", "mark", "syncs_index",
    )  # fmt: skip

    def __init__(
        self,
        syncing: Syncing,
        cuts: int,
        mark: Mark,
        data: Sequence[Syncable],
        index: Sequence[Syncable] | None,
        slot: Slot | None,
        stale: list[Stale],
        next_files: Sequence[NextFile],
    ) -> None:
        """`cuts`: those that the log had seen before anything else here was looked up."""
        self._syncing, self.cuts = syncing, cuts
        self.mark = mark
        self._data = data
        self._index = index
        self.syncs_index = index is not None
        self._slot = slot  # None: the last one is young
        self._stale = stale
        self._next_files = next_files

    @property
    def end_index(self) -> int:
        return self.mark.index

    def run(self) -> None:
        if self._syncing.files.failed:  # its pages are clean and not durable (S1): no later sync may vouch for them
            raise StoreIOError("a sync failed before: nothing more of this process becomes durable")
        try:
            for segment in self._data:
                segment.sync()
            for segment in self._index or ():
                segment.sync()
            self._syncing.files.check_place()
            self._syncing.files.keep_layout()
            # A cut made meanwhile has lowered the slots: never raise them again.
            if self._slot is not None and self.cuts == self._syncing.files.cuts:
                with suppress(StoreFull):  # the data is durable all the same; a later slot says so
                    self._syncing.write_slot(self._slot)
            for next_file in self._next_files:
                next_file.make()
        except StoreIOError:
            self._syncing.files.failed = True
            raise
        for part in self._stale:
            part.drop_from_page_cache()
