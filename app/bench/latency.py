"""`bench latency`: one append at a time, with and without waiting for disks, and what one fdatasync takes meanwhile.

Two groups stand side by side; rounds of the first, of the second and of the bare disk follow each other, because a disk
that others use is fast one second and slow the next. What is compared is the rounds' own sums: the sync group waits for
one sync more than the async one, and everything beyond that is the hand-over between loops and threads.
"""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import say
from app.bench.load import Case, measure
from app.bench.machine import fdatasync_ms, machine
from app.bench.running import measured

ONE: Final = Case(1, 1)
WARM_UP_S: Final = 0.3


@dataclass(slots=True, frozen=True)
class LatencyOptions:
    """Rounds of `seconds` each, of both groups."""

    body_bytes: int = 256
    seconds: float = 0.5
    rounds: int = 20
    members: int = 3
    directory: Path | None = None


async def _run(options: LatencyOptions) -> dict[str, Any]:
    rounds: list[dict[str, float]] = []
    clusters = {flush: BenchCluster(flush, options.members, options.directory) for flush in ("async", "sync")}
    on = machine(clusters["sync"].directory)
    async with AsyncExitStack() as stack:
        clients = {}
        for flush, cluster in clusters.items():
            await stack.enter_async_context(cluster)
            clients[flush] = await stack.enter_async_context(cluster.using())
            await measure(clients[flush], ONE, options.body_bytes, WARM_UP_S)
        for number in range(options.rounds):
            row: dict[str, float] = {}
            for flush, client in clients.items():
                sample = await measure(client, ONE, options.body_bytes, options.seconds)
                row[f"{flush}_p50_ms"] = sample.p50_ms
            row["fdatasync_ms"], _p99_ms = fdatasync_ms(clusters["sync"].directory, options.seconds)
            row["ratio"] = row["sync_p50_ms"] / (row["async_p50_ms"] + row["fdatasync_ms"])
            rounds.append(row)
            words = ", ".join(f"{name} {value:.3f}" for name, value in row.items())
            say(f"round {number + 1}/{options.rounds}: {words}")
    ratios = sorted(row["ratio"] for row in rounds)
    medians = {name: round(statistics.median(row[name] for row in rounds), 3) for name in rounds[0]}
    return {
        **medians, "ratio_spread": [round(ratios[0], 2), round(ratios[-1], 2)], "rounds": rounds,
        "body_bytes": options.body_bytes, "members": options.members, "machine": on,
    }  # fmt: skip


def run(options: LatencyOptions) -> dict[str, Any]:
    """Starts two groups, measures them in turn, and returns what `--json` prints."""
    return measured(_run(options))
