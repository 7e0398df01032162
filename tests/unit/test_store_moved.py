"""An engine whose directory was taken from under it confirms nothing more: the next start would not find it (S1)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from node.engine.disk import Disk
from node.engine.process import Process
from node.protocol.codes import FlushMode
from node.store.errors import StoreIOError, StoreMoved
from node.store.faults.known_faults import FAULTS
from node.store.faults.results import Fault
from node.store.file_store import FileStore
from tests.unit.store_fixtures import fill, kill, open_store, record, sync
from tests.unit.test_disk_reads import never

Taken = Callable[[Path], None]


def removed(directory: Path) -> None:
    shutil.rmtree(directory)


def renamed(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def parent_renamed(directory: Path) -> None:
    directory.parent.rename(directory.parent.with_name("elsewhere"))


def empty_in_place(directory: Path) -> None:
    renamed(directory)
    directory.mkdir()


def copy_in_place(directory: Path) -> None:
    renamed(directory)
    shutil.copytree(directory.with_name("elsewhere"), directory)


def older_files_in_place(directory: Path) -> None:
    """As a tool does that brings back a copy and takes a file that is empty in both, such as `lock`, for the same."""
    for path in [one for one in directory.rglob("*") if one.is_file() and one.name != "lock"]:
        beside = path.with_name(f"{path.name}.older")
        shutil.copyfile(path, beside)
        beside.replace(path)


def log_removed(directory: Path) -> None:
    for path in (directory / "data").iterdir():
        path.unlink()


WAYS = pytest.mark.parametrize(
    "take", [removed, renamed, parent_renamed, empty_in_place, copy_in_place, older_files_in_place, log_removed]
)


def opened(tmp_path: Path) -> tuple[FileStore, Path]:
    """A store with durable entries, in a directory that has a parent of its own."""
    directory = tmp_path / "data" / "dledger-n0"
    store = open_store(directory)
    fill(store, 1, 8)
    sync(store)
    return store, directory


@WAYS
def test_nothing_becomes_durable_any_more(tmp_path: Path, take: Taken) -> None:
    store, directory = opened(tmp_path)
    durable = store.durable_index
    take(directory)
    fill(store, 1, 8)
    ticket = store.prepare_sync()
    assert ticket is not None
    with pytest.raises(StoreMoved, match="not the directory any more"):
        ticket.run()
    assert store.durable_index == durable
    later = store.prepare_checkpoint()
    assert later is not None
    with pytest.raises(StoreIOError):  # also where the directory is back by then (S1: never tried again)
        later.run()
    kill(store)


@WAYS
def test_no_vote_is_given_and_nothing_is_cut(tmp_path: Path, take: Taken) -> None:
    store, directory = opened(tmp_path)
    take(directory)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreMoved):
        store.save_hard_state(store.hard_state)
    with pytest.raises(StoreIOError):
        store.truncate(3, record(store, 3))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    kill(store)


@WAYS
def test_what_is_damaged_is_not_written_over_anothers_word(tmp_path: Path, take: Taken) -> None:
    """A copy has its own list, and its start looks at nothing else that is old."""
    store, directory = opened(tmp_path)
    store.note_faults([Fault(2, 2, "crc_invalid")])
    take(directory)
    with pytest.raises(StoreMoved):
        store.save_faults()
    assert not list(tmp_path.rglob(FAULTS))
    kill(store)


@WAYS
def test_a_stop_says_that_it_was_no_clean_one(tmp_path: Path, take: Taken) -> None:
    store, directory = opened(tmp_path)
    take(directory)
    assert not store.is_in_place()
    with pytest.raises(StoreMoved):
        store.close()


def test_a_file_that_the_log_itself_gives_up_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may look between a file's end and that of its name."""
    store, _ = opened(tmp_path)
    fill(store, 1, 100)
    looked: list[bool] = []
    unlink = store.files.platform.remove_large

    def removes(path: Path) -> None:
        unlink(path)
        looked.append(store.is_in_place())

    monkeypatch.setattr(store.files.platform, "remove_large", removes)
    store.truncate(3, record(store, 3))
    assert any(looked) and all(looked) and store.is_in_place()
    store.close()


def test_a_directory_that_was_renamed_and_put_back_is_the_same(tmp_path: Path) -> None:
    store, directory = opened(tmp_path)
    renamed(directory)
    directory.with_name("elsewhere").rename(directory)
    fill(store, 1, 8)
    assert sync(store) == store.end_index
    store.close()


@pytest.mark.parametrize(("error", "in_place"), [(errno.ENOENT, False), (errno.EACCES, True), (errno.EIO, True)])
def test_a_path_that_cannot_be_looked_at_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, in_place: bool
) -> None:
    """A directory above that may not be searched takes nothing away, and what a disk lost is said by its sync."""

    def path_key(_path: Path) -> tuple[int, int]:
        raise OSError(error, os.strerror(error))

    store, _ = opened(tmp_path)
    monkeypatch.setattr(store.files.platform, "path_key", path_key)
    assert store.is_in_place() == in_place
    kill(store)


@WAYS
def test_an_idle_engine_ends_too(tmp_path: Path, take: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it confirmed before would not be found by the next start either."""
    monkeypatch.setattr("node.engine.disk.PLACE_LOOK_S", 0.001)
    store, directory = opened(tmp_path)

    async def story() -> str:
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        process = Process()
        disk = Disk(
            store, FlushMode.SYNC, log_epoch=lambda: 1, flushed=never, truncated=never, begun=never, mended=never,
            damaged=never, fail=failed.set_result, process=process,
        )  # fmt: skip
        disk.watch_place()
        take(directory)
        reason = await asyncio.wait_for(failed, 30)
        disk.close()
        process.close()
        return reason

    assert "not the one any more" in asyncio.run(story())
    kill(store)
