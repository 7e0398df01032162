"""Committed ranges for clients: from memory on the loop, from disk in a thread (SAFETY S9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from node.engine.disk import Disk
from node.protocol.codes import ResponseCode
from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES, BytesLike, Entry, Slab, unpack_record
from node.store.faults.ranges import next_fault
from node.store.log_store import LogStore

READ_BYTES_MAX: Final = 1024 * 1024
Found = Callable[[ResponseCode, int, BytesLike], None]  # code, count, records
# When a read of the disk may begin: it is given how to begin it (with what is to be called at its end), or to leave it.
Turn = Callable[[Callable[[Callable[[], None]], None], Callable[[], None]], None]


def at_once(read: Callable[[Callable[[], None]], None], _leave: Callable[[], None]) -> None:
    """For whoever the threads are there for."""
    read(lambda: None)


class LogReads:
    """One per engine."""

    def __init__(self, store: LogStore, disk: Disk) -> None:
        self._store, self._disk = store, disk

    def committed(
        self, from_index: int, limit_bytes: int, committed_index: int, done: Found, turn: Turn = at_once
    ) -> None:
        """Records from `from_index` up to `committed_index`, none above it, none that are damaged here (S6).

        A range that begins in damage is DISK_ERROR; one that runs into it ends before it.
        """
        if from_index < self._store.begin_index:
            done(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, 0, b"")
            return
        if from_index > committed_index:
            done(ResponseCode.SUCCESS, 0, b"")
            return
        fault = next_fault(self._store.faults, from_index)
        if fault is not None and fault.first_index <= from_index:  # not even from memory: what is damaged is not served
            done(ResponseCode.DISK_ERROR, 0, b"")
            return
        if fault is not None:
            committed_index = min(committed_index, fault.first_index - 1)
        wanted = min(limit_bytes, READ_BYTES_MAX)
        slab = self._store.recent_slab(from_index, wanted)
        if slab is not None:
            done(ResponseCode.SUCCESS, *cut_at(slab, from_index, committed_index))
            return

        def finished(found: Slab | None, _error: str) -> None:
            if found is None and from_index < self._store.begin_index:  # it was removed while this read
                done(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, 0, b"")
            elif found is None:
                done(ResponseCode.DISK_ERROR, 0, b"")
            else:
                done(ResponseCode.SUCCESS, *cut_at(found, from_index, committed_index))

        def read(ended: Callable[[], None]) -> None:
            def both(found: Slab | None, error: str) -> None:
                ended()
                finished(found, error)

            self._disk.read_slab(from_index, wanted, both)

        turn(read, lambda: done(ResponseCode.DISK_ERROR, 0, b""))

    def position(self, index: int, done: Callable[[int], None]) -> None:
        """Where the entry is; -1 where it is not here, or cannot be read any more."""
        at_hand = self._store.position_at_hand(index)
        if at_hand is not None or not self._store.begin_index <= index <= self._store.end_index:
            done(-1 if at_hand is None else at_hand)
        else:
            self._disk.read_slab(index, 1, lambda slab, _error: done(-1 if slab is None else slab.pos))

    @staticmethod
    def first_entry(records: BytesLike) -> Entry:
        return unpack_record(records)


def cut_at(slab: Slab, from_index: int, last_index: int) -> tuple[int, BytesLike]:
    """How many of the slab's records lie in the range, and their bytes."""
    skip = max(0, from_index - slab.first_index)
    stop = min(slab.count, last_index - slab.first_index + 1)
    if skip == 0 and stop == slab.count:
        return slab.count, slab.data
    begin = _begins(slab, skip) if skip else 0
    end = len(slab.data) if stop == slab.count else _begins(slab, stop)
    return stop - skip, memoryview(slab.data)[begin:end]


def _begins(slab: Slab, place: int) -> int:
    """Where in its bytes that record of it begins."""
    return int(INDEX_UNIT.unpack_from(slab.index_records, place * INDEX_UNIT_BYTES)[1]) - slab.pos
