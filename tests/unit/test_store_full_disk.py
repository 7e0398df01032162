"""A file system that fills up under the real store: what is refused leaves nothing, and what was held goes on."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from node.store.errors import StoreFull, StoreIOError
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.hard_state import RESERVE
from node.store.files.platform import OsPlatform
from node.store.files.straight import NOWHERE
from tests.unit import store_fixtures

DATA_BYTES = 64 * 1024
INDEX_BYTES = 32 * 64


PAGE_BYTES = 4096


class Left(OsPlatform):
    """So much is left on the disk, as the system says."""

    left: int | None = 1 << 40

    def space_left_bytes(self, directory: Path) -> int | None:
        return self.left


class CopyingDisk(OsPlatform):
    """A file system that copies what is overwritten: every write needs space, also into what was allocated ahead."""

    def __init__(self) -> None:
        self.writes_left: int | None = None  # None: there is space
        self.takes_bytes = 0  # of the write that finds none: so much it still takes
        self.counts_zeros_alone = False
        self.error = errno.ENOSPC

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        if self.writes_left is None or (self.counts_zeros_alone and any(data)):
            return os.pwrite(fd, data, offset)
        if self.writes_left > 0:
            self.writes_left -= 1
            return os.pwrite(fd, data, offset)
        if 0 < self.takes_bytes < len(data):
            taken, self.takes_bytes = self.takes_bytes, 0
            return os.pwrite(fd, data[:taken], offset)
        raise OSError(self.error, os.strerror(self.error))


class Reserving(CopyingDisk):
    """Full, but for what the reserve holds."""

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.name == RESERVE:
            self.writes_left = None


def test_a_border_that_moves_on_a_full_disk_is_kept_with_the_reserve(tmp_path: Path) -> None:
    """It ended the engine over "a failed fsync", and the close after that said that all was durable, without it."""
    disk = Reserving()
    store = store_fixtures.open_store(tmp_path, platform=disk)
    store_fixtures.fill(store, 1, 5)
    store.files.note_layouts_differ()
    disk.writes_left = 0
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    assert store.durable_index == store.end_index and not store.failed
    store.close()
    again = store_fixtures.open_store(tmp_path)
    assert again.files.straight_from == NOWHERE
    again.close()


def test_a_border_that_finds_no_space_at_all_is_still_to_be_kept(tmp_path: Path) -> None:
    disk = CopyingDisk()
    store = store_fixtures.open_store(tmp_path, platform=disk)
    store_fixtures.fill(store, 1, 5)
    store.files.note_layouts_differ()
    disk.writes_left = 0
    ticket = store.prepare_sync()
    assert ticket is not None
    with pytest.raises(StoreFull):
        ticket.run()
    assert store.durable_index < store.end_index
    disk.writes_left = None
    store.close()
    again = store_fixtures.open_store(tmp_path)
    assert again.files.straight_from == NOWHERE
    again.close()


@pytest.mark.parametrize("takes_bytes", [0, 1, 100, 4500])
@pytest.mark.parametrize("body_bytes", [10, 3000])
def test_a_file_system_without_space_for_what_is_overwritten_ends_nothing(
    tmp_path: Path, body_bytes: int, takes_bytes: int
) -> None:
    """The zeros over what a refused append had written found no space, and the engine ended, again and again."""
    disk = CopyingDisk()
    sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "platform": disk}
    store = store_fixtures.open_store(tmp_path / "store", **sizes)
    held = [b"before"]
    store.append_as_leader(held, 1)
    said = []
    for round_ in range(60):
        bodies = [bytes([round_ + 1]) * body_bytes] * (1 + round_ % 3)
        disk.writes_left, disk.takes_bytes = round_ % 5, takes_bytes
        try:
            store.append_as_leader(bodies, 1)
            held += bodies
        except StoreFull as full:
            said.append(full.leaves_bytes)
            disk.writes_left = 0
            for _ in range(2):  # nothing of what comes while there is none is on the disk
                with pytest.raises(StoreFull) as refused:
                    store.append_as_leader([b"more"], 1)
                assert not refused.value.leaves_bytes
        assert not store.failed and store.end_index == len(held) - 1
        disk.writes_left = None
        if round_ % 2:
            store.append_as_leader([b"there is space"], 1)
            held.append(b"there is space")
    assert True in said and False in said
    store_fixtures.sync(store)
    store_fixtures.kill(store)
    again = store_fixtures.open_store(tmp_path / "store", **sizes)
    bodies = [entry.body for entry in store_fixtures.entries_of(again)]
    assert bodies[: len(held)] == held
    assert len(bodies) == len(held), "the last append of all was not refused"
    again.close()


def test_a_stop_takes_back_what_was_refused(tmp_path: Path) -> None:
    disk = CopyingDisk()
    for space in (True, False):
        store = store_fixtures.open_store(tmp_path / f"store-{space}", platform=disk)
        store.append_as_leader([b"held"], 1)
        store_fixtures.sync(store)
        disk.writes_left = 1
        with pytest.raises(StoreFull) as refused:
            store.append_as_leader([b"refused"], 1)
        assert refused.value.leaves_bytes
        disk.writes_left = None if space else 0
        store.close()
        disk.writes_left = None
        again = store_fixtures.open_store(tmp_path / f"store-{space}", platform=disk)
        assert again.end_index == (0 if space else 1), "its outcome was said to be unknown"
        assert again.durable_index == again.end_index
        again.close()


def test_whether_there_is_space_is_what_the_disk_says(tmp_path: Path) -> None:
    platform = Left()
    store = store_fixtures.open_store(tmp_path / "store", data_file_size=DATA_BYTES, platform=platform)
    for left, enough in ((0, False), (DATA_BYTES - 1, False), (DATA_BYTES, True), (None, True)):
        platform.left = left
        assert store.has_space() is enough
    store.close()
    assert OsPlatform().space_left_bytes(tmp_path) is not None
    assert OsPlatform().space_left_bytes(tmp_path / "nowhere") is None


class FillingDisk(OsPlatform):
    """A quota of `free_bytes`, in whole pages: what has its space can be overwritten, all else needs some."""

    def __init__(self) -> None:
        self.free_bytes = 1 << 40
        self.folder_syncs = 0
        self.reads: list[int] | None = None  # the offsets of those since; None: nobody wants to know

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        if self.reads is not None:
            self.reads.append(offset)
        return super().pread(fd, length, offset)

    def sync_directory(self, path: Path) -> None:
        self.folder_syncs += 1
        super().sync_directory(path)

    def _take(self, fd: int, offset: int, length: int) -> None:
        page = offset // PAGE_BYTES * PAGE_BYTES
        while page < offset + length:
            try:
                held = os.lseek(fd, page, os.SEEK_DATA) < page + PAGE_BYTES
            except OSError:
                held = False
            if not held:
                if self.free_bytes < PAGE_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self.free_bytes -= PAGE_BYTES
            page += PAGE_BYTES

    def _free(self, path: Path) -> None:
        if path.exists():
            self.free_bytes += os.stat(path).st_blocks * 512

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        self._take(fd, offset, len(data))
        return os.pwrite(fd, data, offset)

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        """Space is taken by what is written: a disk whose last bytes another process takes."""

    def unlink(self, path: Path) -> None:
        self._free(path)
        super().unlink(path)

    def replace(self, source: Path, target: Path) -> None:
        self._free(target)
        super().replace(source, target)


def open_store(directory: Path, platform: FillingDisk) -> FileStore:
    return FileStore.open(
        directory, group="g", node_id="n0", data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
        platform=platform,
    )  # fmt: skip


def test_a_refused_append_reads_no_file(tmp_path: Path) -> None:
    """It is taken back on the loop, which waits for no disk (SAFETY S9)."""
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    for number in range(200):
        store.append_as_leader([b"%d" % number], 1)
    disk.free_bytes, disk.reads = PAGE_BYTES, []
    with pytest.raises(StoreFull):
        while True:
            store.append_as_leader([bytes(20_000)], 1)
    assert disk.reads == []
    store.close()


@pytest.mark.parametrize("body_bytes", [100, 700, 5000, 20_000])
def test_a_refused_append_leaves_nothing_and_the_store_goes_on(tmp_path: Path, body_bytes: int) -> None:
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    held: list[bytes] = []
    refused = 0
    disk.folder_syncs = 0
    for round_ in range(40):
        disk.free_bytes = 0 if round_ % 2 else 1 << 40
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
    assert disk.folder_syncs == store.files_made_late, "taking back what was refused waits for no disk (S9)"
    disk.free_bytes = 1 << 40
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.close()
    assert refused > 10
    again = open_store(tmp_path / "store", disk)
    assert [again.get(index).body for index in range(again.end_index + 1)] == held  # type: ignore[union-attr]
    again.close()


class NothingLeft(OsPlatform):
    """A disk that is full from one moment on: what was allocated before can be written, and nothing more allocated."""

    def __init__(self) -> None:
        self.is_full = False
        self._ends: dict[int, int] = {}

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        held = self._ends.get(os.fstat(fd).st_ino, 0)
        if self.is_full and offset + length > held:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._ends[os.fstat(fd).st_ino] = max(held, offset + length)


def test_a_start_on_a_full_disk_writes_index_records_where_they_have_space(tmp_path: Path) -> None:
    """Records whose index units are missing, as a process that was killed leaves them. Their space was taken by that
    process: to take more beyond it would keep the member down until somebody makes room."""
    disk, directory = NothingLeft(), tmp_path / "store"
    sizes = {"data_file_size": 1 << 30, "index_file_size": 1 << 30}
    store = FileStore.open(directory, group="g", node_id="n0", init=True, platform=disk, **sizes)
    for number in range(50):
        store.append_as_leader([b"%d" % number], 1)
    store.close()
    [index_file] = (directory / "index").iterdir()
    with index_file.open("r+b") as file:
        file.seek(30 * 32)
        file.write(bytes(20 * 32))
    disk.is_full = True
    again = FileStore.open(tmp_path / "store", group="g", node_id="n0", platform=disk, **sizes)
    assert again.end_index == 49 and [again.get(at).body for at in (0, 35, 49)] == [b"0", b"35", b"49"]  # type: ignore[union-attr]
    again.close()


def test_terms_and_votes_are_kept_on_a_full_disk(tmp_path: Path) -> None:
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    disk.free_bytes = 0
    for term in range(1, 30):
        store.save_hard_state(replace(store.hard_state, term=term, voted_for=f"n{term % 3}"))
    assert disk.free_bytes == 0, "the reserve is there again"
    store.close()
    again = open_store(tmp_path / "store", disk)
    assert (again.hard_state.term, again.hard_state.voted_for) == (29, "n2")
    again.close()


def test_a_vote_that_finds_no_space_at_all_is_an_error(tmp_path: Path) -> None:
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    (tmp_path / "store" / "reserve").unlink()  # another process took what it held
    disk.free_bytes = 0
    with pytest.raises(StoreIOError, match="term and vote"):
        store.save_hard_state(replace(store.hard_state, term=7))
    store.close()  # the engine ends, and is started again
    disk.free_bytes = 1 << 40
    store = open_store(tmp_path / "store", disk)
    store.save_hard_state(replace(store.hard_state, term=8))
    assert (tmp_path / "store" / "reserve").exists()
    store.close()


class NoSpaceForSlots(OsPlatform):
    """A file system that copies what is overwritten (and a quota): even a checkpoint slot may find no space."""

    def __init__(self) -> None:
        self.full = False
        self._slots: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        (self._slots.add if path.name == CHECKPOINT else self._slots.discard)(fd)
        return fd

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        if self.full and fd in self._slots:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return os.pwrite(fd, data, offset)


def test_a_slot_that_finds_no_space_ends_nothing(tmp_path: Path) -> None:
    disk = NoSpaceForSlots()
    store = store_fixtures.open_store(tmp_path / "store", platform=disk)
    store.append_as_leader([b"said in a slot"], 1)
    store_fixtures.sync(store)
    said = store.durability.checkpoint.last
    disk.full = True
    for number in range(3):
        store.append_as_leader([b"%d" % number], 1)
        assert store_fixtures.sync(store) == store.end_index
    assert not store.failed and store.durability.checkpoint.last == said
    before = store_fixtures.entries_of(store)
    with pytest.raises(StoreFull):
        store.truncate(2, store_fixtures.record(store, 2))
    assert not store.failed and store_fixtures.entries_of(store) == before
    assert store_fixtures.sync(store) == store.end_index
    disk.full = False
    store.truncate(3, store_fixtures.record(store, 3))
    store.append_as_leader([b"and one more"], 1)
    disk.full = True
    expected = store_fixtures.entries_of(store)
    store.close()
    disk.full = False
    again = store_fixtures.open_store(tmp_path / "store", platform=disk)
    assert store_fixtures.entries_of(again) == expected and not again.alarms
    again.close()


def test_a_full_disk_is_made_room_on_by_removing_the_front_of_the_log(tmp_path: Path) -> None:
    """The base has to be written first: with the space that is kept for term and vote."""
    disk = FillingDisk()
    store = open_store(tmp_path / "store", disk)
    for _ in range(4):
        store.append_as_leader([b"x" * 1000] * 50, 1)
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.note_progress(199, 199)
    disk.free_bytes = 0
    survey = store.survey(10)
    assert len(survey.files) == 3 and survey.log_bytes == store.size_bytes
    store.remove_prefix(survey.files[1].last_index)
    assert store.begin_index == survey.files[2].first_index
    assert disk.free_bytes > DATA_BYTES
    assert (tmp_path / "store" / "reserve").exists(), "it is kept again"
    store.append_as_leader([b"goes on"], 1)
    store.close()
    again = open_store(tmp_path / "store", disk)
    assert (again.begin_index, again.end_index) == (survey.files[2].first_index, 200)
    again.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("body_bytes", [10, 700, 3000])
def test_a_cut_whose_zeros_find_no_space_is_made_once_there_is_some(
    tmp_path: Path, body_bytes: int, error: int
) -> None:
    """It ended the engine, and with it the member, each time that its leader ordered the cut again."""
    for writes_left in range(0, 200, 7):
        disk = CopyingDisk()
        disk.error = error
        directory = tmp_path / f"store-{writes_left}"
        sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "platform": disk}
        store = store_fixtures.open_store(directory, **sizes)
        for number in range(90):
            store.append_as_leader([b"%d:" % number + b"x" * body_bytes], 1)
        store_fixtures.sync(store)
        kept = store_fixtures.entries_of(store)[:3]
        disk.writes_left = writes_left
        try:
            store.truncate(3, store_fixtures.record(store, 3))
        except StoreFull:  # the archive, or a slot: nothing was cut
            assert store.end_index == 89 and store.files.half_cut is None
            disk.writes_left = None
            store.truncate(3, store_fixtures.record(store, 3))
        assert not store.failed and store_fixtures.entries_of(store) == kept
        if store.files.half_cut is not None:
            for _ in range(2):  # nothing is appended in front of what the zeros do not cover yet
                with pytest.raises(StoreFull) as refused:
                    store.append_as_leader([b"more"], 2)
                assert not refused.value.leaves_bytes
            assert store_fixtures.sync(store) == 2
            assert not store.has_space() and not store.failed
            disk.writes_left = 3
            store.has_space()
        disk.writes_left = None
        store.has_space()
        assert store.files.half_cut is None
        assert not store.files.data.has_bytes(store.files.end.end_pos)
        store.append_as_leader([b"of the new leader"], 2)
        assert store_fixtures.sync(store) == 3
        expected = store_fixtures.entries_of(store)
        store_fixtures.kill(store)
        again = store_fixtures.open_store(directory, **sizes)
        assert store_fixtures.entries_of(again) == expected and not again.faults
        assert not any("corrupt" in alarm or "damaged" in alarm for alarm in again.alarms), again.alarms
        again.close()


@pytest.mark.parametrize("how", ["killed", "stopped", "stopped with space"])
@pytest.mark.parametrize("writes_left", [0, 4, 20, 40, 60])
def test_what_a_start_finds_of_a_half_made_cut_is_a_part_of_what_was_held(
    tmp_path: Path, writes_left: int, how: str
) -> None:
    """From its front on, whole and in order, and nothing of it is said to be durable: its leader has it cut again."""
    disk = CopyingDisk()
    sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "platform": disk}
    store = store_fixtures.open_store(tmp_path / "store", **sizes)
    store_fixtures.fill(store, 2, 150)
    store_fixtures.sync(store)
    before = store_fixtures.entries_of(store)
    order = store_fixtures.record(store, 100)
    disk.counts_zeros_alone, disk.writes_left = True, writes_left
    store.truncate(100, order)
    assert store.files.half_cut is not None and store.end_index == 99
    if how == "killed":
        store_fixtures.kill(store)
    else:
        disk.writes_left = None if how == "stopped with space" else 0
        store.close()
    disk.writes_left = None
    again = store_fixtures.open_store(tmp_path / "store", **sizes)
    found = store_fixtures.entries_of(again)
    assert found == before[: len(found)] and len(found) >= 100 and again.faults == ()
    if how == "stopped with space":
        assert len(found) == 100
    if len(found) > 100:
        again.truncate(100, store_fixtures.record(again, 100))
    again.append_as_leader([b"of the new leader"], 3)
    expected = store_fixtures.entries_of(again)
    again.close()
    last = store_fixtures.open_store(tmp_path / "store", **sizes)
    assert store_fixtures.entries_of(last) == expected and last.faults == () and not last.alarms
    last.close()


class KeepingDisk(CopyingDisk):
    """Removing a file takes space, too, where the list of names is copied."""

    def remove_large(self, path: Path) -> None:
        if self.writes_left == 0:
            raise OSError(self.error, os.strerror(self.error))
        super().remove_large(path)


@pytest.mark.parametrize("writes_left", range(8))
def test_a_file_that_cannot_be_removed_gives_nothing_back_later(tmp_path: Path, writes_left: int) -> None:
    """It was forgotten, with the refused entries in it: the next file of that name began with them."""
    disk = KeepingDisk()
    sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "platform": disk}
    store = store_fixtures.open_store(tmp_path / "store", **sizes)
    store.append_as_leader([b"x" * 3000] * 20, 1)
    store_fixtures.sync(store)
    disk.writes_left = writes_left
    try:
        store.append_as_leader([b"refused" * 1000] * 2, 1)
        store.append_as_leader([b"refused" * 1000] * 20, 1)
    except StoreFull:
        pass
    disk.writes_left = None
    store.append_as_leader([b"y" * 4600], 2)
    store_fixtures.sync(store)
    expected = store_fixtures.entries_of(store)
    store_fixtures.kill(store)
    again = store_fixtures.open_store(tmp_path / "store", **sizes)
    assert (
        store_fixtures.entries_of(again) == expected
        and again.faults == ()
        and not again.files.data.has_bytes(again.files.end.end_pos)
    )
    assert not any("damaged" in alarm for alarm in again.alarms), again.alarms
    again.close()


def test_a_limit_on_the_size_of_files_is_a_full_disk_that_names_it(tmp_path: Path) -> None:
    """What stands in front of the limit stays as it is, and the log goes on once the limit is raised."""
    sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES}
    store = store_fixtures.open_store(tmp_path / "store", **sizes)
    held = [b"before"]
    store.append_as_leader(held, 1)
    store_fixtures.sync(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StoreFull, match="ulimit -f") as full:
            for number in range(100):
                store.append_as_leader([b"%d" % number + b"x" * 3000], 1)
                held.append(b"%d" % number + b"x" * 3000)
        assert not full.value.leaves_bytes and not store.failed
        assert store_fixtures.sync(store) == len(held) - 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(held) > 4
    store.append_as_leader([b"behind"], 1)
    store_fixtures.sync(store)
    store_fixtures.kill(store)
    again = store_fixtures.open_store(tmp_path / "store", **sizes)
    assert [entry.body for entry in store_fixtures.entries_of(again)] == [*held, b"behind"] and again.faults == ()
    again.close()
