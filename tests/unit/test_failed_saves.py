"""After a write that failed nothing else is written: what was ordered behind it relied on it (SAFETY S1, S6)."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from node.consensus.effects import TruncateLog
from node.engine.disk import Disk
from node.engine.process import Process
from node.protocol.codes import FlushMode, VoterState
from node.store.errors import StoreIOError
from node.store.files.hard_state import HARDSTATE
from node.store.files.platform import OsPlatform
from tests.unit.store_fixtures import fill, kill, open_store, record, sync
from tests.unit.test_disk_reads import never


class FailsAtHardState(OsPlatform):
    """From `armed` on term and vote cannot be replaced any more."""

    armed = False

    def replace(self, source: Path, target: Path) -> None:
        if self.armed and target.name == HARDSTATE:
            raise OSError(errno.EIO, "Input/output error")
        super().replace(source, target)


def test_a_cut_does_not_follow_a_vote_that_could_not_be_given_up(tmp_path: Path) -> None:
    """The two are ordered in one breath: a damaged member gives up its vote, then what it may have acknowledged."""
    platform = FailsAtHardState()
    store = open_store(tmp_path, platform=platform)
    fill(store, 1, 8)
    sync(store)
    store.save_hard_state(replace(store.hard_state, voter_state=VoterState.VOTER))
    before = store.end_index

    async def story() -> list[str]:
        failed: list[str] = []
        ended = asyncio.Event()

        def fail(reason: str) -> None:
            failed.append(reason)
            ended.set()

        process = Process()
        disk = Disk(
            store, FlushMode.SYNC, log_epoch=lambda: 1, flushed=never, truncated=never, begun=never, mended=never,
            damaged=never,
            fail=fail, process=process,
        )  # fmt: skip
        platform.armed = True
        disk.save(replace(store.hard_state, voter_state=VoterState.REJOINING), never)
        disk.truncate(TruncateLog(1, 3, record(store, 3)))
        await asyncio.wait_for(ended.wait(), 30)
        disk.close()
        process.close()
        return failed

    assert "term and vote could not be saved" in asyncio.run(story())[0]
    kill(store)
    store = open_store(tmp_path)
    assert (store.end_index, store.hard_state.voter_state) == (before, VoterState.VOTER)
    store.close()


def test_nothing_is_cut_mended_or_said_to_be_clean_after_a_failure(tmp_path: Path) -> None:
    platform = FailsAtHardState()
    store = open_store(tmp_path, platform=platform)
    fill(store, 1, 8)
    sync(store)
    platform.armed = True
    with pytest.raises(StoreIOError):
        store.save_hard_state(replace(store.hard_state, term=9))
    platform.armed = False
    slab = store.read_slab(2, 100)
    for work in (
        lambda: store.truncate(3, record(store, 3)),
        lambda: store.mend(slab),
        lambda: store.save_hard_state(replace(store.hard_state, term=9)),
    ):
        with pytest.raises(StoreIOError, match="failed before"):
            work()
    store.close()
    store = open_store(tmp_path)
    assert store.hard_state.term < 9 and store.end_index == 7
    store.close()
