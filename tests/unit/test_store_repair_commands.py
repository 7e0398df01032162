"""What `store repair` prints for damage across the committed border, given as it is printed: it settles it (S6).

Such damage needs an operator. What is committed in it can be had from peers, but behind it lies a history that no peer
has, so nothing links on both sides; and where entries that count as committed are in it, the member may not decide by
itself that they are not to be believed: only above max(verified, committed) it gives up its vote and cuts alone.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from app.cli import run
from node.protocol.codes import VoterState
from node.store.files.platform import OS
from node.store.log_store import HardState
from node.store.repair.command import main
from node.store.repair.problems import look
from tests.unit.store_fixtures import fill, open_store, sync
from tests.unit.store_layout import flip
from tests.unit.store_repair_fixtures import everything, stopped_member
from tests.unit.test_store_positions import unit_of

FIRST, COMMITTED, LAST = 25, 30, 40


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Sixty entries, 30 of them committed, 25 to 40 rotten; what lies behind is sound."""
    store = open_store(tmp_path)
    store.save_hard_state(HardState(3, None, VoterState.VOTER))
    fill(store, 3, 20)
    store.note_progress(COMMITTED, COMMITTED)
    sync(store)
    store.close()
    for index in range(FIRST, LAST + 1):
        pos, size = unit_of(tmp_path, index)
        flip(tmp_path / "data" / f"{pos // 4096 * 4096:020d}", pos % 4096 + size - 1)
    return tmp_path


def test_the_printed_command_settles_damage_across_the_committed_border(
    damaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(damaged)
    assert {(one.first_index, one.last_index) for one in store.faults} == {(FIRST, LAST)}
    store.close()
    (problem,) = look(damaged, OS).problems
    (way,) = [one for one in problem.ways if "--discard-from" in one]
    words = shlex.split(way[way.index("quorumscope store repair") : way.index(" (drops")])
    assert main([*words[3:], "--json"]) in (0, 1)
    reported = json.loads(capsys.readouterr().out)
    assert reported["may_be_lost"] and reported["archived"], "kept, and said"
    left = look(damaged, OS).problems
    assert [one.what for one in left] == ["This member is REJOINING"], "which ends by itself once it has caught up"
    store = open_store(damaged)
    assert (store.end_index, store.faults, store.hard_state.voter_state) == (FIRST - 1, (), VoterState.REJOINING)
    store.close()


@pytest.mark.parametrize("given", [".", "../dledger-n0"])
def test_a_repair_from_within_the_directory_is_on_record_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    directory = stopped_member(tmp_path)
    monkeypatch.chdir(directory)
    assert run(["store", "repair", given, "--set-term", "9"]) == 0, capsys.readouterr().err
    assert "store --set-term 9" in (tmp_path / "operator-trail.jsonl").read_text()
    assert not (directory / "operator-trail.jsonl").exists()


def test_a_repair_that_cannot_be_recorded_is_refused_and_nobody_was_out_of_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with 69, which says that a member does not answer: as on a file system that is read only."""
    directory = stopped_member(tmp_path)
    (tmp_path / "operator-trail.jsonl").mkdir()
    before = everything(directory)
    assert run(["store", "repair", str(directory), "--set-term", "9"]) == 1
    assert "what cannot be recorded is not done" in capsys.readouterr().err
    assert everything(directory) == before
