"""`bench stalls`: every engine stands still at once, again and again; no leadership may end of it (SAFETY E6).

What a machine that swaps, a hypervisor that moves a guest or a stopped container does to a whole group. Lengths are
drawn log-evenly, moments at random; the engines go on a little apart.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import say
from app.bench.failover import Acknowledged, load
from app.bench.leaderships import agreed
from app.bench.machine import machine
from app.bench.running import measured

PHASE_S: Final = 0.3  # a stall begins so long after the last one was looked at, at most
SETTLE_S: Final = 0.4
LOADERS: Final = 8


@dataclass(slots=True, frozen=True)
class StallsOptions:
    """`load`: appends go on from a few workers meanwhile."""

    runs: int = 100
    shortest_s: float = 0.2
    longest_s: float = 5.0
    skew_s: float = 0.05
    load: bool = False
    flush: str = "sync"
    members: int = 3
    seed: int = 1
    directory: Path | None = None


async def one_stall(cluster: BenchCluster, rng: random.Random, options: StallsOptions) -> float:
    """All stop, all go on, each within the skew; returns for how long they stood still."""
    seconds: float = options.shortest_s * (options.longest_s / options.shortest_s) ** rng.random()
    await asyncio.sleep(rng.uniform(0, PHASE_S))
    for number, step_s in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, options.skew_s / max(1, options.members - 1))):
        members = list(cluster.processes)
        rng.shuffle(members)
        for place, member in enumerate(members):
            if place:
                await asyncio.sleep(rng.uniform(0, step_s))
            cluster.signal(member, number)
        if number == signal.SIGSTOP:
            await asyncio.sleep(seconds)
    await asyncio.sleep(SETTLE_S)
    return seconds


async def _run(options: StallsOptions) -> dict[str, Any]:
    rng, promised, changed = random.Random(options.seed), Acknowledged(), list[float]()
    stalls_s: list[float] = []
    cluster = BenchCluster(options.flush, options.members, options.directory)
    on = machine(cluster.directory)
    async with cluster, cluster.using() as client, cluster.using() as loading:
        stop = asyncio.Event()
        loaders = [asyncio.create_task(load(loading, n, promised, stop)) for n in range(LOADERS if options.load else 0)]
        try:
            led = await agreed(cluster, client)
            for number in range(options.runs):
                stalls_s.append(await one_stall(cluster, rng, options))
                before, led = led, await agreed(cluster, client)
                if led != before:
                    changed.append(stalls_s[-1])
                    say(f"stall {number + 1}: {stalls_s[-1]:.2f} s: {before[1]} led term {before[0]}, now {led}")
                elif (number + 1) % 10 == 0:
                    say(f"stall {number + 1}/{options.runs}: {len(changed)} leaderships lost")
            stop.set()
            await asyncio.gather(*loaders)
        finally:
            for task in loaders:
                task.cancel()
    return {
        "runs": options.runs, "leader_changes": len(changed), "changed_at_s": [round(one, 3) for one in changed],
        "median_s": round(statistics.median(stalls_s), 3), "max_s": round(max(stalls_s), 3), "skew_s": options.skew_s,
        "load": options.load, "acknowledged": len(promised.bodies), "unknown": promised.unknown,
        "flush": options.flush, "members": options.members, "machine": on,
    }  # fmt: skip


def run(options: StallsOptions) -> dict[str, Any]:
    """Starts a group, stops and continues it, and returns what `--json` prints."""
    return measured(_run(options))
