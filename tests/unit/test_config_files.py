"""`DATA/config/*.json` while a broker ends: the last save waits for one that a thread still writes."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from node.broker.requests import config_files
from node.broker.requests.config_files import TOPICS, ConfigFiles
from node.broker.requests.context import Context, Identity
from node.rocketmq.bodies import TopicConfig
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages


def test_the_last_save_waits_for_one_whose_task_was_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wrote the same file beside, and one of them took it from under the other."""
    began, may_end, sync = threading.Event(), threading.Event(), config_files.os.fsync

    def held(fd: int) -> None:
        if not began.is_set():
            began.set()
            assert may_end.wait(60)
        sync(fd)

    async def story() -> None:
        context = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000)
        files = ConfigFiles(tmp_path, context)
        context.topics.put(TopicConfig("First", 4, 4))
        monkeypatch.setattr(config_files.os, "fsync", held)
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
