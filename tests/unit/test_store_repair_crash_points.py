"""Every action of `store repair`, ended at each of its I/O calls in turn, by the process or by the power.

What must hold however it ends: the store can be looked at and opened (or says which command settles it), it votes only
if it did before or if the action had the vote to give, no entry that it keeps has changed, what is gone is in the
archive, and the same action given again leads to the same end.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.log_store import HardState
from node.store.repair.actions import accept_loss, discard_from, set_term
from node.store.repair.adopt import adopt
from node.store.repair.command import Action
from node.store.repair.from_member import heal_from
from node.store.repair.problems import look
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.unit.store_fixtures import fill

ROOT, COPY = Path("/machine/dledger-n0"), Path("/machine/copy")
DATA_BYTES, INDEX_BYTES = 4096, 32 * 16
TERM = 5


def opened(disk: SimulatedPlatform, directory: Path = ROOT, node_id: str = "n0") -> FileStore:
    return FileStore.open(
        directory, group="g", node_id=node_id, data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
        platform=disk,
    )  # fmt: skip


class Case:
    """A machine with a store on it that an operator has to settle."""

    def __init__(self, name: str, seed: int) -> None:
        self.disk = SimulatedPlatform(random.Random(seed), lambda: 1_000_000_000, "m")
        self.held: list[tuple[int, int, bytes]] = []
        state = VoterState.REJOINING if name == "accept-loss" else VoterState.VOTER
        for directory, node_id in ((ROOT, "n0"), (COPY, "n1")):
            store = opened(self.disk, directory, node_id)
            fill(store, 3, 10)
            self.held = entries(store)
            store.save_hard_state(HardState(TERM, "n1", state, 1))
            store.note_progress(25, 25)
            store.close()
        if name == "set-term":
            self.disk.flip(ROOT / "hardstate", 20, 1)
        if name in ("discard-from", "from"):
            self.damage(12 if name == "from" else 15, 25)
        if name == "identity":
            self.disk.flip(ROOT / "quorumscope.json", 20, 1)

    def damage(self, *indexes: int) -> None:
        from node.store.reader import StoreReader

        reader = StoreReader(ROOT, platform=self.disk)
        for index in indexes:
            entry = reader.entry(index)
            assert entry is not None
            path = ROOT / "data" / f"{entry.pos // DATA_BYTES * DATA_BYTES:020d}"
            self.disk.flip(path, entry.pos % DATA_BYTES + 36, 0x10)


def entries(store: FileStore) -> list[tuple[int, int, bytes]]:
    found = [store.get(index) for index in range(store.begin_index, store.end_index + 1)]
    return [(one.index, one.term, one.body) for one in found if one is not None]


ACTIONS: dict[str, Action] = {
    "set-term": lambda directory, platform: set_term(directory, 9, platform),
    "discard-from": lambda directory, platform: discard_from(directory, 15, platform),
    "accept-loss": lambda directory, platform: accept_loss(directory, 9, platform),
    "adopt": adopt,
    "identity": lambda directory, platform: adopt(directory, platform, "g", "n0"),
    "from": lambda directory, platform: heal_from(directory, [COPY], platform),
}
# The voter states in which a store may be found while the action is under way, and after it.
STATES = {
    "set-term": ({VoterState.REJOINING}, VoterState.REJOINING),
    "discard-from": ({VoterState.VOTER, VoterState.REJOINING}, VoterState.REJOINING),
    "accept-loss": ({VoterState.REJOINING, VoterState.VOTER}, VoterState.VOTER),
    "adopt": ({VoterState.VOTER}, VoterState.VOTER),
    "identity": ({VoterState.VOTER}, VoterState.VOTER),
    "from": ({VoterState.VOTER}, VoterState.VOTER),
}


def check_between(name: str, case: Case) -> None:
    """What an engine that is started now would find; on a dry run, so that the repair can go on after it."""
    report = look(ROOT, case.disk)
    state = report.state
    if not state:
        assert name in ("identity", "set-term", "adopt") and report.problems, report.as_text()
        return
    if any(one.what == "The term file is lost" for one in report.problems):
        assert name == "set-term"
        return
    assert VoterState(state["voter_state"]) in STATES[name][0]
    assert state["term"] >= TERM
    lost_entries = state["end_index"] < len(case.held) - 1
    assert not lost_entries or (name == "discard-from" and state["voter_state"] == "REJOINING")
    if VoterState(state["voter_state"]) is VoterState.VOTER and name == "accept-loss":
        assert state["vote_floor"] >= 9


def check_after(name: str, case: Case) -> None:
    store = opened(case.disk)
    assert store.faults == ()
    assert store.hard_state.voter_state is STATES[name][1]
    kept = 15 if name == "discard-from" else len(case.held)
    assert entries(store) == case.held[:kept]
    assert store.hard_state.vote_floor >= {"set-term": 9, "accept-loss": 9, "discard-from": TERM}.get(name, 1)
    if name == "discard-from":  # its bytes were damaged, those of its neighbours were not
        archived = [store.files.archive.data(one.seq) for one in store.files.archive.records()]
        assert any(case.held[16][2] in data and case.held[-1][2] in data for data in archived)
    store.close()


# Of two calls that follow each other one ends with the process and one with the power; `make prove` has each both ways.
ENDS = [
    (False, 0, 1), (True, 0, 2), pytest.param(False, 0, 2, marks=pytest.mark.long),
    pytest.param(True, 0, 1, marks=pytest.mark.long), pytest.param(True, 1, 1, marks=pytest.mark.long),
    pytest.param(True, 1, 2, marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize(("power", "seed", "first"), ENDS)
@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_may_end_at_any_call_and_be_given_again(name: str, power: bool, seed: int, first: int) -> None:
    action = ACTIONS[name]
    whole = Case(name, 0)
    before = whole.disk.op_count
    action(ROOT, whole.disk)
    calls = whole.disk.op_count - before
    assert calls > 5
    check_after(name, whole)
    for number in range(first, calls + 1, 2):
        case = Case(name, seed)
        case.disk.faults.crash_at_op = case.disk.op_count + number
        try:
            action(ROOT, case.disk)
        except SimulatedCrash:
            pass
        else:
            continue  # another seed takes another number of calls
        if power:
            case.disk.lose_power()
        else:
            case.disk.crash_process()
        try:
            check_between(name, case)
            try:
                action(ROOT, case.disk)
            except StoreRefused as refused:  # it was done
                done = {"accept-loss": "a VOTER already", "discard-from": "nothing from entry"}
                assert done.get(name, "?") in str(refused)
            check_after(name, case)
        except BaseException as error:
            error.add_note(f"ended at call {number} of {calls}")
            raise
