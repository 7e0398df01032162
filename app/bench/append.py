"""`bench append`: how many appends a second, how long one takes, and what it costs.

Four cases: one at a time (latency), `in_flight` singles (submitted; the client merges those of one tick), and batches
of two sizes. Rounds of the cases and systems are interleaved and the medians reported, because machines are shared and
noisy; a ratio is the median of the rounds' own ratios, and its spread their least and greatest.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.appenders import open_appender
from app.bench.cluster import BenchCluster
from app.bench.common import Sample, say
from app.bench.load import Case, measure
from app.bench.machine import machine, python_step_ns, spread_of, touch_memory
from app.bench.running import measured
from app.bench.usage import cpu_s, rss_anon_mb

OURS: Final = "quorumscope"
WARM_UP_S: Final = 0.3
# What batches keep in flight together, in entries: a few requests of each size, so that the pipe is full.
BATCHED_ENTRIES_IN_FLIGHT: Final = 8000
IN_FLIGHT_MAX_VIA: Final = {"rest": 64, "json": 256}


@dataclass(slots=True, frozen=True)
class AppendOptions:
    """What to measure: `in_flight` for the singles, `batches` for the sizes; one at a time is always measured too."""

    flush: str = "sync"
    body_bytes: int = 256
    in_flight: int = 2048
    batches: tuple[int, ...] = (100, 1000)
    seconds: float = 3.0
    rounds: int = 3
    against: str | None = None
    members: int = 3
    via: str = "client"
    directory: Path | None = None


def cases_of(options: AppendOptions) -> list[Case]:
    """Latency, singles in flight, and each size of batches."""
    in_flight = min(options.in_flight, IN_FLIGHT_MAX_VIA.get(options.via, options.in_flight))
    batches = [Case(max(1, BATCHED_ENTRIES_IN_FLIGHT // size), size) for size in options.batches]
    return [Case(1, 1), Case(in_flight, 1), *batches]


def row(system: str, flush: str, body_bytes: int, case: Case, samples: Sequence[Sample], **more: Any) -> dict[str, Any]:
    """Medians of a case's rounds in the shape that `bench append --json` promises."""
    entries_per_s = statistics.median(sample.entries_per_s for sample in samples)
    cpu_us = [sample.cpu_us_per_entry for sample in samples if sample.cpu_us_per_entry is not None]
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
        "cpu_us_per_entry": round(statistics.median(cpu_us), 2) if cpu_us else None,
        "entries_per_s_rounds": [round(sample.entries_per_s, 1) for sample in samples],
        **more,
    }


def ratios_of(results: Sequence[dict[str, Any]]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Ours over the other system's entries/s, per case that both were measured in: the rounds' median, and spread."""
    ours = {(r["in_flight"], r["batch"]): r for r in results if r["system"] == OURS}
    ratios: dict[str, float] = {}
    spreads: dict[str, list[float]] = {}
    for other in results:
        mine = ours.get((other["in_flight"], other["batch"]))
        if other["system"] == OURS or mine is None or not other["entries_per_s"]:
            continue
        name = f"{mine['flush']} / {other['system']} in memory, in_flight={other['in_flight']}, batch={other['batch']}"
        pairs = zip(mine["entries_per_s_rounds"], other["entries_per_s_rounds"], strict=True)
        per_round = [round(one / theirs, 2) for one, theirs in pairs if theirs]
        ratios[name] = round(statistics.median(per_round), 2)
        spreads[name] = [min(per_round), max(per_round)]
    return ratios, spreads


@dataclass(slots=True)
class OtherSystem:
    """PySyncObj, one case at a time: its processes live only while it is measured."""

    options: AppendOptions
    configurations: dict[Case, str]

    def sample(self, case: Case) -> Sample:
        from app.bench.pysyncobj_peer import PySyncObjCluster, best_configuration

        options = self.options
        if case not in self.configurations:
            self.configurations[case] = best_configuration(case, options.body_bytes, options.members)
            say(f"{options.against}: {case.words}: its best configuration here is {self.configurations[case]!r}")
        with PySyncObjCluster(self.configurations[case], options.members) as cluster:
            cluster.measure(case, options.body_bytes, WARM_UP_S)
            return cluster.measure(case, options.body_bytes, options.seconds)


async def _run(options: AppendOptions) -> dict[str, Any]:
    cases = cases_of(options)
    samples: dict[Case, list[Sample]] = {case: [] for case in cases}
    theirs: dict[Case, list[Sample]] = {case: [] for case in cases}
    other = OtherSystem(options, {}) if options.against else None
    cluster = BenchCluster(options.flush, options.members, options.directory, with_control=options.via == "rest")
    on = machine(cluster.directory)
    steps_ns: list[float] = []
    async with cluster:
        pids = cluster.pids()

        def cpu() -> float | None:
            return cpu_s(pids)

        async with open_appender(cluster, options.via) as appender:
            for case in cases:
                await measure(appender, case, options.body_bytes, WARM_UP_S)
            for number in range(options.rounds):
                await asyncio.to_thread(touch_memory, options.seconds * len(cases))
                steps_ns += python_step_ns()
                for case in cases:
                    round_ = f"round {number + 1}/{options.rounds}"
                    sample = await measure(appender, case, options.body_bytes, options.seconds, cpu)
                    samples[case].append(sample)
                    say(f"{round_}: {OURS}, {case.words}: {sample.entries_per_s:,.0f}/s, p50 {sample.p50_ms:.3f} ms")
                    if other is not None:
                        sample = await asyncio.to_thread(other.sample, case)
                        theirs[case].append(sample)
                        say(f"{round_}: {options.against}, {case.words}: {sample.entries_per_s:,.0f}/s")
        memory = memory_of(cluster)
    size = options.body_bytes
    results = [row(OURS, options.flush, size, case, samples[case]) for case in cases]
    if other is not None and options.against:
        # PySyncObj keeps its journal in memory: it never syncs, whatever ours does.
        results += [
            row(options.against, "none", size, case, rounds, configuration=other.configurations[case])
            for case, rounds in theirs.items()
        ]
    ratios, spread = ratios_of(results)
    return {
        "results": results, "ratios": ratios, "ratio_spread": spread, "rss_anon_mb": memory,
        "members": options.members, "via": options.via, "rounds": options.rounds,
        "machine": on | {"python_step_ns": spread_of(steps_ns)},
    }  # fmt: skip


def memory_of(cluster: BenchCluster) -> Mapping[str, float | None]:
    """Private megabytes of each engine and control plane, and of this process, which is the client."""
    named = {f"engine {node_id}": process for node_id, process in cluster.processes.items()}
    named |= {f"control {node_id}": process for node_id, process in cluster.controls.items()}
    return {name: rss_anon_mb(process.pid) for name, process in named.items()} | {"client": rss_anon_mb(os.getpid())}


def run(options: AppendOptions) -> dict[str, Any]:
    """Starts a group in a temporary directory, measures, and returns what `--json` prints."""
    return measured(_run(options))
