"""Large files that are removed: the name goes at once, the space bit by bit, and never under somebody's eyes (S4)."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from node.store.files import space_release
from node.store.files.platform import OS
from node.store.files.space_release import SpaceRelease

BYTES = 4096 * 10
WITHIN_S = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Files of some pages are large here; the sizes to which files were shortened."""
    sizes: list[int] = []
    truncate = os.ftruncate

    def shorten(fd: int, size: int) -> None:
        sizes.append(size)
        truncate(fd, size)

    monkeypatch.setattr(space_release, "LARGE_BYTES", 8192)
    monkeypatch.setattr(space_release, "STEP_BYTES", 16384)
    monkeypatch.setattr(space_release.os, "ftruncate", shorten)
    return sizes


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def made(path: Path) -> Path:
    path.write_bytes(b"x" * BYTES)
    return path


def test_the_name_goes_at_once_and_the_space_in_steps(tmp_path: Path, small: list[int]) -> None:
    release = SpaceRelease()
    release.remove(made(tmp_path / "a"), Path.unlink)
    assert not (tmp_path / "a").exists()
    until(lambda: release.pending_bytes == 0)
    assert small == [BYTES - 16384, BYTES - 2 * 16384, 0]


def test_what_another_one_has_open_or_mapped_stays_whole(tmp_path: Path, small: list[int]) -> None:
    release = SpaceRelease()
    path = made(tmp_path / "a")
    fd = os.open(path, os.O_RDONLY)
    view = mmap.mmap(fd, BYTES, prot=mmap.PROT_READ)
    release.remove(path, Path.unlink)
    release.remove(made(tmp_path / "b"), Path.unlink)
    until(lambda: release.pending_bytes == BYTES)  # the other one is free
    assert os.pread(fd, BYTES, 0) == view[:] == b"x" * BYTES and len(small) == 3
    os.close(fd)
    time.sleep(3 * space_release.LOOK_S)
    assert view[:] == b"x" * BYTES, "a mapping alone holds it, too"
    view.close()
    until(lambda: release.pending_bytes == 0)
    assert len(small) == 6


def test_who_keeps_it_open_frees_it_at_last(tmp_path: Path, small: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_release, "ALONE_WITHIN_S", 0.0)
    release = SpaceRelease()
    path = made(tmp_path / "a")
    with path.open("rb") as reader:
        release.remove(path, Path.unlink)
        until(lambda: release.pending_bytes == 0)
        assert reader.read() == b"x" * BYTES and small == []


def test_what_has_another_name_is_not_shortened(tmp_path: Path, small: list[int]) -> None:
    """An archive has a log's files under a second name."""
    release = SpaceRelease()
    os.link(made(tmp_path / "a"), tmp_path / "archived")
    release.remove(tmp_path / "a", OS.unlink)
    assert release.pending_bytes == 0 and (tmp_path / "archived").read_bytes() == b"x" * BYTES and small == []


def test_small_ones_and_those_that_are_gone(tmp_path: Path, small: list[int]) -> None:
    release = SpaceRelease()
    (tmp_path / "a").write_bytes(b"x")
    release.remove(tmp_path / "a", OS.unlink)
    release.remove(tmp_path / "a", OS.unlink)
    assert not (tmp_path / "a").exists() and release.pending_bytes == 0 and small == []
    with pytest.raises(OSError, match="directory"):
        release.remove(tmp_path, OS.unlink)


def test_the_platform_removes_files_and_trees_so(tmp_path: Path, small: list[int]) -> None:
    folder = tmp_path / "snapshot_7"
    folder.mkdir()
    made(folder / "data")
    OS.remove_tree(folder)
    OS.remove_large(made(tmp_path / "a"))
    assert not folder.exists() and not (tmp_path / "a").exists()
    until(lambda: OS.space_coming_bytes() == 0)
    assert small.count(0) == 2
