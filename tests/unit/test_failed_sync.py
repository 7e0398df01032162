"""After an fsync that failed none follows: what it lost, the next one would report as durable (SAFETY S1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from node.engine.disk import Disk
from node.engine.process import Process
from node.protocol.codes import FlushMode
from node.store.errors import StoreIOError
from node.store.log_store import SyncTicket
from node.store.memory_store import MemoryStore
from tests.unit.test_disk_reads import never


class FailsOnce(MemoryStore):
    """The first sync fails, as a disk's does that drops the pages and is well again."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def prepare_sync(self) -> SyncTicket | None:
        return Failing(self)


class Failing:
    def __init__(self, store: FailsOnce) -> None:
        self.store, self.end_index = store, store.end_index

    def run(self) -> None:
        self.store.syncs += 1
        if self.store.syncs == 1:
            raise StoreIOError("fdatasync: Input/output error")


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_failed_sync_ends_the_engine_and_none_follows(flush: FlushMode) -> None:
    """Not for what came while it ran, not for what comes later, and nothing is said to be durable."""
    failed: list[str] = []

    async def story(store: FailsOnce) -> None:
        ended = asyncio.Event()

        def fail(reason: str) -> None:
            failed.append(reason)
            ended.set()

        process = Process()
        callbacks: dict[str, Any] = dict.fromkeys(("flushed", "truncated", "begun", "mended", "damaged"), never)
        disk = Disk(store, flush, log_epoch=lambda: 0, fail=fail, process=process, **callbacks)
        store.append_as_leader([b"a"], 1)
        disk.want_sync()
        disk.want_sync()  # somebody's who came meanwhile
        await asyncio.wait_for(ended.wait(), 30)
        disk.want_sync()
        written = asyncio.Event()
        process.writer.run(lambda: None, lambda _: written.set())  # behind whatever the disk has begun
        await asyncio.wait_for(written.wait(), 30)
        await asyncio.sleep(0.03)  # the interval of flush async, should somebody have begun it anew
        disk.close()
        process.close()

    store = FailsOnce()
    asyncio.run(story(store))
    assert store.syncs == 1
    assert len(failed) == 1 and "never tried again" in failed[0]
