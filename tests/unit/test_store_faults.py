"""A damaged log opens with its faults named, lives with them, and heals from a peer's entries (SAFETY S3, S6, S7)."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path

import pytest

from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import Entry, EntryError, Slab
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault, Mended
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.platform import OS
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.slab_pieces import cut_slab
from node.store.term_table import TermTable
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES, blank_out, build, flip

LAST = 89
INDEX_UNITS = INDEX_BYTES // 32


def place_of(directory: Path, index: int) -> tuple[Path, int, int]:
    """Data file, offset in it and size of an entry, by its index record."""
    path = directory / "index" / f"{index // INDEX_UNITS * INDEX_BYTES:020d}"
    _, pos, size, number, _ = struct.unpack_from(">iqiqq", path.read_bytes(), index % INDEX_UNITS * 32)
    assert number == index
    return directory / "data" / f"{pos // DATA_BYTES * DATA_BYTES:020d}", pos % DATA_BYTES, size


def index_place(directory: Path, index: int) -> tuple[Path, int]:
    return directory / "index" / f"{index // INDEX_UNITS * INDEX_BYTES:020d}", index % INDEX_UNITS * 32


def fill_voter(directory: Path) -> FileStore:
    store = open_store(directory)
    store.save_hard_state(HardState(3, None, VoterState.VOTER))
    fill(store, 3, 30)
    store.note_progress(LAST, LAST)
    return store


def test_a_read_behind_a_rotten_chain_names_the_wrong_entry_and_both_heal(tmp_path: Path) -> None:
    """What no peer's entries continue is the entry before: without a scrub nobody ever looked at that one."""
    fill_voter(tmp_path).close()
    store = open_store(tmp_path)
    store.files.ring.forget_through(LAST)
    theirs = store.read_slab(40, 1000)
    path, at, _ = place_of(tmp_path, 40)
    flip(path, at + 36)
    with pytest.raises(StoreCorrupt) as raised:
        store.read_slab(41, 1000)
    store.note_faults(raised.value.faults)
    assert [(one.first_index, one.last_index) for one in store.faults] == [(41, 41)]
    assert not store.mend_alone(41).healed
    assert [(one.first_index, one.last_index) for one in store.faults] == [(40, 41)]
    two = cut_slab(theirs, 40, 2)
    assert store.mend(two).healed and not store.faults
    assert store.read_slab(40, 1000).data == theirs.data
    store.close()


def test_a_part_of_a_fault_that_heals_on_the_leaders_word_may_begin_a_term(tmp_path: Path) -> None:
    """What is damaged counts with the term before; behind what healed it counts with that one's."""
    fill_voter(tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for index in range(30, 34):  # term 2 begins at 30
        path, at, size = place_of(tmp_path / "a", index)
        flip(path, at + size - 1)
    a, b = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    a.note_faults([Fault(30, 33, "crc_invalid")])
    vouched = b.meta(31)
    assert vouched is not None and a.meta(29) is not None
    assert a.mend(cut_slab(b.read_slab(30, 1000), 30, 2), vouched).healed
    assert ranges(a) == [(32, 33)]
    assert a.files.terms.term_at(31) == a.files.terms.term_at(33) == vouched.term
    a.close()
    b.close()


def test_two_members_mend_each_other_where_each_has_what_lies_between(tmp_path: Path) -> None:
    """An entry between two damaged heads is a part of the damage, and the only copy of what the other one damaged."""
    fill_voter(tmp_path / "a").close()
    fill_voter(tmp_path / "b").close()
    sound = open_store(tmp_path / "a")
    wanted = entries_of(sound)
    sound.close()
    for name, index in (("a", 40), ("a", 42), ("b", 41)):
        path, at, _ = place_of(tmp_path / name, index)
        flip(path, at + 36)  # of the chain
    a, b = open_store(tmp_path / "a"), open_store(tmp_path / "b")
    b.note_faults([Fault(41, 41, "crc_invalid")])
    assert (ranges(a), ranges(b)) == ([(40, 42)], [(41, 41)])
    assert [(one.first_index, one.last_index) for one in a.mend(b.read_slab(40, 1000)).healed] == [(40, 41)]
    assert ranges(a) == [(42, 42)]
    assert b.mend(a.read_slab(41, 1000)).healed and not b.faults
    assert a.mend(b.read_slab(42, 1)).healed and not a.faults
    assert entries_of(a) == entries_of(b) == wanted
    a.close()
    b.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 durable entries of three terms over several files, all synced; then SIGKILL."""
    directory = tmp_path_factory.mktemp("sound") / "store"
    store = fill_voter(directory)
    sync(store)
    kill(store)
    assert len(list((directory / "data").glob("[0-9]*"))) > 3
    return directory


def copy_of(sound: Path, directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    return Path(shutil.copytree(sound, directory))


def ranges(store: FileStore) -> list[tuple[int, int]]:
    return [(fault.first_index, fault.last_index) for fault in store.faults]


def first_of_second_file(sound: Path) -> int:
    return next(index for index in range(LAST) if int(place_of(sound, index)[0].name) > 0)


def damage(directory: Path, index: int, how: str) -> None:
    path, offset, size = place_of(directory, index)
    unit_path, unit_at = index_place(directory, index)
    if how == "body":
        flip(path, offset + size - 1)
    elif how == "term":
        flip(path, offset + 23, 1)
    elif how == "chain":
        flip(path, offset + 38)
    elif how == "size":
        flip(path, offset + 7, 0x41)
    elif how == "head and index":
        flip(path, offset + 1)
        blank_out(unit_path, unit_at, unit_at + 32)
    elif how == "noise":
        content = bytearray(path.read_bytes())
        content[offset : offset + size] = bytes((7 * n + 13) % 256 for n in range(size))
        path.write_bytes(bytes(content))
    else:
        raise AssertionError(how)


DAMAGES = ["body", "term", "chain", "size", "head and index", "noise"]


def places(sound: Path) -> dict[str, int]:
    border = first_of_second_file(sound)
    return {"first": 0, "middle": 17, "before a border": border - 1, "behind a border": border, "last": LAST}


def heal(store: FileStore, peer: FileStore, max_bytes: int = 300) -> list[Mended]:
    """What the core does: entries of the fault from its first one on, in as many reads as it takes."""
    results: list[Mended] = []
    while store.faults:
        fault = store.faults[0]
        index, last_index = fault.first_index, fault.last_index
        while index <= last_index:
            slab = peer.read_slab(index, max_bytes)
            if slab.last_index > last_index:
                slab = peer.read_slab(index, 1)
            result = store.mend(slab)
            results.append(result)
            assert result.mended_through >= slab.last_index, result.detail
            index, last_index = result.mended_through + 1, max(last_index, result.wanted_through)
    return results


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{path.name}": path.read_bytes()
        for kind in ("data", "index")
        for path in sorted((directory / kind).glob("[0-9]*"))
    }


@pytest.mark.parametrize("where", ["first", "middle", "before a border", "behind a border", "last"])
@pytest.mark.parametrize("how", DAMAGES)
def test_one_damaged_entry_is_a_fault_and_heals(sound: Path, tmp_path: Path, how: str, where: str) -> None:
    directory, peer = copy_of(sound, tmp_path / "store"), open_store(copy_of(sound, tmp_path / "peer"))
    entries, metas = entries_of(peer), [peer.meta(index) for index in range(-1, LAST + 1)]
    before = bytes_of(sound)
    index = places(sound)[where]
    damage(directory, index, how)
    store = open_store(directory)
    assert all(first <= index <= last and last - first <= 1 for first, last in ranges(store)), ranges(store)
    assert len(store.faults) == 1
    assert (store.end_index, store.end_term, store.end_chain) == (LAST, peer.end_term, peer.end_chain)
    assert (store.hard_state.voter_state, store.durable_index) == (VoterState.VOTER, LAST)
    first, last = ranges(store)[0]
    for number in range(LAST + 1):
        if first <= number <= last:
            with pytest.raises(StoreCorrupt) as caught:
                store.get(number)
            assert caught.value.faults == store.faults
            with pytest.raises(StoreCorrupt):
                store.read_slab(number, 1000)
            if number != LAST:
                with pytest.raises(StoreCorrupt):
                    store.meta(number)
        else:
            assert store.get(number) == entries[number]
            assert store.meta(number) == metas[number + 1]
            slab = store.read_slab(number, 10_000)
            assert (slab.prev_chain is None) == (number == last + 1)
            assert not first <= slab.last_index <= last
    assert store.meta(LAST) == metas[-1]
    results = heal(store, peer)
    assert results[-1].healed and store.faults == ()
    assert entries_of(store) == entries
    assert [store.meta(number) for number in range(-1, LAST + 1)] == metas
    assert [store.term_start(number) for number in range(LAST + 1)] == [
        peer.term_start(number) for number in range(LAST + 1)
    ]
    assert [one.reason.split(":")[0] for one in store.files.archive.records()] == ["repair"]
    store.append_as_leader([b"goes on"], 4)
    store.truncate(LAST + 1, record(store, LAST + 1))
    store.close()
    assert bytes_of(directory) == before
    assert StoreReader(directory).verify().problems == []
    peer.close()


def test_a_missing_data_file_in_the_middle_is_a_fault_and_heals(sound: Path, tmp_path: Path) -> None:
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    entries = entries_of(peer)
    files = sorted((sound / "data").glob("[0-9]*"))
    for number, gone in enumerate(files[:-1]):
        directory = copy_of(sound, tmp_path / "store")
        (directory / "data" / gone.name).unlink()
        held = [index for index in range(LAST + 1) if place_of(sound, index)[0].name == gone.name]
        store = open_store(directory)
        assert ranges(store) == [(held[0], held[-1])], number
        assert (store.end_index, store.end_chain) == (LAST, peer.end_chain)
        heal(store, peer)
        assert entries_of(store) == entries
        store.close()
        assert bytes_of(directory) == bytes_of(sound)
    peer.close()


def test_missing_index_files_are_written_anew(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.store.recovery.log_recovery.RECHECK_BYTES", 3000)
    for gone in sorted((sound / "index").glob("[0-9]*")):
        directory = copy_of(sound, tmp_path / "store")
        (directory / "index" / gone.name).unlink()
        store = open_store(directory)
        assert (store.faults, store.end_index) == ((), LAST)
        store.close()
        assert bytes_of(directory) == bytes_of(sound)


def test_data_and_index_damaged_together_over_a_stretch(sound: Path, tmp_path: Path) -> None:
    """The index file is gone as a whole: records are placed by their own heads and chains."""
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    for first, last in ((0, 0), (3, 9), (40, 44), (LAST - 1, LAST)):
        directory = copy_of(sound, tmp_path / "store")
        for index in range(first, last + 1):
            damage(directory, index, "noise")
        shutil.rmtree(directory / "index")
        store = open_store(directory)
        (found,) = ranges(store)
        # Without an index record nothing vouches for the term of the first sound entry: it may count as damaged too.
        assert found[0] == first and last <= found[1] <= last + 1
        assert (store.end_index, store.end_chain) == (LAST, peer.end_chain)
        heal(store, peer)
        assert entries_of(store) == entries_of(peer)
        store.close()
        assert bytes_of(directory) == bytes_of(sound)
    peer.close()


def test_a_misdirected_write_is_damage_in_the_place_where_it_landed(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    source, source_at, source_size = place_of(directory, 30)
    target, target_at, _ = place_of(directory, 5)
    content, raw = bytearray(target.read_bytes()), source.read_bytes()[source_at : source_at + source_size]
    content[target_at : target_at + len(raw)] = raw
    target.write_bytes(bytes(content))
    store = open_store(directory)
    (found,) = ranges(store)
    assert found[0] == 5
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    assert store.get(30) == peer.get(30)
    with pytest.raises(StoreCorrupt):
        store.get(5)
    heal(store, peer)
    assert entries_of(store) == entries_of(peer)
    store.close()
    peer.close()


def test_a_damaged_filler_costs_no_entry(sound: Path, tmp_path: Path) -> None:
    border = first_of_second_file(sound)
    path, offset, size = place_of(sound, border - 1)
    for how in ("flip", "zero"):
        directory = copy_of(sound, tmp_path / "store")
        filler = directory / "data" / path.name
        if how == "flip":
            flip(filler, offset + size + 2)
        else:
            blank_out(filler, offset + size, DATA_BYTES)
        store = open_store(directory)
        assert (store.faults, store.end_index) == ((), LAST), how
        assert any("filler" in alarm for alarm in store.alarms)
        store.close()
        assert bytes_of(directory) == bytes_of(sound)


def test_an_unknown_tail_costs_the_vote_first_and_is_archived_and_cut(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    store = open_store(directory)
    store.append_as_leader([b"p" * 90, b"q" * 90, b"r" * 90], 4)
    kill(store)
    for index in (LAST + 1, LAST + 2, LAST + 3):
        path, offset, size = place_of(directory, index)
        content = bytearray(path.read_bytes())
        content[offset : offset + size] = b"\x5a" * size
        path.write_bytes(bytes(content))
    crashed = copy_of(directory, tmp_path / "crashed")
    real = OS.pwrite
    try:  # the vote is given up durably before the first byte goes
        OS.pwrite = lambda fd, data, offset: _fail_on_zeros(real, fd, data, offset)  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            open_store(crashed)
    finally:
        del OS.pwrite
    assert b"REJOINING" in (crashed / "hardstate").read_bytes().upper()
    again = open_store(directory)
    assert (again.end_index, again.hard_state.voter_state) == (LAST, VoterState.REJOINING)
    assert again.faults == ()
    assert again.files.archive.data(1).startswith(b"\x5a" * 100)
    assert any("archived and cut" in alarm for alarm in again.alarms)
    again.append_as_leader([b"on"], 5)
    again.close()
    assert StoreReader(directory).verify().problems == []


def _fail_on_zeros(real: object, fd: int, data: bytes | memoryview, offset: int) -> int:
    if not any(data):
        raise ZeroDivisionError
    return real(fd, data, offset)  # type: ignore[operator, no-any-return]


def test_both_slots_lost_and_a_torn_tail_cost_the_vote(sound: Path, tmp_path: Path) -> None:
    for index, voter_state in ((LAST, VoterState.REJOINING), (50, VoterState.VOTER)):
        directory = copy_of(sound, tmp_path / "store")
        path, offset, size = place_of(directory, index)
        blank_out(path, offset + 20, offset + size)
        (directory / CHECKPOINT).write_bytes(b"\x99" * 8192)
        store = open_store(directory)
        assert store.hard_state.voter_state is voter_state, index
        assert store.end_index == (LAST - 1 if index == LAST else LAST)
        assert ranges(store) == ([] if index == LAST else [(50, 50)])
        kill(store)


@pytest.mark.parametrize("content", [None, b"\0" * 8192, b"\x99" * 8192])
@pytest.mark.parametrize("flush", list(FlushMode))
def test_with_async_flush_a_lost_checkpoint_costs_the_vote(
    sound: Path, tmp_path: Path, content: bytes | None, flush: FlushMode
) -> None:
    """Nobody can say any more whether the stop was clean and the machine the same."""
    directory = copy_of(sound, tmp_path / "store")
    (directory / CHECKPOINT).unlink()
    if content is not None:
        (directory / CHECKPOINT).write_bytes(content)
    store = open_store(directory, flush=flush, boot_id="boot-2")
    wanted = VoterState.VOTER if flush is FlushMode.SYNC else VoterState.REJOINING
    assert store.hard_state.voter_state is wanted
    kill(store)


def test_one_rotten_slot_makes_a_torn_tail_doubtful(sound: Path, tmp_path: Path) -> None:
    """The rotten slot may have said more: what looks torn above the other one may have been acknowledged."""
    for rotten, voter_state in ((True, VoterState.REJOINING), (False, VoterState.VOTER)):
        directory = copy_of(sound, tmp_path / "store")
        store = open_store(directory)
        store.append_as_leader([b"p" * 90], 4)
        kill(store)
        path, offset, size = place_of(directory, LAST + 1)
        blank_out(path, offset + 20, offset + size)
        if rotten:
            flip(directory / CHECKPOINT, 30)
        again = open_store(directory, boot_id="boot-2")
        assert (again.end_index, again.hard_state.voter_state) == (LAST, voter_state)
        kill(again)


def test_a_peer_with_another_history_heals_nothing(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    for index in (10, 11):
        damage(directory, index, "noise")
    store, peer = open_store(directory), open_store(copy_of(sound, tmp_path / "peer"))
    peer.truncate(11, record(peer, 11))
    peer.append_as_leader([b"another history"] * 5, 3)
    before = bytes_of(directory)
    with pytest.raises(EntryError, match="fits no fault"):
        store.mend(peer.read_slab(9, 1))
    with pytest.raises(EntryError, match="neither begins"):
        store.mend(peer.read_slab(11, 1))
    first = store.mend(peer.read_slab(10, 1))
    assert (first.mended_through, first.healed) == (10, ())
    for index in range(11, 16):  # the first record behind the fault may lie; more of the peer's show that it does not
        last = store.mend(peer.read_slab(index, 1))
        assert (last.mended_through, last.healed, last.wanted_through) == (index, (), index + 1)
    while last.mended_through > 9:
        peer.append_as_leader([b"and more of it"], 3)
        last = store.mend(peer.read_slab(last.wanted_through, 1))
    assert last.wanted_through < 25, "it takes only so many"
    assert (last.mended_through, last.healed, last.remaining) == (9, (), store.faults)
    assert last.detail and ranges(store) == [(10, 11)]
    assert bytes_of(directory) == before, "nothing was overwritten"
    assert store.files.archive.count == 0
    left = store.mend(_with_other_body(peer.read_slab(10, 1)))
    assert left.mended_through == 9
    third = open_store(copy_of(sound, tmp_path / "third"))
    heal(store, third)
    assert entries_of(store) == entries_of(third)
    for one in (store, peer, third):
        one.close()


@pytest.mark.parametrize("field", ["chain", "channel"])
def test_the_record_behind_a_fault_may_be_damaged_where_only_the_chain_before_would_tell(
    sound: Path, tmp_path: Path, field: str
) -> None:
    """With the chain before it unknown its body CRC alone speaks for it: the entries of a peer show that it lies."""
    for last in (14, LAST - 1):
        directory, peer = copy_of(sound, tmp_path / "store"), open_store(copy_of(sound, tmp_path / "peer"))
        for index in range(last - 3, last + 1):
            damage(directory, index, "noise")
        path, offset, _ = place_of(directory, last + 1)
        flip(path, offset + {"chain": 36, "channel": 35}[field], 1)
        store = open_store(directory)
        assert ranges(store)[0][0] == last - 3
        heal(store, peer)
        assert entries_of(store) == entries_of(peer)
        store.close()
        assert bytes_of(directory) == bytes_of(sound)
        peer.close()


def _with_other_body(slab: Slab) -> Slab:
    data = bytearray(slab.data)
    data[-1] ^= 1
    return Slab(
        slab.first_index, 1, slab.pos, bytes(data), slab.index_records, slab.first_term, slab.last_term,
        slab.prev_chain, slab.last_chain,
    )  # fmt: skip


class Crash(BaseException):
    """The process goes."""


def test_a_mend_survives_a_crash_at_every_step(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is a fault or a healed entry, and the log is otherwise as it was."""
    damaged = copy_of(sound, tmp_path / "damaged")
    border = first_of_second_file(sound)
    for index in range(border - 2, border + 2):
        damage(damaged, index, "noise")
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    entries = entries_of(peer)
    steps, finished = 0, False
    while not finished:
        directory = copy_of(damaged, tmp_path / "crashed")
        store = open_store(directory)
        assert ranges(store) == [(border - 2, border + 1)]
        left = [steps]

        def counted(real: object, left: list[int] = left) -> object:
            def call(*args: object, **more: object) -> object:
                if left[0] == 0:
                    raise Crash
                left[0] -= 1
                return real(*args, **more)  # type: ignore[operator]

            return call

        with monkeypatch.context() as patched:
            for name in ("pwrite", "fdatasync", "fsync", "sync_directory", "unlink", "replace"):
                patched.setattr(OS, name, counted(getattr(OS, name)))
            try:
                heal(store, peer)
                finished = True
            except Crash:
                pass
        kill(store)
        again = open_store(directory)
        assert again.end_index == LAST
        assert all(border - 2 <= first and last <= border + 1 for first, last in ranges(again))
        for index in range(LAST + 1):
            if not any(first <= index <= last for first, last in ranges(again)):
                assert again.get(index) == entries[index]
        assert again.hard_state.voter_state is VoterState.VOTER
        heal(again, peer)
        again.close()
        assert bytes_of(directory) == bytes_of(sound)
        steps += 1
    assert steps > 10
    peer.close()


def test_faults_are_remembered_over_a_restart(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the last 16 MiB only; it must not forget what is damaged below."""
    monkeypatch.setattr("node.store.recovery.log_recovery.RECHECK_BYTES", 2000)
    directory = copy_of(sound, tmp_path / "store")
    damage(directory, 12, "body")
    store = open_store(directory)
    assert store.faults == (), "nobody has looked there"
    with pytest.raises(StoreCorrupt) as caught:
        store.get(12)
    store.note_faults(caught.value.faults)
    store.note_faults([Fault(LAST + 5, LAST + 9, "missing")])
    assert ranges(store) == [(12, 12)]
    store.append_as_leader([b"goes on"], 4)
    store.close()
    again = open_store(directory)
    assert ranges(again) == [(12, 12)]
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    heal(again, peer)
    again.close()
    last = open_store(directory)
    assert (last.faults, last.end_index) == ((), LAST + 1)
    last.close()
    peer.close()


def test_a_wrong_position_in_a_head_is_not_given_to_a_peer(sound: Path, tmp_path: Path) -> None:
    """No CRC covers that field, so a peer could not tell."""
    store = open_store(copy_of(sound, tmp_path / "store"))
    path, offset, _ = place_of(store.directory, 20)
    flip(path, offset + 31)
    assert store.read_slab(15, 1_000_000).last_index == 19
    with pytest.raises(StoreCorrupt, match="position") as caught:
        store.read_slab(20, 1000)
    assert [(one.first_index, one.last_index) for one in caught.value.faults] == [(20, 20)]
    assert store.read_slab(21, 1).first_index == 21
    store.close()


def test_a_chain_that_rotted_in_the_middle_of_a_slab_is_not_given_to_a_peer(sound: Path, tmp_path: Path) -> None:
    """The peer looks at the chain's end only, and would keep what the one before it says as it comes."""
    store = open_store(copy_of(sound, tmp_path / "store"))
    path, offset, _ = place_of(store.directory, 20)
    flip(path, offset + 39)
    assert store.read_slab(15, 1_000_000).last_index == 19
    with pytest.raises(StoreCorrupt, match="chain") as caught:
        store.read_slab(20, 1_000_000)
    assert [(one.first_index, one.last_index) for one in caught.value.faults] == [(20, 20)]
    store.note_faults(caught.value.faults)
    assert store.read_slab(21, 1).first_index == 21
    store.close()


def test_a_scrub_finds_what_rots_while_the_store_is_open(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    store = open_store(directory)
    damage(directory, 20, "body")
    damage(directory, 40, "term")
    damage(directory, 41, "noise")
    moved, moved_at, _ = place_of(directory, 70)
    flip(moved, moved_at + 31)
    unit, at = index_place(directory, 60)
    flip(unit, at + 10)
    index, found, steps = 0, [], 0
    while index <= store.end_index:
        step = store.scrub(index, 500)
        assert step.next_index > index and step.read_bytes < 500 + DATA_BYTES
        index, steps = step.next_index, steps + 1
        found.extend(step.faults)
    assert [(one.first_index, one.last_index, one.kind) for one in found] == [
        (20, 20, "crc_invalid"), (40, 41, "crc_invalid"), (60, 60, "index_record_mismatch"),
        (70, 70, "position_mismatch"),
    ]  # fmt: skip
    assert steps > 3 and store.faults == ()
    store.note_faults(found)
    assert store.scrub(20, 500).next_index > 21
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    heal(store, peer)
    assert entries_of(store) == entries_of(peer)
    store.close()
    assert bytes_of(directory) == bytes_of(sound)
    peer.close()


def test_a_truncation_takes_faults_along_and_archives_them_as_they_are(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    for index in (20, 50):
        damage(directory, index, "noise")
    store = open_store(directory)
    with pytest.raises(StoreCorrupt):
        store.truncate(51, record(store, 51))
    path, offset, size = place_of(directory, 50)
    raw = path.read_bytes()[offset : offset + size]
    store.truncate(45, record(store, 45))
    assert (ranges(store), store.end_index) == ([(20, 20)], 44)
    assert raw in store.files.archive.data(store.files.archive.count)
    store.append_as_leader([b"x"], 9)
    store.close()
    again = open_store(directory)
    assert (ranges(again), again.end_index) == ([(20, 20)], 45)
    again.close()


@pytest.mark.parametrize("field", [10, 20])  # of an index record: where the entry lies, its number
def test_a_cut_through_index_records_that_rotted_archives_what_is_cut(sound: Path, tmp_path: Path, field: int) -> None:
    directory = copy_of(sound, tmp_path / "store")
    store = open_store(directory)
    going = entries_of(store)[45:]
    path, offset = index_place(directory, 50)
    flip(path, offset + field)
    store.truncate(45, record(store, 45))
    assert store.end_index == 44
    archived = store.files.archive.data(store.files.archive.count)
    assert all(entry.body in archived for entry in going)
    store.close()


def test_a_cut_right_behind_a_rotten_entry_that_memory_knows(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    fill(store, 1, 10)
    sync(store)
    path, offset, _ = place_of(tmp_path / "store", 4)
    flip(path, offset + 12)
    store.note_faults([Fault(4, 4, "record_invalid", "")])
    chain = store.meta(4)
    store.truncate(5, record(store, 5))
    assert (store.end_index, store.meta(4), ranges(store)) == (4, chain, [(4, 4)])
    store.close()


def test_a_new_terms_first_entry_during_a_mend_is_not_forgotten(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop appends while the writer's thread puts the healed entries' terms into the table."""
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    store = open_store(copy_of(sound, tmp_path / "store"))
    store.note_faults([Fault(30, 30, "crc_invalid", "")])
    loop = threading.Thread(target=lambda: store.append_as_leader([b"x"], 9))
    real = TermTable.mended

    def mended(table: TermTable, runs: list[tuple[int, int]], last_index: int) -> TermTable:
        made = real(table, runs, last_index)
        loop.start()
        loop.join(0.2)  # it waits for us, or has put its term into the old table by now
        return made

    monkeypatch.setattr(TermTable, "mended", mended)
    assert store.mend(peer.read_slab(30, 1)).healed
    loop.join()
    assert store.end_term == 9 and store.term_start(store.end_index) == store.end_index
    store.close()
    peer.close()


def test_the_last_entries_damaged_end_where_the_checkpoint_says_and_appends_go_on(sound: Path, tmp_path: Path) -> None:
    directory = copy_of(sound, tmp_path / "store")
    for index in (LAST - 1, LAST):
        damage(directory, index, "noise")
    peer = open_store(copy_of(sound, tmp_path / "peer"))
    store = open_store(directory)
    assert ranges(store) == [(LAST - 1, LAST)]
    assert store.meta(LAST) == peer.meta(LAST)
    for one in (store, peer):
        one.append_as_leader([b"goes on"], 4)
    assert store.end_chain == peer.end_chain
    heal(store, peer)
    assert entries_of(store) == entries_of(peer)
    assert store.term_start(LAST) == peer.term_start(LAST)
    store.close()
    peer.close()


def test_a_damaged_java_directory_is_named_and_not_repaired_by_guessing(tmp_path: Path) -> None:
    built = build([(1, 3, b"java-%03d" % number) for number in range(60)], seal=False)
    built.save(tmp_path)
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=9\n")
    flip(tmp_path / "data" / f"{0:020d}", built.positions[20] + 3, 0x44)
    before = bytes_of(tmp_path)
    with pytest.raises(StoreCorrupt, match="entry 20") as caught:
        open_store(tmp_path)
    assert [one.first_index for one in caught.value.faults] == [20]
    assert bytes_of(tmp_path) == before


def test_a_heritage_without_seals_heals_by_the_chain_behind_it(tmp_path: Path) -> None:
    """Entries that a Java node wrote carry no CRCs: the seal of the first own entry proves what is mended."""
    for name in ("store", "peer"):
        build([(1, 3, b"java-%03d" % number) for number in range(60)], seal=False).save(tmp_path / name)
        (tmp_path / name / "currterm").write_text("voteLeader=\ncurrTerm=9\n")
        store = open_store(tmp_path / name, node_id="n0")
        store.append_as_leader([b"ours", b"ours too"], 10)
        store.close()
    directory = tmp_path / "store"
    path, offset, _ = place_of(directory, 20)
    flip(path, offset + 1, 0x44)
    store, peer = open_store(directory), open_store(tmp_path / "peer")
    assert ranges(store) == [(20, 20)]
    wrong = peer.read_slab(20, 1)
    data = bytearray(wrong.data)
    data[-1] ^= 1
    refused = store.mend(
        Slab(20, 1, wrong.pos, bytes(data), wrong.index_records, 3, 3, wrong.prev_chain, wrong.last_chain)
    )
    while refused.mended_through > 19:
        refused = store.mend(peer.read_slab(refused.wanted_through, 1))
    assert refused.detail and ranges(store) == [(20, 20)]
    heal(store, peer)
    expected: list[Entry] = entries_of(peer)
    assert entries_of(store) == expected
    assert store.meta(30) == peer.meta(30)
    store.close()
    peer.close()
