"""A store's snapshot directory: whole or not there, never back, nothing damaged believed, DLedger's layout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from node.snapshots import directory as snapshots
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.errors import StoreCorrupt, StoreError, StoreRefused
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


class Calls(OsPlatform):
    """Notes what makes things durable, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.calls.append("fsync")
        os.fsync(fd)

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
