"""A data or index file that is missing, or of another length than it should have (SAFETY S6, S7)."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreFull, StoreIOError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.platform import OsPlatform
from node.store.reader import StoreReader
from node.store.repair.problems import look
from tests.unit.store_fixtures import entries_of, open_store, sync
from tests.unit.store_layout import DATA_BYTES

LAST = 219


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed store of some ten data files; much of it lies behind what a start reads again."""
    directory = tmp_path_factory.mktemp("sound") / "store"
    store = open_store(directory)
    chosen = random.Random(7)
    for term in range(1, 5):
        for _ in range(55):
            store.append_as_leader([chosen.randbytes(chosen.randrange(200))], term)
    sync(store)
    store.close()
    return directory


@pytest.fixture(autouse=True)
def short_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.recovery.log_recovery.RECHECK_BYTES", 3000)


def copy_of(sound: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    return Path(shutil.copytree(sound, directory))


def files_of(directory: Path) -> dict[str, bytes]:
    paths = [path for kind in ("data", "index") for path in sorted((directory / kind).glob("[0-9]*"))]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def held_in(sound: Path, name: str) -> tuple[int, int]:
    """The first and the last entry of a data file."""
    segment = next(one for one in StoreReader(sound).segments() if (one.kind, one.name) == ("data", name))
    assert segment.first_index is not None and segment.last_index is not None
    return segment.first_index, segment.last_index


def heal(store: FileStore, peer: FileStore) -> None:
    while store.faults:
        fault = store.faults[0]
        index = fault.first_index
        while index <= fault.last_index:
            result = store.mend(peer.read_slab(index, 1))
            assert result.healed or result.mended_through == index, result.detail
            index += 1


def healed_is(store: FileStore, sound: Path, tmp_path: Path) -> None:
    """After its peers gave what they have, the store is what it was, in every byte."""
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    heal(store, peer)
    assert entries_of(store) == entries_of(peer)
    store.close()
    peer.close()
    assert files_of(store.directory) == files_of(sound)


def names(sound: Path) -> list[str]:
    return [path.name for path in sorted((sound / "data").glob("[0-9]*"))]


def test_an_old_data_file_that_is_gone_is_a_fault_at_open(sound: Path, tmp_path: Path) -> None:
    assert len(names(sound)) > 6
    for name in names(sound)[:-1]:
        directory = copy_of(sound, tmp_path / "store")
        (directory / "data" / name).unlink()
        store = open_store(directory)
        assert [(one.first_index, one.last_index) for one in store.faults] == [held_in(sound, name)]
        assert store.end_index == LAST and any(f"data/{name} is missing" in alarm for alarm in store.alarms)
        store.close()
        again = open_store(directory)  # known by heart, and seen again
        assert [(one.first_index, one.last_index) for one in again.faults] == [held_in(sound, name)]
        healed_is(again, sound, tmp_path)


class FullDisk(OsPlatform):
    """No new file has room."""

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT and not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return super().open(path, flags)


def test_a_short_file_is_a_fault_although_a_full_disk_ended_the_start_before(sound: Path, tmp_path: Path) -> None:
    """That start must not give the file its length unless the next one knows that it has to look."""
    name = names(sound)[1]
    directory = copy_of(sound, tmp_path / "store")
    os.truncate(directory / "data" / name, 1)
    with pytest.raises((StoreFull, StoreIOError)):
        open_store(directory, platform=FullDisk())
    store = open_store(directory)
    assert [(one.first_index, one.last_index) for one in store.faults] == [held_in(sound, name)]
    healed_is(store, sound, tmp_path)


def test_the_first_file_above_a_base_may_be_gone_too(sound: Path, tmp_path: Path) -> None:
    for number in (1, 2):
        trimmed = copy_of(sound, tmp_path / "trimmed")
        store = open_store(trimmed)
        through = held_in(sound, names(sound)[1])[1]
        store.note_progress(through, through)
        store.remove_prefix(through)
        begin = store.begin_index
        store.close()
        assert begin > 0
        (trimmed / "data" / names(trimmed)[0]).unlink() if number == 1 else None
        if number == 2:
            for name in names(trimmed)[:2]:
                (trimmed / "data" / name).unlink()
        store = open_store(trimmed)
        assert store.begin_index == begin and store.faults[0].first_index == begin and store.end_index == LAST
        peer = open_store(copy_of(sound, tmp_path / "peer"))
        heal(store, peer)
        assert entries_of(store) == entries_of(peer)[begin:]
        store.close()
        peer.close()


def test_several_files_that_are_gone(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    gone = [names(sound)[0], names(sound)[2], names(sound)[3]]
    for name in gone:
        (directory / "data" / name).unlink()
    store = open_store(directory)
    ranges = [(one.first_index, one.last_index) for one in store.faults]
    assert ranges == [held_in(sound, gone[0]), (held_in(sound, gone[1])[0], held_in(sound, gone[2])[1])]
    healed_is(store, sound, tmp_path)


@pytest.mark.parametrize("length", [1, 700, DATA_BYTES - 1])
def test_a_shortened_data_file_does_not_refuse_the_start(sound: Path, tmp_path: Path, length: int) -> None:
    for name in names(sound)[:-1]:
        directory = copy_of(sound, tmp_path / "store")
        path = directory / "data" / name
        path.write_bytes(path.read_bytes()[:length])
        store = open_store(directory)
        first, last = held_in(sound, name)
        assert all(first <= one.first_index and one.last_index <= last for one in store.faults)
        assert bool(store.faults) or length == DATA_BYTES - 1
        assert any(f"data/{name} had {length} bytes" in alarm for alarm in store.alarms)
        healed_is(store, sound, tmp_path)


def test_a_file_that_grew_keeps_its_entries_and_its_surplus_is_archived(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    path = directory / "data" / names(sound)[2]
    held = path.open("rb")
    with path.open("ab") as file:
        file.write(b"surplus")
    store = open_store(directory)
    assert store.faults == () and len(path.read_bytes()) == DATA_BYTES
    assert len(held.read()) == DATA_BYTES + 7  # who had it open sees what was there
    held.close()
    assert store.files.archive.data(store.truncation_count) == b"surplus"
    healed_is(store, sound, tmp_path)


def test_what_was_set_right_is_looked_at_also_after_a_start_that_died(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copy_of(sound, tmp_path / "store")
    path = directory / "data" / names(sound)[1]
    path.write_bytes(path.read_bytes()[:100])
    with monkeypatch.context() as patch:
        patch.setattr("node.store.recovery.log_recovery.Recovery.recover", lambda _self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_store(directory)
    assert path.stat().st_size == DATA_BYTES
    store = open_store(directory)
    assert store.faults and store.faults[0].last_index == held_in(sound, path.name)[1]
    healed_is(store, sound, tmp_path)


@pytest.mark.parametrize("how", ["gone", "short", "long"])
def test_index_files_are_written_anew_and_named(sound: Path, tmp_path: Path, how: str) -> None:
    for path in sorted((sound / "index").glob("[0-9]*")):
        directory = copy_of(sound, tmp_path / "store")
        target = directory / "index" / path.name
        if how == "gone":
            target.unlink()
        else:
            raw = target.read_bytes()
            target.write_bytes(raw[:40] if how == "short" else raw + b"more")
        store = open_store(directory)
        assert store.faults == () and any(f"index/{path.name}" in alarm for alarm in store.alarms)
        healed_is(store, sound, tmp_path)


def test_all_index_files_gone_are_told_in_few_lines(sound: Path, tmp_path: Path) -> None:
    """A line for each slab would bury what else a start says: a log of 100 GB has 100,000 of them."""
    directory = copy_of(sound, tmp_path / "store")
    shutil.rmtree(directory / "index")
    store = open_store(directory)
    reported = [alarm for alarm in store.alarms if "index records" in alarm]
    assert reported == [f"{LAST + 1} index records in 0..{LAST} did not match their entries and were rebuilt"]
    healed_is(store, sound, tmp_path)


def test_a_configuration_with_other_sizes_is_refused_as_ever(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    before = files_of(directory)
    with pytest.raises(StoreRefused, match="data_file_size"):
        open_store(directory, data_file_size=2 * DATA_BYTES)
    assert files_of(directory) == before


def test_a_java_directory_with_files_of_another_length_is_refused(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    for name in ("quorumscope.json", CHECKPOINT, "hardstate"):
        (directory / name).unlink()
    path = directory / "data" / names(sound)[1]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreRefused, match="100 bytes"):
        open_store(directory)
    assert path.stat().st_size == 100


def test_verify_names_files_that_are_missing_or_of_another_length(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    data, index = names(sound), [path.name for path in sorted((sound / "index").glob("[0-9]*"))]
    (directory / "data" / data[2]).unlink()
    short = directory / "data" / data[4]
    short.write_bytes(short.read_bytes()[:99])
    (directory / "index" / index[1]).unlink()
    found = {(one.kind, one.file) for one in StoreReader(directory).verify().problems}
    assert {("missing", f"data/{data[2]}"), ("missing", f"data/{data[4]}"), ("missing", f"index/{index[1]}")} == found


def test_verify_says_once_what_is_wrong_with_a_file(sound: Path, tmp_path: Path) -> None:
    """Not that a file is missing which somebody only made longer or shorter."""
    directory = copy_of(sound, tmp_path / "store")
    name = names(sound)[4]
    with (directory / "data" / name).open("ab") as file:
        file.write(b"more")
    found = [one for one in StoreReader(directory).verify().problems if one.file == f"data/{name}"]
    assert [one.index for one in found] == [held_in(sound, name)[0]]
    assert f"has {DATA_BYTES + 4} bytes" in found[0].detail and "is missing" not in found[0].detail


@pytest.mark.parametrize("how", ["gone", "zeros"])
def test_the_end_of_a_log_without_a_checkpoint_is_not_taken_for_all_it_held(
    sound: Path, tmp_path: Path, how: str
) -> None:
    """The index still names what is gone, so this store may have acknowledged it and gives up its vote (SAFETY E8)."""
    directory = copy_of(sound, tmp_path / "store")
    name = names(sound)[-1]
    (directory / CHECKPOINT).unlink()
    path = directory / "data" / name
    path.unlink() if how == "gone" else path.write_bytes(bytes(DATA_BYTES))
    first, _ = held_in(sound, name)

    report = StoreReader(directory).verify()
    assert [(one.kind, one.index, one.end) for one in report.problems] == [("missing", first, LAST)]
    (problem,) = look(directory, OsPlatform()).problems
    assert problem.what == "This member is REJOINING"
    store = open_store(directory)
    assert (store.end_index, store.hard_state.voter_state) == (first - 1, VoterState.REJOINING)
    assert f"its index names entries up to {LAST}, and there is no checkpoint" in "".join(store.alarms)
    store.close()
    again = open_store(directory)
    assert (again.end_index, again.hard_state.voter_state) == (first - 1, VoterState.REJOINING)
    again.close()
