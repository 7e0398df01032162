"""How fast a member that was away comes back, alone and under load, and what bounds it.

`python -m tests.bench.catch_up [--mb 400] [--rates 0 1000]`

The product's own measure is `quorumscope bench slow-follower`; this one is for whoever works on it. It says which
process was the bound (CPU seconds of leader and follower per second of catching up), and `--spy DIR` leaves py-spy's
flame graphs there. `--how killed` starts the member anew; its way back then includes its start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import time
from asyncio.subprocess import Process
from pathlib import Path

import uvloop

from app.bench.cluster import BenchCluster
from app.bench.common import Sample
from app.bench.paced import paced
from app.bench.slow_follower import SlowFollowerOptions, a_follower, match_and_end, write_backlog
from node.client import LedgerClient
from node.protocol.entry import HEAD_BYTES

LOOK_EVERY_S = 0.05
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


async def spy(pid: int, path: Path) -> Process:
    command = ["-m", "py_spy"] if not Path(sys.executable).with_name("py-spy").exists() else []
    program = sys.executable if command else str(Path(sys.executable).with_name("py-spy"))
    return await asyncio.create_subprocess_exec(
        program, *command, "record", "--pid", str(pid), "--output", str(path), "--duration", "600", "--rate", "500",
        "--format", "raw", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


async def one_round(
    cluster: BenchCluster, client: LedgerClient, options: argparse.Namespace, rate: float, spy_into: Path | None
) -> None:
    load = SlowFollowerOptions(backlog_mb=options.mb, body_bytes=options.body_bytes)
    patient = (await a_follower(cluster, client, load)).node_id
    leader = await client.leader()
    if options.how == "killed":
        await cluster.kill(patient)
    else:
        cluster.signal(patient, signal.SIGSTOP)
    await write_backlog(client, load)
    await asyncio.sleep(2.0)
    before: list[Sample] = []
    if rate:
        await _looking(cluster, patient, asyncio.create_task(_load(client, rate, options.body_bytes, before, 6)))
    match, target = await match_and_end(client, patient)
    if options.how == "killed":
        await cluster.start(patient)
    else:
        cluster.signal(patient, signal.SIGCONT)
    pids = [cluster.processes[node_id].pid for node_id in (leader, patient)]
    spies = [await spy(pid, spy_into / f"{rate:g}-{name}.txt") for pid, name in zip(pids, "lf", strict=True)] if (
        spy_into
    ) else []  # fmt: skip
    cpu, began = [cpu_s(pid) for pid in pids], time.perf_counter()
    lacking = (target - match) * (options.body_bytes + HEAD_BYTES) / 1e6
    during: list[Sample] = []
    loading = asyncio.create_task(_load(client, rate, options.body_bytes, during)) if rate else None
    await _looking(cluster, patient, target)
    took = time.perf_counter() - began
    used = [cpu_s(pid) - was for pid, was in zip(pids, cpu, strict=True)]
    for one in spies:
        one.send_signal(signal.SIGINT)
        await one.wait()
    if loading is not None:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    text = f"{rate:6g}/s: {lacking:.0f} MB at {lacking / took:.0f} MB/s; CPU leader {used[0] / took:.2f}, "
    text += f"follower {used[1] / took:.2f}"
    if before and during:
        p50s = [statistics.median(one.p50_ms for one in samples) for samples in (before, during)]
        p99s = [statistics.median(one.p99_ms for one in samples) for samples in (before, during)]
        text += f"; p50 {p50s[0]:.2f} ms before, {p50s[1]:.2f} during; p99 {p99s[0]:.1f}, {p99s[1]:.1f}"
        text += f" (medians of {len(before)} and {len(during)} half seconds)"
    print(text, flush=True)


async def _looking(cluster: BenchCluster, patient: str, until: int | asyncio.Task[None]) -> None:
    """Looks where the member is, until a task is done or it is there: looking costs something, so both halves do."""
    async with cluster.using() as client:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            match, _ = await match_and_end(client, patient)
            if until.done() if isinstance(until, asyncio.Task) else match >= until:
                return


async def _load(client: LedgerClient, rate: float, body_bytes: int, into: list[Sample], times: int = 1 << 30) -> None:
    for _ in range(times):
        into.append(await paced(client, rate, body_bytes, 0.5))


async def run(options: argparse.Namespace) -> None:
    settings = tuple(options.set or ())
    cluster = BenchCluster(options.flush, settings=settings)
    async with cluster, cluster.using() as client:
        for number in range(options.rounds):
            for rate in options.rates:
                await one_round(cluster, client, options, rate, options.spy if not number else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--how", choices=("stopped", "killed"), default="stopped")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0, 1000.0], help="appends a second meanwhile")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set", action="append", metavar="SECTION.KEY=VALUE")
    parser.add_argument("--spy", type=Path)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
