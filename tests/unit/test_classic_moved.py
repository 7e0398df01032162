"""A classic broker whose directory was taken from under it confirms nothing more: its next start would not find it."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.broker.classic import process
from node.config import Settings, split_address
from node.ha import keeper
from node.ha.keeper import StoreKeeper
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import StoreMoved
from node.message_store.local_log import LocalCommitLog
from node.message_store.local_next import NextFile
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.read_files import OS
from node.message_store.write_files import OsDisk
from node.rereading import Rereading
from node.rocketmq.codes import Answer
from tests.unit.broker_kit import SIZES, Client
from tests.unit.classic_kit import classic, classic_settings, pair_ports, story
from tests.unit.ha_kit import FILE_BYTES, put

Taken = Callable[[Path], None]


def renamed(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def removed(directory: Path) -> None:
    renamed(directory)  # at once: a thread may be making a file in it
    shutil.rmtree(directory.with_name("elsewhere"))


def copy_in_place(directory: Path) -> None:
    renamed(directory)
    beside = directory.with_name("beside")
    shutil.copytree(directory.with_name("elsewhere"), beside)
    beside.rename(directory)  # at once: in half a copy a thread may be making a file


def log_in_place(directory: Path) -> None:
    """As a tool does that brings back a copy and takes `lock`, which is the same in both, for no other file."""
    for path in (directory / "commitlog").iterdir():
        beside = path.with_name(f"{path.name}.older")
        shutil.copyfile(path, beside)
        beside.replace(path)


def log_removed(directory: Path) -> None:
    for path in (directory / "commitlog").iterdir():
        path.unlink()


WAYS = pytest.mark.parametrize("take", [removed, renamed, copy_in_place, log_in_place, log_removed])


def settings_of(root: Path) -> Settings:
    return classic_settings(root, "m", "async_master", pair_ports("m"), **{"node.flush": "sync"})


@WAYS
def test_nothing_is_confirmed_any_more(tmp_path: Path, take: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PLACE_LOOK_MS", 1 << 40)

    @story
    async def sent() -> None:
        async with classic(settings_of(tmp_path)) as master, master.client() as client:
            assert [one.code for one in await client.send(b"before")] == [Answer.SUCCESS]
            take(tmp_path / "m")
            assert [one.code for one in await client.send(b"after")] != [Answer.SUCCESS]
            await asyncio.wait([master.running])
            assert isinstance(master.running.exception(), StoreMoved)

    with pytest.raises(OSError):  # and it ends
        sent()


@WAYS
def test_one_that_has_nothing_to_do_ends_too(tmp_path: Path, take: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it confirmed before would not be found by its next start either."""
    monkeypatch.setattr(keeper, "PLACE_LOOK_MS", 1)
    why: list[BaseException | None] = []

    @story
    async def idle() -> None:
        async with classic(settings_of(tmp_path)) as master, master.client() as client:
            await client.send(b"before")
            take(tmp_path / "m")
            await asyncio.wait([master.running], timeout=20)
            why.append(master.running.exception())

    with pytest.raises(OSError):  # it ended, and its tables find no directory either
        idle()
    assert isinstance(why[0], StoreMoved) and re.search("is not the (directory|file) any more", str(why[0]))


@WAYS
def test_its_process_says_so_and_leaves_alone_what_is_there_now(
    tmp_path: Path, take: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started again by itself it would be the master of another, empty log."""
    monkeypatch.setattr(keeper, "PLACE_LOOK_MS", 1)
    settings, directory = settings_of(tmp_path), tmp_path / "m"

    def there() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    @story
    async def served() -> None:
        listens, never = asyncio.Event(), asyncio.create_task(asyncio.Event().wait())
        log: Any = SimpleNamespace(note=lambda kind, *_more, **_fields: listens.set() if kind == "listening" else None)
        serving = asyncio.create_task(process.serve(settings, log, never, Rereading()))
        await listens.wait()
        reader, writer = await asyncio.open_connection(*split_address(settings.broker.address))
        await Client(reader, writer).send(b"before")
        take(directory)
        before = there()
        try:
            await serving
        finally:
            writer.close()
            assert before.items() <= there().items()

    with pytest.raises(StoreMoved, match=r"was removed, renamed or replaced.*it is a slave"):
        served()


def test_the_next_file_makes_no_directory_that_is_gone_again(tmp_path: Path) -> None:
    """Whoever moves it back would move it into that one."""
    root = tmp_path / "m"
    for folder in (root / "commitlog", root / OURS):
        folder.mkdir(parents=True)
    ahead = NextFile(root, root / "commitlog", 4096, OsDisk(), OS)
    renamed(root)
    with pytest.raises(StoreMoved):
        ahead.make(OsDisk())
    assert not root.exists()


@story
async def test_one_that_was_renamed_and_put_back_is_the_same(tmp_path: Path) -> None:
    async with classic(settings_of(tmp_path)) as master, master.client() as client:
        renamed(tmp_path / "m")
        (tmp_path / "elsewhere").rename(tmp_path / "m")
        assert [one.code for one in await client.send(b"after")] == [Answer.SUCCESS]


@story
async def test_a_log_that_is_cut_while_it_is_looked_for_was_not_taken_away(tmp_path: Path) -> None:
    """The cut removes its newest files. Who looked for one just then took it for moved: the slave ended for good."""
    log = LocalCommitLog(tmp_path, FILE_BYTES)
    end = put(log, 0)
    put(log, *range(1, 40))
    log.close()
    settings = LocalSettings(FILE_BYTES, sizes=SIZES)
    store = LocalMessageStore(tmp_path, settings, lambda: 0)
    store.flush()
    looks, was_cut = threading.Event(), threading.Event()

    def look() -> None:
        looks.set()
        was_cut.wait(0.2)

    def cut() -> int:
        gone = store.cut_back(end)
        was_cut.set()
        return gone

    kept = StoreKeeper(store, check_place=look)
    looking = asyncio.create_task(kept._look_at_place())
    await asyncio.to_thread(looks.wait)
    assert await kept.exclusively(cut)
    await looking
    assert len(store.log.starts) == 1 and not store.log.broken_by
    await kept._look_at_place()
    store.close()
