"""A file system that fills up under the real store: what is refused leaves nothing, and what was held goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from node.store.file_store import FileStore
from node.store.log_store import StoreFull
from node.store.platform import OsPlatform

DATA_BYTES = 64 * 1024
INDEX_BYTES = 32 * 64


class FillingDisk(OsPlatform):
    """While `full`, nothing can be written where no space was taken before; what has its space can be overwritten."""

    def __init__(self) -> None:
        self.full = False

    def _check(self, fd: int, offset: int, length: int) -> None:
        if not self.full:
            return
        try:
            data_at = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError:
            data_at = -1
        if data_at != offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        self._check(fd, offset, len(data))
        return os.pwrite(fd, data, offset)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        """Space is taken only by what is written: a disk whose last bytes another process takes."""
        self._check(fd, offset, length)


def open_store(directory: Path, platform: FillingDisk) -> FileStore:
    return FileStore.open(
        directory, group="g", node_id="n0", data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
        platform=platform,
    )  # fmt: skip


@pytest.mark.parametrize("body_bytes", [100, 700, 5000, 20_000])
def test_a_refused_append_leaves_nothing_and_the_store_goes_on(tmp_path: Path, body_bytes: int) -> None:
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    held: list[bytes] = []
    refused = 0
    for round_ in range(40):
        disk.full = round_ % 2 == 1
        for number in range(1 + 30_000 // body_bytes):
            body = b"%d:%d:" % (round_, number) + bytes([65 + round_ % 26]) * body_bytes
            try:
                store.append_as_leader([body], 1)
            except StoreFull:
                refused += 1
                break
            held.append(body)
        assert not store.failed
        assert store.end_index == len(held) - 1
    disk.full = False
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.close()
    assert refused > 10
    again = open_store(tmp_path / "store", disk)
    assert [again.get(index).body for index in range(again.end_index + 1)] == held  # type: ignore[union-attr]
    again.close()
