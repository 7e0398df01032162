"""`bench failover`: SIGKILL the leader, and count the seconds to the next acknowledged append.

Nothing acknowledged may be lost or changed: at the end every acknowledged body is read back at its index and compared.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from app.bench.cluster import BenchCluster
from app.bench.machine import machine
from node.client import LedgerClient, LedgerError

READ_ENTRIES = 2000
LOADERS = 32


@dataclass(slots=True, frozen=True)
class FailoverOptions:
    """`load`: appends go on from LOADERS workers while the leader dies."""

    runs: int = 10
    load: bool = False
    flush: str = "sync"
    settle_s: float = 0.5


@dataclass(slots=True)
class Acknowledged:
    """What the group promised: index -> body."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    unknown: int = 0


async def load(client: LedgerClient, worker: int, promised: Acknowledged, stop: asyncio.Event) -> None:
    """Appends distinct bodies until told to stop; a failure is counted as unknown and never assumed lost."""
    for number in itertools.count():
        if stop.is_set():
            return
        body = f"load {worker} {number}".encode()
        try:
            result = await client.append(body)
            promised.bodies[result.first_index] = body
        except LedgerError:
            promised.unknown += 1
            await asyncio.sleep(0.01)


async def one_failover(cluster: BenchCluster, client: LedgerClient, promised: Acknowledged, number: int) -> float:
    """Kills the leader; returns the seconds until an append that began afterwards is acknowledged."""
    leader = await client.leader()
    killed_at = time.perf_counter()
    await cluster.kill(leader)
    for attempt in itertools.count():
        body = f"after failover {number} {attempt}".encode()
        try:
            result = await client.append(body)
        except LedgerError:
            promised.unknown += 1
            continue
        promised.bodies[result.first_index] = body
        break
    seconds = time.perf_counter() - killed_at
    await cluster.start(leader)
    return seconds


async def count_lost(client: LedgerClient, promised: Acknowledged) -> int:
    """How many acknowledged entries cannot be read back with their very body."""
    missing = dict(promised.bodies)
    if not missing:
        return 0
    position, last = min(missing), max(missing)
    while position <= last:
        entries = await client.read(position, READ_ENTRIES)
        if not entries:
            break
        for entry in entries:
            if missing.get(entry.index) == entry.body:
                del missing[entry.index]
        position = entries[-1].index + 1
    return len(missing)


async def _run(options: FailoverOptions) -> dict[str, Any]:
    promised = Acknowledged()
    runs_s: list[float] = []
    cluster = BenchCluster(options.flush)
    on = machine(cluster.directory)
    async with cluster:
        client, loading = cluster.client(deadline_s=20.0), cluster.client(deadline_s=5.0)
        stop = asyncio.Event()
        loaders = [asyncio.create_task(load(loading, n, promised, stop)) for n in range(LOADERS if options.load else 0)]
        try:
            for number in range(options.runs):
                await cluster.wait_for_all(client)  # the member killed before is back and in step
                await asyncio.sleep(options.settle_s)
                runs_s.append(await one_failover(cluster, client, promised, number))
                print(f"run {number + 1}/{options.runs}: {runs_s[-1]:.3f} s", file=sys.stderr, flush=True)
            stop.set()
            await asyncio.gather(*loaders)
            lost = await count_lost(client, promised)
        finally:
            for task in loaders:
                task.cancel()
            await client.close()
            await loading.close()
    return {
        "runs_s": [round(seconds, 4) for seconds in runs_s],
        "median_s": round(statistics.median(runs_s), 4),
        "max_s": round(max(runs_s), 4),
        "lost_acknowledged": lost,
        "acknowledged": len(promised.bodies),
        "unknown": promised.unknown,
        "load": options.load,
        "flush": options.flush,
        "machine": on,
    }


def run(options: FailoverOptions) -> dict[str, Any]:
    """Starts three engines in a temporary directory, kills leaders, and returns what `--json` prints."""
    import uvloop

    result: dict[str, Any] = uvloop.run(_run(options))
    return result
