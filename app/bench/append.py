"""`bench append`: how many appends a second, and how long one takes.

Three cases: one at a time (latency), `in_flight` singles (the client merges those of one tick), and batches. Rounds of
the systems are interleaved and the medians reported, because machines are shared and noisy.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.bench.cluster import BenchCluster
from app.bench.common import Sample, machine, percentile
from node.client import LedgerClient


@dataclass(slots=True, frozen=True)
class AppendOptions:
    """What to measure: `in_flight` for the singles, `batch` for the batches; one at a time is always measured too."""

    flush: str = "sync"
    body_bytes: int = 256
    in_flight: int = 2048
    batch: int = 1000
    seconds: float = 3.0
    rounds: int = 3
    against: str | None = None


@dataclass(slots=True, frozen=True)
class Case:
    """One way of appending: `in_flight` requests at once, `batch` entries in each."""

    in_flight: int
    batch: int


def cases_of(options: AppendOptions) -> list[Case]:
    """The three faces: latency, singles in flight, batches (a few in flight keep the pipe full)."""
    return [Case(1, 1), Case(options.in_flight, 1), Case(4, options.batch)]


async def measure(client: LedgerClient, case: Case, body_bytes: int, seconds: float) -> Sample:
    """Runs `case` for `seconds` with as many workers as requests in flight."""
    body = os.urandom(body_bytes)
    bodies = [body] * case.batch
    latencies_s: list[float] = []
    stop_at = time.perf_counter() + seconds

    async def worker() -> int:
        appended = 0
        while (began := time.perf_counter()) < stop_at:
            if case.batch == 1:
                await client.append(body)
            else:
                await client.append_many(bodies)
            latencies_s.append(time.perf_counter() - began)
            appended += case.batch
        return appended

    began = time.perf_counter()
    counts = await asyncio.gather(*(worker() for _ in range(case.in_flight)))
    elapsed_s = time.perf_counter() - began
    latencies_s.sort()
    return Sample(sum(counts) / elapsed_s, percentile(latencies_s, 0.50) * 1000, percentile(latencies_s, 0.99) * 1000)


def row(system: str, flush: str, body_bytes: int, case: Case, samples: Sequence[Sample]) -> dict[str, Any]:
    """Medians of a case's rounds in the shape that `bench append --json` promises."""
    entries_per_s = statistics.median(sample.entries_per_s for sample in samples)
    return {
        "system": system,
        "flush": flush,
        "body_bytes": body_bytes,
        "in_flight": case.in_flight,
        "batch": case.batch,
        "entries_per_s": round(entries_per_s, 1),
        "mb_per_s": round(entries_per_s * body_bytes / 1e6, 2),
        "p50_ms": round(statistics.median(sample.p50_ms for sample in samples), 3),
        "p99_ms": round(statistics.median(sample.p99_ms for sample in samples), 3),
    }


def ratios_of(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Ours over the other system's entries/s, per case that both were measured in."""
    ours = {(r["in_flight"], r["batch"]): r for r in results if r["system"] == "quorumscope"}
    ratios: dict[str, float] = {}
    for other in results:
        mine = ours.get((other["in_flight"], other["batch"]))
        if other["system"] != "quorumscope" and mine and other["entries_per_s"]:
            name = (
                f"{mine['flush']} / {other['system']} in memory, in_flight={other['in_flight']}, batch={other['batch']}"
            )
            ratios[name] = round(mine["entries_per_s"] / other["entries_per_s"], 2)
    return ratios


async def _run(options: AppendOptions) -> dict[str, Any]:
    cases = cases_of(options)
    samples: dict[Case, list[Sample]] = {case: [] for case in cases}
    theirs: dict[Case, list[Sample]] = {case: [] for case in cases if case.batch == 1}
    if options.against:
        from app.bench.pysyncobj_peer import PySyncObjCluster

    async with BenchCluster(options.flush) as cluster:
        client = cluster.client()
        try:
            for number in range(options.rounds):
                for case in cases:
                    round_ = f"round {number + 1}/{options.rounds}"
                    say(f"{round_}: quorumscope, {case.in_flight} in flight, batch {case.batch}")
                    samples[case].append(await measure(client, case, options.body_bytes, options.seconds))
                    if options.against and case in theirs:
                        say(f"{round_}: {options.against}, {case.in_flight} in flight")
                        with PySyncObjCluster(batched=case.in_flight > 1) as other:
                            theirs[case].append(
                                await asyncio.to_thread(
                                    other.measure, case.in_flight, options.body_bytes, options.seconds
                                )
                            )
        finally:
            await client.close()
    size = options.body_bytes
    results = [row("quorumscope", options.flush, size, case, samples[case]) for case in cases]
    if options.against:
        # PySyncObj keeps its journal in memory: it never syncs, whatever ours does.
        results += [row(options.against, "none", size, case, rounds) for case, rounds in theirs.items()]
    return {"results": results, "ratios": ratios_of(results), "machine": machine()}


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def run(options: AppendOptions) -> dict[str, Any]:
    """Starts three engines in a temporary directory, measures, and returns what `--json` prints."""
    import uvloop

    result: dict[str, Any] = uvloop.run(_run(options))
    return result
