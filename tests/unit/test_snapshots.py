"""A store's snapshot directory: whole or not there, never back, nothing damaged believed, DLedger's layout."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.snapshots import directory as snapshots
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.errors import StoreCorrupt, StoreError, StoreIOError, StoreRefused
from node.store.files import write_out
from node.store.files.platform import OsPlatform


def save(directory: Path, index: int, data: bytes = b"state", term: int = 1) -> snapshots.Snapshot:
    writer = SnapshotWriter(directory)
    for at in range(0, len(data), 3):
        writer.write(data[at : at + 3])
    return writer.commit(SnapshotMeta(index, term, chain=7, next_pos=1000 + index, more={"group_id": "g"}))


def data_of(snapshot: snapshots.Snapshot) -> bytes:
    return b"".join(snapshots.pieces_of(snapshot))


def test_one_is_saved_listed_read_and_has_dledgers_layout(tmp_path: Path) -> None:
    saved = save(tmp_path, 59, b"what a machine saves")
    assert saved.path == tmp_path / "snapshot" / "snapshot_59"
    assert (saved.path / "snapshot_meta").read_bytes() == b'{"lastIncludedIndex":59,"lastIncludedTerm":1}'
    assert (saved.path / "data").read_bytes() == b"what a machine saves"
    [found] = snapshots.snapshots_in(tmp_path)
    assert found == saved and found.is_sealed
    assert (found.meta.chain, found.meta.next_pos, found.meta.more) == (7, 1059, {"group_id": "g"})
    assert data_of(found) == b"what a machine saves"
    assert b"".join(snapshots.pieces_of(found, offset=5)) == b"a machine saves"
    assert not (tmp_path / "snapshot" / "tmp").exists()


def test_a_java_nodes_snapshot_is_listed_without_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "snapshot" / "snapshot_59"
    path.mkdir(parents=True)
    (path / "snapshot_meta").write_text('{"lastIncludedIndex":59,"lastIncludedTerm":1}')
    (path / "data").write_bytes(b"java")
    [found] = snapshots.snapshots_in(tmp_path)
    assert (found.is_sealed, found.meta.index, found.meta.term, found.meta.data_bytes) == (False, 59, 1, 4)
    assert data_of(found) == b"java"


def test_none_goes_back_and_none_is_written_over(tmp_path: Path) -> None:
    save(tmp_path, 10, b"ten")
    for index in (9, 10):
        with pytest.raises(StoreRefused, match="not newer"):
            save(tmp_path, index, b"older")
    assert [data_of(one) for one in snapshots.snapshots_in(tmp_path)] == [b"ten"]
    assert os.listdir(tmp_path / "snapshot") == ["snapshot_10"]


def test_the_newest_are_kept_by_count(tmp_path: Path) -> None:
    for index in (1, 20, 3_000, 40_000):
        save(tmp_path, index)
    assert snapshots.keep_newest(tmp_path, 3) == [1]
    assert [one.meta.index for one in snapshots.snapshots_in(tmp_path)] == [40_000, 3_000, 20]
    assert snapshots.newest_index(tmp_path) == 40_000
    with pytest.raises(ValueError, match="one at the least"):
        snapshots.keep_newest(tmp_path, 0)


def test_what_is_damaged_is_never_believed_and_the_one_before_is_found(tmp_path: Path) -> None:
    save(tmp_path, 1, b"older and sound")
    newer = save(tmp_path, 2, b"newer")
    (newer.path / "data").write_bytes(b"nawer")
    with pytest.raises(StoreCorrupt, match="checksum"):
        snapshots.verify(newer)
    found, wrong = snapshots.newest_sound(tmp_path)
    assert found is not None and found.meta.index == 1
    assert len(wrong) == 1 and "snapshot_2" in wrong[0]
    (newer.path / "data").write_bytes(b"newer and longer")
    assert [one.meta.index for one in snapshots.snapshots_in(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("snapshot_meta", "{"),
        ("snapshot_meta", "[]"),
        ("snapshot_meta", '{"lastIncludedIndex":"2","lastIncludedTerm":1}'),
        ("snapshot_meta", '{"lastIncludedIndex":-2,"lastIncludedTerm":1}'),
        ("snapshot_meta", '{"lastIncludedIndex":3,"lastIncludedTerm":1}'),
        ("quorumscope-meta", "00000000 {}"),
    ],
)
def test_a_broken_description_is_an_error_that_names_its_file(tmp_path: Path, name: str, text: str) -> None:
    saved = save(tmp_path, 2)
    (saved.path / name).write_text(text)
    with pytest.raises(StoreError, match="snapshot_2"):
        snapshots.read_snapshot(saved.path)
    assert snapshots.snapshots_in(tmp_path) == []


def test_what_a_stop_in_the_middle_left_counts_for_nothing_and_goes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    SnapshotWriter(tmp_path).write(b"half of one")
    SnapshotWriter(tmp_path, work=snapshots.INSTALL_WORK).write(b"half of another")
    assert [one.meta.index for one in snapshots.snapshots_in(tmp_path)] == [1]
    snapshots.clean(tmp_path)
    assert sorted(os.listdir(tmp_path / "snapshot")) == ["install_tmp", "snapshot_1"]
    snapshots.clean(tmp_path, snapshots.INSTALL_WORK)
    assert os.listdir(tmp_path / "snapshot") == ["snapshot_1"]
    assert json.loads((tmp_path / "snapshot" / "snapshot_1" / "snapshot_meta").read_text())["lastIncludedIndex"] == 1


def test_a_name_whose_sync_failed_or_never_came_is_not_counted_on(tmp_path: Path) -> None:
    """The log is trimmed for the newest snapshot: power must not take its name back afterwards."""
    synced: list[str] = []

    class Failing(OsPlatform):
        def sync_directory(self, directory: Path) -> None:
            if directory == tmp_path / "snapshot" and (directory / "snapshot_2").exists():
                raise OSError(errno.EIO, "Input/output error")
            super().sync_directory(directory)

    class Noting(OsPlatform):
        def sync_directory(self, directory: Path) -> None:
            synced.append(directory.name)

    save(tmp_path, 1)
    writer = SnapshotWriter(tmp_path, Failing())
    writer.write(b"state")
    with pytest.raises(StoreIOError):
        writer.commit(SnapshotMeta(2, 1))
    assert snapshots.newest_index(tmp_path) == 1
    snapshots.clean(tmp_path, platform=Noting())
    assert synced == ["snapshot"], "a stop may have come between a rename and its sync"


class Calls(OsPlatform):
    """Notes what makes things durable, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.breaks = False

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.calls.append("fsync")
        os.fsync(fd)

    def write_out(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        self.calls.append(f"{offset} to {offset + length} written out")
        if self.breaks:
            raise OSError(errno.EIO, "Input/output error")
        super().write_out(fd, offset, length)

    def sync_directory(self, path: Path) -> None:
        self.calls.append(f"names in {path.name}")
        super().sync_directory(path)

    def replace(self, source: Path, target: Path) -> None:
        self.calls.append(f"{source.name} becomes {target.name}")
        super().replace(source, target)


def test_it_gets_its_name_when_all_of_it_is_durable(tmp_path: Path) -> None:
    platform = Calls()
    writer = SnapshotWriter(tmp_path, platform)
    writer.write(b"state")
    platform.calls.clear()
    writer.commit(SnapshotMeta(5, 1))
    assert platform.calls == [
        "fsync", "fsync", "fsync", "names in tmp", "tmp becomes snapshot_5", "names in snapshot",
    ]  # fmt: skip


def test_a_long_one_is_written_out_as_it_grows_and_synced_once(tmp_path: Path) -> None:
    platform = Calls()
    writer = SnapshotWriter(tmp_path, platform)
    platform.calls.clear()
    piece = bytes(snapshots.OUT_BYTES // 2 + 1)
    for _ in range(5):
        writer.write(piece)
    ends = [0, 2 * len(piece), 4 * len(piece)]
    assert platform.calls == [f"{begin} to {end} written out" for begin, end in pairwise(ends)]
    kept = writer.commit(SnapshotMeta(5, 1))
    assert platform.calls[2] == "fsync" and kept.meta.data_bytes == 5 * len(piece)
    snapshots.verify(kept)


def test_what_could_not_be_written_out_is_no_snapshot(tmp_path: Path) -> None:
    platform = Calls()
    writer = SnapshotWriter(tmp_path, platform)
    platform.breaks = True
    with pytest.raises(StoreError, match="Input/output error"):
        writer.write(bytes(snapshots.OUT_BYTES + 1))
    writer.abandon()
    assert snapshots.snapshots_in(tmp_path) == []


def refusing(code: int) -> Callable[..., int]:
    def call(*_: int) -> int:
        ctypes.set_errno(code)
        return -1

    return call


def test_where_the_system_cannot_write_a_range_out_the_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(write_out, "os", SimpleNamespace(fsync=synced.append, strerror=os.strerror))
    with (tmp_path / "file").open("wb") as file:
        for call in (None, refusing(errno.ENOSYS)):
            monkeypatch.setattr(write_out, "_CALL", call)
            write_out.write_out(file.fileno(), 0, 1)
        assert synced == [file.fileno()] * 2
        monkeypatch.setattr(write_out, "_CALL", refusing(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            write_out.write_out(file.fileno(), 0, 1)
    assert len(synced) == 2


def test_a_range_of_a_file_is_written_out(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(bytes(10_000))
        write_out.write_out(file.fileno(), 0, 10_000)
        with pytest.raises(OSError, match="Bad file descriptor"):
            write_out.write_out(-1, 0, 10_000)
