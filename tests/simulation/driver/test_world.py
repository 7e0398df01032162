"""The driver's world: it is clean without a planted bug, it is the same in every run, and its network is TCP."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from node.consensus.api import MS
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from tests.simulation.clock import MemberClock
from tests.simulation.driver.campaign import run_seed
from tests.simulation.driver.loop import SimulatedLoop, Timeline
from tests.simulation.driver.sockets import Network
from tests.simulation.driver.swarm import CALM, FAULTS, DriverSwarm
from tests.simulation.mutants import MUTANTS

SEEDS = 8


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_real_driver_client_and_control_plane_keep_every_promise(seed: int) -> None:
    result = run_seed(seed, 4_000)
    assert result.violation is None, f"seed {seed}: {result.violation}"
    assert result.acknowledged > 0 and result.reads > 0


def test_an_append_that_breaks_off_on_an_error_leaves_what_the_next_start_reads() -> None:
    """The next data file cannot be made (EIO) while a run is half written: the engine ends, and what is behind the end
    that it knew of is the next start's to find. It was called a violation of S8 meanwhile."""
    profile = {"followers": 0, "broker": False, "applier": False, "fsync_error": 2.0, "power_loss": 1.0}
    assert run_seed(62, 8_000, profile).violation is None


def test_a_run_is_a_function_of_its_seed_also_in_another_process() -> None:
    line = "from tests.simulation.driver.campaign import run_seed; print(run_seed(3, 3000).trace_sha256)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", line], env={**os.environ, "PYTHONHASHSEED": str(salt)},
            capture_output=True, text=True, check=True,
        ).stdout
        for salt in (1, 2)
    }  # fmt: skip
    assert traces == {run_seed(3, 3000).trace_sha256 + "\n"}


def test_every_fault_is_drawn_by_some_seed_and_none_by_a_calm_world() -> None:
    for name, _, _ in FAULTS:
        assert getattr(CALM, name) == 0
        assert any(getattr(DriverSwarm.from_seed(seed), name) for seed in range(60))


class _Net(Network):
    def machine_of_port(self, port: int) -> str:
        return "server"


def test_a_run_is_the_same_whatever_ran_in_this_process_before() -> None:
    """Numbers that tasks are hashed by, and what a world leaves to the collector, are no part of the next one."""
    profile = MUTANTS["crc_before_patch"].profile
    traces = set()
    for steps_between in (0, 500, 1_000, 1_500):
        run_seed(0, steps_between)
        traces.add(run_seed(3, 2_000, profile).trace_sha256)
    assert len(traces) == 1


class _Pair:
    """A server that echoes and a client, on two machines."""

    def __init__(self, seed: int, piece_bytes: int = 7) -> None:
        self.timeline = Timeline()
        self.net = _Net(self.timeline, random.Random(seed), MS, piece_bytes)
        self.errors: list[Any] = []
        self.server, self.client = self._loop("server"), self._loop("client")
        self.served: list[bytes] = []
        self.closed: list[str] = []

    def _loop(self, name: str) -> SimulatedLoop:
        def failed(_loop: SimulatedLoop, context: dict[str, Any]) -> None:
            self.errors.append(context)

        clock = MemberClock(lambda: self.timeline.now)
        return SimulatedLoop(self.timeline, name, clock, self.net, random.Random(name), failed)

    def run(self, work: Any, seconds: float = 5.0) -> None:
        def echo(connection: Connection, frame: Frame) -> None:
            self.served.append(bytes(frame.body))
            connection.answer(frame, frame.body)

        async def serve() -> None:
            await asyncio.get_running_loop().create_server(
                lambda: Connection(echo, lambda _one: self.closed.append("server")), "127.0.0.1", 1
            )

        self.server.run_here(self.server.create_task, serve())
        self.client.run_here(self.client.create_task, work())
        while self.timeline.now < seconds * 1e9:
            self.timeline.schedule(10 * MS, lambda: None)
            self.timeline.step()


def test_what_never_began_is_dropped_at_the_end_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    pair = _Pair(1)
    began: list[bool] = []

    async def work() -> None:
        began.append(True)

    pair.client.run_here(pair.client.create_task, work())
    pair.timeline.end()
    del pair
    gc.collect()
    assert not began and not list(recwarn)


def test_what_waits_at_the_end_is_dropped_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that was killed leaves coroutines half way: their `finally` asks for a loop, and there is none."""
    pair = _Pair(1)
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                ended.append("first")
                asyncio.get_running_loop()
            finally:
                ended.append("last")
                await asyncio.Event().wait()

    pair.run(work, 0.1)
    pair.timeline.end()
    del pair
    gc.collect()
    assert ended == ["first", "last"]
    assert capsys.readouterr().err == ""


def test_frames_arrive_whole_and_in_order_however_the_network_cuts_them() -> None:
    pair = _Pair(1)
    answers: list[bytes] = []

    async def work() -> None:
        connection = Connection(lambda _one, frame: answers.append(bytes(frame.body)), lambda _one: None)
        await dial(connection, "127.0.0.1", 1)
        for number in range(50):
            connection.send_body(7, 0, number, [b"%d" % number * number])

    pair.run(work)
    assert pair.served == answers == [b"%d" % number * number for number in range(50)]
    assert not pair.errors


def test_a_killed_process_is_noticed_and_a_dark_machine_is_not() -> None:
    for dark in (False, True):
        pair = _Pair(2)
        lost: list[str] = []

        async def work(lost: list[str] = lost) -> None:
            await dial(Connection(lambda _one, _frame: None, lambda _one: lost.append("client")), "127.0.0.1", 1)

        if dark:
            pair.timeline.schedule(1000 * MS, pair.net.dark.add, "server")
        pair.timeline.schedule(1100 * MS, pair.server.kill)
        pair.run(work, 2.0)
        assert lost == ([] if dark else ["client"])


def test_what_is_blocked_arrives_when_the_way_is_free_and_nobody_is_refused_meanwhile() -> None:
    pair = _Pair(3)
    pair.net.blocked.add(("client", "server"))
    pair.timeline.schedule(2000 * MS, pair.net.unblock, ("client", "server"))
    done_at: list[int] = []

    async def work() -> None:
        connection = Connection(lambda _one, _frame: done_at.append(pair.timeline.now), lambda _one: None)
        await dial(connection, "127.0.0.1", 1)
        connection.send_body(7, 0, 1, [b"x"])

    pair.run(work)
    assert pair.served == [b"x"]
    assert done_at[0] > 2000 * MS


def test_what_was_held_back_never_arrives_behind_what_was_sent_later() -> None:
    pair = _Pair(6, 1000)
    way = ("client", "server")
    pair.net.bytes_per_s[way] = 20_000
    for at_ms in range(200, 1500, 150):
        pair.timeline.schedule(at_ms * MS, pair.net.blocked.add, way)
        pair.timeline.schedule((at_ms + 70) * MS, pair.net.unblock, way)

    async def work() -> None:
        connection = Connection(lambda _one, _frame: None, lambda _one: None)
        await dial(connection, "127.0.0.1", 1)
        for number in range(40):
            connection.send_body(7, 0, number, [b"%03d" % number * 200])
            await asyncio.sleep(0.03)

    pair.run(work)
    assert pair.served == [b"%03d" % number * 200 for number in range(40)]


def test_an_address_where_nobody_listens_refuses() -> None:
    pair = _Pair(4)
    reported: list[str] = []

    async def work() -> None:
        try:
            await dial(Connection(lambda _one, _frame: None, lambda _one: None), "127.0.0.1", 2)
        except ConnectionRefusedError as error:
            reported.append(str(error))

    pair.run(work, 1.0)
    assert len(reported) == 1


def test_a_writer_is_told_to_stop_while_nobody_reads() -> None:
    pair = _Pair(5, 60_000)
    seen: list[int] = []

    async def work() -> None:
        connection = Connection(lambda _one, _frame: None, lambda _one: None)
        await dial(connection, "127.0.0.1", 1)
        there = next(end for end in pair.net.ends() if not end.dialled)
        there.pause_reading()
        connection.send_body(7, 0, 1, [bytes(1_000_000)])
        await asyncio.sleep(0.5)
        seen.append(connection.backlog_bytes)
        there.resume_reading()
        await asyncio.sleep(0.5)
        seen.append(connection.backlog_bytes)

    pair.run(work)
    assert seen[0] > 700_000 and seen[1] == 0
    assert len(pair.served) == 1
