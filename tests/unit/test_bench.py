"""The benches' arithmetic: what they print follows from what they measured. The runs themselves are `make bench`."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from app.bench.append import AppendOptions, cases_of, ratios_of, row
from app.bench.appenders import RestAppender, TasksAppender
from app.bench.attacked import AttackedOptions, Side, row_of
from app.bench.common import Sample, percentile
from app.bench.failover import Acknowledged, count_lost
from app.bench.ha import HaOptions
from app.bench.ha import cases_of as cases_of_a_pair
from app.bench.load import Case, Submitter, measure
from app.bench.machine import machine
from app.bench.members import AROUND_S, longest_gap
from app.bench.members import text as members_text
from app.bench.memory import growth_mb_per_hour
from app.bench.message_load import JsonSends
from app.bench.messages import Round, case_of
from app.bench.paced import paced
from app.bench.report import append_table, on_machine, slow_follower_table, undisturbed_table
from app.bench.slow_follower import CatchUp, phase
from app.bench.undisturbed import phase_row
from app.bench.usage import cpu_s, rss_anon_mb
from app.cli import run
from node.client import LedgerClient, NotAppended
from node.message_client.link import Link
from node.message_client.routes import Queue
from node.protocol.entry import Entry, Magic


class ReadOnlyLog:
    """What `count_lost` needs of a client: ranges of entries."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self.entries = [Entry(Magic.NORMAL, index, 1, 0, body) for index, body in sorted(bodies.items())]

    async def read(self, from_index: int, limit: int) -> list[Entry]:
        return [entry for entry in self.entries if entry.index >= from_index][:2]


@pytest.mark.parametrize(
    ("log", "lost"),
    [
        ({1: b"a", 2: b"b", 3: b"noop", 5: b"c"}, 0),
        ({1: b"a", 5: b"c"}, 1),
        ({1: b"a", 2: b"changed", 5: b"c"}, 1),
        ({}, 3),
    ],
)
def test_every_acknowledged_entry_is_looked_for(log: dict[int, bytes], lost: int) -> None:
    promised = Acknowledged({1: b"a", 2: b"b", 5: b"c"})
    assert asyncio.run(count_lost(cast(LedgerClient, ReadOnlyLog(log)), promised)) == lost


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(100)]
    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))


def test_rows_are_medians_and_ratios_compare_like_cases_round_by_round() -> None:
    singles, batches = Case(2048, 1), Case(4, 1000)
    mine = [Sample(90.0, 2, 3, 8.0), Sample(100.0, 1, 2, 9.0), Sample(800.0, 9, 9, 7.0)]
    ours = row("quorumscope", "async", 256, singles, mine)
    assert (ours["entries_per_s"], ours["p50_ms"], ours["p99_ms"], ours["cpu_us_per_entry"]) == (100.0, 2, 3, 8.0)
    assert ours["mb_per_s"] == 0.03
    theirs = row("pysyncobj", "none", 256, singles, [Sample(45.0, 1, 1), Sample(50.0, 1, 1), Sample(80.0, 1, 1)])
    assert theirs["cpu_us_per_entry"] is None
    lonely = row("pysyncobj", "none", 256, batches, [Sample(50.0, 1, 1)])
    ratios, spread = ratios_of([ours, theirs, lonely])
    assert list(ratios.values()) == [2.0]
    assert list(spread.values()) == [[2.0, 10.0]]
    assert "in memory" in next(iter(ratios))


def test_the_cases_are_one_at_a_time_singles_and_each_size_of_batch() -> None:
    options = AppendOptions(in_flight=7, batches=(5, 8000))
    assert cases_of(options) == [Case(1, 1), Case(7, 1), Case(1600, 5), Case(1, 8000)]


def test_slow_interfaces_are_not_asked_for_thousands_at_once() -> None:
    assert cases_of(AppendOptions(via="rest"))[1].in_flight < 100


class Recorder:
    """An appender that keeps what it is given."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    async def append(self, body: bytes) -> None:
        await self.append_many([body])

    async def append_many(self, bodies: Sequence[bytes]) -> None:
        self.batches.append(list(bodies))
        await asyncio.sleep(0)


@pytest.mark.parametrize("case", [Case(1, 1), Case(5, 1), Case(2, 300)])
def test_the_load_is_of_different_bodies_and_counted_in_entries(case: Case) -> None:
    recorder = Recorder()
    spent_s = iter([1.0, 3.0])
    sample = asyncio.run(measure(recorder, case, 32, 0.2, lambda: next(spent_s)))
    assert all(len(batch) == case.batch and len({*batch}) == case.batch for batch in recorder.batches)
    entries = sum(map(len, recorder.batches))
    assert sample.cpu_us_per_entry == pytest.approx(2.0 / entries * 1e6)
    assert {len(body) for batch in recorder.batches for body in batch} == {32}


class Submitting(Recorder):
    """Answers in the next turn through a future."""

    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.open, self.open_most, self.fails_at = 0, 0, fails_at

    def submit(self, body: bytes) -> asyncio.Future[None]:
        self.batches.append([body])
        self.open += 1
        self.open_most = max(self.open, self.open_most)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(self.settle, answer, len(self.batches) == self.fails_at)
        return answer

    def settle(self, answer: asyncio.Future[None], failing: bool) -> None:
        self.open -= 1
        if failing:
            answer.set_exception(NotAppended("full"))
        else:
            answer.set_result(None)


def test_singles_at_once_are_submitted_and_each_has_its_latency() -> None:
    recorder = Submitting()
    sample = asyncio.run(measure(recorder, Case(7, 1), 32, 0.02))
    assert recorder.open == 0
    assert recorder.open_most == 7
    assert len(recorder.batches) >= 7  # more only where the machine is quick: the failure below is the 20th
    assert 0 < sample.p50_ms <= sample.p99_ms
    with pytest.raises(NotAppended, match="full"):
        asyncio.run(measure(Submitting(fails_at=20), Case(7, 1), 32, 60))


def test_tasks_are_measured_apart() -> None:
    appender = TasksAppender(LedgerClient("n0-127.0.0.1:1"))
    assert isinstance(LedgerClient("n0-127.0.0.1:1"), Submitter)
    assert not isinstance(appender, Submitter)


def test_a_machine_is_described_with_its_disk(tmp_path: Path) -> None:
    found = machine(tmp_path)
    assert found["cpus"] >= 1
    assert found["fdatasync_ms"] > 0
    assert list(tmp_path.iterdir()) == []
    assert "fdatasync" in on_machine(found)
    assert 0 < found["python_step_ns"]["least"] <= found["python_step_ns"]["median"] <= found["python_step_ns"]["most"]
    assert "a step of fixed work takes" in on_machine(found)
    assert "build without" in on_machine(found | {"python_optimised": False})


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_costs_are_read_of_living_processes_only() -> None:
    assert (rss_anon_mb(os.getpid()) or 0) > 1
    assert rss_anon_mb(2**30) is None
    assert cpu_s([2**30]) is None
    assert (cpu_s([os.getpid()], with_own=False) or -1) >= 0


def test_the_table_has_a_line_a_case_and_says_what_the_ratio_varied_between() -> None:
    ours = row("quorumscope", "async", 256, Case(1, 1), [Sample(100.0, 1, 2, 8.0)])
    theirs = row("pysyncobj", "none", 256, Case(1, 1), [Sample(50.0, 1, 2)])
    ratios, spread = ratios_of([ours, theirs])
    result = {"results": [ours, theirs], "ratios": ratios, "ratio_spread": spread, "rss_anon_mb": {"engine n0": 99.6}}
    lines = append_table(result)
    assert len(lines) == 5
    assert "2.0 times (rounds: 2.0 to 2.0)" in lines[3]
    assert "engine n0 100" in lines[4]


class Stalling(Recorder):
    """Answers nothing until all that are expected have been sent."""

    def __init__(self, expected: int) -> None:
        super().__init__()
        self.expected = expected
        self.all_sent = asyncio.Event()

    async def append(self, body: bytes) -> None:
        self.batches.append([body])
        if len(self.batches) == self.expected:
            self.all_sent.set()
        await self.all_sent.wait()


def test_an_even_load_does_not_wait_for_a_log_that_stalls() -> None:
    sample = asyncio.run(asyncio.wait_for(paced(Stalling(30), 1000.0, 16, 0.03), 60))
    assert sample.entries_per_s > 0
    assert sample.p99_ms >= sample.p50_ms > 0


def test_a_visitor_is_compared_with_the_quiet_of_its_own_round() -> None:
    quiet = [Sample(1, 1.0, 2.0), Sample(1, 1.0, 20.0)]
    row_ = phase_row("console", [Sample(1, 1.0, 4.0), Sample(1, 1.0, 20.0)], quiet)
    assert (row_["p99_ms"], row_["p99_ratio"], row_["p99_ratio_spread"]) == (12.0, 1.5, [1.0, 2.0])
    result = {
        "results": [row_], "rate_per_s": 10.0, "body_bytes": 1, "flush": "sync", "console_poll_ms": 200,
        "segment_mb_per_s": 50.0,
    }  # fmt: skip
    assert any("1.50x" in line for line in undisturbed_table(result))


def test_a_slow_follower_costs_what_the_p99_grew_by() -> None:
    well = [Sample(1, 1.0, 2.0)]
    assert phase("stopped", [Sample(1, 1.0, 3.0)], well)["p99_ratio"] == 1.5
    assert CatchUp(100.0, 0.5).mb_per_s == 200.0
    result = {
        "results": [phase("all well", well, well)], "rate_per_s": 10.0, "body_bytes": 1, "flush": "sync",
        "catch_up_mb": 256.0, "catch_up_mb_per_s": 200.0, "catch_up_alone_mb_per_s": 300.0, "elections": 1,
    }  # fmt: skip
    assert "elections" in slow_follower_table(result)[-1]


def test_the_longest_gap_is_of_the_whole_time_and_its_last_append_too() -> None:
    """The writer's append that the end of the work meets still counts: it may be the very one that waited."""
    released, waiting = asyncio.Event(), asyncio.Event()

    class Slow:
        async def append(self, _body: bytes) -> None:
            if waiting.is_set():
                await released.wait()
            await asyncio.sleep(0)

    async def work() -> float:
        waiting.set()
        asyncio.get_running_loop().call_later(2 * AROUND_S, released.set)
        return 7.0

    gap_s, said = asyncio.run(longest_gap(Slow(), work))  # type: ignore[arg-type]
    assert said == 7.0 and gap_s >= AROUND_S
    assert "worst 3.0 ms" in members_text({
        "median_ms": 2.0, "max_ms": 3.0, "control_median_ms": 1.0, "control_max_ms": 1.5, "voter_after_s": [0.5],
        "rounds": 1,
    })[0]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["failover", "--how", "magic"], "kill, partition, transfer or stop"),
        (["failover", "--how", "transfer", "--against", "pysyncobj"], "only --how kill"),
        (["failover", "--against", "raft"], "pysyncobj"),
        (["slow-follower", "--how", "lazy"], "stopped or throttled"),
        (["append", "--via", "pigeon"], "client, tasks, json or rest"),
        (["append", "--data", "/no/such/directory"], "no such directory"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_the_right_ones(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words]) == 64
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_growth_is_that_of_the_second_half() -> None:
    filling = [(float(at), min(100.0, at * 10.0)) for at in range(0, 100, 5)]
    assert growth_mb_per_hour(filling) == pytest.approx(0.0)
    leaking = [(float(at), 50.0 + at) for at in range(0, 100, 5)]
    assert growth_mb_per_hour(leaking) == pytest.approx(3600.0)
    assert growth_mb_per_hour([(1.0, 5.0)]) == 0.0


async def append_over_a_server_that_hangs_up() -> list[object]:
    """Answers one request a connection and closes it soon after, as servers do with idle ones."""
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nbody")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    appender = RestAppender(server.sockets[0].getsockname()[1])
    answers = []
    for _ in range(3):
        closed.clear()
        answers.append(await appender.append(b"body"))
        await closed.wait()
        await asyncio.sleep(0.05)
    await appender.close()
    server.close()
    return answers


def test_a_connection_that_was_closed_while_idle_is_not_used_again() -> None:
    assert asyncio.run(append_over_a_server_that_hangs_up()) == [b"{}"] * 3


NAMES_OF_A_CASE = {"case", "messages_per_s", "mb_per_s", "p50_ms", "p99_ms"}


def test_an_attacks_figures_have_the_names_that_scripts_read() -> None:
    options = AttackedOptions(rate_per_s=100.0)
    control = Side(None, "no answer", (1, "n0"), (1, "n0"), 50.0, 51.0)
    row = row_of("forged members", control, Side(None, "no answer", (1, "n0"), (2, "n1"), 50.0, 75.0), True, options)
    assert {"name", "rate_kept", "leader_kept", "memory_ratio"} <= row.keys()
    assert (row["name"], row["rate_kept"], row["leader_kept"]) == ("forged members", None, False)
    assert (row["memory_ratio"], row["growth_mb"]) == (1.5, 25.0)
    assert Side(None, "", (1, "n0"), (1, "n0"), 0.0, 75.0).memory_ratio is None


def test_a_case_of_messages_has_the_names_that_scripts_read() -> None:
    found = case_of("sends", [Round(2000.0, 1.0, 2.0, {"all": 1.0}), Round(1000.0, 1.0, 2.0, {"all": 1.0})], 500)
    assert found.keys() >= NAMES_OF_A_CASE
    assert (found["messages_per_s"], found["mb_per_s"]) == (1500.0, 0.75)


def test_a_pairs_parts_have_the_names_that_scripts_read() -> None:
    sends = {"sends_per_s": 1000.0, "p50_ms": 1.0, "p99_ms": 2.0}
    filled = {"messages_per_s": 5000.0, "mb_per_s": 5.0}
    cases = cases_of_a_pair(
        {"sync_one": sends, "sync_many": sends, "lag": sends, "catch_up": filled}, HaOptions(body_bytes=500)
    )
    assert all(one.keys() == NAMES_OF_A_CASE for one in cases)
    assert [one["mb_per_s"] for one in cases] == [0.5, 0.5, 0.5, 5.0]


def test_an_answer_to_a_bench_that_was_interrupted_is_nothing() -> None:
    """Ctrl-C in `bench ha` was a traceback and 2: closing the link answers sends that nobody waits for any more."""

    class Answering:
        def next_number(self) -> int:
            return 1

        def call(self, _opaque: int, _data: bytes, _deadline_s: float, answered: Callable[[object], None]) -> None:
            self.answered = answered

    async def interrupted() -> None:
        link = Answering()
        sent = JsonSends(cast(Link, link), [Queue("b", "127.0.0.1:1", 0)]).submit(b"body")
        sent.cancel()
        link.answered(RuntimeError("it was closed here"))

    asyncio.run(interrupted())
