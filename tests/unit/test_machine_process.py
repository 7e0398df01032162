"""A state machine in a process of its own: it ends and starts again, saves and loads, and its engine takes no harm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from node.client import LedgerClient, LedgerError, OutcomeUnknown
from node.client.machine import MachineClient
from node.engine import machine_process
from node.engine.engine import Engine
from node.engine.machine_process import MachineOptions, MachineProcess
from node.protocol.codes import ResponseCode, Role
from node.protocol.kv import KvCommand, Op, encode_command
from node.snapshots import directory as snapshots
from node.state_machine import frames
from node.state_machine.__main__ import main as machine_process_main
from node.state_machine.caller import Caller
from node.state_machine.frames import FrameReader, Kind, QuestionFrame
from node.state_machine.kind import kind_of
from node.state_machine.kv import KeyValue
from node.state_machine.process import Options, serve
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.engine_kit import running, until
from tests.unit.machine_kit import settings_of

JOURNAL = "tests.unit.machines:Journal"
Work = Callable[[Engine, MachineProcess, MachineClient], Awaitable[None]]


def run(
    tmp_path: Path, work: Work, *, choice: str = JOURNAL, save_every: int = 1_000_000, store: MemoryStore | None = None
) -> MemoryStore:
    """One engine with its state machine's process beside it, until `work` is done; what its log holds."""
    kind = kind_of(choice)
    store = store or MemoryStore(kind=kind.name)

    async def both() -> None:
        notes: list[tuple[str, str, dict[str, Any]]] = []
        options = MachineOptions(choice, tmp_path, save_every, 2)
        machine = MachineProcess(options, lambda *event: notes.append(event), lambda _index: None)
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        engine = Engine(settings_of(tmp_path, peers, "n0", choice), store, machine=machine, kind=kind)
        async with running([engine]) as codes:
            client = LedgerClient(peers, deadline_s=60.0)
            try:
                await work(engine, machine, MachineClient(client, deadline_s=60.0))
            except BaseException:
                print(*notes, machine._process, machine._why, machine._asked, alarms(engine), sep="\n")
                raise
            finally:
                await client.close()
        assert codes == [0], engine.reason

    uvloop.run(both())  # as an engine's process does
    return store


async def all_of(client: MachineClient) -> bytes:
    answer = await client.ask(b"all")
    assert answer is not None
    return answer.content


def alarms(engine: Engine) -> dict[str, str]:
    return {one.code: one.text for one in engine.replica.status(engine.now_ns()).alarms}


async def saved(machine: MachineProcess) -> tuple[int, str]:
    done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
    machine.save(lambda index, error: done.set_result((index, error)))
    return await done


def assert_traceback(capfd: pytest.CaptureFixture[str], text: str) -> None:
    """On standard error, which is the engine's; it ends in the state machine's own file, and what it raised."""
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("state machine: ")]
    said = "\n".join(lines)
    assert "Traceback (most recent call last)" in said and "machines.py" in said and text in said


def pid_of(machine: MachineProcess) -> int:
    assert machine._process is not None
    return machine._process.pid


def test_a_process_that_is_killed_starts_again_where_it_stood_and_the_engine_goes_on(tmp_path: Path) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        answered = await client.command(b"a", b"b")
        assert list(answered.results) == [b"a:1", b"b:2"]
        term = engine.replica.term
        index, error = await saved(machine)  # a leader's own entry may stand behind them
        assert (index > answered.first_index, error) == (True, "")
        assert snapshots.newest_index(tmp_path) == index
        await client.command(b"c")
        before, time_ms = pid_of(machine), machine.time_ms
        os.kill(before, signal.SIGKILL)
        assert await all_of(client) == b"a b c"
        assert machine.time_ms == time_ms > 0
        assert list((await client.command(b"d")).results) == [b"d:4"]
        assert pid_of(machine) != before
        assert (engine.replica.role, engine.replica.term, alarms(engine)) == (Role.LEADER, term, {})

    run(tmp_path, work)


def test_an_engine_of_many_connections_has_its_state_machine(tmp_path: Path) -> None:
    """Its end of their connection gets a number beyond what `select` takes (FD_SETSIZE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2048 if hard == resource.RLIM_INFINITY else min(hard, 2048)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))

    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        assert list((await client.command(b"a")).results) == [b"a:1"]

    with contextlib.ExitStack() as stack:
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        stack.callback(lambda: [os.close(one) for one in opened])
        assert opened[-1] > 1024
        run(tmp_path, work)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("layout", [[], ["1"], ["3", "more"]])
def test_an_engine_of_another_release_hears_that_its_files_were_replaced(tmp_path: Path, layout: list[str]) -> None:
    """It runs on while they are, and starts what is there now: frames of another layout would say nothing to it."""
    ours, theirs = socket.socketpair()
    with ours:
        words = [str(theirs.detach()), "kv", str(tmp_path), "1000", "3", *layout]
        assert machine_process_main(words) == 3
        [(kind, body)] = FrameReader().frames(ours.recv(4096))
        assert kind is Kind.FAILED and b"start the node again" in bytes(body)
        assert not ours.recv(1)


def test_a_process_that_hangs_is_ended_when_it_is_asked_for(tmp_path: Path) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await client.command(b"a")
        before = pid_of(machine)
        os.kill(before, signal.SIGSTOP)
        hangs = asyncio.ensure_future(client.command(b"b"))
        machine.restart()
        assert await all_of(client) == b"a b" and pid_of(machine) != before
        await asyncio.gather(hangs, return_exceptions=True)  # applied, or ended with that process

    run(tmp_path, work)


def test_a_process_that_answers_no_question_is_said_until_it_is_heard_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to apply it was missed by whoever asked, and by nobody else."""
    said: list[bool] = []

    def alarm(code: str, why: str | None) -> None:
        if code == "applier_silent":
            said.append(why is not None)

    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        monkeypatch.setattr(machine_process, "PATIENCE_S", 0.0)
        monkeypatch.setattr(machine, "_alarm", alarm)
        await client.command(b"a")
        for ends in (False, True):
            os.kill(pid_of(machine), signal.SIGSTOP)
            asking = [asyncio.ensure_future(MachineClient(client._client, 0.5).ask(b"all")) for _ in range(2)]
            found = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(one, LedgerError) for one in found)
            await until(lambda: said == [True])
            if ends:
                machine.restart()
            else:
                os.kill(pid_of(machine), signal.SIGCONT)
            await until(lambda: said == [True, False])
            assert await all_of(client) == b"a"
            said.clear()

    run(tmp_path, work)


def test_a_process_ends_whatever_threads_its_state_machine_left(tmp_path: Path) -> None:
    """The interpreter waits for them at its end, and the engine, which had heard why, waited for it."""

    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await client.command(b"a")
        before = pid_of(machine)
        with contextlib.suppress(LedgerError):  # asked again until its time is over, it ends each process that starts
            await MachineClient(client._client, deadline_s=1.0).ask(b"wrong")
        assert list((await client.command(b"b")).results) == [b"b:2"]
        assert await all_of(client) == b"a b" and pid_of(machine) != before

    run(tmp_path, work, choice="tests.unit.machines:Threaded")


def test_a_state_is_the_same_after_every_restart_with_or_without_its_snapshots(tmp_path: Path) -> None:
    async def write(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        for number in range(30):
            await client.command(b"%d" % number)
        await until(lambda: machine.saved_index > 0)

    store = run(tmp_path, write, save_every=10)
    found = snapshots.snapshots_in(tmp_path)
    assert found and len(found) <= 2

    async def read(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        assert await all_of(client) == b" ".join(b"%d" % number for number in range(30))

    run(tmp_path, read, store=store)
    for one in found:  # what is damaged is not loaded; the log has it all
        (one.path / "data").write_bytes(bytes(one.meta.data_bytes))
    run(tmp_path, read, store=store)


def test_a_state_is_saved_in_steps_while_commands_go_on(tmp_path: Path) -> None:
    """The key-value store's: a snapshot of each is whole, and the log behind it makes the state of all."""

    async def write(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        going_on = True

        async def put_on() -> int:
            number = 0
            while going_on:
                number += 1
                key = b"k%04d" % (number % 1500)
                await client.command(encode_command(KvCommand(Op.PUT, key, b"%d" % number)))
            return number

        await client.command(*(encode_command(KvCommand(Op.PUT, b"k%04d" % key, b"0")) for key in range(1500)))
        putting = asyncio.ensure_future(put_on())
        for _ in range(3):
            index, error = await saved(machine)
            assert error == "" and index > 0
        going_on = False
        await putting

    store = run(tmp_path, write, choice="kv")
    [found, _] = snapshots.snapshots_in(tmp_path)
    snapshots.verify(found)
    right = Caller(KeyValue(), kind_of("kv"))
    for index in range(found.meta.index + 1):
        right.apply(index, index, store.read_slab(index, 1).data)
    pieces: list[bytes] = []
    right.save(pieces.append)
    assert b"".join(snapshots.pieces_of(found)) == b"".join(pieces)


def test_a_snapshot_of_another_group_is_neither_fed_nor_asked(tmp_path: Path) -> None:
    """Of the same entries and term: only the chain tells. It was taken for the state, without a word."""
    folders = [tmp_path / name for name in ("ours", "other")]
    stores = []
    for folder in folders:

        async def write(
            engine: Engine, machine: MachineProcess, client: MachineClient, name: str = folder.name
        ) -> None:
            for number in range(6):
                await client.command(b"%s%d" % (name.encode(), number))
            assert (await saved(machine))[1] == ""

        folder.mkdir()
        stores.append(run(folder, write))
    ours, other = (folder / snapshots.FOLDER for folder in folders)
    shutil.rmtree(ours)
    shutil.copytree(other, ours)

    async def read(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await until(lambda: "applier_diverged" in alarms(engine))
        assert "its snapshots are of another history" in alarms(engine)["applier_diverged"]
        assert "its snapshots are of another history" in engine.replica.applying.unfit

    run(folders[0], read, store=stores[0])


def test_what_cannot_be_applied_stops_there_names_the_entry_and_is_not_skipped(tmp_path: Path) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await client.command(b"a")
        with pytest.raises(OutcomeUnknown, match="in the log for good") as caught:
            await client.command(b"poison", b"behind")
        poison = caught.value.first_index
        await until(lambda: "apply_failed" in alarms(engine))
        text = alarms(engine)["apply_failed"]
        assert f"entry {poison}: RuntimeError: I cannot take that" in text and "start it again with" in text
        assert engine.replica.applied_index == poison - 1
        os.kill(pid_of(machine), signal.SIGKILL)  # the same code cannot do it after a restart either
        await until(lambda: engine.replica.status(engine.now_ns()).applier.life == 2)  # type: ignore[union-attr]
        await until(lambda: "apply_failed" in alarms(engine))
        assert engine.replica.role is Role.LEADER and engine.replica.applied_index == poison - 1
        assert (await saved(machine))[1].startswith(f"entry {poison}")

    run(tmp_path, work)


def test_a_question_that_cannot_be_answered_says_why(tmp_path: Path) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await client.command(b"a")
        with pytest.raises(LedgerError, match="is no question"):
            await client.ask(b"what")
        with pytest.raises(LedgerError, match="failed over this question: RuntimeError: a bug"):
            await client.ask(b"fail")
        assert await client.ask(b"later", wait_ms=50) is None
        assert await all_of(client) == b"a"

    run(tmp_path, work)


def test_one_that_cannot_be_loaded_is_an_alarm_that_says_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await until(lambda: "applier_down" in alarms(engine))
        assert "no licence found" in alarms(engine)["applier_down"]
        assert engine.replica.role in (Role.LEADER, Role.CANDIDATE, Role.FOLLOWER) and not engine.reason

    run(tmp_path, work, choice="tests.unit.machines:Broken")
    assert_traceback(capfd, "no licence found")


def test_a_snapshot_that_load_refuses_is_moved_away_and_the_log_applied_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An earlier release took a save of nothing for a snapshot. What the advice for it says does help."""
    choice = "tests.unit.machines:Saved"

    async def write(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        for body in (b"a", b"b"):
            await client.command(body)
            assert (await saved(machine))[1] == ""

    async def refused(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await until(lambda: "invalid literal for int" in alarms(engine).get("applier_down", ""))

    async def read(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        assert await all_of(client) == b"a b" and "applier_down" not in alarms(engine)

    store = run(tmp_path, write, choice=choice)
    newest, _ = snapshots.snapshots_in(tmp_path)
    shutil.rmtree(newest.path)
    writer = snapshots.SnapshotWriter(tmp_path)
    writer.commit(newest.meta)
    run(tmp_path, refused, choice=choice, store=store)
    assert_traceback(capfd, "invalid literal for int")
    newest.path.rename(tmp_path / newest.path.name)
    run(tmp_path, read, choice=choice, store=store)


def test_a_state_that_cannot_be_saved_is_said_until_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str | None] = []

    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        monkeypatch.setattr(machine, "_alarm", lambda _code, why: said.append(why))
        await client.command(b"a")
        (tmp_path / snapshots.FOLDER).write_text("no directory can be made here")
        index, error = await saved(machine)
        assert index == -1 and error and said[-1] == error
        (tmp_path / snapshots.FOLDER).unlink()
        index, error = await saved(machine)
        assert index >= 0 and (error, said[-1]) == ("", None)

    run(tmp_path, work)


@pytest.mark.parametrize("choice", ["tests.unit.machines:Unsaved", "tests.unit.machines:UnsavedInSteps"])
def test_what_save_raised_is_on_standard_error_with_its_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], choice: str
) -> None:
    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        await client.command(b"a")
        assert await saved(machine) == (-1, "RuntimeError: I cannot save that")

    run(tmp_path, work, choice=choice)
    assert_traceback(capfd, "I cannot save that")


def test_a_batch_ends_where_a_save_is_due_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    """All members save behind the same entries, however these came to each of them."""

    async def work(engine: Engine, machine: MachineProcess, client: MachineClient) -> None:
        bodies = [b"%d" % number for number in range(25)]
        answered = await client.command(*bodies)
        assert list(answered.results) == [b"%d:%d" % (number, number + 1) for number in range(25)]
        await until(lambda: snapshots.newest_index(tmp_path) >= 0)
        assert snapshots.newest_index(tmp_path) % 10 == 9
        assert await all_of(client) == b" ".join(bodies)

    run(tmp_path, work, save_every=10)


def test_what_waits_is_answered_from_a_snapshot_that_comes_meanwhile(tmp_path: Path) -> None:
    """No entry may follow it for long: it waited until its time was over."""
    engine, process = socket.socketpair()
    options = Options(JOURNAL, tmp_path, 1_000_000, 2)
    thread = threading.Thread(target=serve, args=(process, options, kind_of(JOURNAL)))
    thread.start()
    reader = FrameReader()
    engine.settimeout(60)
    try:
        said: list[Kind] = []
        while Kind.STANDS not in said:  # a start removes what an earlier one left half written
            said += [kind for kind, _ in reader.frames(engine.recv(1 << 16))]
        engine.sendall(b"".join(frames.question(QuestionFrame(7, 3, 600_000, [b"all"]))))
        writer = snapshots.SnapshotWriter(tmp_path)
        for index in range(4):
            writer.write(b"%d -\n" % index)
        writer.commit(snapshots.SnapshotMeta(3, 1))
        engine.sendall(b"".join(frames.frame(Kind.RELOAD)))
        answers: list[tuple[ResponseCode, int, bytes]] = []
        while not answers:
            for kind, body in reader.frames(engine.recv(1 << 16)):
                answers += frames.read_answer(body).answers if kind is Kind.ANSWER else ()
        assert answers == [(ResponseCode.SUCCESS, 3, b"tick tick tick tick")]
    finally:
        engine.close()
        thread.join()
