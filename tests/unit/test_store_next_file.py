"""The file that a log goes on in is made ahead: an append that begins one waits for no disk (SAFETY S4, S9)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from node.store.file_store import FileStore
from node.store.files.next_file import NextFile
from node.store.files.platform import OsPlatform
from node.store.files.segment_list import SegmentList
from tests.unit.store_fixtures import entries_of, kill, open_store, sync

BODY = b"x" * 500


class Noting(OsPlatform):
    """Notes what is synced, by name; can refuse to make files."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.is_full = False
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        if self.is_full and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.synced.append(self._paths[fd].name)
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.synced.append(self._paths[fd].name)
        os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        self.synced.append(path.name)
        super().sync_directory(path)


def names(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory / "data") if name.isdigit())


def until_the_next_file(store: FileStore, directory: Path) -> None:
    """Appends and syncs, one at a time, up to the append that begins another data file, which is not synced."""
    files = names(directory)
    for _ in range(20):
        store.append_as_leader([BODY], 1)
        if names(directory) != files:
            return
        sync(store)
    raise AssertionError("no second file")


def test_an_append_that_begins_a_file_waits_for_no_disk(tmp_path: Path) -> None:
    platform = Noting()
    store = open_store(tmp_path, platform=platform)
    platform.synced.clear()
    store.append_as_leader([BODY], 1)
    assert platform.synced == [], "nor does the first one"
    sync(store)
    until_the_next_file(store, tmp_path)
    before = store.durable_index
    assert "next-data" in platform.synced and store.end_index == before + 1
    platform.synced.clear()
    ticket = store.prepare_sync()
    assert ticket is not None and platform.synced == []
    ticket.run()
    assert {"data", *names(tmp_path)} <= set(platform.synced), "its name and its bytes"
    assert store.finish_sync(ticket) == store.end_index
    platform.synced.clear()
    store.append_as_leader([BODY], 1)
    sync(store)
    assert "data" not in platform.synced, "once for each file"
    store.close()
    assert not list(tmp_path.glob("next-*")), "what was made for nothing goes"


def test_without_one_an_append_makes_the_file_itself_and_is_counted(tmp_path: Path) -> None:
    platform = Noting()
    store = open_store(tmp_path, platform=platform)
    store.append_as_leader([BODY] * 20, 1)
    held = entries_of(store)
    assert len(names(tmp_path)) == 3
    assert store.files.data.made_late == 2, "the first one was made when the store was opened"
    assert store.files_made_late == 2 and store.files.index.made_late == 0
    kill(store)
    again = open_store(tmp_path)
    assert entries_of(again) == held
    again.close()


def test_a_leftover_is_never_used(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([BODY], 1)
    sync(store)
    held = entries_of(store)
    kill(store)
    first = tmp_path / "data" / names(tmp_path)[0]
    (tmp_path / "next-data").unlink(missing_ok=True)
    os.link(first, tmp_path / "next-data")  # a power cut kept the old name beside the new one
    again = open_store(tmp_path)
    until_the_next_file(again, tmp_path)
    assert entries_of(again)[:1] == held and os.stat(first).st_nlink == 1
    assert not os.path.samefile(first, tmp_path / "data" / names(tmp_path)[1])
    again.close()


def test_a_full_disk_is_met_by_who_writes(tmp_path: Path) -> None:
    platform = Noting()
    row = SegmentList(tmp_path, "data", 4096, platform=platform)
    row.open()
    platform.is_full = True
    row.next_file.make()
    assert row.needs_next(0) and not row.next_file.is_there
    platform.is_full = False
    row.next_file.make()
    assert row.next_file.is_there and not row.needs_next(0)
    row.close()


@pytest.mark.parametrize("pos", [0, 4096])
def test_it_has_its_full_length_and_is_taken_once(tmp_path: Path, pos: int) -> None:
    one = NextFile(tmp_path / "next-data", 4096, OsPlatform())
    assert not one.take(tmp_path / f"{pos:020d}")
    one.make()
    assert one.take(tmp_path / f"{pos:020d}") and not one.take(tmp_path / "other")
    assert (tmp_path / f"{pos:020d}").stat().st_size == 4096
