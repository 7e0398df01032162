"""Private memory of every process under a load with everything in it: `python -m tests.bench.memory [--minutes 10]`.

`quorumscope bench memory` holds an even load for an hour. This one looks for what grows where the load does not stay
even: each minute has single appends with thousands in flight, batches as fast as they go, a follower that is stopped
meanwhile and comes back, and reads from the log's beginning, while the console polls all control planes. It prints
RssAnon over time, and per process the most, the last, and the growth an hour over the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from contextlib import AsyncExitStack
from functools import partial

import uvloop

from app.bench.cluster import BenchCluster
from app.bench.memory import growth_mb_per_hour, sample
from app.bench.slow_follower import SlowFollowerOptions, a_follower, match_and_end, write_backlog
from app.bench.undisturbed import Visitors
from node.client import LedgerClient, LedgerError

SINGLES_S = 10.0
IN_FLIGHT = 2048
READ_ENTRIES = 200_000


async def singles(client: LedgerClient, body_bytes: int) -> None:
    stop = time.perf_counter() + SINGLES_S

    async def worker(number: int) -> None:
        body = number.to_bytes(8, "big") * (body_bytes // 8)
        while time.perf_counter() < stop:
            await client.append(body)

    await asyncio.gather(*map(worker, range(IN_FLIGHT)))


async def a_follower_away(cluster: BenchCluster, client: LedgerClient, options: argparse.Namespace) -> None:
    load = SlowFollowerOptions(backlog_mb=options.mb, body_bytes=options.body_bytes)
    patient = (await a_follower(cluster, client, load)).node_id
    cluster.signal(patient, signal.SIGSTOP)
    try:
        await write_backlog(client, load)
    finally:
        cluster.signal(patient, signal.SIGCONT)
    match, target = await match_and_end(client, patient)
    while match < target:
        await asyncio.sleep(0.1)
        match, _ = await match_and_end(client, patient)


async def reads(client: LedgerClient) -> None:
    index = 0
    while index < READ_ENTRIES:
        index += max(1, len(await client.read(index, 1000)))


async def work(cluster: BenchCluster, client: LedgerClient, options: argparse.Namespace) -> None:
    while True:
        began = time.perf_counter()
        steps = (partial(singles, client, options.body_bytes), partial(a_follower_away, cluster, client, options))
        for step in (*steps, partial(reads, client)):
            try:
                await step()
            except (LedgerError, KeyError, RuntimeError) as error:  # an election on a busy machine: it goes on
                print(f"  {type(error).__name__}: {error}", flush=True)
        await asyncio.sleep(max(0.0, began + options.cycle_s - time.perf_counter()))


async def run(options: argparse.Namespace) -> None:
    series: dict[str, list[tuple[float, float]]] = {}
    cluster = BenchCluster(options.flush, with_control=True)
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        visitors = Visitors(cluster)
        stack.push_async_callback(visitors.stop)
        await visitors.start_console()
        working = asyncio.create_task(work(cluster, client, options))
        began = shown = time.perf_counter()
        while time.perf_counter() - began < options.minutes * 60 and not working.done():
            await asyncio.sleep(1.0)
            at = time.perf_counter() - began
            for name, mb in sample(cluster, visitors).items():
                series.setdefault(name, []).append((at, mb))
            if time.perf_counter() - shown >= options.every_s:
                shown = time.perf_counter()
                reported = ", ".join(f"{name} {points[-1][1]:.0f}" for name, points in series.items())
                print(f"{at / 60:5.1f} min, MB: {reported}", flush=True)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    for name, points in series.items():
        most = max(mb for _, mb in points)
        grows = growth_mb_per_hour(points)
        print(f"{name:12} most {most:6.1f} MB, last {points[-1][1]:6.1f} MB, {grows:+7.1f} MB an hour", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every-s", type=float, default=30.0, help="how often a line is printed")
    parser.add_argument("--cycle-s", type=float, default=60.0)
    parser.add_argument("--mb", type=int, default=200, help="of log, written each cycle while a follower is stopped")
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
