"""Slabs for a peer far behind: read ahead of being asked for, never given to another log, and in their own time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from node.consensus.effects import BeginBehind, MendLog, ReadSlab
from node.engine.disk import Disk
from node.engine.process import Process
from node.protocol.codes import FlushMode
from node.protocol.entry import Slab
from node.store.errors import StoreCorrupt
from node.store.faults.results import Mended
from node.store.files.identity import Base
from node.store.log_store import ORIGIN, EntryMeta, TruncationRecord
from node.store.memory_store import MemoryStore

ENTRY_BYTES = 48 + 10


class Counting(MemoryStore):
    """Says which reads it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from: list[int] = []

    def read_slab(self, first_index: int, max_bytes: int) -> Slab:
        self.read_from.append(first_index)
        return super().read_slab(first_index, max_bytes)


def never(*_: Any) -> None:
    raise AssertionError("not expected here")


def run(
    work: Callable[[Disk, Counting], Awaitable[None]],
    *,
    cold: bool = True,
    kind: type[Counting] = Counting,
    **callbacks: Any,
) -> None:
    async def both() -> None:
        store = kind()
        for number in range(10):
            store.append_as_leader([b"%010d" % number], 1)
        store.recent_from = 99 if cold else 0
        process = Process()
        unexpected = dict.fromkeys(("flushed", "truncated", "begun", "mended", "damaged", "fail"), never)
        disk = Disk(store, FlushMode.SYNC, log_epoch=lambda: 0, process=process, **unexpected | callbacks)
        try:
            await work(disk, store)
        finally:
            disk.close()
            process.close()

    asyncio.run(both())


async def read(disk: Disk, first_index: int, *, log_epoch: int = 0, pause_ns: int = 0, peer_id: str = "n1") -> Slab:
    got: asyncio.Future[Slab | None] = asyncio.get_running_loop().create_future()
    request = ReadSlab(peer_id, 1, log_epoch, first_index, 2 * ENTRY_BYTES, pause_ns)
    reported: list[ReadSlab] = []

    def done(one: ReadSlab, slab: Slab | None) -> None:
        reported.append(one)
        got.set_result(slab)

    disk.read(request, done)
    slab = await got
    assert slab is not None and reported == [request]  # as it was asked, so that the core knows it again
    return slab


def test_what_follows_is_read_before_it_is_asked_for() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        first = await read(disk, 0)
        assert (first.first_index, first.last_index) == (0, 1)
        await asyncio.wrap_future(disk._ahead["n1"][2])
        assert store.read_from == [0, 2]
        assert [(await read(disk, index)).first_index for index in (2, 4, 6, 8)] == [2, 4, 6, 8]
        assert store.read_from == [0, 2, 4, 6, 8]  # each once, and nothing behind the end

    run(work)


def test_another_place_or_another_log_is_read_anew() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        await read(disk, 0)
        assert (await read(disk, 5)).first_index == 5
        assert (await read(disk, 7, log_epoch=1)).first_index == 7
        assert store.read_from.count(7) == 2

    run(work)


def test_peers_do_not_take_each_others_slabs() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        await read(disk, 0)
        await read(disk, 2, peer_id="n2")
        await read(disk, 2)
        assert store.read_from.count(2) == 2

    run(work)


def test_what_is_in_memory_is_not_read_ahead() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        await read(disk, 0)
        await read(disk, 2)
        assert store.read_from == [0, 2]

    run(work, cold=False)


def test_a_pause_comes_before_the_read() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        reading = asyncio.create_task(read(disk, 0, pause_ns=20_000_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.read_from == []
        assert (await reading).first_index == 0

    run(work)


def test_an_error_met_ahead_is_old_news_when_that_range_is_asked_for() -> None:
    async def work(disk: Disk, store: Counting) -> None:
        store.rot(2)
        await read(disk, 0)
        with contextlib.suppress(StoreCorrupt):
            await asyncio.wrap_future(disk._ahead["n1"][2])
        store._rotten.clear()  # it heals before the peer gets there
        assert (await read(disk, 2)).first_index == 2  # and nobody is told of damage: `never` would raise
        assert store.read_from[:3] == [0, 2, 2]

    run(work)


class Changes(Counting):
    """Its log may be mended, and replaced."""

    def mend(self, slab: Slab, vouched: EntryMeta | None = None) -> Mended:
        return Mended(slab.last_index)

    def begin_behind(self, base: Base, record: TruncationRecord) -> None:
        """As far as a test of reads needs it."""


@pytest.mark.parametrize("order", ["mend", "begin behind"])
def test_what_was_read_ahead_is_read_anew_once_the_log_was_changed(order: str) -> None:
    """The copy is from before: what a mend put right would go to the peer as it was (S6)."""
    ended = asyncio.Event()

    def done(*_: Any) -> None:
        ended.set()

    async def work(disk: Disk, store: Counting) -> None:
        await read(disk, 0)
        await asyncio.wrap_future(disk._ahead["n1"][2])
        if order == "mend":
            disk.mend(MendLog(0, store.read_slab(5, 1), 5))
        else:
            record = TruncationRecord("n0", "n1", 1, 0, 9, "a test", -1)
            disk.begin_behind(BeginBehind(0, Base(ORIGIN, 0), record))
        await ended.wait()
        await read(disk, 2)
        assert store.read_from.count(2) == 2

    run(work, kind=Changes, mended=done, begun=done)
