"""`store repair DIR` without an option: what it says is wrong, and that it changes nothing."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import run
from node.protocol.codes import VoterState
from node.protocol.entry import Entry
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.identity import read_identity
from node.store.files.platform import OS
from node.store.reader import StoreReader
from node.store.repair.actions import set_term
from node.store.repair.adopt import adopt
from node.store.repair.command import main, perform
from node.store.repair.problems import look
from tests.unit.store_fixtures import open_store
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES, build
from tests.unit.store_repair_fixtures import bodies, damage, everything, stopped_member, ways


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return stopped_member(tmp_path)


def test_a_sound_store_has_nothing_to_repair(directory: Path) -> None:
    before = everything(directory)
    report = look(directory, OS)
    assert (report.problems, report.state["end_index"], report.state["term"]) == ([], 59, 5)
    assert "Nothing is wrong" in report.as_text()
    assert everything(directory) == before


def test_all_that_is_wrong_is_named_with_its_command_and_nothing_is_changed(directory: Path) -> None:
    damage(directory, 3, 30, 31)
    (directory / "hardstate").unlink()
    before = everything(directory)
    report = look(directory, OS)
    assert [one.what for one in report.problems] == [
        "The term file is lost",
        "Entry 3: damaged (crc_invalid)",
        "Entries 30..31: damaged (crc_invalid)",
    ]
    assert f"repair {directory} --set-term N" in ways(report) and "at least 5" in ways(report)
    assert f"repair {directory} --from OTHER_DIR" in ways(report)
    assert f"repair {directory} --discard-from 30 (drops entries 30..59)" in ways(report)
    assert everything(directory) == before


def test_a_snapshot_of_another_history_is_named_before_a_state_machine_loads_it(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(directory)
    own = store.meta(19)
    store.close()
    assert own is not None
    for meta in (SnapshotMeta(19, own.term, own.chain), SnapshotMeta(29, own.term, 1), SnapshotMeta(500, 1, 1)):
        writer = SnapshotWriter(directory)
        writer.write(b"a state")
        writer.commit(meta)
    before = everything(directory)
    (problem,) = look(directory, OS).problems
    assert problem.what == "The snapshot of entry 29: of another history"
    assert "and chain 1; in this log that one is of term" in problem.why and "snapshot/snapshot_29 away" in ways(
        look(directory, OS)
    )
    assert everything(directory) == before
    assert run(["store", "verify", str(directory)]) == 1
    assert "! snapshot_foreign at index 29 in snapshot/snapshot_29: it ends with" in capsys.readouterr().out


def test_another_members_term_and_vote_are_refused_and_given_anew(directory: Path, tmp_path: Path) -> None:
    """They opened unnoticed as those of a VOTER: with the other one's vote a member can vote twice in a term."""
    other = tmp_path / "other" / "dledger-n1"
    store = open_store(other, node_id="n1")
    store.save_hard_state(replace(store.hard_state, term=7, voted_for="n1", voter_state=VoterState.VOTER))
    store.close()
    open_store(directory).close()
    for name in ("hardstate", "currterm"):
        shutil.copy(other / name, directory / name)
    with pytest.raises(StoreRefused, match="is that of n1, copied to n0"):
        open_store(directory)
    assert [one.kind for one in StoreReader(directory).verify().problems] == ["hard_state_invalid"]
    report = look(directory, OS)
    assert [one.what for one in report.problems] == ["The term file is lost"]
    assert "--set-term N" in ways(report) and "at least 7" in ways(report)
    set_term(directory, 7, OS)
    store = open_store(directory)
    hard = store.hard_state
    store.close()
    assert (hard.owner, hard.voter_state, hard.vote_floor) == ("n0", VoterState.REJOINING, 7)


def test_a_tail_that_would_cost_the_vote_is_told_before_it_does(directory: Path) -> None:
    """The last data files are gone: the next start finds less than its checkpoint knew, and rejoins."""
    for path in sorted((directory / "data").glob("[0-9]*"))[1:]:
        path.unlink()
    report = look(directory, OS)
    assert report.problems[-1].what == "This member is REJOINING"
    assert any("rejoins" in note for note in report.notes)
    assert f"repair {directory} --accept-loss" in ways(report)


@pytest.mark.parametrize("content", [b"", b"{", b'{"group": "g", "crc": "00000000"}'])
def test_a_damaged_identity_is_told_and_written_again(directory: Path, content: bytes) -> None:
    held = bodies(directory)
    (directory / "quorumscope.json").write_bytes(content)
    before = everything(directory)
    report = look(directory, OS)
    assert [one.what for one in report.problems] == ["quorumscope.json is damaged"]
    assert f"store adopt {directory} --group GROUP --id ID" in ways(report)
    with pytest.raises(StoreRefused, match="--group GROUP --id ID"):
        adopt(directory, OS)
    assert everything(directory) == before
    report = perform(lambda one, platform: adopt(one, platform, "g", "n0"), directory, dry_run=False)
    assert report.archived[0]["size_bytes"] == len(content) + len(b"quorumscope.json\n\n")
    assert bodies(directory) == held
    store = open_store(directory)
    assert (store.hard_state.voter_state, store.hard_state.store_ids) == (VoterState.VOTER, {"n1": "s1"})
    store.close()
    assert look(directory, OS).problems == []


def test_a_lost_identity_and_a_lost_checkpoint_make_a_heritage(directory: Path) -> None:
    held = bodies(directory)
    (directory / "quorumscope.json").unlink()
    (directory / CHECKPOINT).unlink()
    assert [one.what for one in look(directory, OS).problems] == ["quorumscope.json is missing"]
    report = perform(lambda one, platform: adopt(one, platform, "g", "n0"), directory, dry_run=False)
    assert report.state["vote_floor"] == 5
    assert bodies(directory) == held


def test_beside_a_running_engine_it_verifies_and_takes_no_lock(directory: Path) -> None:
    damage(directory, 4, 5, 20)
    store = open_store(directory)
    report = look(directory, OS)
    assert [one.what for one in report.problems] == ["Entries 4..5: damaged", "Entry 20: damaged"]
    assert any("An engine has this store open" in note for note in report.notes)
    store.close()


def test_beside_a_running_engine_a_sound_store_is_called_sound(directory: Path) -> None:
    store = open_store(directory)
    report = look(directory, OS)
    assert report.problems == [] and "60 entries were read" in report.as_text()
    store.close()


def test_a_directory_of_the_java_node_has_nothing_to_settle_and_is_not_called_read(tmp_path: Path) -> None:
    build([(1, 1, b"x")], seal=False).save(tmp_path)
    (tmp_path / "currterm").write_text("voteLeader=\ncurrTerm=1\n")
    report = look(tmp_path, OS)
    assert report.problems == []
    assert "An engine takes the directory over as it is" in report.as_text()
    assert "Nothing is wrong" not in report.as_text()


@pytest.mark.parametrize("row", ["data", "index"])
def test_what_keeps_an_engine_from_a_java_nodes_directory_is_told(tmp_path: Path, row: str) -> None:
    """Also a store of ours that lost its identity and its term files looks like one."""
    bodies_of_it = [(1, 1, bytes(900))] * 12 + [(1, 1, b"x")] * 40
    build(bodies_of_it, seal=False).save(tmp_path)
    files = sorted((tmp_path / row).iterdir())
    files[1].write_bytes(files[1].read_bytes()[:-32])
    before = everything(tmp_path)
    report = look(tmp_path, OS)
    assert [one.what for one in report.problems] == [
        f"The files in {row}/ are not of one length",
        "The term file is lost",
    ]
    assert files[1].name in report.problems[0].why and "currTerm=N" in report.problems[1].ways[0]
    assert "takes the directory over" not in report.as_text()
    assert everything(tmp_path) == before
    sizes = {"data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES}
    with pytest.raises(StoreRefused):
        FileStore.open(tmp_path, group="g", node_id="n0", **sizes)


def test_what_a_java_node_wrote_to_a_store_of_ours_is_told(directory: Path) -> None:
    identity = read_identity(directory)
    assert identity is not None
    ours = StoreReader(directory)
    entry = ours.entry(59)
    assert entry is not None
    at = entry.pos % DATA_BYTES
    path = directory / "data" / f"{entry.pos - at:020d}"
    content = bytearray(path.read_bytes())
    raw = pack_head(entry, entry.pos + entry.size)
    content[at + entry.size : at + entry.size + len(raw)] = raw
    path.write_bytes(bytes(content))
    report = look(directory, OS)
    assert [one.what for one in report.problems] == ["A Java node wrote to this store since"]
    assert ways(report) == f"quorumscope store adopt {directory}"
    perform(adopt, directory, dry_run=False)
    assert look(directory, OS).problems == []
    assert bodies(directory)[-1] == b"java"


def pack_head(before: Entry, pos: int) -> bytes:
    """The record of a Java node behind an entry: no checksums."""
    return struct.pack(">iiqqqiIIi", 1, 52, before.index + 1, before.term, pos, 0, 0, 0, 4) + b"java"


def test_a_directory_that_may_not_be_read_is_one_line(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(directory))

    monkeypatch.setattr("node.store.repair.command.look", denied)
    assert main([str(directory)]) == 1
    assert capsys.readouterr().err == f"repair: [Errno 13] Permission denied: '{directory}'\n"


def test_no_store_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--set-term", "3"], ["--discard-from", "0"], ["--accept-loss"], ["--adopt"]):
        assert main([str(tmp_path), *arguments]) == 1
        assert "no store" in (said := capsys.readouterr().err) or "nothing to repair" in said
    assert list(tmp_path.iterdir()) == []
