"""A new store's first moments: whatever ends its first start, the second one leaves nothing that a power cut undoes."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.file_store import FileStore
from node.store.files.hard_state import CURRTERM, HARDSTATE, format_currterm
from node.store.files.identity import read_identity
from node.store.log_store import HardState
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.unit.store_fixtures import open_store

DIRECTORY = Path("/data/group/dledger-n0")


def opened(platform: SimulatedPlatform, init: bool = True) -> FileStore:
    return FileStore.open(
        DIRECTORY, group="g", node_id="n0", data_file_size=4096, index_file_size=512, init=init, platform=platform
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_a_vote_after_an_interrupted_first_start_survives_a_power_cut(seed: int) -> None:
    """E2, S4: the store's own name, and its parents', are durable before it promises anything."""
    rng = random.Random(seed)
    platform = SimulatedPlatform(rng, lambda: 0, "n0")
    platform.faults.crash_at_op = rng.randrange(1, 12)
    try:
        opened(platform).close()
    except SimulatedCrash:
        platform.crash_process()
    platform.faults.clear()
    store = opened(platform)
    vote = HardState(term=3, voted_for="n1", voter_state=VoterState.VOTER)
    store.save_hard_state(vote)
    assert platform.durable_bytes(DIRECTORY / HARDSTATE)
    platform.lose_power()
    assert opened(platform).hard_state == vote


@pytest.mark.parametrize("init", [False, True])
def test_an_interrupted_first_start_makes_no_voter(init: bool) -> None:
    """E8: a disk was replaced, say. Its hard state and `currterm` alone are no directory of a Java node's."""
    at, done = 0, False
    while not done:
        at += 1
        platform = SimulatedPlatform(random.Random(at), lambda: 0, "n0")
        platform.faults.crash_at_op = at
        try:
            opened(platform, init).close()
            done = True
        except SimulatedCrash:
            platform.crash_process()
        platform.faults.clear()
        store = opened(platform, init)
        wanted = VoterState.FORMING if init else VoterState.REJOINING
        assert (store.hard_state.voter_state, store.hard_state.term) == (wanted, 0), at
    assert at > 30


def test_a_voter_of_which_only_its_hard_state_is_left_may_not_vote(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save_hard_state(HardState(3, "n1", VoterState.VOTER, store_ids={"n1": "s1"}))
    store.append_as_leader([b"acknowledged"], 3)
    store.close()
    for path in tmp_path.iterdir():
        if path.name not in (HARDSTATE, CURRTERM):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = open_store(tmp_path)
    assert (again.hard_state.voter_state, again.hard_state.term) == (VoterState.REJOINING, 3)
    again.close()


@pytest.mark.parametrize("state", [VoterState.REJOINING, VoterState.FORMING])
def test_without_its_identity_a_store_that_may_not_vote_gets_no_vote(tmp_path: Path, state: VoterState) -> None:
    """E8: with data files and no `quorumscope.json` it is opened as a Java node's, but its hard state still counts."""
    store = open_store(tmp_path)
    store.append_as_leader([b"acknowledged"], 3)
    store.save_hard_state(HardState(3, "n1", state))
    store.close()
    (tmp_path / "quorumscope.json").unlink()
    (tmp_path / CURRTERM).write_bytes(format_currterm(2, None))  # as a crash between the two files leaves it
    again = open_store(tmp_path)
    hard = again.hard_state
    assert (hard.voter_state, hard.term, hard.voted_for, hard.vote_floor) == (state, 3, None, 3)
    again.close()


def test_an_empty_directory_of_a_java_node_is_taken_over_as_before(tmp_path: Path) -> None:
    (tmp_path / CURRTERM).write_bytes(format_currterm(7, "n1"))
    store = open_store(tmp_path)
    assert store.hard_state == HardState(7, None, VoterState.VOTER, vote_floor=7, owner="n0")
    store.close()


def test_a_store_id_that_was_drawn_anew_is_the_directorys_from_the_next_open_on(tmp_path: Path) -> None:
    """So that an older release, which does not read it in `hardstate`, knows it as well."""
    store = open_store(tmp_path)
    store.save_hard_state(replace(store.hard_state, store_id="anew", voter_state=VoterState.REJOINING))
    store.close()
    again = open_store(tmp_path)
    assert again.store_id == "anew"
    again.close()
    identity = read_identity(tmp_path)
    assert identity is not None and identity.store_id == "anew"


def test_each_open_for_serving_draws_a_life(tmp_path: Path) -> None:
    seen: list[str] = []
    for number in range(1, 4):
        store = open_store(tmp_path, serving=True)
        lives = store.hard_state.life_ids
        store.close()
        assert len(lives) == len(set(lives)) == number and list(lives[:-1]) == seen
        seen = list(lives)
    store = open_store(tmp_path)
    assert list(store.hard_state.life_ids) == seen, "a tool that looks is no life"
    store.close()
