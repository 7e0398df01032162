"""A broker whose disk has no space for a while: it serves on, says so, and needs no restart."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import cast

import pytest

from node.broker import dispatched_log, own_engine
from node.broker.broker import Broker
from node.broker.derived_files import finish_save
from node.broker.host import MACHINE
from node.message_store.dispatch_mark import MARK, read_mark
from node.message_store.errors import NoSpaceToSave
from node.message_store.properties import join_properties
from node.message_store.put_result import PutStatus
from node.message_store.state_file import SavedState
from node.message_store.write_files import OsDisk
from tests.ports import free_ports
from tests.unit.broker_kit import SIZES, broker_of, engine_of, message, settings_of
from tests.unit.engine_kit import until

KEYED = join_properties([("KEYS", "K")])


@pytest.fixture(autouse=True)
def saves_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks whether it has to save behind each read, and a read waits for what comes next."""
    monkeypatch.setattr(dispatched_log, "SAVE_EVERY_S", 0.05)
    monkeypatch.setattr(own_engine, "AWAIT_MS", 50)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of small files for which there is no space."""
    names: set[str] = set()
    replace = OsDisk.replace

    def refused(disk: OsDisk, path: Path, data: bytes) -> None:
        if path.name in names:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        replace(disk, path, data)

    monkeypatch.setattr(OsDisk, "replace", refused)
    return names


@pytest.mark.parametrize("name", [MARK, "checkpoint"])
def test_a_save_that_finds_no_space_is_put_off_and_the_broker_serves_on(
    name: str, full: set[str], tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, free_ports(1))
    said: list[tuple[str, str, str]] = []

    async def put(broker: Broker, body: bytes) -> int:
        result = await broker.lane.put(message(body))
        assert result.status is PutStatus.PUT_OK
        return result.queue_offset

    async def story() -> None:
        async with engine_of(settings), broker_of(settings) as broker:
            broker.log._note = lambda *event: said.append(event)
            assert await put(broker, b"before") == 0
            full.add(name)
            assert await put(broker, b"full") == 1
            await until(lambda: bool(said))
            assert await put(broker, b"still full") == 2
            await until(lambda: broker.log._saving is not None)  # it tries again ...
            assert [kind for kind, _severity, _text in said] == ["save_put_off"]  # ... and says it once
            assert broker.reads.max_offset("TopicTest", 0) == 3
            full.clear()
            marked = broker.log.dispatched_index
            await until(lambda: (mark := read_mark(settings.node.data)) is not None and mark.point.index >= marked)
            await until(lambda: not broker.log._unsaved_by)
        async with engine_of(settings), broker_of(settings) as broker:
            assert await put(broker, b"after") == 3

    asyncio.run(story())


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_what_finds_no_space_for_queues_and_index_waits_and_the_broker_reads_on(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ended, again and again: no consumer was served, and a group whose leader's disk was full took no message."""
    settings, write, is_full = settings_of(tmp_path, free_ports(1)), OsDisk.write, False

    def full(disk: OsDisk, path: Path, offset: int, data: bytes) -> None:
        if is_full and folder in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(disk, path, offset, data)

    monkeypatch.setattr(OsDisk, "write", full)

    async def story() -> None:
        nonlocal is_full
        async with engine_of(settings), broker_of(settings) as broker:
            assert (await broker.lane.put(message(b"before", properties_data=KEYED))).status is PutStatus.PUT_OK
            is_full = True
            waiting = asyncio.ensure_future(broker.lane.put(message(b"full", properties_data=KEYED)))
            await until(lambda: bool(broker.log.stopped_by))
            assert "No space left" in broker.log.stopped_by and str(settings.node.data) in broker.log.stopped_by
            assert broker.state()["dispatch"]["stopped_by"] == broker.log.stopped_by
            assert broker.reads.max_offset("TopicTest", 0) == 1 and not waiting.done()
            is_full = False
            result = await waiting
            assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 1)
            await until(lambda: not broker.log.stopped_by)
            assert broker.reads.max_offset("TopicTest", 0) == 2
        async with engine_of(settings), broker_of(settings) as broker:
            assert (await broker.lane.put(message(b"after"))).queue_offset == 2

    asyncio.run(story())


def test_a_broker_that_starts_on_a_full_disk_after_a_clean_end_serves_what_it_has(
    full: set[str], tmp_path: Path
) -> None:
    """It ended, again and again: the first dispatch writes that nothing counts any more but what the mark says."""
    settings = settings_of(tmp_path, free_ports(1))

    async def story() -> None:
        async with engine_of(settings), broker_of(settings) as broker:
            assert (await broker.lane.put(message(b"before"))).status is PutStatus.PUT_OK
        full.add(MARK)
        async with engine_of(settings), broker_of(settings, as_master=False) as broker:
            await until(lambda: "No space left" in broker.log.stopped_by)
            assert broker.reads.max_offset("TopicTest", 0) == 1
            full.clear()
            await until(lambda: broker.is_master)
            assert (await broker.lane.put(message(b"after"))).queue_offset == 1

    asyncio.run(story())


@pytest.mark.parametrize(("number", "is_put_off"), [(errno.ENOSPC, True), (errno.EFBIG, True), (errno.EIO, False)])
def test_only_what_lacks_space_is_put_off(number: int, is_put_off: bool, tmp_path: Path) -> None:
    """Of the state of metadata, which is written last."""

    class Full:
        def write(self, _root: Path, _disk: OsDisk) -> None:
            raise OSError(number, "no")

    with pytest.raises(OSError, match="no") as found:
        finish_save(lambda _disk: None, cast("SavedState", Full()), tmp_path, MACHINE)
    assert isinstance(found.value, NoSpaceToSave) is is_put_off and found.value.errno == number


@pytest.mark.parametrize("goes_on", [False, True], ids=["", "dispatch goes on meanwhile"])
def test_a_sync_that_fails_ends_the_broker_whatever_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, goes_on: bool
) -> None:
    """The pages may be gone from memory, too: nothing may say that they are on disk."""
    settings = settings_of(tmp_path, free_ports(1))
    syncing, dispatched = threading.Event(), threading.Event()

    def fails(_disk: OsDisk, path: Path) -> None:
        syncing.set()
        assert dispatched.wait(60)
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    async def story() -> None:
        async with engine_of(settings):
            broker = Broker(settings, lambda *_event: None, SIZES)
            running = asyncio.create_task(broker.run())
            await until(lambda: broker.is_master)
            with monkeypatch.context() as patched:
                patched.setattr(OsDisk, "sync", fails)
                assert (await broker.lane.put(message(b"one"))).status is PutStatus.PUT_OK
                await until(syncing.is_set)
                before = broker.log.dispatched_index
                if goes_on:
                    assert (await broker.lane.put(message(b"two"))).status is PutStatus.PUT_OK
                    await until(lambda: broker.log.dispatched_index > before)
                dispatched.set()
                with pytest.raises(OSError, match="No space left"):
                    await running
            mark = read_mark(settings.node.data)
            assert mark is not None and not mark.is_clean and mark.point.index < broker.log.dispatched_index

    asyncio.run(story())


def test_a_sync_that_fails_while_the_broker_stops_is_said_and_nothing_vouched_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The save was under way when the broker was asked to stop: nobody looked at how it ended."""
    settings = settings_of(tmp_path, free_ports(1))
    syncing, stopping = threading.Event(), threading.Event()

    def fails(_disk: OsDisk, path: Path) -> None:
        syncing.set()
        stopping.wait()
        raise OSError(errno.EIO, "Input/output error", str(path))

    async def story() -> None:
        async with engine_of(settings):
            broker = Broker(settings, lambda *_event: None, SIZES)
            running = asyncio.create_task(broker.run())
            await until(lambda: broker.is_master)
            monkeypatch.setattr(OsDisk, "sync", fails)
            assert (await broker.lane.put(message(b"one"))).status is PutStatus.PUT_OK
            await until(syncing.is_set)
            running.cancel()
            await asyncio.sleep(0)
            stopping.set()
            with pytest.raises(OSError, match="Input/output"):
                await running
            mark = read_mark(settings.node.data)
            assert mark is not None and not mark.is_clean and mark.point.index < broker.log.dispatched_index

    asyncio.run(story())
