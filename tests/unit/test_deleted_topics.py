"""What a classic broker keeps of deleted topics: written once and whole, whatever the disk does."""

from __future__ import annotations

import asyncio
import errno
import itertools
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from node.broker.classic.deleted_topics import DeletedTopics
from node.broker.classic.tables import TablesInFiles
from node.message_store.write_files import OsDisk
from tests.unit.classic_kit import story

if TYPE_CHECKING:
    from node.broker.requests.config_files import ConfigFiles
    from node.rocketmq.dispatch import Call


@story
async def test_topics_that_are_deleted_at_once_are_written_one_behind_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both wrote into one file beside it: one was answered with an error, and half of the other's could stay."""
    ends = {("A", 0): 3, ("B", 0): 4}
    deleted = DeletedTopics(tmp_path, lambda: ends, lambda _topic: None)
    replace_file, calls, overlaps = OsDisk.replace, itertools.count(), threading.Event()

    def replace(disk: OsDisk, path: Path, data: bytes) -> None:
        if next(calls):
            overlaps.set()
        else:
            assert not overlaps.wait(0.2)
        replace_file(disk, path, data)

    monkeypatch.setattr(OsDisk, "replace", replace)
    deleted.delete("A")
    first = asyncio.create_task(deleted.save(deleted.waiting))
    await asyncio.sleep(0)
    deleted.delete("B")
    await asyncio.gather(first, deleted.save(deleted.waiting))
    assert DeletedTopics(tmp_path, dict, lambda _topic: None).begins == ends


@story
async def test_deleted_topics_that_could_not_be_written_are_written_with_the_next_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = DeletedTopics(tmp_path / "master", lambda: {("A", 0): 3}, lambda _topic: None)
    follower = DeletedTopics(tmp_path / "slave", dict, lambda _topic: None)
    deleted.delete("A")
    said = bytes(deleted.handle(cast("Call", None)).body)
    with monkeypatch.context() as patched:

        def fails(_disk: OsDisk, path: Path, _data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        patched.setattr(OsDisk, "replace", fails)
        with pytest.raises(OSError, match="No space"):
            await deleted.save(deleted.waiting)
        with pytest.raises(OSError, match="No space"):
            await follower.follow(said)
    await deleted.save(deleted.waiting)
    await follower.follow(said)
    for name in ("master", "slave"):
        assert DeletedTopics(tmp_path / name, dict, lambda _topic: None).begins == {("A", 0): 3}


@story
async def test_a_topic_that_is_deleted_while_others_are_saved_counts_with_its_own_save(tmp_path: Path) -> None:
    """It may be among the topics on disk still: a crash would leave it there, without its messages."""
    ends = {("A", 0): 3, ("B", 0): 4}
    deleted = DeletedTopics(tmp_path, lambda: ends, lambda _topic: None)
    deleted.delete("A")

    class Files:
        async def save(self) -> None:
            deleted.delete("B")

    tables = TablesInFiles.__new__(TablesInFiles)
    tables.deleted, tables._files = deleted, cast("ConfigFiles", Files())
    await tables.settled()
    assert DeletedTopics(tmp_path, dict, lambda _topic: None).begins == {("A", 0): 3}
    assert deleted.begins == {("A", 0): 3} and deleted.waiting == {"B"}
    await tables.settled()
    assert DeletedTopics(tmp_path, dict, lambda _topic: None).begins == ends
