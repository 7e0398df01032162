"""`bench memory`: private memory of every process under an even load, for as long as one likes.

Batches arrive at a set rate, control planes run, and the product's console polls them. What counts is RssAnon: mapped
log files are page cache, which the kernel takes back. Growth is the slope of a straight line through the second half of
the samples: what fills once (rings, caches, arenas) has done so by then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import say
from app.bench.load import different_bodies
from app.bench.machine import machine
from app.bench.running import measured
from app.bench.undisturbed import Visitors
from app.bench.usage import rss_anon_mb
from node.client import LedgerClient, LedgerError

BATCH: Final = 100
SAMPLES: Final = 60


@dataclass(slots=True, frozen=True)
class MemoryOptions:
    """`rate`: entries a second, in batches of BATCH."""

    minutes: float = 60.0
    flush: str = "async"
    rate: float = 5000.0
    body_bytes: int = 256
    directory: Path | None = None


def growth_mb_per_hour(samples: Sequence[tuple[float, float]]) -> float:
    """Least squares over the second half of (seconds, MB); 0 of fewer than two."""
    late = samples[len(samples) // 2 :]
    if len(late) < 2:
        return 0.0
    mean_s = sum(at for at, _ in late) / len(late)
    mean_mb = sum(mb for _, mb in late) / len(late)
    spread = sum((at - mean_s) ** 2 for at, _ in late)
    if not spread:
        return 0.0
    return sum((at - mean_s) * (mb - mean_mb) for at, mb in late) / spread * 3600


async def even_batches(client: LedgerClient, options: MemoryOptions, stop: asyncio.Event) -> int:
    """Appends at the set rate, one batch at a time; returns the entries appended."""
    bodies = different_bodies(BATCH, options.body_bytes)
    began, batches, appended = time.perf_counter(), 0, 0
    while not stop.is_set():
        batches += 1
        try:
            await client.append_many(bodies)
            appended += BATCH
        except LedgerError as error:  # an election on a busy machine: the hour goes on
            say(f"not acknowledged: {error}")
        due = began + batches * BATCH / options.rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    return appended


async def _run(options: MemoryOptions) -> dict[str, Any]:
    series: dict[str, list[tuple[float, float]]] = {}
    cluster = BenchCluster(options.flush, parent=options.directory, with_control=True)
    on = machine(cluster.directory)
    seconds = options.minutes * 60
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        visitors = Visitors(cluster)
        stack.push_async_callback(visitors.stop)
        await visitors.start_console()
        stop = asyncio.Event()
        loading = asyncio.create_task(even_batches(client, options, stop))
        began = time.perf_counter()
        for number in range(1, SAMPLES + 1):
            await asyncio.wait({loading}, timeout=max(0.0, began + seconds * number / SAMPLES - time.perf_counter()))
            if loading.done():
                break
            at = time.perf_counter() - began
            for name, mb in sample(cluster, visitors).items():
                series.setdefault(name, []).append((round(at, 1), mb))
            figures = ", ".join(f"{name} {points[-1][1]:.0f}" for name, points in series.items())
            say(f"{at / 60:.1f} of {options.minutes:g} min, MB: {figures}")
        stop.set()
        entries = await loading
    return {
        "results": [row(name, points) for name, points in series.items()],
        "series": series, "minutes": options.minutes, "entries": entries, "rate_per_s": options.rate,
        "body_bytes": options.body_bytes, "flush": options.flush, "machine": on,
    }  # fmt: skip


def sample(cluster: BenchCluster, visitors: Visitors) -> Mapping[str, float]:
    """Megabytes by name, of the processes that live."""
    named = {f"engine {node_id}": process for node_id, process in cluster.processes.items()}
    named |= {f"control {node_id}": process for node_id, process in cluster.controls.items()}
    named |= visitors.processes
    found = {name: rss_anon_mb(process.pid) for name, process in named.items()}
    return {name: mb for name, mb in found.items() if mb is not None}


def row(name: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One process: its most, its last, and how it grows."""
    return {
        "process": name,
        "max_mb": max(mb for _, mb in points),
        "last_mb": points[-1][1],
        "growth_mb_per_h": round(growth_mb_per_hour(points), 2),
    }


def run(options: MemoryOptions) -> dict[str, Any]:
    """Starts three engines, control planes and a console, loads them, and returns what `--json` prints."""
    return measured(_run(options))
