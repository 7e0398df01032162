"""What opening a log costs: bytes read, never the length of a file or of the log."""

from pathlib import Path

import pytest

from node.store.files.platform import OsPlatform
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, sync

MIB = 1024 * 1024
FILES = {"data_file_size": 1024 * MIB, "index_file_size": 32 * 1024}
# Space is allocated 64 MiB ahead, and what was read of it counts as data: each of the few looks behind the end may
# read that much. The file is sixteen times as long.
READ_BYTES_MAX = 256 * MIB


class Counting(OsPlatform):
    """The real machine, and how many bytes were read from its files."""

    def __init__(self) -> None:
        self.read_bytes_count = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        data = OsPlatform.pread(fd, length, offset)
        self.read_bytes_count += len(data)
        return data


@pytest.mark.parametrize("boot_id", ["boot-1", "another boot"])
def test_the_empty_rest_of_a_file_is_not_searched_after_a_crash(tmp_path: Path, boot_id: str) -> None:
    store = open_store(tmp_path, **FILES)
    fill(store, 1, 3)
    sync(store)
    fill(store, 1, 3)
    before = entries_of(store)
    kill(store)
    machine = Counting()
    again = open_store(tmp_path, platform=machine, boot_id=boot_id, **FILES)
    assert entries_of(again) == before
    assert machine.read_bytes_count < READ_BYTES_MAX
    again.close()


def test_a_search_behind_damage_reads_no_holes(tmp_path: Path) -> None:
    store = open_store(tmp_path, **FILES)
    fill(store, 1, 3)
    sync(store)
    store.append_as_leader([b"x" * 3000, b"y" * 3000, b"z"], 1)
    end = store.files.end.end_pos
    kill(store)
    path = tmp_path / "data" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(end - 3000 - 3000 - 48 - 40)
        file.write(b"\x55" * 8)
    for index in (tmp_path / "index").glob("[0-9]*"):
        index.write_bytes(bytes(index.stat().st_size))
    machine = Counting()
    again = open_store(tmp_path, platform=machine, **FILES)
    assert again.begin_index == 0
    assert machine.read_bytes_count < READ_BYTES_MAX
    again.close()


@pytest.mark.parametrize("runs", [[1], [1] * 40, [40, 1, 1, 40, 7, 1], [3, 100, 1], list(range(1, 20))])
def test_terms_are_collected_whatever_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: list[int]
) -> None:
    store = open_store(tmp_path)
    for term, count in enumerate(runs, start=1):
        store.append_as_leader([b"x" * 20] * count, term * 3)
    store.append_as_leader([b"y" * 400] * 10, 1000)
    terms = [store.meta(index).term for index in range(store.end_index + 1)]  # type: ignore[union-attr]
    store.close()
    monkeypatch.setattr("node.store.recovery.log_recovery.RECHECK_BYTES", 500)
    again = open_store(tmp_path)
    assert again.alarms == ()
    assert [again.meta(index).term for index in range(again.end_index + 1)] == terms  # type: ignore[union-attr]
    starts = [index for index in range(len(terms)) if index == 0 or terms[index - 1] != terms[index]]
    assert [again.term_start(index) for index in range(len(terms))] == [
        max(start for start in starts if start <= index) for index in range(len(terms))
    ]
    again.close()
