"""The log on disk: its bytes, its files, its refusals, and what a full or failing disk does to it."""

import errno
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import BODY_BYTES_MAX, EntryError, Magic, Slab, decode_slab
from node.protocol.group_members import GroupMembers
from node.store.errors import StoreCorrupt, StoreFull, StoreIOError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT, read_checkpoint
from node.store.files.os_files import SMALL_BYTES_MAX
from node.store.files.platform import OS, OsPlatform
from node.store.log_store import HardState
from node.store.repair.actions import set_term
from node.store.sync_ticket import Mark
from node.store.truncation import Truncation
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, build, flip


def on_disk(directory: Path, kind: str) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in sorted((directory / kind).glob("[0-9]*"))}


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    entries = [(Magic.NOOP, 1, b"")] + [(Magic.NORMAL, 1 + n // 20, b"x" * (n * 37 % 300)) for n in range(80)]
    store = open_store(tmp_path)
    for magic, term, body in entries:
        store.append_as_leader([body], term, magic)
    store.close()
    built = build([(int(magic), term, body) for magic, term, body in entries])
    assert on_disk(tmp_path, "data") == {start: bytes(content) for start, content in built.data.items()}
    assert on_disk(tmp_path, "index") == {start: bytes(content) for start, content in built.index.items()}


def test_batches_lay_out_as_singles_do_and_followers_as_leaders(tmp_path: Path) -> None:
    leader, singles, follower = (open_store(tmp_path / name) for name in ("leader", "singles", "follower"))
    bodies = [b"b" * (n * 53 % 400) for n in range(90)]
    slabs = leader.append_as_leader(bodies, 3)
    for body in bodies:
        singles.append_as_leader([body], 3)
    for slab in slabs:
        assert slab.pos // DATA_BYTES == (slab.end_pos - 1) // DATA_BYTES
        follower.append_slab(slab)
    for store in (leader, singles, follower):
        store.close()
    assert on_disk(tmp_path / "leader", "data") == on_disk(tmp_path / "singles", "data")
    assert on_disk(tmp_path / "leader", "data") == on_disk(tmp_path / "follower", "data")
    assert on_disk(tmp_path / "leader", "index") == on_disk(tmp_path / "follower", "index")


def test_a_body_that_fits_no_file_is_refused_and_burns_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    limit = DATA_BYTES - 48 - 8
    with pytest.raises(EntryError, match=f"limit is {limit} bytes"):
        store.append_as_leader([b"small", b"x" * (limit + 1)], 1)
    assert (store.end_index, list(store.files.data)) == (-1, [])
    store.append_as_leader([b"x" * limit], 1)
    assert store.end_index == 0
    large = open_store(tmp_path / "large", data_file_size=1 << 30)
    with pytest.raises(EntryError, match=f"limit is {BODY_BYTES_MAX} bytes"):
        large.append_as_leader([b"x" * (BODY_BYTES_MAX + 1)], 1)


def test_full_size_files_are_sparse(tmp_path: Path) -> None:
    store = open_store(tmp_path, data_file_size=1 << 30, index_file_size=32 * 5 * 1024 * 1024)
    store.append_as_leader([b"hello"], 1)
    status = (tmp_path / "data" / f"{0:020d}").stat()
    assert status.st_size == 1 << 30
    assert status.st_blocks * 512 <= 80 * 1024 * 1024
    store.close()


def test_reopening_finds_everything_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, terms=9, per_term=11)
    store.note_progress(70, 60)
    before = entries_of(store), [store.meta(index) for index in range(-1, store.end_index + 1)], store.end_chain
    starts = [store.term_start(index) for index in range(store.end_index + 1)]
    store.close()
    again = open_store(tmp_path)
    assert (entries_of(again), [again.meta(n) for n in range(-1, again.end_index + 1)], again.end_chain) == before
    assert [again.term_start(index) for index in range(again.end_index + 1)] == starts
    assert (again.durable_index, again.recovered_commit_index, again.alarms) == (again.end_index, 70, ())
    again.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    script = (
        "import sys; from node.store.file_store import FileStore; from node.store.errors import StoreRefused\n"
        "try: FileStore.open(sys.argv[1], group='g', node_id='n0', data_file_size=4096, index_file_size=1024)\n"
        "except StoreRefused as error: print('refused:', error)"
    )
    other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert other.stdout.startswith("refused:") and "another process" in other.stdout, other
    store.close()
    open_store(tmp_path).close()


@pytest.mark.parametrize(
    "other", [{"node_id": "n1"}, {"group": "h"}, {"data_file_size": 8192}, {"index_file_size": 2048}]
)
def test_another_node_group_or_file_size_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    open_store(tmp_path).close()
    with pytest.raises(StoreRefused, match=next(iter(other))):
        open_store(tmp_path, **other)
    open_store(tmp_path).close()


def test_an_unreadable_hard_state_is_never_taken_for_term_0(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save_hard_state(HardState(7, "n2", VoterState.VOTER, 3, {"n1": "abc"}))
    store.append_as_leader([b"x"], 7)
    store.close()
    path = tmp_path / "hardstate"
    sound = path.read_bytes()
    for damaged in (sound.replace(b"7", b"8", 1), b"", b"garbage", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(StoreRefused, match="repair DIR --set-term"):
            open_store(tmp_path)
        path.touch()
    path.write_bytes(sound)
    again = open_store(tmp_path)
    assert again.hard_state == HardState(7, "n2", VoterState.VOTER, 3, {"n1": "abc"})
    assert (tmp_path / "currterm").read_text() == "voteLeader=n2\ncurrTerm=7\n"
    again.close()


@pytest.mark.parametrize(("java", "term"), [((9, "n1"), 9), ((7, "n1"), 7), ((3, ""), 7)])
def test_where_the_term_files_disagree_the_higher_counts_without_a_vote(
    tmp_path: Path, java: tuple[int, str], term: int
) -> None:
    store = open_store(tmp_path)
    store.save_hard_state(HardState(7, "n2", VoterState.VOTER))
    store.close()
    (tmp_path / "currterm").write_text(f"currTerm={java[0]}\nvoteLeader={java[1]}\n")
    again = open_store(tmp_path)
    assert (again.hard_state.term, again.hard_state.voted_for, again.hard_state.vote_floor) == (term, None, term)
    again.close()


SMALL = ("hardstate", "currterm", "quorumscope.json", "faults", "base", "layout", "checkpoint")


@pytest.mark.parametrize("name", SMALL)
def test_a_small_file_of_an_impossible_length_is_not_read_into_memory(tmp_path: Path, name: str) -> None:
    """64 GiB of it, say: the engine would be killed over it at every start, and never say why."""

    class NoLarge(OsPlatform):
        def read_bytes(self, path: Path) -> bytes:
            assert path.stat().st_size <= SMALL_BYTES_MAX, path
            return super().read_bytes(path)

    store = open_store(tmp_path)
    store.save_hard_state(HardState(3, "n1", VoterState.VOTER))
    fill(store, 1, 5)
    store.close()
    with (tmp_path / name).open("ab") as file:
        file.truncate(SMALL_BYTES_MAX + 1)
    if name in ("hardstate", "quorumscope.json", "base", "checkpoint"):
        with pytest.raises(StoreRefused, match=f"{name} is damaged: it has {SMALL_BYTES_MAX + 1} bytes"):
            open_store(tmp_path, platform=NoLarge())
        if name != "hardstate":
            return
        set_term(tmp_path, 3, NoLarge())  # what that refusal says
    store = open_store(tmp_path, platform=NoLarge())
    assert (store.hard_state.term, store.end_index) == (3, 4)
    assert (store.hard_state.voted_for is None) == (name in ("hardstate", "currterm")), "no vote where one is in doubt"
    store.close()


def test_who_may_vote_after_opening(tmp_path: Path) -> None:
    for _ in range(2):
        store = open_store(tmp_path / "new", init=True)
        assert store.hard_state.voter_state is VoterState.FORMING
        store.close()
    wiped = open_store(tmp_path / "wiped", init=False)
    assert wiped.hard_state.voter_state is VoterState.REJOINING
    wiped.close()
    voter = open_store(tmp_path / "voter")
    voter.save_hard_state(HardState(4, None, VoterState.VOTER))
    voter.close()
    voter = open_store(tmp_path / "voter", init=False)
    assert voter.hard_state.voter_state is VoterState.VOTER
    voter.close()


@pytest.mark.parametrize(
    ("flush", "boot", "clean", "expected"),
    [
        (FlushMode.ASYNC, "boot-2", False, VoterState.REJOINING),
        (FlushMode.ASYNC, "boot-1", False, VoterState.VOTER),
        (FlushMode.ASYNC, "boot-2", True, VoterState.VOTER),
        (FlushMode.SYNC, "boot-2", False, VoterState.VOTER),
    ],
)
def test_async_flush_and_a_power_cut_cost_the_vote(
    tmp_path: Path, flush: FlushMode, boot: str, clean: bool, expected: VoterState
) -> None:
    store = open_store(tmp_path, flush=flush)
    store.save_hard_state(HardState(1, None, VoterState.VOTER))
    fill(store, 1, 5)
    if clean:
        store.close()
    else:
        kill(store)
    again = open_store(tmp_path, flush=flush, boot_id=boot)
    assert again.hard_state.voter_state is expected
    again.close()


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 9)
    sync(store)
    before = (on_disk(tmp_path, "data"), on_disk(tmp_path, "index"), store.end_index, store.end_chain)
    real, budget = os.pwrite, [0]

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if not any(data):  # zeroing needs no new space
            return real(fd, data, offset)
        if budget[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, data[: budget[0]], offset)
        budget[0] -= written
        return written

    monkeypatch.setattr(OS, "pwrite", pwrite)
    for room in (0, 1, 100, 700, 3000, 5000, 6100):
        budget[0] = room
        with pytest.raises(StoreFull, match="no space left"):
            store.append_as_leader([b"y" * 500 for _ in range(12)], 5)
        assert (on_disk(tmp_path, "data"), on_disk(tmp_path, "index"), store.end_index, store.end_chain) == before
    monkeypatch.undo()
    store.append_as_leader([b"room again"], 5)
    store.close()
    again = open_store(tmp_path)
    assert again.end_index == before[2] + 1
    again.close()


def test_a_full_disk_refuses_a_truncation_and_cuts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 9)
    before = (entries_of(store), on_disk(tmp_path, "data"))

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OS, "pwrite", pwrite)
    with pytest.raises(StoreFull):
        store.truncate(5, record(store, 5))
    monkeypatch.undo()
    assert (entries_of(store), on_disk(tmp_path, "data")) == before
    assert store.files.archive.records() == []
    store.close()


def test_a_failed_fsync_ends_it_and_promises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    fill(store, 1, 5)
    sync(store)
    store.append_as_leader([b"later"], 2)
    ticket = store.prepare_sync()
    assert ticket is not None

    def fdatasync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OS, "fdatasync", fdatasync)
    with pytest.raises(StoreIOError, match="Input/output error"):
        ticket.run()
    assert store.durable_index == 4
    store.close()
    monkeypatch.undo()
    again = open_store(tmp_path)
    assert json.loads((tmp_path / "quorumscope.json").read_text())["store_id"] == again.store_id
    assert again.end_index == 5  # still readable: and rewritten and synced before anyone was answered
    again.close()


def test_a_sync_that_was_overtaken_by_a_cut_moves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 1, 10)
    ticket = store.prepare_sync()
    assert ticket is not None
    store.truncate(4, record(store, 4))
    ticket.run()
    assert store.finish_sync(ticket) == -1
    slot = read_checkpoint(tmp_path / CHECKPOINT)
    assert slot is not None and slot.durable_index == -1
    store.append_as_leader([b"other"], 9)
    assert sync(store) == 4 == store.end_index
    store.close()


def test_a_cut_while_a_group_commit_is_made_makes_it_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may be stopped between any two calls, and the writing thread cut meanwhile."""
    store = open_store(tmp_path)
    fill(store, 1, 20)
    durable = sync(store)
    fill(store, 1, 5)
    take_dirty = store.files.data.take_dirty

    def meanwhile() -> list[object]:
        monkeypatch.undo()
        store.truncate(10, record(store, 10))
        return list(take_dirty())

    monkeypatch.setattr(store.files.data, "take_dirty", meanwhile)
    ticket = store.prepare_sync()
    assert ticket is not None and ticket.end_index > durable
    ticket.run()
    assert store.finish_sync(ticket) == store.durable_index == store.end_index == 9
    slot = read_checkpoint(tmp_path / CHECKPOINT)
    assert slot is not None and slot.durable_index == 9
    store.close()


def test_while_a_cut_runs_no_group_commit_names_it_and_a_read_of_it_finds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 20)
    real = Truncation._cut
    seen: list[object] = []

    def cut(self: Truncation, last: Mark, cut_index: int) -> None:
        """What the loop and a reading thread do meanwhile."""
        seen.extend([store.prepare_sync(), store.prepare_checkpoint()])
        assert store.meta(cut_index - 1) is not None
        real(self, last, cut_index)

    monkeypatch.setattr(Truncation, "_cut", cut)
    store.truncate(20, record(store, 20))
    assert seen == [None, None]
    store.append_as_leader([b"x"], 9)

    def cut_during_read(*_: object) -> Slab:
        store.truncate(10, record(store, 10))
        raise StoreCorrupt("zeros where a record was")

    monkeypatch.setattr("node.store.cold_reads.read_raw_slab", cut_during_read)
    monkeypatch.setattr(Truncation, "_raw", lambda self, index, pos: [])
    with pytest.raises(KeyError):
        store.read_slab(15, 1000)
    assert store.end_index == 9
    store.close()


def test_rot_is_named_and_never_travels(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([b"a" * 100, b"b" * 100, b"c" * 100], 1)
    flip(tmp_path / "data" / f"{0:020d}", 148 + 48 + 5)
    assert store.read_slab(0, 1 << 20).last_index == 0
    with pytest.raises(StoreCorrupt, match="body of entry 1 does not match its CRC") as caught:
        store.read_slab(1, 10)
    assert [(one.first_index, one.last_index, one.kind) for one in caught.value.faults] == [(1, 1, "crc_invalid")]
    assert store.read_slab(2, 10).first_index == 2
    store.close()


def test_slabs_that_do_not_continue_are_refused_whole(tmp_path: Path) -> None:
    leader, follower = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    first, second = leader.append_as_leader([b"one"], 2)[0], leader.append_as_leader([b"two"], 2)[0]
    with pytest.raises(EntryError, match="does not continue"):
        follower.append_slab(second)
    follower.append_slab(first)
    stranger = open_store(tmp_path / "c")
    stranger.append_as_leader([b"another"], 2)
    with pytest.raises(EntryError, match="chain"):
        follower.append_slab(stranger.append_as_leader([b"two"], 2)[0])
    with pytest.raises(EntryError, match="term"):
        follower.append_as_leader([b"x"], 1)
    assert follower.end_index == 0
    for store in (leader, follower, stranger):
        store.close()


def test_recent_slabs_are_cut_and_joined_and_equal_the_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(60):
        store.append_as_leader([b"%d" % number * (number % 9)], 1 + number // 25)
    for first in range(store.end_index + 1):
        for limit in (1, 200, 1 << 20):
            recent, read = store.recent_slab(first, limit), store.read_slab(first, limit)
            assert recent is not None
            assert recent == read
            assert len(recent.data) <= limit or recent.count == 1
    assert store.recent_slab(store.end_index + 1, 100) is None
    with pytest.raises(KeyError):
        store.read_slab(store.end_index + 1, 100)
    store.close()


def test_removing_a_prefix_keeps_whole_files_and_the_base(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 6, 20)
    metas = {index: store.meta(index) for index in range(store.end_index + 1)}
    sync(store)
    store.note_progress(70, 70)
    store.remove_prefix(70)
    assert 0 < store.begin_index <= 71
    assert store.base == metas[store.begin_index - 1] == store.meta(store.begin_index - 1)
    begin, end = store.begin_index, store.end_index
    assert store.get(begin - 1) is None
    store.close()
    again = open_store(tmp_path)
    assert (again.begin_index, again.end_index, again.base) == (begin, end, metas[begin - 1])
    assert all(again.meta(index) == metas[index] for index in range(begin - 1, end + 1))
    again.append_as_leader([b"goes on"], 99)
    again.truncate(begin, record(again, begin))
    assert (again.end_index, again.end_term, again.end_chain) == (begin - 1, again.base.term, again.base.chain)
    again.close()
    empty = open_store(tmp_path)
    assert (empty.begin_index, empty.end_index, empty.meta(begin - 1)) == (begin, begin - 1, metas[begin - 1])
    empty.append_as_leader([b"new"], 100)
    assert [entry.body for entry in entries_of(empty)] == [b"new"]
    empty.close()


@pytest.mark.parametrize("off_by", [-3, -1, 1, 4])
def test_a_log_never_begins_where_a_rotten_head_says(tmp_path: Path, off_by: int) -> None:
    """Behind a base at another entry's place no peer's entries could ever be mended in."""
    store = open_store(tmp_path)
    fill(store, 1, 90)
    store.note_progress(89, 89)
    sync(store)
    segment = store.files.data.find(store.files.data.starts[2])
    assert segment is not None
    (true_index,) = struct.unpack(">q", segment.read(segment.start + 8, 8))
    assert [file.last_index for file in store.survey(9).files][1] == true_index - 1
    sound = store.read_slab(true_index, 1)
    segment.write(segment.start + 8, struct.pack(">q", true_index + off_by))
    assert all(file.last_index < true_index - 1 for file in store.survey(9).files)
    store.remove_prefix(true_index + 5)
    assert store.files.begin_pos == DATA_BYTES and store.begin_index < true_index - 5
    store.close()
    store = open_store(tmp_path)
    assert [(one.first_index, one.last_index) for one in store.faults] == [(true_index, true_index)]
    assert store.mend(sound).healed and not store.faults
    store.remove_prefix(true_index + 5)
    assert store.begin_index == true_index
    store.close()


def test_a_log_never_begins_behind_a_rotten_chain(tmp_path: Path) -> None:
    """The head of the last entry that goes says it; the first one that stays has to continue it."""
    store = open_store(tmp_path)
    fill(store, 1, 90)
    sync(store)
    store.close()
    store = open_store(tmp_path)  # memory holds the newest entries alone
    store.files.ring.forget_through(89)
    store.note_progress(89, 89)
    last_index = store.survey(9).files[1].last_index
    sound = store.read_slab(last_index, 1)
    flip(tmp_path / "data" / f"{DATA_BYTES:020d}", sound.pos + 36 - DATA_BYTES)
    store.remove_prefix(last_index)
    assert store.begin_index == 0
    store.note_faults(store.scrub(last_index, DATA_BYTES).faults)
    assert store.mend(sound).healed
    store.remove_prefix(last_index)
    assert (store.begin_index, store.base.chain) == (last_index + 1, sound.last_chain)
    store.close()
    store = open_store(tmp_path)
    assert not store.faults
    store.close()


def test_a_record_of_members_that_never_came_holds_the_prefix_until_it_is_gone(tmp_path: Path) -> None:
    """Below the base nothing would contradict it: the next start would go by it, and so would whom the base is given
    to (M1)."""
    came, never = (GroupMembers(dict.fromkeys(ids, "")).body(ids).decode() for ids in ("abc", "ab"))
    store = open_store(tmp_path)
    fill(store, 1, 20)
    store.append_as_leader([came.encode()], 2, Magic.CONFIG_CHANGE)
    fill(store, 6, 20)
    store.save_hard_state(HardState(9, None, VoterState.VOTER, configurations=((20, came), (25, never))))
    sync(store)
    store.note_progress(100, 100)
    store.remove_prefix(100)
    assert store.begin_index == 0
    store.save_hard_state(replace(store.hard_state, configurations=((20, came),)))
    store.remove_prefix(100)
    assert store.begin_index > 25 and store.base_on_record.members == (20, came)
    store.close()


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    store = open_store(tmp_path, data_file_size=1 << 20, index_file_size=1 << 16)
    store.files.ring._bytes_max = 64 * 1024
    for _ in range(40):
        store.append_as_leader([b"z" * 1000] * 50, 1)
    assert store.files.ring._bytes <= 64 * 1024
    assert len(store.files.terms.starts) == 1
    assert store.recent_slab(0, 1000) is None
    assert [entry.index for entry in decode_slab(store.read_slab(0, 5000))] == [0, 1, 2, 3]
    store.close()


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    store: FileStore = open_store(tmp_path)
    store.close()
    store.close()


def test_an_emptied_log_goes_on_in_the_term_of_its_base(tmp_path: Path) -> None:
    """Opened anew it has no run of equal terms: the first entry begins one, though its term is the base's."""
    store = open_store(tmp_path)
    store.append_as_leader([b"x" * 100] * 60, 1)
    sync(store)
    store.note_progress(40, 40)
    store.remove_prefix(40)
    begin = store.begin_index
    assert begin > 0
    store.truncate(begin, record(store, begin))
    store.close()
    store = open_store(tmp_path)
    assert (store.begin_index, store.end_index, store.end_term) == (begin, begin - 1, 1)
    store.append_as_leader([b"again"] * 3, 1)
    store.append_as_leader([b"later"], 2)
    assert [store.term_start(index) for index in range(begin, begin + 4)] == [begin] * 3 + [begin + 3]
    assert (store.last_index_of_term(0), store.last_index_of_term(1)) == (begin - 1, begin + 2)
    store.close()
