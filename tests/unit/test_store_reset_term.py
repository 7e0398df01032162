"""A stored term that no elections reach: the start is refused, `store repair` names it and knows the way back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.config_models import NodeTable
from node.consensus.group_naming import naming_body
from node.protocol.codes import VoterState
from node.protocol.entry import Magic
from node.protocol.group_id import group_id_of
from node.protocol.messages import MemberMark
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.hard_state import CURRTERM, format_currterm, save_hard_state
from node.store.files.identity import Base, read_base, write_base
from node.store.files.platform import OS
from node.store.log_store import EntryMeta, HardState
from node.store.reader import StoreReader
from node.store.repair.command import main
from node.store.repair.problems import look
from node.store.repair.reset_term import reset_term
from tests.unit.core_kit import alone
from tests.unit.store_fixtures import fill, open_store

FAR = 1 << 62
OLD_ID = "0" * 32
TOKEN = "a-new-group-token"


def store_at(directory: Path, term: int, **changes: object) -> HardState:
    """A sound log of terms 1 to 3, and that stored term."""
    store = open_store(directory)
    fill(store, 3, 4)
    state = HardState(term, None, VoterState.VOTER, 1, {"n1": "s1"}, ("life-1",))
    store.save_hard_state(replace(state, **changes))  # type: ignore[arg-type]
    store.close()
    return state


def test_currterm_far_above_hardstate_refuses_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    store_at(tmp_path, 3)
    (tmp_path / CURRTERM).write_bytes(format_currterm(FAR, None))
    with pytest.raises(StoreRefused, match=rf"currterm says term {FAR}.*store repair"):
        open_store(tmp_path)
    (tmp_path / CURRTERM).write_bytes(format_currterm(3 + (1 << 20), None))
    store = open_store(tmp_path)
    assert store.hard_state.term == 3 + (1 << 20), "within reach it counts, as ever"
    store.close()


def test_a_log_far_above_hardstate_refuses_to_serve_only(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([b"x"], FAR)
    store.save_hard_state(HardState(1, None, VoterState.VOTER))
    store.close()
    identity = StoreReader(tmp_path).identity
    assert identity is not None
    settings = {
        "group": identity.group, "node_id": identity.node_id, "data_file_size": identity.data_file_size,
        "index_file_size": identity.index_file_size,
    }  # fmt: skip
    with pytest.raises(StoreRefused, match="E10"):
        FileStore.open(tmp_path, serving=True, **settings)  # type: ignore[arg-type]
    FileStore.open(tmp_path, **settings).close()  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["hardstate", "currterm"])
def test_repair_and_verify_name_the_situation(tmp_path: Path, which: str) -> None:
    store_at(tmp_path, FAR if which == "hardstate" else 3)
    if which == "currterm":
        (tmp_path / CURRTERM).write_bytes(format_currterm(FAR, None))
    report = look(tmp_path, OS)
    (problem,) = report.problems
    assert "far above" in problem.what and str(FAR) in problem.why
    assert "--reset-term N --group-token TOKEN" in problem.ways[0] and "here 3" in problem.ways[0]
    kinds = {one.kind for one in StoreReader(tmp_path).verify().problems}
    assert "term_leap" in kinds


def test_a_sound_store_is_no_problem(tmp_path: Path) -> None:
    store_at(tmp_path, 900)
    assert not look(tmp_path, OS).problems and not StoreReader(tmp_path).verify().problems


def test_the_way_back_keeps_every_entry_and_the_vote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_at(tmp_path, FAR)
    before = StoreReader(tmp_path).end_index
    assert main([str(tmp_path), "--reset-term", "3", "--group-token", TOKEN, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["archived"] and not reported["may_be_lost"]
    store = open_store(tmp_path)
    hard, group = store.hard_state, StoreReader(tmp_path).identity
    assert group is not None
    assert (hard.term, hard.vote_floor, hard.voted_for, hard.voter_state) == (3, 3, None, VoterState.VOTER)
    assert hard.group_id == group_id_of(TOKEN, group.group) and hard.life_ids[:1] == ("life-1",)
    assert store.end_index == before
    store.close()
    assert not look(tmp_path, OS).problems


def test_entries_above_the_term_are_archived_and_cut_and_the_vote_goes_first(tmp_path: Path) -> None:
    store_at(tmp_path, FAR)
    report = reset_term(tmp_path, 2, TOKEN, OS)
    assert report.may_be_lost and any(one["to_index"] >= one["from_index"] for one in report.archived)
    store = open_store(tmp_path)
    assert (store.end_term, store.hard_state.term, store.hard_state.voter_state) == (2, 2, VoterState.REJOINING)
    store.close()
    reset_term(tmp_path, 2, TOKEN, OS)  # and once more


@pytest.mark.parametrize("term", [2, 3])
def test_what_is_on_record_of_higher_terms_goes_too_and_a_naming_under_way(tmp_path: Path, term: int) -> None:
    """A peer that gave up those entries would be taken for a restored copy for ever, also after --accept-loss (E8)."""
    store_at(tmp_path, FAR, naming=(1, "0" * 32))
    store = open_store(tmp_path)
    held = MemberMark("n1", 2, 2)
    store.note_marks((held, MemberMark("n2", 9, FAR)))
    store.close()
    reset_term(tmp_path, term, TOKEN, OS)
    store = open_store(tmp_path)
    assert store.recovered_marks == (held,)
    assert store.hard_state.naming is None and store.hard_state.group_id is not None
    store.close()


def test_a_dry_run_changes_nothing_and_nonsense_is_refused(tmp_path: Path) -> None:
    state = store_at(tmp_path, FAR)
    save_hard_state(tmp_path, state)
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main([str(tmp_path), "--reset-term", "2", "--group-token", TOKEN, "--dry-run"]) == 0
    assert main([str(tmp_path), "--reset-term", "2"]) == 1
    assert main([str(tmp_path), "--reset-term", str(1 << 62), "--group-token", TOKEN]) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == held
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--group-token", TOKEN])


@pytest.mark.parametrize("token", ["seven77", "t" * 256, "with a blank", "täuschung", "line\nline"])
def test_a_token_that_makes_no_group_at_first_makes_none_here(tmp_path: Path, token: str) -> None:
    """One rule for `--init` and here: what one takes and the other refuses is a group nobody makes anew."""
    save_hard_state(tmp_path, store_at(tmp_path, FAR))
    held = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(StoreRefused, match=r"is no group token.* is allowed"):
        reset_term(tmp_path, 3, token, OS)
    with pytest.raises(ValueError, match="is no group token"):
        NodeTable(group_token=token)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == held


def test_the_old_id_is_nowhere_that_could_bring_it_back(tmp_path: Path) -> None:
    """Neither as the id that an entry of this log will give, nor with the base that a hard state is made anew from."""
    store_at(tmp_path, FAR, group_id=None, naming=(5, OLD_ID))
    write_base(tmp_path, Base(EntryMeta(-1, -1, 0), 0, OLD_ID))
    reset_term(tmp_path, 3, TOKEN, OS)
    base = read_base(tmp_path)
    identity = StoreReader(tmp_path).identity
    assert base is not None and identity is not None
    new_id = group_id_of(TOKEN, identity.group)
    store = open_store(tmp_path)
    assert (store.hard_state.group_id, store.hard_state.naming, base.group_id) == (new_id, None, new_id)
    store.close()
    archived = [path.read_bytes() for path in (tmp_path / "truncated").rglob("*") if path.is_file()]
    assert any(OLD_ID.encode() in one for one in archived)


def test_a_group_of_real_stores_keeps_its_new_id_when_the_old_ids_entry_is_committed_again(tmp_path: Path) -> None:
    """Before the reset nobody knew that entry 1 was committed; afterwards its leader commits it anew."""
    for number in range(2):
        store = open_store(tmp_path / f"n{number}")
        store.append_as_leader([b""], 1, Magic.NOOP)
        store.append_as_leader([naming_body(OLD_ID)], 1, Magic.CONFIG_CHANGE)
        store.save_hard_state(HardState(FAR, None, VoterState.VOTER, naming=(1, OLD_ID)))
        store.close()
        reset_term(tmp_path / f"n{number}", 1, TOKEN, OS)
    for number in range(2):
        store = open_store(tmp_path / f"n{number}")
        group_id, term = store.hard_state.group_id, store.hard_state.term
        replica = alone(store, {"n0": "127.0.0.1:1"})
        assert replica.committed_index >= 2 and replica.term > term
        assert store.hard_state.group_id == group_id and store.hard_state.naming is None
        assert group_id is not None and group_id != OLD_ID
        store.close()
