"""A back-up, or a restore, that ends anywhere: there is the one from before, or the new one, never half of one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from node.store.backup.manifest import Manifest, check_files, read_manifest
from node.store.backup.restoring import Birth, restore_group, restore_member
from node.store.backup.trial import try_restore
from node.store.files.platform import OsPlatform
from node.store.reader import StoreReader
from tests.unit.backup_kit import TOKEN, add, back_up, make_member


class Crashed(BaseException):
    """The process is gone."""


class Crashing(OsPlatform):
    """Ends the process at the n-th step that changes something."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.steps = 0

    def _step(self) -> None:
        self.steps += 1
        self.left -= 1
        if self.left == 0:
            raise Crashed

    def open(self, path: Path, flags: int) -> int:
        if flags & 0o100:  # O_CREAT
            self._step()
        return super().open(path, flags)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        self._step()
        return OsPlatform.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._step()
        OsPlatform.fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:  # type: ignore[override]
        self._step()
        OsPlatform.ftruncate(fd, length)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self._step()
        super().remove_tree(path)

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


def crash_everywhere(work: Callable[[OsPlatform], object], check: Callable[[bool], None], stride: int = 1) -> int:
    """`work` ended at each step in turn; `check(done)` after each, and at last after it was let through."""
    at = 1
    while True:
        platform = Crashing(at)
        try:
            work(platform)
        except Crashed:
            check(False)
            at += stride
            continue
        check(True)
        return platform.steps


def test_a_run_that_ends_anywhere(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 10)
    first = back_up(tmp_path / "a", tmp_path / "b")
    add(store, 1, 10, seed=2)
    shutil.copytree(tmp_path / "b", tmp_path / "before")
    assert first.log is not None
    ends: set[int] = set()

    def work(platform: OsPlatform) -> None:
        shutil.rmtree(tmp_path / "b")
        shutil.copytree(tmp_path / "before", tmp_path / "b")
        back_up(tmp_path / "a", tmp_path / "b", platform)

    def check(_done: bool) -> None:
        found = read_manifest(tmp_path / "b")
        assert found is not None and found.log is not None and found.log.end_index in (9, 19)
        check_files(tmp_path / "b", found)
        ends.add(found.log.end_index)
        again = back_up(tmp_path / "a", tmp_path / "b")
        assert again.log is not None and again.log.end_index == store.end_index
        names = {path.name for path in (tmp_path / "b/entries").iterdir()}
        assert names == {piece.name for piece in again.log.pieces}

    assert crash_everywhere(work, check) > 8
    assert ends == {9, 19}
    found = read_manifest(tmp_path / "b")
    assert found is not None
    assert try_restore(tmp_path / "b", found, tmp_path / "b") is not None
    store.close()


def test_a_first_run_that_ends_anywhere(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 10)

    def work(platform: OsPlatform) -> None:
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        back_up(tmp_path / "a", tmp_path / "b", platform)

    def check(done: bool) -> None:
        found = read_manifest(tmp_path / "b")
        assert done <= (found is not None)
        again = back_up(tmp_path / "a", tmp_path / "b")
        assert again.log is not None and again.log.end_index == store.end_index
        check_files(tmp_path / "b", again)

    assert crash_everywhere(work, check) > 8
    store.close()


@pytest.fixture
def made(tmp_path: Path) -> Manifest:
    make_member(tmp_path / "a", 1, 10).close()
    return back_up(tmp_path / "a", tmp_path / "b")


def test_a_group_s_restore_that_ends_anywhere(tmp_path: Path, made: Manifest) -> None:
    into, birth, log = tmp_path / "new", Birth("again", TOKEN, ("n0", "n1")), made.log
    assert log is not None

    def work(platform: OsPlatform) -> None:
        restore_group(tmp_path / "b", log, into, birth, lambda _data: None, platform)

    def check(done: bool) -> None:
        assert done <= into.exists()
        if into.exists():
            for node_id in birth.voters:
                assert StoreReader(into / node_id / f"dledger-{node_id}").end_index == 10
            shutil.rmtree(into)

    assert crash_everywhere(work, check, stride=19) > 50


def test_a_member_s_restore_that_ends_anywhere(tmp_path: Path, made: Manifest) -> None:
    data, log = tmp_path / "m", made.log
    assert log is not None

    def work(platform: OsPlatform) -> None:
        restore_member(tmp_path / "b", log, data, "n1", Birth("g"), lambda _data: None, platform)

    def check(done: bool) -> None:
        named = data / "dledger-n1"
        assert done <= named.exists()
        if named.exists():
            assert StoreReader(named).end_index == 9
            shutil.rmtree(data)

    assert crash_everywhere(work, check, stride=7) > 30
