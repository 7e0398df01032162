"""`bench busy`: a group under load beside processes that only burn CPU, all of them on a few cores.

An engine that gets no CPU ticks late. As long as no gap between two ticks reaches the shortest election time-out, no
leadership may end: a longer one is an engine that was away.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import say
from app.bench.failover import Acknowledged, load
from app.bench.leaderships import agreed, tick_gaps_ms
from app.bench.machine import machine
from app.bench.running import measured
from app.bench.views import state_of
from node.children import apart

LOOK_EVERY_S: Final = 5.0
BURN: Final = "while True: pass"


@dataclass(slots=True, frozen=True)
class BusyOptions:
    """`loaders` appends are in flight; `burners` processes burn CPU; everything shares `cores`."""

    seconds: float = 600.0
    burners: int = 4
    cores: int = 2
    loaders: int = 8
    flush: str = "sync"
    members: int = 3
    directory: Path | None = None


async def burn(count: int, stack: AsyncExitStack) -> list[Process]:
    """Processes that take all the CPU they get; they end with the stack."""
    burners = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", BURN, preexec_fn=apart(SIGKILL))
        for _ in range(count)
    ]

    async def end() -> None:
        for one in burners:
            one.kill()
            await one.wait()

    stack.push_async_callback(end)
    return burners


def share_cores(pids: list[int], count: int) -> list[int]:
    """Keeps these processes, and this one, on the first `count` cores that it may use; which these are."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    for pid in [0, *pids]:
        os.sched_setaffinity(pid, cores)
    return cores


async def _run(options: BusyOptions) -> dict[str, Any]:
    promised, changes = Acknowledged(), list[str]()
    cluster = BenchCluster(options.flush, options.members, options.directory)
    on = machine(cluster.directory)
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        loading = await stack.enter_async_context(cluster.using())
        state = await state_of(client, next(iter(cluster.processes)))
        led, at_first_ms = await agreed(cluster, client), await tick_gaps_ms(cluster, client)
        burners = await burn(options.burners, stack)
        cores = share_cores([*cluster.pids(), *(one.pid for one in burners)], options.cores)
        stop = asyncio.Event()
        loaders = [asyncio.create_task(load(loading, n, promised, stop)) for n in range(options.loaders)]
        try:
            until = time.monotonic() + options.seconds
            while (left_s := until - time.monotonic()) > 0:
                await asyncio.sleep(min(LOOK_EVERY_S, left_s))
                before, led = led, await agreed(cluster, client)
                if led != before:
                    changes.append(f"{before} -> {led}")
                say(f"{left_s:.0f} s left: {len(promised.bodies)} acknowledged, {len(changes)} leader changes")
            gaps_ms = await tick_gaps_ms(cluster, client)
            stop.set()
            await asyncio.gather(*loaders)
        finally:
            for task in loaders:
                task.cancel()
    assert state.timing is not None and state.timing.election_timeout_min_ms is not None, "our own engines tell it"
    election_min_ms = float(state.timing.election_timeout_min_ms)
    return {
        "seconds": options.seconds, "burners": options.burners, "cores": cores, "leader_changes": len(changes),
        "changes": changes, "tick_gap_max_ms": gaps_ms, "tick_gap_max_ms_at_first": at_first_ms,
        "election_min_ms": election_min_ms, "all_gaps_below_election_min": max(gaps_ms.values()) < election_min_ms,
        "acknowledged": len(promised.bodies), "unknown": promised.unknown, "flush": options.flush, "machine": on,
    }  # fmt: skip


def run(options: BusyOptions) -> dict[str, Any]:
    """Starts a group beside processes that burn CPU, and returns what `--json` prints."""
    return measured(_run(options))
