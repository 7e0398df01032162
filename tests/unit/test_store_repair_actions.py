"""The actions of `store repair`: what each does, and that a dry run or a refusal changes nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from node.protocol.codes import FlushMode, VoterState
from node.store.errors import StoreError, StoreFull, StoreRefused
from node.store.files.platform import OS
from node.store.log_store import HardState
from node.store.reader import StoreReader
from node.store.repair.actions import accept_loss, discard_from, set_term
from node.store.repair.adopt import adopt
from node.store.repair.command import Action, perform
from node.store.repair.from_member import heal_from
from tests.simulation.disk import SimulatedPlatform
from tests.unit.store_fixtures import fill, kill, open_store, sync
from tests.unit.store_layout import blank_out
from tests.unit.store_repair_fixtures import bodies, damage, damage_chain, everything, stopped_member


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return stopped_member(tmp_path)


# --- all actions -------------------------------------------------------------------------------------------------

ACTIONS: dict[str, Action] = {
    "set-term": lambda directory, platform: set_term(directory, 9, platform),
    "discard-from": lambda directory, platform: discard_from(directory, 30, platform),
    "accept-loss": lambda directory, platform: accept_loss(directory, None, platform),
    "adopt": adopt,
    "from": lambda directory, platform: heal_from(directory, [directory.parent / "copy"], platform),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_a_dry_run_says_the_same_and_changes_nothing(directory: Path, name: str) -> None:
    shutil.copytree(directory, directory.parent / "copy")
    if name == "accept-loss":
        store = open_store(directory)
        store.save_hard_state(HardState(5, None, VoterState.REJOINING))
        store.close()
    if name != "adopt":  # a heritage has to be whole: nothing says what belongs there
        damage(directory, 40)
    before = everything(directory.parent)
    tried = perform(ACTIONS[name], directory, dry_run=True)
    assert everything(directory.parent) == before
    assert "Nothing was changed" in tried.as_text()
    done = perform(ACTIONS[name], directory, dry_run=False)
    assert everything(directory.parent) != before
    tried.dry_run = False
    assert tried.as_json() == done.as_json()
    records = StoreReader(directory).truncations()
    assert len(records) == 1 and records[0].reason.startswith("repair: ") and records[0].by == "n0"


@pytest.mark.parametrize("name", ACTIONS)
def test_a_running_engine_keeps_its_store(directory: Path, name: str) -> None:
    shutil.copytree(directory, directory.parent / "copy")
    store = open_store(directory)
    before = everything(directory)
    with pytest.raises(StoreRefused, match="open in another process"):
        perform(ACTIONS[name], directory, dry_run=False)
    assert everything(directory) == before
    store.close()


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda one, platform: set_term(one, 4, platform), "term 4 is below 5"),
        (lambda one, platform: set_term(one, 1 << 63, platform), "is above"),
        (lambda one, platform: discard_from(one, 61, platform), "not in this log, which holds 0..59"),
        (lambda one, platform: discard_from(one, 60, platform), "nothing from entry 60 on"),
        (lambda one, platform: discard_from(one, 42, platform), "discard from entry 40 on"),
        (lambda one, platform: accept_loss(one, None, platform), "a VOTER already"),
        (lambda one, platform: adopt(one, platform, group="h"), "group 'g', not 'h'"),
        (lambda one, platform: heal_from(one, [one], platform), "is to be repaired"),
    ],
)
def test_what_is_refused_has_changed_nothing(directory: Path, action: Action, said: str) -> None:
    damage(directory, 40, 41)
    before = everything(directory)
    with pytest.raises(StoreError, match=said):
        perform(action, directory, dry_run=False)
    assert everything(directory) == before


# --- healing -----------------------------------------------------------------------------------------------------


def copies(directory: Path, count: int) -> list[Path]:
    made = [directory.parent / f"copy{number}" for number in range(count)]
    for copy in made:
        shutil.copytree(directory, copy)
    return made


def test_several_damaged_directories_make_one_whole_store(directory: Path) -> None:
    held = bodies(directory)
    first, second = copies(directory, 2)
    damage(directory, 0, 20, 21, 22, 23, 59)
    damage(first, 21, 30)
    damage(second, 23, 0)
    names = f"{first}, {second}"
    report = perform(lambda one, platform: heal_from(one, [first, second], platform), directory, dry_run=False)
    assert report.problems == []
    assert report.done == [
        f"Entry 0 (crc_invalid): healed from {first}.",
        f"Entries 20..23 (crc_invalid): healed from {names}.",
        f"Entry 59 (crc_invalid): healed from {first}.",
    ]
    assert [(one["from_index"], one["to_index"]) for one in report.archived] == [(0, 0), (20, 23), (59, 59)]
    assert bodies(directory) == held
    assert StoreReader(directory).verify().problems == []


def test_what_is_sound_between_two_damaged_heads_is_not_asked_of_others(directory: Path) -> None:
    held = bodies(directory)
    (copy,) = copies(directory, 1)
    for index in (20, 22):
        damage_chain(directory, index)
    damage(copy, 21)
    report = perform(lambda one, platform: heal_from(one, [copy], platform), directory, dry_run=False)
    assert report.problems == []
    assert report.done == [
        f"Entries 20..21 (crc_invalid): healed from {copy}.",
        f"Entry 22 (crc_invalid): healed from {copy}.",
    ]
    assert bodies(directory) == held


def test_what_no_directory_has_whole_is_left_and_said(directory: Path) -> None:
    (copy,) = copies(directory, 1)
    damage(directory, 10, 30)
    damage(copy, 30)
    report = perform(lambda one, platform: heal_from(one, [copy], platform), directory, dry_run=False)
    assert report.done[1] == "Entry 30: not healed. No directory has entry 30 whole."
    assert [one.what for one in report.problems] == ["Entry 30: damaged (crc_invalid)"]
    assert len(report.archived) == 1


def test_another_history_heals_nothing(directory: Path) -> None:
    other = open_store(directory.parent / "other", node_id="n1")
    fill(other, 3, 20, seed=2)
    other.close()
    damage(directory, 30)
    report = perform(
        lambda one, platform: heal_from(one, [directory.parent / "other"], platform), directory, dry_run=False
    )
    assert "not healed" in report.done[0] and len(report.problems) == 1
    assert report.archived == []
    foreign = open_store(directory.parent / "foreign", group="h")
    foreign.close()
    with pytest.raises(StoreRefused, match="belongs to group 'h'"):
        heal_from(directory, [directory.parent / "foreign"], OS)


# --- giving up entries, and a vote again ---------------------------------------------------------------------------


def test_discarding_costs_the_vote_and_keeps_the_bytes(directory: Path) -> None:
    held = bodies(directory)
    damage(directory, 12, 30, 45)
    report = perform(lambda one, platform: discard_from(one, 30, platform), directory, dry_run=False)
    assert [one.what for one in report.problems] == ["Entry 12: damaged (crc_invalid)"]
    assert report.may_be_lost[0].startswith("Entries 30..49: COMMITTED")
    assert report.may_be_lost[1].startswith("Entries 50..59: may have been")
    (kept,) = report.archived
    assert (kept["from_index"], kept["to_index"], kept["reason"]) == (30, 59, "repair: discard-from 30 by hand")
    store = open_store(directory)
    assert store.end_index == 29
    assert store.hard_state == HardState(5, None, VoterState.REJOINING, 5, {"n1": "s1"})
    store.close()
    archived = (directory / "truncated" / "0000000001" / "data").read_bytes()
    assert all(body in archived for body in held[46:60])
    record = StoreReader(directory).truncations()[0]
    assert (record.by, record.committed_index, record.leader_id) == ("n0", 49, None)


def discard_without_space_for_the_archive(disk: SimulatedPlatform, root: Path) -> None:
    def full(what: str, path: str, _size: int) -> None:
        disk.faults.enospc = "truncated" in path

    disk.on_op = full
    with pytest.raises(StoreFull):
        perform(lambda one, platform: discard_from(one, 30, platform), root, dry_run=False, platform=disk)
    disk.on_op = None
    disk.faults.enospc = False


def test_without_room_for_the_archive_nothing_is_discarded() -> None:
    disk = SimulatedPlatform(random.Random(1), lambda: 1_000_000_000, "m")
    root = Path("/machine/dledger-n0")
    store = open_store(root, platform=disk, boot_id=None)
    fill(store, 3, 20)
    store.save_hard_state(HardState(5, "n1", VoterState.VOTER, 1))
    store.close()
    held = {
        str(path): disk.read_bytes(path)
        for path in sorted((root / "data" / name) for name in disk.names(root / "data"))
    }

    discard_without_space_for_the_archive(disk, root)
    assert {path: disk.read_bytes(Path(path)) for path in held} == held
    again = open_store(root, platform=disk, boot_id=None)
    assert (again.hard_state, again.end_index) == (HardState(5, "n1", VoterState.VOTER, 1), 59)
    again.close()


def test_a_discard_that_failed_does_not_hide_a_power_cut() -> None:
    disk = SimulatedPlatform(random.Random(1), lambda: 1_000_000_000, "m")
    root = Path("/machine/dledger-n0")
    store = open_store(root, platform=disk, boot_id="the boot before", flush=FlushMode.ASYNC)
    fill(store, 3, 20)
    store.save_hard_state(HardState(5, "n1", VoterState.VOTER, 1))
    sync(store)
    kill(store)

    discard_without_space_for_the_archive(disk, root)
    again = open_store(root, platform=disk, boot_id=None, flush=FlushMode.ASYNC)
    assert again.hard_state.voter_state is VoterState.REJOINING
    again.close()


def test_discarding_everything_leaves_an_empty_store_that_knows_it(directory: Path) -> None:
    damage(directory, 0)
    perform(lambda one, platform: discard_from(one, 0, platform), directory, dry_run=False)
    store = open_store(directory)
    assert (store.end_index, store.hard_state.voter_state, store.hard_state.vote_floor) == (-1, VoterState.REJOINING, 5)
    store.close()
    with pytest.raises(StoreRefused, match="say the highest term"):
        perform(lambda one, platform: accept_loss(one, None, platform), directory, dry_run=False)
    perform(lambda one, platform: accept_loss(one, 8, platform), directory, dry_run=False)
    store = open_store(directory)
    assert (store.hard_state.voter_state, store.hard_state.term, store.hard_state.vote_floor) == (
        VoterState.VOTER,
        8,
        8,
    )
    store.close()


def test_a_loss_that_was_accepted_stays_accepted(directory: Path) -> None:
    """The log ends below its checkpoint: every start would make it REJOINING again."""
    for path in sorted((directory / "data").glob("[0-9]*"))[1:]:
        path.unlink()
    report = perform(lambda one, platform: accept_loss(one, None, platform), directory, dry_run=False)
    end = report.state["end_index"]
    assert 0 < end < 49 and f"This member ends at entry {end} of term 2." in report.done[0]
    for _ in range(2):
        store = open_store(directory)
        assert (store.end_index, store.hard_state.voter_state) == (end, VoterState.VOTER)
        store.close()


def stopped_by_a_power_cut(directory: Path) -> None:
    store = open_store(directory, flush=FlushMode.ASYNC, boot_id="the boot before")
    fill(store, 1, 3)
    sync(store)
    kill(store)


def test_healing_does_not_hide_a_power_cut_from_a_member_with_async_flush(directory: Path) -> None:
    """Only the configuration knows the flush mode: what it is judged by is still there after the repair."""
    stopped_by_a_power_cut(directory)
    (copy,) = copies(directory, 1)
    damage(directory, 7)
    perform(lambda one, platform: heal_from(one, [copy], platform), directory, dry_run=False)
    store = open_store(directory, flush=FlushMode.ASYNC, boot_id=None)
    assert store.hard_state.voter_state is VoterState.REJOINING
    store.close()
    report = perform(lambda one, platform: accept_loss(one, None, platform), directory, dry_run=False)
    assert report.problems == []
    store = open_store(directory, flush=FlushMode.ASYNC, boot_id=None)
    assert store.hard_state.voter_state is VoterState.VOTER
    store.close()


def test_a_forming_store_may_accept_that_its_group_lost_all(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    perform(lambda one, platform: accept_loss(one, 0, platform), tmp_path, dry_run=False)
    store = open_store(tmp_path)
    assert store.hard_state.voter_state is VoterState.VOTER
    store.close()


def test_a_java_node_on_a_rejoining_members_directory_does_not_make_it_a_voter(directory: Path) -> None:
    store = open_store(directory)
    store.save_hard_state(HardState(5, None, VoterState.REJOINING))
    store.close()
    with pytest.raises(StoreRefused, match="was REJOINING"):
        adopt(directory, OS)


def test_a_missing_data_file_is_healed_too(directory: Path) -> None:
    held = bodies(directory)
    (copy,) = copies(directory, 1)
    second = sorted((directory / "data").glob("[0-9]*"))[1]
    second.unlink()
    blank_out(directory / "index" / f"{0:020d}", 32 * 5, 32 * 7)
    report = perform(lambda one, platform: heal_from(one, [copy], platform), directory, dry_run=False)
    assert report.problems == []
    assert bodies(directory) == held
