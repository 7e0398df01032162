"""The scrub reads a state machine's snapshots: what is damaged is named, saved again, and no alarm any more."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from node.client import LedgerClient, OutcomeUnknown
from node.client.machine import MachineClient
from node.engine import snapshot_scrub
from node.engine.engine import Engine
from node.engine.machine_process import MachineOptions, MachineProcess
from node.engine.snapshot_scrub import SnapshotScrubs
from node.snapshots import directory as snapshots
from node.snapshots import transfer
from node.snapshots.directory import DAMAGED, FOLDER, SnapshotMeta, SnapshotWriter
from node.snapshots.scrub import SnapshotScrub, SnapshotStep
from node.state_machine.kind import kind_of
from node.store.errors import StoreIOError, StoreRefused
from node.store.files.platform import OsPlatform
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.engine_kit import running, until
from tests.unit.machine_kit import settings_of
from tests.unit.test_machine_process import JOURNAL, alarms, all_of, pid_of, saved


def save(directory: Path, index: int, data: bytes = b"a state of some bytes") -> Path:
    writer = SnapshotWriter(directory)
    writer.write(data)
    return writer.commit(SnapshotMeta(index, 1, 7, 1000)).path


def flip(path: Path, name: str = "data") -> None:
    """One bit, in the middle, in place."""
    with (path / name).open("r+b") as file:
        middle = (path / name).stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))


def whole_pass(scrub: SnapshotScrub, max_bytes: int = 8) -> list[SnapshotStep]:
    steps = [scrub.step(max_bytes)]
    while not steps[-1].is_done:
        steps.append(scrub.step(max_bytes))
    return steps


def found_in(steps: list[SnapshotStep]) -> list[int]:
    return [one.index for step in steps for one in step.damaged]


# --- one pass ----------------------------------------------------------------------------------------------------
def test_a_pass_reads_all_of_them_in_bounded_steps_and_finds_nothing_in_sound_ones(tmp_path: Path) -> None:
    for index in (3, 20, 100):
        save(tmp_path, index)
    steps = whole_pass(SnapshotScrub(tmp_path))
    assert found_in(steps) == [] and sum(step.snapshots for step in steps) == 3
    assert sum(step.read_bytes for step in steps) == 3 * len(b"a state of some bytes")
    assert max(step.read_bytes for step in steps) == 8
    assert whole_pass(SnapshotScrub(tmp_path / "nothing")) == [SnapshotStep(0, (), 0, is_done=True)]


@pytest.mark.parametrize("name", ["data", "snapshot_meta", "quorumscope-meta"])
def test_a_flipped_bit_is_found_and_the_others_are_read_on(tmp_path: Path, name: str) -> None:
    for index in (3, 20, 100):
        save(tmp_path, index)
    flip(tmp_path / FOLDER / "snapshot_20", name)
    steps = whole_pass(SnapshotScrub(tmp_path))
    assert found_in(steps) == [20] and sum(step.snapshots for step in steps) == 3
    [damage] = [one for step in steps for one in step.damaged]
    assert damage.file == "snapshot/snapshot_20" and "snapshot_20" in damage.detail


def test_one_that_is_shorter_and_one_that_the_disk_cannot_read_are_damaged(tmp_path: Path) -> None:
    class Bad(OsPlatform):
        wrong = errno.EIO

        def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
            if offset >= 8 and os.readlink(f"/proc/self/fd/{fd}").endswith("snapshot_20/data"):
                raise OSError(self.wrong, "no")
            return os.pread(fd, length, offset)

    for index in (3, 20, 100):
        save(tmp_path, index)
    (tmp_path / FOLDER / "snapshot_3" / "data").write_bytes(b"a state")
    assert found_in(whole_pass(SnapshotScrub(tmp_path, Bad()))) == [3, 20]
    assert [one.index for one in snapshots.damaged_in(tmp_path, Bad())] == [3], "the whole file in one piece"
    Bad.wrong = errno.EMFILE
    with pytest.raises(StoreIOError):
        whole_pass(SnapshotScrub(tmp_path, Bad()))


def test_what_goes_or_is_replaced_meanwhile_is_no_finding(tmp_path: Path) -> None:
    for index in (3, 20, 100):
        save(tmp_path, index)
    scrub = SnapshotScrub(tmp_path)
    assert scrub.step(8).read_bytes == 8
    snapshots.keep_newest(tmp_path, 2)
    assert (scrub.step(8).read_bytes, scrub.step(1).read_bytes) == (8, 1), "of the one behind it"
    snapshots.set_aside(tmp_path, 20)
    snapshots.set_aside(tmp_path, 100)
    save(tmp_path, 20, b"another state")
    assert found_in(whole_pass(scrub)) == []


# --- in the place of one that is damaged --------------------------------------------------------------------------
def test_a_damaged_one_of_that_very_entry_is_replaced_and_a_sound_one_is_not(tmp_path: Path) -> None:
    for index in (3, 20):
        flip(save(tmp_path, index))
    writer = SnapshotWriter(tmp_path)
    writer.write(b"anew")
    with pytest.raises(StoreRefused, match="not newer"):
        writer.commit(SnapshotMeta(20, 1))
    writer = SnapshotWriter(tmp_path)
    writer.write(b"anew")
    writer.commit(SnapshotMeta(20, 1), damaged={3, 20})
    assert sorted(os.listdir(tmp_path / FOLDER)) == [f"{DAMAGED}20", "snapshot_20"]
    [found] = snapshots.snapshots_in(tmp_path)
    assert b"".join(snapshots.pieces_of(found)) == b"anew"


@pytest.mark.parametrize("name", ["snapshot_meta", "quorumscope-meta"])
def test_one_whose_description_is_damaged_stands_in_no_other_ones_way(tmp_path: Path, name: str) -> None:
    """A rename does not replace a directory with something in it: a save failed, and an install ended the engine."""
    flip(save(tmp_path, 20), name)
    save(tmp_path, 20, b"saved anew")
    flip(tmp_path / FOLDER / "snapshot_20", name)
    receiver = transfer.SnapshotReceiver(tmp_path)
    meta = SnapshotMeta(20, 1, 7, 1000, 3, snapshots.crc32(b"new"))
    assert receiver.take(meta, 0, b"new").is_whole
    transfer.take_received(tmp_path, 20)
    [found] = snapshots.snapshots_in(tmp_path)
    assert b"".join(snapshots.pieces_of(found)) == b"new"
    flip(found.path, name)
    assert snapshots.newest_sound(tmp_path, sets_aside=True)[0] is None
    assert os.listdir(tmp_path / FOLDER) == [f"{DAMAGED}20"]


# --- a member that runs -------------------------------------------------------------------------------------------
class Member:
    """One engine with its state machine's process; `pins`: what its log was kept behind, one after the other."""

    def __init__(self, engine: Engine, machine: MachineProcess, client: MachineClient, pins: list[int]) -> None:
        self.engine, self.machine, self.client, self.pins = engine, machine, client, pins
        self.directory = engine.settings.store_directory

    def path(self, index: int) -> Path:
        return self.directory / FOLDER / f"snapshot_{index}"

    async def saves(self, *commands: bytes) -> int:
        await self.client.command(*commands)
        index, error = await saved(self.machine)
        assert error == ""
        return index

    async def scrubbed(self) -> None:
        number = self.engine.scrub_now()
        await until(lambda: (last := self.engine.duties.scrubber.view().last) is not None and last.number == number)

    def alarm_events(self) -> list[tuple[str, str]]:
        seen = [(one.kind, (one.detail or {}).get("code")) for one in self.engine.events.since(None).items or ()]
        return [(kind, code) for kind, code in seen if code == "snapshot_damaged"]


def run(tmp_path: Path, work: Callable[[Member], Awaitable[None]], store: MemoryStore | None = None) -> MemoryStore:
    kind = kind_of(JOURNAL)
    store = store or MemoryStore(kind=kind.name)

    async def both() -> None:
        pins: list[int] = []
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        settings = settings_of(tmp_path, peers, "n0", JOURNAL)
        options = MachineOptions(JOURNAL, settings.store_directory, 1_000_000, 3)
        machine = MachineProcess(options, lambda *_: None, pins.append)
        engine = Engine(settings, store, machine=machine, kind=kind)
        async with running([engine]) as codes:
            client = LedgerClient(peers, deadline_s=60.0)
            try:
                await work(Member(engine, machine, MachineClient(client, deadline_s=60.0), pins))
            finally:
                await client.close()
        assert codes == [0], engine.reason

    uvloop.run(both())
    return store


def test_a_flipped_bit_in_the_newest_is_an_alarm_until_the_state_is_saved_again(tmp_path: Path) -> None:
    async def work(member: Member) -> None:
        older = await member.saves(b"a")
        newer = await member.saves(b"b")
        await member.scrubbed()
        last = member.engine.duties.scrubber.view().last
        assert last is not None and (last.snapshots, last.damaged_snapshots) == (2, 0)
        flip(member.path(newer))
        member.pins.clear()
        await member.scrubbed()
        await until(lambda: "snapshot_damaged" not in alarms(member.engine))
        last = member.engine.duties.scrubber.view().last
        assert last is not None and (last.snapshots, last.damaged_snapshots) == (2, 1)
        assert member.alarm_events() == [("alarm", "snapshot_damaged"), ("alarm_cleared", "snapshot_damaged")]
        assert older in member.pins, "until then no entry goes that the one before it needs"
        found, wrong = snapshots.newest_sound(member.directory)
        assert found is not None and found.meta.index >= newer and wrong == []
        assert member.machine.saved_index == found.meta.index == member.pins[-1]
        assert (member.directory / FOLDER / f"{DAMAGED}{newer}").exists()
        os.kill(pid_of(member.machine), signal.SIGKILL)
        assert await all_of(member.client) == b"a b"

    run(tmp_path, work)


def test_one_for_which_a_newer_one_stands_is_set_aside_and_nothing_is_saved(tmp_path: Path) -> None:
    async def work(member: Member) -> None:
        older = await member.saves(b"a")
        newer = await member.saves(b"b")
        flip(member.path(older), "quorumscope-meta")
        await member.scrubbed()
        await until(lambda: len(member.alarm_events()) == 2)
        assert sorted(os.listdir(member.directory / FOLDER)) == [f"{DAMAGED}{older}", f"snapshot_{newer}"]

    run(tmp_path, work)


def test_a_state_machine_that_cannot_save_is_asked_again_and_nothing_is_set_aside_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scrub, "ASK_AGAIN_S", 0.2)
    damaged: list[int] = []

    async def work(member: Member) -> None:
        older = await member.saves(b"a")
        newer = await member.saves(b"b")
        damaged.append(newer)
        with pytest.raises(OutcomeUnknown):
            await member.client.command(b"poison")
        flip(member.path(newer))
        await member.scrubbed()
        await until(lambda: member.machine.saved_index == older)
        for _ in range(2):
            index, why = await saved(member.machine)
            assert index == older and "poison" not in why and "I cannot take that" in why
        assert "snapshot_damaged" in alarms(member.engine) and str(newer) in alarms(member.engine)["snapshot_damaged"]
        assert member.path(newer).exists() and member.path(older).exists()
        os.kill(pid_of(member.machine), signal.SIGKILL)  # a start takes the one before, and sets this one aside
        await until(lambda: not member.path(newer).exists())
        await until(lambda: "apply_failed" in alarms(member.engine))
        assert "snapshot_damaged" in alarms(member.engine), "no state up to there is on the disk"

    run(tmp_path, work)


def test_a_process_that_was_away_is_told_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_scrub, "ASK_AGAIN_S", 0.2)

    async def work(member: Member) -> None:
        newer = await member.saves(b"a", b"b")
        flip(member.path(newer))
        os.kill(pid_of(member.machine), signal.SIGSTOP)
        await member.scrubbed()
        assert "snapshot_damaged" in alarms(member.engine)
        os.kill(pid_of(member.machine), signal.SIGKILL)
        await until(lambda: "snapshot_damaged" not in alarms(member.engine))
        found, wrong = snapshots.newest_sound(member.directory)
        assert found is not None and found.meta.index >= newer and wrong == []
        assert await all_of(member.client) == b"a b"

    run(tmp_path, work)


def test_a_process_without_descriptors_ends_its_pass_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(_self: SnapshotScrub, _max_bytes: int) -> SnapshotStep:
        raise StoreIOError("too many open files")

    async def work(member: Member) -> None:
        await member.saves(b"a")
        monkeypatch.setattr(SnapshotScrub, "step", step)
        await member.scrubbed()
        [said] = [one.detail for one in member.engine.events.since(None).items or () if one.kind == "read_failed"]
        assert said == {"reason": "the snapshots: too many open files"} and not alarms(member.engine)

    run(tmp_path, work)


def test_a_fork_waits_for_no_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(member: Member) -> None:
        monkeypatch.setattr(SnapshotScrubs, "step", lambda *_: None)
        scrubber = member.engine.duties.scrubber
        assert scrubber.ask("request") == 1
        await until(lambda: (current := scrubber._current) is not None and current.log_read)
        assert scrubber.ask("request") == 1, "one that runs already is as good"
        assert scrubber.ask("fork") == 2

    run(tmp_path, work)
