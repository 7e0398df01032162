"""Of a classic broker's commit log the newest bytes stay in the page cache, the others go once they are on the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from node.ha.keeper import StoreKeeper
from node.message_store.local_flush import FlushMode
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.newest_pages import FOLIO_BYTES_MAX, STEPS, NewestPages
from node.message_store.write_files import OsDisk
from tests.unit.classic_kit import story
from tests.unit.test_ha_sockets import SIZES, message

FILE_BYTES = 8 << 20
KEEP_BYTES = STEPS * 1000
Dropped = list[tuple[str, int, int]]


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> Dropped:
    found: Dropped = []

    def fadvise(fd: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        found.append((Path(os.readlink(f"/proc/self/fd/{fd}")).name, offset, offset + length))

    monkeypatch.setattr(os, "posix_fadvise", fadvise)
    return found


def test_what_leaves_the_window_goes_in_steps_and_over_files(tmp_path: Path, dropped: Dropped) -> None:
    names = [f"{start:020d}" for start in (0, FILE_BYTES, 2 * FILE_BYTES)]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    pages, disk = NewestPages(tmp_path, FILE_BYTES, 0), OsDisk()
    pages.leaving(9_000_000)(disk)
    assert dropped == []  # 0: as long as the kernel likes
    pages.keep_bytes = KEEP_BYTES
    for end in (999, 1000, 1998, KEEP_BYTES + 5000):
        pages.leaving(end)(disk)
    assert dropped == [(names[0], 0, 5000)]
    dropped.clear()
    end = FILE_BYTES + KEEP_BYTES + 70_000
    pages.leaving(end)(disk)
    assert dropped == [(names[0], 0, FILE_BYTES), (names[1], 0, 70_000)]
    dropped.clear()
    pages.leaving(end - 50_000)(disk)  # it was cut: what is written anew leaves anew
    assert dropped == []
    pages.leaving(end + 3 * FOLIO_BYTES_MAX)(disk)
    begin = end - 50_000 - KEEP_BYTES - FOLIO_BYTES_MAX
    assert dropped[0] == (names[0], begin, FILE_BYTES) and dropped[-1][0] == names[1]
    (tmp_path / names[1]).unlink()
    pages.leaving(end + 4 * FOLIO_BYTES_MAX)(disk)  # it has expired


@story
async def test_a_keeper_drops_what_its_flush_has_synced(tmp_path: Path, dropped: Dropped) -> None:
    settings = LocalSettings(file_bytes=65_536, flush=FlushMode.SYNC_FLUSH, sizes=SIZES)
    store = LocalMessageStore(tmp_path, settings, lambda: 1_795_000_000_000)
    store.become_master()
    keeper = StoreKeeper(store)
    keeper.pages.keep_bytes = 6_400
    running = asyncio.create_task(keeper.run())
    for number in range(400):
        await keeper.put(message(number))
    assert dropped and max(int(name) + upto for name, _begin, upto in dropped) <= store.log.flushed_offset - 6_400
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    store.close()
