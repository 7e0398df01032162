"""Back-ups of a log: what is taken, what is made of it again, and what is seen to be damaged."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from app.backup import taking
from app.backup.source import DirectorySource, SourceError
from app.backup.taking import BackupRefused, check_target, take_log
from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import Magic
from node.protocol.group_id import group_id_of
from node.protocol.group_members import GroupMembers, members_in
from node.store.backup import manifest as manifests
from node.store.backup import pieces
from node.store.backup.manifest import BackupDamaged, Manifest, hold, read_manifest
from node.store.backup.restoring import Birth, alone_at, restore_member, voters_of
from node.store.backup.trial import try_restore
from node.store.errors import StoreError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.hard_state import read_hard_state
from node.store.files.identity import Base
from node.store.files.os_files import pack_sealed_json, read_sealed_json
from node.store.log_store import EntryMeta
from tests.unit.backup_kit import (
    GROUP_ID,
    TOKEN,
    VOTERS,
    add,
    add_members,
    back_up,
    commit_all,
    contents,
    make_member,
    new_group,
    old_member,
)
from tests.unit.store_fixtures import fill, open_store
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES, flip

BASE = Base(EntryMeta(999, 7, 0x1234_5678), 5 * DATA_BYTES + 1000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES_MAX", 3000)
    monkeypatch.setattr(pieces, "READ_BYTES", 2000)
    monkeypatch.setattr(pieces, "SLAB_BYTES_MAX", 700)
    monkeypatch.setattr("app.backup.taking.READ_BYTES", 2000)


def reopened(directory: Path, group: str = "again", node_id: str = "n0") -> FileStore:
    return FileStore.open(
        directory, group=group, node_id=node_id, data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES,
        flush=FlushMode.ASYNC, serving=True,
    )  # fmt: skip


@pytest.mark.parametrize("born_at", [None, BASE], ids=["from entry 0", "trimmed"])
def test_a_new_group_holds_what_was_backed_up(tmp_path: Path, born_at: Base | None) -> None:
    store = make_member(tmp_path / "a", born_at=born_at)
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and len(made.log.pieces) > 1
    assert (made.log.begin_index, made.log.end_index) == (store.begin_index, store.end_index)
    tried = try_restore(tmp_path / "b", made, tmp_path / "b")
    assert tried is not None and tried.entries == 60
    done = new_group(tmp_path / "b", made, tmp_path / "new")
    assert [one.node_id for one in done] == list(VOTERS)
    assert len({store.store_id, *(one.store_id for one in done)}) == 4
    was = contents(store)
    last: set[bytes] = set()
    for one in done:
        again = reopened(tmp_path / "new" / one.node_id / f"dledger-{one.node_id}", node_id=one.node_id)
        now = contents(again)
        assert now[:-1] == was and again.base == store.base
        last.add(now[-1].body)
        assert (now[-1].magic, now[-1].term, again.recovered_commit_index) == (
            Magic.CONFIG_CHANGE, store.end_term + 1, again.end_index,
        )  # fmt: skip
        state = again.hard_state
        assert (state.voter_state, state.voted_for) == (VoterState.VOTER, None)
        assert state.term == state.vote_floor == store.end_term + 1
        assert state.group_id == group_id_of(TOKEN, "again") != GROUP_ID
        assert state.store_ids == state.peer_lives == {} and len(state.life_ids) == 1
        assert state.configurations == ((again.end_index, now[-1].body.decode()),)
        again.close()
    assert len(last) == 1
    named = members_in(last.pop())
    assert named is not None and named.voters == dict.fromkeys(VOTERS, "") and not named.learners
    store.close()


def test_one_member_at_a_time_makes_the_same_group(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None
    whole = new_group(tmp_path / "b", made, tmp_path / "new")
    birth = Birth("again", TOKEN, VOTERS)
    alone = restore_member(tmp_path / "b", made.log, tmp_path / "one", "n1", birth, lambda _data: None)
    first, second = reopened(whole[1].directory, node_id="n1"), reopened(alone.directory, node_id="n1")
    assert contents(first) == contents(second) and first.end_chain == second.end_chain
    assert first.hard_state.group_id == second.hard_state.group_id and first.store_id != second.store_id
    first.close()
    second.close()


@pytest.mark.parametrize("born_at", [None, BASE], ids=["from entry 0", "trimmed"])
def test_a_restored_member_of_the_old_group_has_no_vote(tmp_path: Path, born_at: Base | None) -> None:
    store = make_member(tmp_path / "a", born_at=born_at)
    made = back_up(tmp_path / "a", tmp_path / "b")
    one = old_member(tmp_path / "b", made, tmp_path / "m")
    again = reopened(one.directory, group="g", node_id="n1")
    state = again.hard_state
    assert contents(again) == contents(store) and again.store_id != store.store_id
    assert (state.voter_state, state.group_id, state.term) == (VoterState.REJOINING, GROUP_ID, store.end_term)
    assert state.vote_floor == store.end_term
    again.close()
    store.close()


def test_the_configuration_travels_along(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a")
    add_members(store, GroupMembers({"n0": "", "n1": "", "n3": "127.0.0.1:4000"}, {"n4": "127.0.0.1:4001"}))
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and made.log.members is not None and made.log.members[0] == store.end_index
    assert voters_of(made.log) == ["n0", "n1", "n3"]
    add(store)
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and voters_of(made.log) == ["n0", "n1", "n3"]
    one = old_member(tmp_path / "b", made, tmp_path / "m")
    state = read_hard_state(one.directory)
    assert state is not None and state.configurations == (made.log.members,)
    store.close()


def test_a_second_run_copies_only_what_is_new(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a")
    first = back_up(tmp_path / "a", tmp_path / "b")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "b/entries").iterdir()}
    add(store, 2, 15, seed=2)
    second = back_up(tmp_path / "a", tmp_path / "b")
    assert first.log is not None and second.log is not None and second.runs == 2
    assert second.log.pieces[: len(first.log.pieces)] == first.log.pieces
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "b/entries").iterdir()}
    assert {name: after[name] for name in before} == before and len(after) > len(before)
    assert second.log.end_index == store.end_index
    third = back_up(tmp_path / "a", tmp_path / "b")
    assert third.log is not None and third.log.pieces == second.log.pieces
    tried = try_restore(tmp_path / "b", third, tmp_path / "b")
    assert tried is not None and tried.entries == 90
    store.close()


def test_what_is_not_committed_is_not_taken(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a")
    end = store.end_index
    fill(store, 1, 10)
    store.durability.sync_all()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and made.log.end_index == end < store.end_index
    store.close()


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    new_group(tmp_path / "b", made, tmp_path / "new")
    for path in (*(tmp_path / "b").rglob("*"), tmp_path / "new", *(tmp_path / "new").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


# --- damage -----------------------------------------------------------------------------------------------------------
def test_every_flipped_byte_of_a_piece_is_seen(tmp_path: Path) -> None:
    make_member(tmp_path / "a", 1, 10).close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    path = sorted((tmp_path / "b/entries").iterdir())[0]
    for offset in range(0, path.stat().st_size, 397):
        flip(path, offset)
        with pytest.raises(BackupDamaged, match="SHA-256"):
            try_restore(tmp_path / "b", made, tmp_path / "b")
        with pytest.raises(BackupDamaged):
            new_group(tmp_path / "b", made, tmp_path / "new")
        assert not (tmp_path / "new").exists()
        flip(path, offset)
    assert try_restore(tmp_path / "b", made, tmp_path / "b") is not None


def test_a_piece_that_fits_its_checksum_is_checked_all_the_same(tmp_path: Path) -> None:
    """Somebody who also mends the SHA-256 does not get past the chain."""
    make_member(tmp_path / "a", 1, 10).close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None
    path = tmp_path / "b/entries" / made.log.pieces[0].name
    flip(path, 60)
    piece = replace(made.log.pieces[0], sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    forged = replace(made, log=replace(made.log, pieces=(piece, *made.log.pieces[1:])))
    with pytest.raises(BackupDamaged, match="CRC"):
        try_restore(tmp_path / "b", forged, tmp_path / "b")


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("how", ["missing", "truncated", "longer"])
def test_a_missing_or_short_file_is_seen(tmp_path: Path, how: str, number: int) -> None:
    store = make_member(tmp_path / "a")
    made = back_up(tmp_path / "a", tmp_path / "b")
    path = sorted((tmp_path / "b/entries").iterdir())[number]
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if how == "truncated" else content + b"\0")
    for work in (
        lambda: manifests.check_files(tmp_path / "b", made),
        lambda: try_restore(tmp_path / "b", made, tmp_path / "b"),
        lambda: back_up(tmp_path / "a", tmp_path / "b"),
        lambda: new_group(tmp_path / "b", made, tmp_path / "new"),
    ):
        with pytest.raises(BackupDamaged):
            work()
    assert not (tmp_path / "new").exists() and not list((tmp_path / "b").glob("trial-*"))
    store.close()


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 5)
    back_up(tmp_path / "a", tmp_path / "b")
    flip(tmp_path / "b/manifest", 40)
    with pytest.raises(StoreRefused, match="damaged"):
        back_up(tmp_path / "a", tmp_path / "b")
    store.close()


def test_damage_at_the_member_is_not_backed_up(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a")
    first = back_up(tmp_path / "a", tmp_path / "b")
    add(store)
    unit = store.files.data.find(store.durable_position - 1)
    assert unit is not None
    flip(unit.path, store.durable_position - 1 - unit.start)
    with pytest.raises(SourceError, match="read another member"):
        back_up(tmp_path / "a", tmp_path / "b")
    assert read_manifest(tmp_path / "b") == first
    store.close()


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_the_directory_of_another_group_is_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    first = back_up(tmp_path / "a", tmp_path / "b")
    for name, more, text in (
        ("group", {"group": "other"}, "of group 'g'"),
        ("id", {"group_id": "f" * 32}, "another group 'g'"),
    ):
        store = open_store(tmp_path / name / "dledger-n0", **({"group_id": GROUP_ID} | more))
        add(store, 3)
        with pytest.raises(BackupRefused, match=text):
            back_up(tmp_path / name, tmp_path / "b")
        store.close()
    assert read_manifest(tmp_path / "b") == first


def test_another_chain_is_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    first = back_up(tmp_path / "a", tmp_path / "b")
    store = open_store(tmp_path / "other" / "dledger-n0", group_id=GROUP_ID)
    add(store, 3, seed=2)
    add(store)
    with pytest.raises(BackupRefused, match="another chain"):
        back_up(tmp_path / "other", tmp_path / "b")
    assert read_manifest(tmp_path / "b") == first
    store.close()


def test_a_gap_and_an_older_member_are_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    back_up(tmp_path / "a", tmp_path / "b")
    later = open_store(tmp_path / "late" / "dledger-n0", group_id=GROUP_ID, born_at=BASE)
    add(later)
    with pytest.raises(BackupRefused, match="was removed there"):
        back_up(tmp_path / "late", tmp_path / "b")
    later.close()
    young = make_member(tmp_path / "young", 1)
    with pytest.raises(BackupRefused, match="as committed"):
        back_up(tmp_path / "young", tmp_path / "b")
    young.close()


def test_a_trimmed_member_goes_on_where_the_back_up_ends(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 3, 60)
    made = back_up(tmp_path / "a", tmp_path / "b")
    add(store, 1, 40)
    commit_all(store)
    store.remove_prefix(store.end_index - 40)
    assert 0 < store.begin_index <= store.end_index - 39
    again = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and again.log is not None and again.log.begin_index == 0
    tried = try_restore(tmp_path / "b", again, tmp_path / "b")
    assert tried is not None and tried.entries == store.end_index + 1
    store.close()


def test_nothing_committed_is_nothing_to_back_up(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a/dledger-n0")
    store.durability.sync_all()
    with pytest.raises((BackupRefused, SourceError)):
        back_up(tmp_path / "a", tmp_path / "b")
    store.close()
    with pytest.raises(SourceError, match="no directory"):
        DirectorySource(tmp_path / "nowhere")


def test_a_log_that_a_java_node_trimmed_is_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    source = DirectorySource(tmp_path / "a")
    for base in (None, Base(EntryMeta(4, 1, None), 500)):
        source.described = replace(source.described, begin_index=5, base=base)
        with pytest.raises(BackupRefused, match="trimmed by a Java node"):
            take_log(source, tmp_path, None)
    source.close()


def test_a_place_in_a_data_directory_is_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a", 1, 1).close()
    for place in (tmp_path / "a", tmp_path / "a/dledger-n0", tmp_path / "a/dledger-n0/data/deep/er", tmp_path / "a/b"):
        with pytest.raises(BackupRefused, match="data directory"):
            check_target(place)
    check_target(tmp_path / "b")


def test_a_place_with_other_files_is_refused(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/letter.txt").write_text("mine")
    with pytest.raises(BackupRefused, match=r"letter\.txt"):
        back_up(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b/letter.txt").read_text() == "mine"
    store.close()


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 1)
    (tmp_path / "b").mkdir()
    lock = hold(tmp_path / "b")
    with pytest.raises(StoreRefused, match="another back-up"):
        back_up(tmp_path / "a", tmp_path / "b")
    lock.release()
    back_up(tmp_path / "a", tmp_path / "b")
    store.close()


def test_a_target_that_holds_anything_is_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a", 1, 5).close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    new_group(tmp_path / "b", made, tmp_path / "new")
    old_member(tmp_path / "b", made, tmp_path / "m")
    with pytest.raises(StoreRefused, match="not empty"):
        new_group(tmp_path / "b", made, tmp_path / "new")
    with pytest.raises(StoreRefused, match="not empty"):
        old_member(tmp_path / "b", made, tmp_path / "m")
    (tmp_path / "empty").mkdir()
    new_group(tmp_path / "b", made, tmp_path / "empty")


def test_the_old_group_s_id_is_not_given_again(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a/dledger-n0", group_id=group_id_of(TOKEN, "again"))
    add(store)
    made = back_up(tmp_path / "a", tmp_path / "b")
    with pytest.raises(StoreRefused, match="another token"):
        new_group(tmp_path / "b", made, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    store.close()


def test_manifests_that_cannot_be_are_refused(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    back_up(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b/manifest"
    value = read_sealed_json(path)
    assert value is not None
    pieces_ = value["log"]["pieces"]
    for log in (
        {"pieces": pieces_[1:]}, {"pieces": [{**pieces_[0], "name": "../../etc/passwd"}]}, {"group_id": "x"},
        {"pieces": [{**pieces_[0], "last_index": -5}]}, {"data_file_size": 1}, {"kind": "../.."}, {"base": 4},
        {"peers": {"../x": ""}}, {"members": [1]}, {"pieces": None}, {"snapshot": {"index": 1}},
    ):  # fmt: skip
        path.write_bytes(pack_sealed_json({**value, "log": {**value["log"], **log}}))
        with pytest.raises(StoreRefused, match=r"another format|file sizes"):
            read_manifest(tmp_path / "b")
    path.write_bytes(pack_sealed_json({**value, "format": 2}))
    with pytest.raises(StoreRefused, match="format 2"):
        read_manifest(tmp_path / "b")
    path.write_bytes(pack_sealed_json(value))
    assert isinstance(read_manifest(tmp_path / "b"), Manifest)


@pytest.mark.parametrize("fails", ["refused", "damaged", "small disk"])
@pytest.mark.parametrize("is_group", [True, False])
def test_a_restore_that_ends_in_an_error_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, is_group: bool
) -> None:
    """It left a whole copy of the log under a name that `ls` does not show."""
    make_member(tmp_path / "a").close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    log = made.log
    assert log is not None
    if fails == "refused":
        made = replace(made, log=replace(log, pieces=()))
    elif fails == "damaged":
        flip(next((tmp_path / "b").rglob(log.pieces[-1].name)), 100)
    else:
        monkeypatch.setattr("node.store.files.platform.OsPlatform.space_left_bytes", lambda _self, _path: 1000)
    place = tmp_path / "place"
    target = place / "new"
    with pytest.raises(StoreError), alone_at(target, is_group=is_group):
        (new_group if is_group else old_member)(tmp_path / "b", made, target)
    assert not list(tmp_path.rglob(".restoring*")) and not target.exists()


def test_a_restore_removes_what_one_that_was_killed_left(tmp_path: Path) -> None:
    make_member(tmp_path / "a").close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    for left in (tmp_path / ".restoring-new/n0", tmp_path / "m/.restoring/dledger-n1"):
        left.mkdir(parents=True)
        (left / "half").write_bytes(b"x")
    new_group(tmp_path / "b", made, tmp_path / "new")
    old_member(tmp_path / "b", made, tmp_path / "m")
    assert not list(tmp_path.rglob(".restoring*"))


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_nothing_is_added_to_a_back_up_that_is_not_whole(tmp_path: Path, how: str) -> None:
    """Its runs went on, each of them fine, over a piece without which nothing can be restored."""
    store = make_member(tmp_path / "a")
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None and len(made.log.pieces) > 2
    path = tmp_path / "b/entries" / made.log.pieces[1].name
    flip(path, 100) if how == "damaged" else path.unlink()
    add(store, seed=2)
    commit_all(store)
    with pytest.raises(BackupDamaged, match=r"nothing was added.*begin a new back-up"):
        back_up(tmp_path / "a", tmp_path / "b")
    assert read_manifest(tmp_path / "b") == made
    store.close()


def test_a_few_runs_read_all_old_pieces_though_each_reads_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_member(tmp_path / "a").close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None
    sizes = {one.name: one.size_bytes for one in made.log.pieces}
    monkeypatch.setattr(taking, "CHECKED_BYTES", sum(sizes.values()) // 3)
    runs: list[list[str]] = []
    monkeypatch.setattr(taking, "compare_file", lambda path, *_rest: runs[-1].append(path.name))
    for number in range(1, 5):
        runs.append([])
        taking.check_some_pieces(tmp_path / "b", replace(made, runs=number))
    assert {one for read in runs for one in read} == set(sizes)
    assert all(0 < len(read) < len(sizes) for read in runs)
