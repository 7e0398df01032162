"""`bench snapshot`: what saving a large state costs those who write meanwhile.

A group whose state machine holds so much (the key-value store) takes an even load of puts, in turn with nobody saving
and while every member saves its state at once; a phase lasts as long as a save did. Rounds interleave, and the p99 of
one is compared with that of the same round without.

Invariant: a round counts only if the leadership is the same at its end; leaderships that were lost are in the result.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import Sample, say
from app.bench.kv import Puts, keys_of
from app.bench.machine import machine
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.undisturbed import phase_row
from app.bench.usage import rss_anon_mb
from node.client import LedgerClient
from node.client.kv import KvClient
from node.protocol.codes import ResponseCode

KEYS: Final = 20_000
FILLED_TOGETHER: Final = 256
APPLIED_WITHIN_S: Final = 60.0
SAVED_WITHIN_S: Final = 600.0
SETTLE_S: Final = 1.0
PHASE_S_MIN: Final = 2.0
SETTINGS: Final = ("node.snapshot_entries=1000000000", "node.snapshots_kept=1")  # only when it is asked for


@dataclass(slots=True, frozen=True)
class SnapshotOptions:
    """`state_mb`: of values, in `value_bytes` each; `rate`: puts of `body_bytes` a second, evenly spaced."""

    flush: str = "sync"
    state_mb: int = 1000
    value_bytes: int = 4096
    rate: float = 1000.0
    body_bytes: int = 256
    rounds: int = 10
    directory: Path | None = None


async def fill(store: KvClient, state_mb: int, value_bytes: int) -> int:
    """Puts so much; how many keys that are."""
    count = max(1, state_mb * 1_000_000 // value_bytes)
    for at in range(0, count, FILLED_TOGETHER):
        these = range(at, min(count, at + FILLED_TOGETHER))
        values = ((b"%08d" % number) * (value_bytes // 8 + 1) for number in these)
        puts = [
            store.submit_put(b"state-%08d" % number, value[:value_bytes])
            for number, value in zip(these, values, strict=True)
        ]
        await asyncio.gather(*puts)
    return count


async def applied_everywhere(client: LedgerClient, members: list[str]) -> None:
    """Waits until every member has applied what is committed now. Raises TimeoutError."""
    committed_index = int((await client.state(await client.leader()))["log"]["committed_index"])

    async def applied_index(member_id: str) -> int:
        index = (await client.state(member_id))["log"]["applied_index"]
        return -1 if index is None else int(index)

    async with asyncio.timeout(APPLIED_WITHIN_S):
        for member_id in members:
            while await applied_index(member_id) < committed_index:  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.05)


async def save_everywhere(client: LedgerClient, members: list[str]) -> list[float]:
    """Seconds that each member's save took. Raises RuntimeError."""

    async def save(member_id: str) -> float:
        began = time.perf_counter()
        answer = await client.order(member_id, {"what": "snapshot"}, SAVED_WITHIN_S)
        if answer.get("code") != ResponseCode.SUCCESS or answer.get("detail"):
            raise RuntimeError(f"{member_id} did not save its state: {answer.get('detail') or answer}")
        return time.perf_counter() - began

    return list(await asyncio.gather(*map(save, members)))


async def _run(options: SnapshotOptions) -> dict[str, Any]:
    samples: dict[str, list[Sample]] = {"nobody": [], "saving": []}
    took_s: list[float] = []
    changes = 0
    cluster = BenchCluster(options.flush, parent=options.directory, with_kv=True, settings=SETTINGS)
    on = machine(cluster.directory)
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        store = KvClient(client, deadline_s=30.0)
        say(f"putting {options.state_mb} MB")
        await fill(store, options.state_mb, options.value_bytes)
        puts, members = Puts(store, keys_of(KEYS), options.body_bytes), list(cluster.processes)
        await applied_everywhere(client, members)
        phase_s = max(PHASE_S_MIN, *(await save_everywhere(client, members)))
        say(f"a save takes {phase_s:.1f} s with nobody writing")
        held = await leadership(client)
        for number in range(options.rounds):
            phases = ["nobody", "saving"] if number % 2 == 0 else ["saving", "nobody"]
            for phase in phases:
                await asyncio.sleep(SETTLE_S)
                load = paced(puts, options.rate, options.body_bytes, phase_s)
                saved: list[float] = []
                if phase == "saving":
                    sample, saved = await asyncio.gather(load, save_everywhere(client, members))
                else:
                    sample = await load
                took_s += saved
                samples[phase].append(sample)
                say(
                    f"round {number + 1}/{options.rounds}: {phase}: p50 {sample.p50_ms:.2f} ms,"
                    f" p99 {sample.p99_ms:.2f} ms" + (f", saved in {max(saved):.1f} s" if saved else "")
                )
            now_held = await leadership(client)
            changes, held = changes + (now_held != held), now_held
        memory = {pid: rss_anon_mb(pid) for pid in cluster.machine_pids()}
    return {
        "results": [phase_row(phase, rounds, samples["nobody"]) for phase, rounds in samples.items()],
        "state_mb": options.state_mb, "value_bytes": options.value_bytes, "rate_per_s": options.rate,
        "body_bytes": options.body_bytes, "flush": options.flush, "rounds": options.rounds,
        "leader_changes": changes, "saved_median_s": round(statistics.median(took_s), 2),
        "saved_max_s": round(max(took_s), 2), "rss_anon_mb": sorted(mb for mb in memory.values() if mb is not None),
        "machine": on,
    }  # fmt: skip


async def leadership(client: LedgerClient) -> tuple[str, int]:
    """Who leads, and in which term."""
    leader_id = await client.leader()
    return leader_id, int((await client.state(leader_id))["term"])


def run(options: SnapshotOptions) -> dict[str, Any]:
    """Starts a group, fills it, measures, and returns what `--json` prints."""
    return measured(_run(options))
