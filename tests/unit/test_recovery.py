"""What a crash, a rotten disk or a Java node leaves, and what opening makes of it (SAFETY S1, S3, S5, S7)."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.protocol.entry import Magic
from node.store.errors import StoreCorrupt
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.os_files import SECTOR_BYTES
from node.store.files.platform import OS
from node.store.files.segment import Segment
from node.store.log_store import HardState
from node.store.recovery.log_recovery import Recovery
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, blank_out, build, currterm, flip


def data_file(directory: Path, pos: int) -> tuple[Path, int]:
    return directory / "data" / f"{pos // DATA_BYTES * DATA_BYTES:020d}", pos % DATA_BYTES


def place_of(directory: Path, index: int) -> tuple[int, int]:
    """Position and size of an entry, by its index record."""
    path = directory / "index" / f"{index * 32 // 1024 * 1024:020d}"
    _, pos, size, number, _ = struct.unpack_from(">iqiqq", path.read_bytes(), index * 32 % 1024)
    assert number == index
    return pos, size


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """30 durable entries, then 3 that were written but never synced, then SIGKILL."""
    directory = tmp_path / "template"
    store = open_store(directory)
    fill(store, 3, 10)
    sync(store)
    store.append_as_leader([b"a" * 100, b"b" * 1300, b"tail-" * 20], 3)
    kill(store)
    return directory


def copy_of(template: Path, name: str) -> Path:
    directory = template.parent / name
    shutil.rmtree(directory, ignore_errors=True)
    return Path(shutil.copytree(template, directory))


def test_a_torn_tail_is_cut_and_archived_at_every_byte(template: Path) -> None:
    pos, size = place_of(template, 32)
    for torn_at in range(size):
        directory = copy_of(template, "torn")
        path, offset = data_file(directory, pos)
        raw = path.read_bytes()[offset : offset + size]
        blank_out(path, offset + torn_at, offset + size)
        store = open_store(directory)
        assert store.end_index == 31, torn_at
        left = path.read_bytes()[offset:]
        assert not any(left), torn_at
        archived = store.files.archive.records()
        assert len(archived) == (1 if any(raw[:torn_at]) else 0)
        if archived:
            assert (archived[0].from_index, archived[0].by) == (32, "n0")
            assert store.files.archive.data(archived[0].seq) == raw[:torn_at].rstrip(b"\0")
        store.append_as_leader([b"again"], 4)
        store.close()
        again = open_store(directory)
        assert (again.end_index, again.alarms) == (32, ())
        again.close()


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_a_tail_torn_by_missing_sectors_with_sound_records_behind(template: Path, boot_id: str) -> None:
    """Only a power cut loses sectors before others: without one, what lies behind says that this was written."""
    pos, size = place_of(template, 31)
    path, offset = data_file(template, pos)
    first_whole = -(-offset // SECTOR_BYTES) * SECTOR_BYTES
    for start in range(first_whole, offset + size - SECTOR_BYTES, SECTOR_BYTES):
        directory = copy_of(template, "sector")
        blank_out(directory / "data" / path.name, start, start + SECTOR_BYTES)
        store = open_store(directory, boot_id=boot_id)
        assert store.end_index == (32 if boot_id == "boot-1" else 30)
        assert len(store.files.archive.records()) == (0 if boot_id == "boot-1" else 1)
        assert [one.first_index for one in store.faults] == ([31] if boot_id == "boot-1" else [])
        store.close()


@pytest.mark.parametrize("border", range(1, 8))
def test_a_filler_that_a_missing_sector_cut_in_two_is_torn(tmp_path: Path, border: int) -> None:
    """Its first bytes were written with the sector before: what its size was follows from where it is."""
    store = open_store(tmp_path / "store")
    store.append_as_leader([b"a" * 100], 1)
    sync(store)
    store.append_as_leader([b"b" * (7 * SECTOR_BYTES - border - 148 - 48), b"c" * 1000], 1)
    kill(store)
    path = tmp_path / "store" / "data" / f"{0:020d}"
    for missing in ((2, 7), (7,)):
        directory = copy_of(tmp_path / "store", "torn")
        for sector in missing:
            blank_out(directory / "data" / path.name, sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        store = open_store(directory, boot_id="boot-2")
        assert (store.faults, store.end_index) == ((), 0 if len(missing) > 1 else 1)
        store.close()
    if border < 4:  # what begins there has no whole magic: it may be anything
        return
    rotten = copy_of(tmp_path / "store", "rotten")
    blank_out(rotten / "data" / path.name, 2 * SECTOR_BYTES, 3 * SECTOR_BYTES)
    blank_out(rotten / "data" / path.name, 7 * SECTOR_BYTES, 8 * SECTOR_BYTES)
    flip(rotten / "data" / path.name, 7 * SECTOR_BYTES - 1)  # the filler's own byte: nothing unwritten explains that
    assert [one.first_index for one in open_store(rotten, boot_id="boot-2").faults] == [1]


def test_other_damage_above_the_durable_index_is_a_fault_where_sound_records_follow(template: Path) -> None:
    pos, size = place_of(template, 31)
    for byte in (0, 4, 15, 23, 37, 41, 47, 48, size - 1):
        directory = copy_of(template, "flipped")
        path, offset = data_file(directory, pos)
        flip(path, offset + byte)
        store = open_store(directory, boot_id="boot-2")
        assert [(one.first_index, one.last_index) for one in store.faults] == [(31, 31)], byte
        assert (store.end_index, store.hard_state.voter_state) == (32, VoterState.FORMING)
        kill(store)


@pytest.mark.parametrize("damage", ["flip", "zero"])
def test_damage_at_or_below_the_durable_index_is_a_fault(template: Path, damage: str) -> None:
    for index in (0, 7, 29):
        directory = copy_of(template, "rotten")
        pos, size = place_of(directory, index)
        path, offset = data_file(directory, pos)
        if damage == "flip":
            flip(path, offset + size - 1)
        else:
            blank_out(path, offset, offset + size)
        store = open_store(directory)
        assert [(one.first_index, one.last_index) for one in store.faults] == [(index, index)]
        assert store.end_index == 32
        kill(store)


def test_a_log_that_ends_below_its_checkpoint_may_not_vote(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save_hard_state(HardState(3, None, VoterState.VOTER))
    fill(store, 3, 30)
    store.close()
    last = sorted((tmp_path / "data").glob("[0-9]*"))[-1]
    last.write_bytes(bytes(DATA_BYTES))
    again = open_store(tmp_path)
    assert again.hard_state.voter_state is VoterState.REJOINING
    assert again.end_index < 89
    assert any("lost history" in alarm for alarm in again.alarms)
    again.close()


@pytest.mark.parametrize("init", [False, True])
def test_a_voter_whose_log_was_removed_with_its_checkpoint_may_not_vote(tmp_path: Path, init: bool) -> None:
    """The checkpoint is older than any vote: without it an empty log is one that was taken away."""
    store = open_store(tmp_path)
    store.save_hard_state(HardState(3, None, VoterState.VOTER))
    fill(store, 3, 30)
    store.close()
    for name in ("data", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / CHECKPOINT).unlink()
    for _ in range(2):  # and stays so
        again = open_store(tmp_path, init=init)
        assert (again.hard_state.voter_state, again.end_index) == (VoterState.REJOINING, -1)
        again.close()


def test_a_voter_that_never_held_an_entry_keeps_its_vote(tmp_path: Path) -> None:
    store = open_store(tmp_path, init=True)
    assert store.hard_state.voter_state is VoterState.FORMING
    store.save_hard_state(HardState(3, None, VoterState.VOTER))
    kill(store)
    again = open_store(tmp_path, init=True)
    assert (again.hard_state.voter_state, again.alarms) == (VoterState.VOTER, ())
    again.close()


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_after_an_unclean_stop_the_unsynced_part_is_written_and_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot_id: str
) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 30)
    sync(store)
    durable_end = store.durable_position
    fill(store, 2, 30)
    end_pos, before = store.files.end.end_pos, entries_of(store)
    kill(store)
    written: list[tuple[str, int, int]] = []
    synced: list[str] = []
    real_write, real_sync = Segment.write, Segment.sync

    def write(self: Segment, pos: int, data: bytes | memoryview, *, takes_ahead: bool = True) -> None:
        written.append((self.path.parent.name, pos, pos + len(data)))
        real_write(self, pos, data, takes_ahead=takes_ahead)

    def sync_segment(self: Segment) -> None:
        synced.append(self.path.name)
        real_sync(self)

    monkeypatch.setattr(Segment, "write", write)
    monkeypatch.setattr(Segment, "sync", sync_segment)
    again = open_store(tmp_path, boot_id=boot_id)
    spans = [(low, high) for kind, low, high in written if kind == "data"]
    # Also after a reboot: a start under the new boot may have been interrupted before this one.
    assert (spans[0][0], spans[-1][1]) == (durable_end, end_pos)
    assert sum(high - low for low, high in spans) == end_pos - durable_end
    assert len(synced) >= len(spans)
    assert (entries_of(again), again.durable_index) == (before, 149)
    again.close()


def test_the_index_is_rebuilt_from_the_data(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 4, 30)
    store.close()
    sound = {path.name: path.read_bytes() for path in (tmp_path / "index").glob("[0-9]*")}
    flip(tmp_path / "index" / f"{0:020d}", 70)
    (tmp_path / "index" / f"{2048:020d}").write_bytes(bytes(1024))
    shutil.copy(tmp_path / "index" / f"{0:020d}", tmp_path / "index" / f"{1024:020d}")
    again = open_store(tmp_path)
    assert any("index records" in alarm for alarm in again.alarms)
    assert again.end_index == 119
    again.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "index").glob("[0-9]*")} == sound


def test_a_missing_checkpoint_means_a_full_scan_and_an_alarm(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 4, 10)
    before = entries_of(store)
    store.close()
    (tmp_path / CHECKPOINT).unlink()
    again = open_store(tmp_path)
    assert entries_of(again) == before
    assert any("checkpoint" in alarm for alarm in again.alarms)
    again.close()


def test_a_start_near_the_checkpoint_knows_all_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store, 12, 17)
    metas = [store.meta(index) for index in range(-1, store.end_index + 1)]
    starts = [store.term_start(index) for index in range(store.end_index + 1)]
    store.close()
    monkeypatch.setattr("node.store.recovery.log_recovery.RECHECK_BYTES", 3000)
    walked: list[int] = []
    real = Recovery._survey

    def walk(self: Recovery, start: object) -> object:
        walked.append(start.index)  # type: ignore[attr-defined]
        return real(self, start)  # type: ignore[arg-type]

    monkeypatch.setattr(Recovery, "_survey", walk)
    again = open_store(tmp_path)
    assert len(walked) == 1 and walked[0] > 150
    assert [again.meta(index) for index in range(-1, again.end_index + 1)] == metas
    assert [again.term_start(index) for index in range(again.end_index + 1)] == starts
    again.close()


def java_directory(directory: Path, entries: list[tuple[int, int, bytes]]) -> Path:
    build(entries, seal=False).save(directory)
    currterm(directory, 9, "n2")
    return directory


def java_entries(count: int, term: int = 3) -> list[tuple[int, int, bytes]]:
    return [(Magic.NORMAL, term, b"java-%03d" % number * (1 + number % 5)) for number in range(count)]


def test_a_java_directory_is_adopted_with_its_term_and_without_a_vote(tmp_path: Path) -> None:
    directory = java_directory(tmp_path, java_entries(200))
    before = {path: path.read_bytes() for kind in ("data", "index") for path in (directory / kind).glob("[0-9]*")}
    store = open_store(directory, init=False)
    assert (store.hard_state.term, store.hard_state.voted_for, store.hard_state.vote_floor) == (9, None, 9)
    assert (store.begin_index, store.end_index, store.sealed_from) == (0, 199, 200)
    assert {path: path.read_bytes() for path in before} == before
    sealed = build(java_entries(200)).chains
    assert [meta.chain for index in range(200) if (meta := store.meta(index))] == sealed
    store.append_as_leader([b"ours"], 10)
    store.close()
    again = open_store(directory, init=False)
    assert (again.end_index, again.sealed_from) == (200, 200)
    assert [meta.chain for index in range(200) if (meta := again.meta(index))] == sealed
    again.close()


@pytest.mark.parametrize("mutate", [lambda raw: raw[:1] + b"\x07" + raw[2:], lambda raw: raw[:15] + b"\x63" + raw[16:]])
def test_damage_in_the_middle_of_a_java_log_is_no_remnant(tmp_path: Path, mutate: Callable[[bytes], bytes]) -> None:
    directory = java_directory(tmp_path, java_entries(60))
    pos, size = place_of(directory, 20)
    path, offset = data_file(directory, pos)
    content = path.read_bytes()
    path.write_bytes(content[:offset] + mutate(content[offset : offset + size]) + content[offset + size :])
    with pytest.raises(StoreCorrupt, match="entry 20"):
        open_store(directory)


@pytest.mark.parametrize("body", [b"new", b"java-005" * 1, b"longer than before " * 4])
def test_a_java_nodes_stale_remnants_are_ignored_and_cleared(tmp_path: Path, body: bytes) -> None:
    """It truncated at 5 and wrote one entry of a later term; old bytes stay behind it, aligned or not."""
    old, new = build(java_entries(12), seal=False), build([*java_entries(5), (Magic.NORMAL, 8, body)], seal=False)
    end = new.positions[5] + new.sizes[5]
    for start, content in old.data.items():
        kept = new.data[start][:end] + content[end:]
        old.data[start] = bytearray(kept)
    for start, content in old.index.items():
        old.index[start] = bytearray(new.index[start][: 6 * 32] + content[6 * 32 :])
    old.save(tmp_path)
    currterm(tmp_path, 9)
    store = open_store(tmp_path)
    assert (store.end_index, store.end_term) == (5, 8)
    assert entries_of(store)[5].body == body
    assert not any((tmp_path / "data" / f"{0:020d}").read_bytes()[end:])
    assert not any((tmp_path / "index" / f"{0:020d}").read_bytes()[6 * 32 :])
    assert [one.reason.split(" found")[0] for one in store.files.archive.records()] == ["stale remnants"]
    store.close()


def test_a_java_node_that_wrote_behind_our_back_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([b"one", b"two"], 1)
    store.close()
    built = build([(1, 1, b"one"), (1, 1, b"two")])
    alien = build([(1, 1, b"one"), (1, 1, b"two"), (1, 2, b"java")], seal=False)
    at = built.positions[1] + built.sizes[1]
    path = tmp_path / "data" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:at] + bytes(alien.data[0][at:]))
    with pytest.raises(StoreCorrupt, match="store adopt"):
        open_store(tmp_path)


class Crash(BaseException):
    """The power goes."""


@pytest.mark.parametrize("cut_index", [1, 15, 26, 30, 59])
def test_a_truncation_survives_a_crash_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_index: int
) -> None:
    """Either the cut happened or it did not; what is left is a prefix, and whatever went is in the archive."""
    template = tmp_path / "template"
    store = open_store(template)
    store.save_hard_state(HardState(6, None, VoterState.VOTER))
    fill(store, 6, 10, longest=400)
    sync(store)
    entries = entries_of(store)
    kill(store)
    steps, finished = 0, False
    while not finished:
        directory = copy_of(template, "crashed")
        store = open_store(directory)
        left = [steps]

        def counted(real: Callable[..., object], left: list[int] = left) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                if left[0] == 0:
                    raise Crash
                left[0] -= 1
                return real(*args, **more)

            return call

        with monkeypatch.context() as patched:
            for name in ("pwrite", "fdatasync", "fsync", "sync_directory", "unlink", "replace"):
                patched.setattr(OS, name, counted(getattr(OS, name)))
            try:
                store.truncate(cut_index, record(store, cut_index))
                finished = True
            except Crash:
                pass
        kill(store)
        again = open_store(directory)
        assert cut_index - 1 <= again.end_index <= 59
        assert entries_of(again) == entries[: again.end_index + 1]
        assert again.hard_state.voter_state is VoterState.VOTER
        archived = [entry for one in again.files.archive.records() for entry in again.files.archive.entries(one.seq)]
        assert {entry.index for entry in archived} >= set(range(again.end_index + 1, 60))
        again.append_as_leader([b"after"], 9)
        again.close()
        steps += 1
    assert steps > 8
    assert again.end_index == cut_index


def test_the_layout_after_a_truncation_is_that_of_the_entries_alone(tmp_path: Path) -> None:
    for cut_index in range(1, 40):
        directory = tmp_path / str(cut_index)
        store = open_store(directory)
        bodies = [b"q" * (n * 61 % 500) for n in range(40)]
        store.append_as_leader(bodies, 1)
        store.truncate(cut_index, record(store, cut_index))
        store.append_as_leader([b"short", b"r" * 900], 2)
        store.close()
        entries = [(1, 1, body) for body in bodies[:cut_index]] + [(1, 2, b"short"), (1, 2, b"r" * 900)]
        built = build(entries)
        for kind, files in (("data", built.data), ("index", built.index)):
            on_disk = {int(path.name): path.read_bytes() for path in (directory / kind).glob("[0-9]*")}
            assert on_disk == {start: bytes(content) for start, content in files.items()}, (cut_index, kind)
