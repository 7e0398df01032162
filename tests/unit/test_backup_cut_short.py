"""A back-up or a restore whose disk refuses a step, or whose member goes silent: drawn step by step, then run again.

Whatever ends it is said in a word that the command knows, what was there before still is, nothing half has a name, and
the next run needs no hand.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from app.backup import sets
from app.backup.run import What
from app.backup.run import back_up as whole_run
from app.backup.source import DirectorySource, SourceError
from app.backup.taking import BackupRefused
from node.snapshots.directory import SnapshotMeta, SnapshotWriter, newest_index
from node.store.backup.manifest import Manifest, check_files, read_manifest
from node.store.backup.restoring import Birth, alone_at, restore_group, restore_member
from node.store.errors import StoreError
from node.store.files.platform import OsPlatform
from node.store.reader import StoreReader
from tests.unit import backup_kit
from tests.unit.backup_kit import TOKEN, add, back_up, make_member
from tests.unit.test_backup_crash_points import Crashed as Killed
from tests.unit.test_backup_crash_points import Crashing

SAID = (StoreError, BackupRefused, SourceError, OSError)  # what `backup` and `restore` end with a sentence for
HOW = [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.long), 0]


class Refusing(Crashing):
    """The disk refuses the n-th step that changes something, once; 0: the process is killed there."""

    def __init__(self, at: int, how: int) -> None:
        super().__init__(at)
        self.how = how
        self.held: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.held.add(fd)
        return fd

    def close(self, fd: int) -> None:  # type: ignore[override]
        self.held.discard(fd)
        OsPlatform.close(fd)

    def end(self) -> None:
        """What the end of a process lets go of, locks among it."""
        for fd in list(self.held):
            self.close(fd)

    def _step(self) -> None:
        try:
            super()._step()
        except Killed:
            if not self.how:
                raise
            raise OSError(self.how, "refused") from None


def at_each_step(how: int, work: Callable[[OsPlatform], object], check: Callable[[bool], None]) -> int:
    at = 1
    while True:
        platform = Refusing(at, how)
        try:
            work(platform)
            done = True
        except (Killed, *SAID) as error:
            assert platform.left <= 0, f"what was left of step {at - 1} is in the way: {error}"
            done = False
        check(done)
        if platform.left > 0:
            return platform.steps
        at += 1


@pytest.mark.parametrize("how", HOW)
def test_one_of_several_sets(tmp_path: Path, how: int) -> None:
    """With `--keep 1` there is a sound one at every moment."""
    root, member = tmp_path / "sets", tmp_path / "a"
    make_member(member, 1, 10).close()

    def work(platform: OsPlatform) -> None:
        sets.add_set(root, 1, lambda part: {"end": end_of(back_up(member, part, platform))}, platform)

    def check(_done: bool) -> None:
        newest = sets.newest_in(root)
        found = read_manifest(newest)
        assert found is not None and end_of(found) == 9
        check_files(newest, found)

    work(OsPlatform())
    assert at_each_step(how, work, check) > 15
    work(OsPlatform())
    assert {path.name for path in root.iterdir()} - {"lock"} == {sets.newest_in(root).name}


def end_of(made: Manifest) -> int:
    assert made.log is not None
    return made.log.end_index


@pytest.mark.parametrize("how", HOW)
def test_a_run_that_adds_to_a_back_up(tmp_path: Path, how: int) -> None:
    store = make_member(tmp_path / "a", 1, 10)
    back_up(tmp_path / "a", tmp_path / "before")
    add(store, 1, 10, seed=2)
    store.close()

    def work(platform: OsPlatform) -> None:
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "before", tmp_path / "b")
        back_up(tmp_path / "a", tmp_path / "b", platform)

    def check(done: bool) -> None:
        found = read_manifest(tmp_path / "b")
        assert found is not None and end_of(found) in ((19,) if done else (9, 19))
        check_files(tmp_path / "b", found)
        assert end_of(back_up(tmp_path / "a", tmp_path / "b")) == 19

    assert at_each_step(how, work, check) > 8


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("is_group", [True, False])
def test_a_restore(tmp_path: Path, how: int, is_group: bool) -> None:
    """With a snapshot: of the state, too, there is all or nothing."""
    store = make_member(tmp_path / "a", 1, 40, kind="kv")
    store.remove_prefix(20)
    writer = SnapshotWriter(store.directory)
    writer.write(b"state")
    writer.commit(SnapshotMeta(store.begin_index + 5, 3))
    saved = store.begin_index + 5
    store.close()
    whole_run(What(data=tmp_path / "a"), tmp_path / "b", lambda _entries, _bytes: None)
    made = read_manifest(tmp_path / "b")
    assert made is not None and made.log is not None
    log, target = made.log, tmp_path / "place/new"
    ids = ("n0", "n1") if is_group else ("n1",)

    def work(platform: OsPlatform) -> None:
        with alone_at(target, is_group=is_group):
            if is_group:
                restore_group(tmp_path / "b", log, target, Birth("x", TOKEN, ids), lambda _data: None, platform)
            else:
                restore_member(tmp_path / "b", log, target, "n1", Birth("g"), lambda _data: None, platform)

    def check(done: bool) -> None:
        folders = [target / one / f"dledger-{one}" for one in ids] if is_group else [target / "dledger-n1"]
        there = [one for one in folders if one.exists()]
        assert there in ([], folders) and done <= bool(there)
        for one in there:
            assert (StoreReader(one).end_index, newest_index(one)) == (log.end_index + is_group, saved)
            assert StoreReader(one).verify().problems == []
        if there:
            shutil.rmtree(target)
        if how and not there:
            assert not [path for path in tmp_path.rglob(".restoring*/**/*") if path.is_file()], "it leaves a copy"

    assert at_each_step(how, work, check) > 40


class Silent(DirectorySource):
    """A member that gives no more answer from the n-th question on."""

    left = 10**9

    def _asked(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise SourceError("no answer", is_away=True)

    def position_of(self, index: int) -> tuple[int, int]:
        self._asked()
        return super().position_of(index)

    def read(self, position: int, length: int) -> bytes:
        self._asked()
        return super().read(position, length)


def test_a_member_that_goes_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_member(tmp_path / "a", 1, 10)
    back_up(tmp_path / "a", tmp_path / "before")
    add(store, 3, 30, seed=2)
    store.close()
    monkeypatch.setattr(backup_kit, "DirectorySource", Silent)
    for answers in range(100):
        shutil.copytree(tmp_path / "before", tmp_path / "b")
        monkeypatch.setattr(Silent, "left", answers)
        try:
            back_up(tmp_path / "a", tmp_path / "b")
            break
        except SourceError:
            found = read_manifest(tmp_path / "b")
            assert found is not None and end_of(found) == 9
        monkeypatch.setattr(Silent, "left", 10**9)
        assert end_of(back_up(tmp_path / "a", tmp_path / "b")) == 99
        shutil.rmtree(tmp_path / "b")
    assert answers > 4
