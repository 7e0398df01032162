"""Pages that the disk cannot read any more: damage of the entries there, healed from a peer; no end of the engine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from node.store.errors import StoreCorrupt, StoreIOError
from node.store.file_store import FileStore
from node.store.files.platform import OsPlatform
from node.store.reader import StoreReader
from node.store.repair.tools import scrub_all
from tests.unit.store_fixtures import fill, open_store, sync

SIZES = {"data_file_size": 65536, "index_file_size": 32 * 1024}
PAGE = 4096
FILE = "0" * 20


class LostPages(OsPlatform):
    """Reading a lost page is EIO; so is writing a part of it, for which it is read first. Written whole it is well."""

    def __init__(self) -> None:
        self.lost: set[tuple[str, int]] = set()
        self._paths: dict[int, str] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = f"{path.parent.name}/{path.name}"
        return fd

    def _hit(self, fd: int, low: int, high: int) -> list[tuple[str, int]]:
        pages = range(low // PAGE, -(-high // PAGE))
        return [one for one in self.lost if one[0] == self._paths.get(fd) and one[1] in pages]

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        if self._hit(fd, offset, offset + length):
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        for one in self._hit(fd, offset, offset + len(data)):
            if one[1] * PAGE < offset or (one[1] + 1) * PAGE > offset + len(data):
                raise OSError(errno.EIO, "Input/output error")
            self.lost.discard(one)
        return os.pwrite(fd, data, offset)


def stored(directory: Path, platform: LostPages) -> FileStore:
    store = open_store(directory, platform=platform, **SIZES)
    if store.end_index < 0:
        fill(store, 2, 150)
        sync(store)
    return store


@pytest.mark.parametrize("folder", ["data", "index"])
def test_only_the_entries_on_a_lost_page_are_damaged_and_a_peer_heals_them(tmp_path: Path, folder: str) -> None:
    """The scrub, and each read for a peer, ended the engine: over and over, for one bad sector among gigabytes."""
    platform = LostPages()
    store, peer = stored(tmp_path / "dledger-n0", platform), stored(tmp_path / "peer", LostPages())
    platform.lost.add((f"{folder}/{FILE}", 1))
    scrub_all(store)
    (fault,) = store.faults
    assert 0 < fault.first_index <= fault.last_index < 299
    assert "the disk cannot read 4096 bytes at 4096 of" in fault.detail
    first, last = fault.first_index, fault.last_index
    assert store.read_slab(0, 1 << 20).last_index == first - 1
    assert store.read_slab(last + 1, 1 << 20).first_index == last + 1
    with pytest.raises(StoreCorrupt):
        store.read_slab(first, 1 << 20)
    at = first
    while at <= last:
        slab = peer.read_slab(at, 1 << 20)
        done = store.mend(slab if slab.last_index <= last else cut_to(peer, at, last))
        assert done.mended_through >= at, done.detail
        at = done.mended_through + 1
    assert store.faults == () and platform.lost == set()
    assert [store.get(index) for index in range(300)] == [peer.get(index) for index in range(300)]
    store.close()
    peer.close()


def cut_to(store: FileStore, first: int, last: int) -> object:
    """A slab that ends at `last`."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if store.read_slab(first, middle).last_index <= last else (low, middle - 1)
    return store.read_slab(first, low)


def test_verify_names_the_entries_that_cannot_be_read(tmp_path: Path) -> None:
    """It ended at the first bad sector, and said nothing of any entry."""
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    platform.lost.add((f"data/{FILE}", 1))
    problems = StoreReader(tmp_path / "dledger-n0", platform=platform).verify().problems
    assert problems and all(one.index is not None and 0 < one.index < 299 for one in problems)


def test_raw_bytes_are_never_made_up(tmp_path: Path) -> None:
    """What stands for a lost page inside the store must not leave it as if the disk had said it."""
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    platform.lost.add((f"data/{FILE}", 1))
    reader = StoreReader(tmp_path / "dledger-n0", platform=platform)
    with pytest.raises(StoreIOError, match="Input/output error"):
        reader.read_segment("data", FILE, 0, 3 * PAGE)
