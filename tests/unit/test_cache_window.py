"""The page cache keeps a log's newest bytes; older ones are given back once they are on the disk, and never before."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from node.store.cache_window import STEPS
from node.store.file_store import FileStore
from node.store.log_store import StoreIOError
from node.store.platform import OsPlatform
from tests.unit.store_fixtures import entries_of, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES

KEPT = 2 * DATA_BYTES


class Cache(OsPlatform):
    """Notes what is given back, as (file, from, to), and fails where it is told to."""

    def __init__(self) -> None:
        self.given_back: list[tuple[str, int, int]] = []
        self.names_of: dict[int, str] = {}
        self.refuses = False
        self.sync_fails = False

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.names_of[fd] = path.name
        return fd

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        if self.refuses:
            raise OSError(errno.EINVAL, "not here")
        self.given_back.append((self.names_of[fd], offset, offset + length))

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self.sync_fails:
            raise OSError(errno.EIO, "lost")

    def positions(self) -> list[tuple[int, int]]:
        return [(int(name) + first, int(name) + stop) for name, first, stop in self.given_back]


def fill(store: FileStore, commits: int) -> None:
    for _ in range(commits):
        store.append_as_leader([bytes(300)], 1)
        sync(store)


def test_what_leaves_the_window_is_given_back_once_and_the_newest_bytes_stay(tmp_path: Path) -> None:
    cache = Cache()
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    at = 0
    for _ in range(60):
        fill(store, 1)
        given_back = cache.positions()
        assert all(stop <= max(0, store.durable_position - KEPT) for _, stop in given_back)
        for first, stop in given_back:  # back to back: nothing twice, nothing left out
            assert first == at
            at = stop
        cache.given_back.clear()
        assert store.durable_position - KEPT - at < max(1, KEPT // STEPS)
    assert at > 3 * DATA_BYTES
    assert len(entries_of(store)) == 60
    store.close()


def test_after_a_cut_what_is_written_again_is_given_back_again(tmp_path: Path) -> None:
    cache = Cache()
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    fill(store, 60)
    store.truncate(10, record(store, 10))
    cut_at = store.durable_position
    cache.given_back.clear()
    fill(store, 60)
    positions = cache.positions()
    assert min(first for first, _ in positions) <= cut_at
    assert all(stop <= store.durable_position - KEPT for _, stop in positions)
    assert sum(stop - first for first, stop in positions) > 2 * DATA_BYTES
    store.close()


def test_a_commit_that_fails_gives_nothing_back(tmp_path: Path) -> None:
    cache = Cache()
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    for _ in range(60):
        store.append_as_leader([bytes(300)], 1)
    ticket = store.prepare_sync()
    assert ticket is not None
    cache.sync_fails = True
    with pytest.raises(StoreIOError):
        ticket.run()
    assert cache.given_back == []
    store.close()


def test_a_file_system_that_gives_nothing_back_stops_nobody(tmp_path: Path) -> None:
    cache = Cache()
    cache.refuses = True
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    fill(store, 60)
    assert store.durable_index == 59
    store.close()


def test_without_a_window_the_kernel_decides(tmp_path: Path) -> None:
    cache = Cache()
    store = open_store(tmp_path / "s", platform=cache)
    fill(store, 60)
    assert cache.given_back == []
    store.close()


def test_a_store_that_is_opened_again_goes_on_where_its_window_is(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT)
    fill(store, 60)
    store.close()
    cache = Cache()
    again = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    begun_at = again.durable_position - KEPT
    fill(again, 10)
    assert cache.given_back
    assert min(first for first, _ in cache.positions()) == begun_at
    again.close()
