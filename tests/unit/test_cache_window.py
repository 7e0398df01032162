"""The page cache keeps a log's newest bytes; older ones are dropped once they are on the disk, and never before."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

import pytest

from node.protocol.entry import INDEX_UNIT_BYTES
from node.store.errors import StoreIOError
from node.store.file_store import FileStore
from node.store.files.cache_window import FOLIO_BYTES_MAX, STEPS
from node.store.files.platform import OsPlatform
from tests.unit.store_fixtures import entries_of, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES

KEPT = 2 * DATA_BYTES


class Cache(OsPlatform):
    """Notes what is dropped from the cache, as (folder, file, from, to), and fails where it is told to."""

    def __init__(self) -> None:
        self.dropped: list[tuple[str, str, int, int]] = []
        self.paths: dict[int, Path] = {}
        self.refuses = False
        self.sync_fails = False

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        if self.refuses:
            raise OSError(errno.EINVAL, "not here")
        path = self.paths[fd]
        self.dropped.append((path.parent.name, path.name, offset, offset + length))

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self.sync_fails:
            raise OSError(errno.EIO, "lost")

    def positions(self, kind: str = "data") -> list[tuple[int, int]]:
        found = [(int(name) + first, int(name) + stop) for at, name, first, stop in self.dropped if at == kind]
        return sorted(found)


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
        dropped = cache.positions()
        assert all(stop <= max(0, store.durable_position - KEPT) for _, stop in dropped)
        if dropped:  # nothing is left out between files, nor what lay across the last border
            assert dropped[0][0] <= max(0, at - FOLIO_BYTES_MAX)
            assert all(after[0] == before[1] for before, after in pairwise(dropped))
            at = dropped[-1][1]
        cache.dropped.clear()
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
    cache.dropped.clear()
    fill(store, 60)
    positions = cache.positions()
    assert min(first for first, _ in positions) <= max(0, cut_at - FOLIO_BYTES_MAX)
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
    assert cache.dropped == []
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
    assert cache.dropped == []
    store.close()


def test_a_store_that_is_opened_again_goes_on_where_its_window_is(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s", page_cache_bytes=KEPT)
    fill(store, 60)
    store.close()
    cache = Cache()
    again = open_store(tmp_path / "s", page_cache_bytes=KEPT, platform=cache)
    begun_at = again.durable_position - KEPT
    fill(again, 10)
    assert cache.dropped
    assert min(first for first, _ in cache.positions()) == max(0, begun_at - FOLIO_BYTES_MAX)
    again.close()


def test_the_index_has_a_window_of_its_own(tmp_path: Path) -> None:
    cache = Cache()
    store = open_store(tmp_path / "s", page_cache_bytes=8 * 320, platform=cache)
    fill(store, 200)
    positions = cache.positions("index")
    assert positions
    assert max(stop for _, stop in positions) <= 200 * INDEX_UNIT_BYTES - 320
    assert max(stop for _, stop in positions) > 150 * INDEX_UNIT_BYTES
    store.close()
