"""The power goes in a back-up, in its next run, or in a restore: on a disk that loses what no sync covered.

Whatever is under its name afterwards is whole; whatever was finished before is still there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from node.store.backup.manifest import LogBackup, Manifest, check_files, read_manifest
from node.store.backup.pieces import slabs_of
from node.store.backup.restoring import Birth, restore_group, restore_member
from node.store.reader import StoreReader
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform
from tests.unit.backup_kit import TOKEN, add, back_up, make_member

BACKUP, INTO = Path("/machine/backup"), Path("/machine/srv/new")
DISKS_BEHIND = 10  # what no sync covered may be there by luck


@pytest.fixture
def member(tmp_path: Path) -> Path:
    make_member(tmp_path / "a", 1, 10).close()
    make_member(tmp_path / "later", 1, 10).close()
    store = make_member(tmp_path / "later", 0, 0)
    add(store, 1, 10, seed=2)
    store.close()
    return tmp_path


def disk(seed: int) -> SimulatedPlatform:
    return SimulatedPlatform(random.Random(seed), lambda: 1_000_000_000, "m")


def losing_power(
    prepare: Callable[[SimulatedPlatform], None], work: Callable[[SimulatedPlatform], None],
    check: Callable[[SimulatedPlatform, bool], None], stride: int,
) -> int:  # fmt: skip
    """Each disk loses its power at another call of `work`, the last ones behind it; how many calls there were."""
    at, behind = 1, 0
    while True:
        machine = disk(at)
        prepare(machine)
        before = machine.op_count
        machine.faults.crash_at_op = before + at
        done = True
        try:
            work(machine)
        except SimulatedCrash:
            done = False
        calls = machine.op_count - before
        machine.faults.clear()
        machine.lose_power()
        check(machine, done)
        behind += done
        if behind == DISKS_BEHIND:
            return calls
        at += stride


def ends_with(machine: SimulatedPlatform) -> int:
    """The last entry of what is there, read to the last bit."""
    found = read_manifest(BACKUP, machine)
    if found is None or found.log is None:
        return -1
    check_files(BACKUP, found, machine)
    return max(slab.last_index for slab in slabs_of(BACKUP, found.log, machine))


def test_a_run(member: Path) -> None:
    def first(machine: SimulatedPlatform) -> None:
        assert back_up(member / "a", BACKUP, machine).log is not None

    def second(machine: SimulatedPlatform) -> None:
        back_up(member / "later", BACKUP, machine)

    def check(machine: SimulatedPlatform, done: bool) -> None:
        assert ends_with(machine) in ((19,) if done else (9, 19))
        back_up(member / "later", BACKUP, machine)
        machine.lose_power()
        assert ends_with(machine) == 19

    def check_first(machine: SimulatedPlatform, done: bool) -> None:
        assert ends_with(machine) in ((9,) if done else (-1, 9))
        second(machine)
        assert ends_with(machine) == 19

    assert losing_power(first, second, check, 1) > 10
    assert losing_power(lambda _machine: None, first, check_first, 1) > 10


def log_of(made: Manifest) -> LogBackup:
    assert made.log is not None
    return made.log


def test_a_restore(member: Path) -> None:
    logs: list[LogBackup] = []

    def prepare(machine: SimulatedPlatform) -> None:
        logs[:] = [log_of(back_up(member / "a", BACKUP, machine))]

    def group(machine: SimulatedPlatform) -> None:
        restore_group(BACKUP, logs[0], INTO, Birth("again", TOKEN, ("n0", "n1")), lambda _data: None, machine)

    def one(machine: SimulatedPlatform) -> None:
        restore_member(BACKUP, logs[0], INTO, "n1", Birth("g"), lambda _data: None, machine)

    def check_group(machine: SimulatedPlatform, done: bool) -> None:
        assert machine.exists(INTO) >= done
        if machine.exists(INTO):
            for node_id in ("n0", "n1"):
                assert is_whole(INTO / node_id / f"dledger-{node_id}", 10, machine)

    def check_one(machine: SimulatedPlatform, done: bool) -> None:
        named = INTO / "dledger-n1"
        assert machine.exists(named) >= done
        if machine.exists(named):
            assert is_whole(named, 9, machine)
        elif machine.exists(INTO):
            one(machine)  # what is left of the first one does not hinder it
            assert is_whole(named, 9, machine)

    assert losing_power(prepare, group, check_group, 7) > 100
    assert losing_power(prepare, one, check_one, 5) > 50


def is_whole(directory: Path, end_index: int, machine: SimulatedPlatform) -> bool:
    report = StoreReader(directory, platform=machine).verify()
    return (report.begin_index, report.end_index, report.problems) == (0, end_index, [])
