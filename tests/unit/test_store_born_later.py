"""A log may begin behind any entry, at any position: in the middle of the files' numbers, and inside a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.protocol.entry import TERM_LEAP_MAX, EntryError, Slab
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.identity import Base
from node.store.log_store import EntryMeta, LogStore
from node.store.memory_store import MemoryStore
from node.store.pins import PINS_MAX, PinnedError
from node.store.reader import StoreReader
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES

META = EntryMeta(999, 7, 0x1234_5678)
BORN = [Base(META, 5 * DATA_BYTES), Base(META, 5 * DATA_BYTES + 1000), Base(EntryMeta(15, 2, 9), 0)]


@pytest.fixture(params=BORN, ids=["file start", "inside a file", "index alone"])
def base(request: pytest.FixtureRequest) -> Base:
    found: Base = request.param
    return found


def check(store: FileStore, base: Base, end_index: int) -> None:
    first = base.meta.index + 1
    assert (store.base, store.begin_index, store.end_index) == (base.meta, first, end_index)
    assert store.meta(base.meta.index) == base.meta and store.meta(base.meta.index - 1) is None
    assert [entry.index for entry in entries_of(store)] == list(range(first, end_index + 1))
    assert store.get(first - 1) is None and store.faults == ()
    assert store.recovered_commit_index >= base.meta.index and store.applied_index >= base.meta.index


def test_it_lives_like_any_other(tmp_path: Path, base: Base) -> None:
    store = open_store(tmp_path, born_at=base)
    first = base.meta.index + 1
    assert (store.end_index, store.end_term, store.end_chain) == (base.meta.index, base.meta.term, base.meta.chain)
    check(store, base, base.meta.index)
    store.close()
    store = open_store(tmp_path, born_at=base)  # what the store knows counts
    fill(store, 3, 20)
    assert sync(store) == first + 59
    slab = store.read_slab(first, 10_000)
    assert (slab.first_index, slab.pos, slab.prev_chain) == (first, base.pos, base.meta.chain)
    assert sorted(path.name for path in (tmp_path / "data").glob("[0-9]*"))[0] == (
        f"{base.pos // DATA_BYTES * DATA_BYTES:020d}"
    )
    fill(store, 1, 5)
    kill(store)
    store = open_store(tmp_path, boot_id="boot-2")
    check(store, base, first + 64)
    reader = StoreReader(tmp_path)
    assert (reader.begin_index, reader.end_index, reader.verify().problems) == (first, first + 64, [])
    entry = reader.entry(first)
    assert entry is not None and entry.index == first
    index = first
    while index <= store.end_index:
        step = store.scrub(index, 1000)
        assert step.faults == ()
        index = step.next_index
    store.truncate(first + 10, record(store, first + 10))
    check(store, base, first + 9)
    store.truncate(first, record(store, first))
    check(store, base, base.meta.index)
    store.append_as_leader([b"anew"], 50)
    store.close()
    store = open_store(tmp_path)
    check(store, base, first)
    store.close()


def test_without_its_checkpoint_it_is_found_all_the_same(tmp_path: Path, base: Base) -> None:
    store = open_store(tmp_path, born_at=base)
    fill(store, 2, 30)
    store.close()
    (tmp_path / "quorumscope.checkpoint").unlink()
    again = open_store(tmp_path)
    check(again, base, base.meta.index + 60)
    again.close()


def test_a_peer_with_the_same_base_takes_its_entries(tmp_path: Path, base: Base) -> None:
    leader, follower = open_store(tmp_path / "a", born_at=base), open_store(tmp_path / "b", born_at=base)
    memory = MemoryStore(base=base.meta, base_pos=base.pos, data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES)
    for size in (10, 700, 2000, 30):
        slabs: list[Slab] = leader.append_as_leader([b"x" * size] * 3, 9)
        for slab in slabs:
            follower.append_slab(slab)
            memory.append_slab(slab)
    assert entries_of(follower) == entries_of(leader)
    last = leader.end_index
    assert [memory.get(index) for index in range(base.meta.index + 1, last + 1)] == entries_of(leader)
    assert leader.end_chain == follower.end_chain == memory.end_chain
    stranger = open_store(tmp_path / "c")
    with pytest.raises(EntryError, match="does not continue -1"):
        stranger.append_slab(slabs[0])
    for store in (leader, follower, stranger):
        store.close()


def test_a_prefix_goes_from_there(tmp_path: Path, base: Base) -> None:
    store = open_store(tmp_path, born_at=base)
    fill(store, 2, 60)
    sync(store)
    store.note_progress(store.end_index, store.end_index)
    store.remove_prefix(store.end_index)
    begin = store.begin_index
    assert begin > base.meta.index + 1
    store.close()
    again = open_store(tmp_path, born_at=base)
    assert again.begin_index == begin
    assert StoreReader(tmp_path).verify().problems == []
    again.close()


def test_only_a_new_log_can_be_given_a_base(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s")
    fill(store, 1, 3)
    store.close()
    again = open_store(tmp_path / "s", born_at=BORN[0])
    assert again.begin_index == 0, "it has begun already"
    again.close()
    (tmp_path / "s" / "quorumscope.json").unlink()
    with pytest.raises(StoreRefused, match="holds a log: it begins where it begins, not at 1000"):
        open_store(tmp_path / "s", born_at=BORN[0])
    with pytest.raises(StoreRefused, match="have to be known"):
        open_store(tmp_path / "t", born_at=Base(EntryMeta(999, 7, None), 0))


def test_a_base_lies_where_a_log_can_end(tmp_path: Path) -> None:
    """A file's end is filled with a blank of 8 bytes at least; a base behind which none fits was miscalculated."""
    for left in (1, 7):
        with pytest.raises(StoreRefused, match=f"{left} bytes before its file's end"):
            open_store(tmp_path / f"r{left}", born_at=Base(META, 3 * DATA_BYTES - left))
        assert sorted(path.name for path in (tmp_path / f"r{left}").glob("*.json")) == []
    store = open_store(tmp_path / "s", born_at=Base(META, 3 * DATA_BYTES - 8))
    fill(store, 1, 3)
    assert store.read_slab(1000, 100).pos == 3 * DATA_BYTES
    store.close()
    again = open_store(tmp_path / "s")
    assert (again.begin_index, again.end_index, again.faults) == (1000, 1002, ())
    again.close()


@pytest.mark.parametrize("term", [0, 7, 2 * TERM_LEAP_MAX])
def test_its_term_begins_with_the_bases(tmp_path: Path, term: int) -> None:
    """However high: no election of this member led there, and none has to (E10)."""
    store = open_store(tmp_path, born_at=Base(EntryMeta(999, term, 5), 0), serving=True)
    assert (store.hard_state.term, store.hard_state.vote_floor) == (term, term)
    assert store.hard_state.voter_state is VoterState.FORMING
    store.close()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_pinned_prefix_stays(tmp_path: Path, kind: str) -> None:
    store: LogStore = open_store(tmp_path) if kind == "file" else MemoryStore(data_file_size=DATA_BYTES)
    for _ in range(60):
        store.append_as_leader([b"x" * 200], 1)
    sync(store)
    store.note_progress(59, 59)
    store.pin(30, "snapshot 4")
    store.pin(45, "audit")
    with pytest.raises(PinnedError, match="snapshot 4 needs those from 30 on") as caught:
        store.remove_prefix(30)
    assert (caught.value.index, caught.value.owner, store.begin_index) == (30, "snapshot 4", 0)
    store.remove_prefix(29)
    begin = store.begin_index
    assert 0 < begin <= 30
    with pytest.raises(EntryError, match=f"entry {begin - 1} is gone, the log begins at {begin}: late cannot pin it"):
        store.pin(begin - 1, "late")
    store.pin(50, "snapshot 4")  # it has moved on
    with pytest.raises(PinnedError, match="audit needs those from 45 on"):
        store.remove_prefix(58)
    store.release("audit")
    store.release("nobody")
    with pytest.raises(PinnedError, match="snapshot 4 needs those from 50 on"):
        store.remove_prefix(58)
    store.release("snapshot 4")
    store.remove_prefix(58)
    assert store.begin_index > begin
    for number in range(PINS_MAX):
        store.pin(59, f"owner {number}")
    with pytest.raises(EntryError, match=f"{PINS_MAX} pins are held already: one more has to wait"):
        store.pin(59, "one more")
    store.pin(60, "owner 3")
    for name in ("", "x" * 101):
        with pytest.raises(EntryError, match="1 to 100 characters"):
            store.pin(59, name)
    store.close()
