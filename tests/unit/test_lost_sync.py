"""A group commit that is wanted while a cut is being finished is made afterwards: nobody asks for it again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from node.engine.disk import Disk
from node.engine.process import Process
from node.protocol.codes import FlushMode
from tests.unit import store_fixtures
from tests.unit.test_disk_reads import never
from tests.unit.test_store_full_disk import CopyingDisk

CUT_INDEX = 80


class Held(CopyingDisk):
    """Its syncs wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()

    def fdatasync(self, fd: int) -> None:
        self.entered.set()
        assert self.go.wait(30)
        super().fdatasync(fd)


def test_a_sync_that_was_wanted_while_a_half_made_cut_was_finished_follows_it(tmp_path: Path) -> None:
    """What is below the cut was never synced: a follower in a group at rest would never have confirmed it."""
    platform, flushed, said = Held(), [], []  # type: Held, list[int], list[bool]
    store = store_fixtures.open_store(tmp_path / "store", platform=platform)
    store_fixtures.fill(store, 2, 90)
    platform.counts_zeros_alone, platform.writes_left = True, 0
    store.truncate(CUT_INDEX, store_fixtures.record(store, CUT_INDEX))
    assert store.files.half_cut is not None and store.durable_index < CUT_INDEX - 1
    platform.writes_left = None  # there is space again

    async def story() -> None:
        loop, process, asked = asyncio.get_running_loop(), Process(), asyncio.Event()

        def known(is_there: bool) -> None:
            said.append(is_there)
            asked.set()

        callbacks: dict[str, Any] = dict.fromkeys(("truncated", "begun", "mended", "damaged", "fail"), never)
        disk = Disk(
            store, FlushMode.SYNC, log_epoch=lambda: 0, process=process,
            flushed=lambda _epoch, end_index: flushed.append(end_index), **callbacks,
        )  # fmt: skip
        platform.entered.clear()
        platform.go.clear()
        disk.ask_space(known)
        await loop.run_in_executor(None, platform.entered.wait, 30)
        disk.want_sync()  # as the core does once the cut is over
        platform.go.set()
        await asyncio.wait_for(asked.wait(), 30)
        written = asyncio.Event()
        process.writer.run(lambda: None, lambda _: written.set())  # behind whatever the disk has begun
        await asyncio.wait_for(written.wait(), 30)
        disk.close()
        process.close()

    try:
        asyncio.run(story())
        assert said == [True] and store.files.half_cut is None
        assert flushed == [CUT_INDEX - 1] == [store.durable_index]
    finally:
        store.close()
