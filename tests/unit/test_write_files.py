"""The files of a message store on this machine: what a process that ends in the middle of an operation leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.message_store import write_files
from node.message_store.write_files import OsDisk


class ProcessEnds(BaseException):
    pass


def test_zeroing_never_changes_a_files_length_and_goes_from_the_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_files, "PIECE_BYTES", 1000)
    path, disk, calls = tmp_path / "0", OsDisk(), 0
    pwrite = os.pwrite

    def ends_at(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls -= 1
        if not calls:
            raise ProcessEnds
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", ends_at)
    for cut_at in range(1, 12):
        path.write_bytes(b"x" * 9000)
        calls = cut_at
        try:
            disk.zero_from(path, 40)
        except ProcessEnds:
            done = (cut_at - 1) * 1000
            assert path.read_bytes() == b"x" * (9000 - done) + bytes(done), f"ended at write {cut_at}"
        else:
            assert path.read_bytes() == b"x" * 40 + bytes(8960)
            assert cut_at > 9
    disk.close()


def test_zeroing_leaves_holes(tmp_path: Path) -> None:
    """Also on a full disk the rest of a file can be zeroed."""
    path, disk = tmp_path / "0", OsDisk()
    disk.create(path, 8 << 20)
    disk.write(path, 0, b"x" * 5000)
    disk.sync(path)
    used = path.stat().st_blocks
    disk.zero_from(path, 100)
    disk.sync(path)
    assert path.stat().st_blocks == used
    assert path.read_bytes() == b"x" * 100 + bytes((8 << 20) - 100)
    disk.close()


def test_nothing_behind_the_end_of_a_file_is_zeroed(tmp_path: Path) -> None:
    path, disk = tmp_path / "0", OsDisk()
    disk.create(path, 4096)
    disk.zero_from(path, 4096)
    assert path.read_bytes() == bytes(4096)
    disk.close()
