"""What only an operator may decide: a lost term, and a directory that a Java node wrote to."""

from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreCorrupt, StoreRefused
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.repair.command import main
from tests.unit.store_fixtures import entries_of, open_store
from tests.unit.store_layout import build, currterm
from tests.unit.store_repair_fixtures import everything, stopped_member


def test_a_lost_term_is_set_by_a_person_and_never_below_the_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(tmp_path)
    store.save_hard_state(HardState(7, "n1", VoterState.VOTER))
    store.append_as_leader([b"x"], 6)
    store.close()
    (tmp_path / "hardstate").write_bytes(b"rotten")
    with pytest.raises(StoreRefused):
        open_store(tmp_path)
    assert main([str(tmp_path), "--set-term", "6"]) == 1
    assert "below 7" in capsys.readouterr().err
    assert main([str(tmp_path), "--set-term", "9"]) == 0
    again = open_store(tmp_path)
    assert again.hard_state == HardState(9, None, VoterState.REJOINING, 9), "whether it may vote was lost as well"
    assert main([str(tmp_path), "--set-term", "10"]) == 1  # it runs
    again.close()


def test_a_directory_that_a_java_node_wrote_to_is_taken_back(tmp_path: Path) -> None:
    ours = [(1, 1, b"one"), (1, 1, b"two")]
    store = open_store(tmp_path)
    store.append_as_leader([body for _, _, body in ours], 1)
    store_id = store.store_id
    store.close()
    sealed = build(ours)
    mixed = build([*ours, (1, 4, b"java"), (1, 4, b"more")], seal=False)
    at = sealed.positions[1] + sealed.sizes[1]
    path = tmp_path / "data" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:at] + bytes(mixed.data[0][at:]))
    (tmp_path / "index" / f"{0:020d}").write_bytes(bytes(mixed.index[0]))
    currterm(tmp_path, 4, "n2")
    with pytest.raises(StoreCorrupt, match="store adopt"):
        open_store(tmp_path)
    assert main([str(tmp_path), "--adopt"]) == 0
    again = open_store(tmp_path)
    assert [entry.body for entry in entries_of(again)] == [b"one", b"two", b"java", b"more"]
    assert (again.store_id, again.sealed_from) == (store_id, 4)
    assert (again.hard_state.term, again.hard_state.voted_for, again.hard_state.vote_floor) == (4, None, 4)
    again.append_as_leader([b"ours again"], 5)
    again.close()
    report = StoreReader(tmp_path).verify()
    assert (report.problems, report.sealed, report.entries) == ([], False, 5)


def test_a_directory_of_the_java_node_needs_no_repair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build([(1, 1, b"x")], seal=False).save(tmp_path)
    assert main([str(tmp_path), "--adopt"]) == 1
    assert "nothing to repair" in capsys.readouterr().err


def test_a_store_of_our_own_is_not_adopted_by_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its seals began anew behind the log: nothing that rots in it was found any more, and no way led back."""
    directory = stopped_member(tmp_path)
    before = everything(directory)
    for more in ((), ("--dry-run",), ("--group", "g", "--id", "n0")):
        assert main([str(directory), "--adopt", *more]) == 1
        assert "no Java node wrote to" in capsys.readouterr().err
        assert everything(directory) == before
    currterm(directory, 7, "n2")  # a Java node voted, and wrote nothing else
    assert main([str(directory), "--adopt"]) == 0
    assert StoreReader(directory).end_index == 59


def test_entries_alone_say_that_a_java_node_was_here(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([b"one"], 1)
    store.close()
    sealed, mixed = build([(1, 1, b"one")]), build([(1, 1, b"one"), (1, 1, b"java")], seal=False)
    at = sealed.positions[0] + sealed.sizes[0]
    path = tmp_path / "data" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:at] + bytes(mixed.data[0][at:]))
    (tmp_path / "index" / f"{0:020d}").write_bytes(bytes(mixed.index[0]))
    assert main([str(tmp_path), "--adopt"]) == 0
    assert StoreReader(tmp_path).end_index == 1
