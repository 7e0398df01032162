"""The truncation archive: complete or not there, bounded by size and age, numbers never used twice."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.slab_encode import encode_slab
from node.store.errors import StoreFull
from node.store.files.platform import OS, OsPlatform
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import TruncationRecord

ORDER = TruncationRecord("n0", "n2", 7, 40, 41, "fork", 39)


def test_what_was_cut_is_all_there(tmp_path: Path) -> None:
    archive = TruncationArchive(tmp_path)
    assert (archive.records(), archive.count) == ([], 0)
    slab = encode_slab([b"one", b"two"], 40, 6, 100, 5)
    stamped = archive.add(ORDER, [slab.data[:20], slab.data[20:]])
    assert archive.add(ORDER, [b""]).seq == 2
    assert (stamped.seq, stamped.time[-1]) == (1, "Z")
    assert TruncationArchive(tmp_path).records()[0] == stamped
    assert archive.data(1) == slab.data
    assert [(entry.index, entry.body) for entry in archive.entries(1)] == [(40, b"one"), (41, b"two")]
    assert archive.record(3) is None
    assert (archive.data(3), archive.entries(3)) == (b"", [])
    meta = (tmp_path / "truncated" / "0000000001" / "meta.json").read_text()
    for name in ("by", "leader", "term", "from_index", "to_index", "reason", "committed_at", "time"):
        assert f'"{name}"' in meta


def test_bytes_that_are_no_record_end_the_list(tmp_path: Path) -> None:
    archive = TruncationArchive(tmp_path)
    slab = encode_slab([b"one", b"two"], 0, 1, 0, 0)
    archive.add(ORDER, [slab.data[:-2]])
    assert [entry.body for entry in archive.entries(1)] == [b"one"]


def test_it_is_bounded_by_size_and_the_newest_stays(tmp_path: Path) -> None:
    archive = TruncationArchive(tmp_path, bytes_max=2500)
    for _ in range(6):
        archive.add(ORDER, [bytes(1000)])
    assert [record.seq for record in archive.records()] == [4, 5, 6]
    assert archive.add(ORDER, [bytes(9000)]).seq == 7
    assert archive.add(ORDER, [bytes(10)]).seq == 8
    assert [record.seq for record in archive.records()] == [7, 8]


def test_it_is_bounded_by_age(tmp_path: Path) -> None:
    archive = TruncationArchive(tmp_path, age_max_s=3600)
    for _ in range(3):
        archive.add(ORDER, [b"x"])
    for seq in (1, 3):
        path = tmp_path / "truncated" / f"{seq:010d}" / "meta.json"
        os.utime(path, (1, 1))
    archive.add(ORDER, [b"x"])
    assert [record.seq for record in archive.records()] == [2, 3, 4]


def test_an_archive_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = TruncationArchive(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("pwrite", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(OS, name, full)
            with pytest.raises(StoreFull, match="no space left"):
                archive.add(ORDER, [b"abc"])
        assert archive.records() == []
        assert list((tmp_path / "truncated").iterdir()) == []
    assert archive.add(ORDER, [b"abc"]).seq == 1


def test_a_crash_in_the_middle_leaves_nothing_to_see(tmp_path: Path) -> None:
    archive = TruncationArchive(tmp_path)
    archive.add(ORDER, [b"abc"])
    unfinished = tmp_path / "truncated" / "tmp-2"
    unfinished.mkdir()
    (unfinished / "data").write_bytes(b"half")
    assert [record.seq for record in archive.records()] == [1]
    assert archive.add(ORDER, [b"def"]).seq == 2
    assert not unfinished.exists()


def test_a_whole_log_is_archived_by_second_names_of_its_files(tmp_path: Path) -> None:
    """Also one that begins inside its first file; each file ends in what is no record."""
    one, other = encode_slab([b"one", b"two"], 40, 6, 100, 5), encode_slab([b"three"], 42, 6, 4096, 5)
    paths = [tmp_path / f"{start:020d}" for start in (0, 4096)]
    paths[0].write_bytes((bytes(100) + one.data).ljust(4096, b"\xff"))
    paths[1].write_bytes(other.data.ljust(4096, b"\0"))
    archive = TruncationArchive(tmp_path)
    stamped = archive.add_files(replace(ORDER, begins_behind=99), paths)
    assert archive.record(1) == stamped and stamped.begins_behind == 99
    for path in paths:
        path.unlink()
    assert [(entry.index, entry.body) for entry in archive.entries(1)] == [(40, b"one"), (41, b"two"), (42, b"three")]
    assert archive.size_bytes(1) == 2 * 4096


def test_where_files_have_no_second_names_they_are_copied(tmp_path: Path) -> None:
    class NoLinks(OsPlatform):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted", str(target))

    path = tmp_path / f"{0:020d}"
    path.write_bytes(encode_slab([b"one"], 0, 1, 0, 0).data.ljust(4096, b"\0"))
    archive = TruncationArchive(tmp_path, platform=NoLinks())
    archive.add_files(ORDER, [path])
    path.write_bytes(bytes(4096))
    assert [entry.body for entry in archive.entries(1)] == [b"one"]
