"""`DATA/config/*.json` while a broker ends: no file is missing, and a last save waits for one that a thread writes."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from node.broker.requests.config_files import OFFSETS, TOPICS, ConfigFiles
from node.broker.requests.context import Context, Identity
from node.rocketmq.bodies import TopicConfig
from tests.unit.classic_kit import classic, classic_settings, pair_ports, story
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages


def files_of(root: Path) -> tuple[Context, ConfigFiles]:
    context = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000)
    return context, ConfigFiles(root, context)


def test_the_last_save_waits_for_one_whose_task_was_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wrote the same file beside, and one of them took it from under the other."""
    began, may_end, sync = threading.Event(), threading.Event(), os.fsync

    def held(fd: int) -> None:
        if not began.is_set():
            began.set()
            assert may_end.wait(60)
        sync(fd)

    async def story() -> None:
        context, files = files_of(tmp_path)
        context.topics.put(TopicConfig("First", 4, 4))
        monkeypatch.setattr(os, "fsync", held)
        saving = asyncio.create_task(files.save())
        await until(began.is_set)
        saving.cancel()
        context.topics.put(TopicConfig("Second", 4, 4))
        last = asyncio.create_task(asyncio.to_thread(files.save_now))
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert not last.done()
        may_end.set()
        await last
        said = json.loads((tmp_path / "config" / TOPICS).read_bytes())
        assert {"First", "Second"} <= set(said["topicConfigTable"])
        assert files.due() == {}
        assert not list((tmp_path / "config").glob("*.tmp"))

    asyncio.run(story())


def test_a_broker_that_ends_at_a_rename_leaves_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before was renamed first: ended then, or with the power gone, a start found no offsets at all."""
    context, files = files_of(tmp_path)
    context.offsets.put("G", "T", 0, 5)
    files.save_now()
    context.offsets.put("G", "T", 0, 6)
    rename, synced = os.replace, list[bool]()

    def killed(path: Path, to: Path) -> None:
        if Path(to).name == OFFSETS:
            raise OSError("killed")
        rename(path, to)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="killed"):
        patched.setattr(os, "replace", killed)
        files.save_now()
    path = tmp_path / "config" / OFFSETS
    assert json.loads(path.read_text().replace("{0:", '{"0":'))["offsetTable"] == {"T@G": {"0": 5}}
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.path.isdir(f"/proc/self/fd/{fd}")))
    files.save_now()
    assert b"6" in path.read_bytes() and b"5" in path.with_name(f"{OFFSETS}.bak").read_bytes()
    assert synced == [False, True]  # and its name is on disk with it


@story
async def test_a_table_of_which_the_one_before_is_left_alone_is_read_from_that(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master:
        master.port.context.offsets.put("G", "T", 0, 0)
    path = tmp_path / "m/config" / OFFSETS
    path.rename(path.with_name(f"{OFFSETS}.bak"))
    async with classic(settings) as master:
        assert master.port.context.offsets.get("G", "T", 0) == 0
