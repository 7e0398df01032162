"""`bench retention`: what removing large data files costs the engine that removes them.

One member's log is filled with data files that are really written. An even load of appends runs with nobody removing
anything, and again while an operator has all full files removed. The longest time between two ticks of the engine
(`tick_gap_max_ms`) is read after each. It only grows, so each phase has an engine of its own: in one engine a gap of
the removal that is shorter than the control's longest would not show. What the filling left to be written is on the
disk before either begins, or the control would measure that.

Invariants: the removal counts only if all the files are gone at its end. Their space goes in steps, at least 1.3 s a
GiB, so `seconds` has to be longer than that for all of them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import remove_files, say
from app.bench.leaderships import tick_gaps_ms
from app.bench.load import Case, measure
from app.bench.machine import machine
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.views import state_of
from node.client import LedgerClient

MEMBER: Final = "n0"
MIB: Final = 1 << 20
FILL_BODY_BYTES: Final = MIB - 1024
FILL: Final = Case(in_flight=16, batch=1)
FILL_TURN_S: Final = 1.0
TRIMMED_WITHIN_S: Final = 120.0
SPARE_FILES: Final = 3  # the one being written, the one made in advance, and room for everything else


@dataclass(slots=True, frozen=True)
class RetentionOptions:
    """`files` of `file_mb` MiB are written and removed; `rate`: appends of `body_bytes` a second, evenly spaced."""

    flush: str = "sync"
    files: int = 10
    file_mb: int = 1024
    rate: float = 1000.0
    body_bytes: int = 256
    seconds: float = 20.0
    directory: Path | None = None


async def _fill(cluster: BenchCluster, client: LedgerClient, options: RetentionOptions) -> None:
    """Until so many files are full, and another one is begun."""
    enough_bytes = (options.files * options.file_mb + options.file_mb // 2) * MIB
    written_bytes = 0
    while written_bytes < enough_bytes:
        await measure(client, FILL, FILL_BODY_BYTES, FILL_TURN_S)
        written_bytes = await _end_index(client) * FILL_BODY_BYTES
        say(f"filled {written_bytes / MIB:,.0f} of {enough_bytes / MIB:,.0f} MiB")


async def _end_index(client: LedgerClient) -> int:
    return (await state_of(client, MEMBER)).marks.end_index or 0


async def _remove(client: LedgerClient, files: int) -> tuple[int, int, float]:
    """Files and bytes that were removed, and the seconds that it took. Raises RuntimeError when some stay."""
    through_index = await _end_index(client)
    began = time.perf_counter()
    removed = size_bytes = 0
    async for some, some_bytes in remove_files(client, MEMBER, through_index, TRIMMED_WITHIN_S):
        removed, size_bytes = removed + some, size_bytes + some_bytes
        if removed >= files:
            break
    if removed < files:
        raise RuntimeError(f"{removed} of {files} files were removed")
    return removed, size_bytes, time.perf_counter() - began


async def _start_anew(cluster: BenchCluster, client: LedgerClient) -> float:
    """With everything written; the longest gap between ticks that the new engine has had when it leads."""
    await cluster.kill(MEMBER, SIGTERM)
    await asyncio.to_thread(os.sync)
    await cluster.start(MEMBER)
    await cluster.wait_for_leader()
    return (await tick_gaps_ms(cluster, client))[MEMBER]


async def _run(options: RetentionOptions) -> dict[str, Any]:
    settings = (f"store.mapped_file_size_for_entry_data_bytes={options.file_mb * MIB}",)
    cluster = BenchCluster(options.flush, size=1, parent=options.directory, settings=settings)
    on = machine(cluster.directory)
    needed = (options.files + SPARE_FILES) * options.file_mb * MIB
    async with cluster, AsyncExitStack() as stack:
        free = shutil.disk_usage(cluster.directory).free
        if free < needed:
            there = f"{cluster.directory.parent} has {free / 2**30:.1f} GiB left"
            raise RuntimeError(f"{there}, and {needed / 2**30:.1f} are needed: name another disk with --data")
        client = await stack.enter_async_context(cluster.using())
        await _fill(cluster, client, options)
        at_first_ms = await _start_anew(cluster, client)
        say("the engine is started anew; the control runs")
        control = await paced(client, options.rate, options.body_bytes, options.seconds)
        control_ms = (await tick_gaps_ms(cluster, client))[MEMBER]
        removal_at_first_ms = await _start_anew(cluster, client)
        say(f"longest tick gap {control_ms:.1f} ms; started anew, and now the files are removed")
        load = paced(client, options.rate, options.body_bytes, options.seconds)
        meanwhile, (files, size_bytes, took_s) = await asyncio.gather(load, _remove(client, options.files))
        removal_ms = (await tick_gaps_ms(cluster, client))[MEMBER]
    return {
        "files": files, "removed_bytes": size_bytes, "removed_in_s": round(took_s, 2), "rate_per_s": options.rate,
        "body_bytes": options.body_bytes, "seconds": options.seconds, "flush": options.flush,
        "tick_gap_max_ms_at_first": at_first_ms, "tick_gap_max_ms_removal_at_first": removal_at_first_ms,
        "tick_gap_max_ms_control": control_ms,
        "tick_gap_max_ms_removal": removal_ms, "p99_ms_control": control.p99_ms, "p99_ms_removal": meanwhile.p99_ms,
        "machine": on,
    }  # fmt: skip


def run(options: RetentionOptions) -> dict[str, Any]:
    """Starts a member, fills its log, removes files, and returns what `--json` prints. Raises RuntimeError."""
    return measured(_run(options))
