"""`bench snapshot --install`: how long an empty member of a trimmed group takes to be a voter again.

A group with the key-value store is filled, saves its state and trims its logs; then comes what lies behind the
snapshot, so many small puts. One member's disk is emptied and the member started: it is sent the snapshot, loads it and
catches up.

Invariant: it counts as back once it votes, has applied all that was committed when it started, and answers a
linearizable get of the first key of the state and of the last put. Puts arrive at an even rate meanwhile; what
they wait is held against the same load just before, with that member away.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import remove_files, say
from app.bench.kv import Puts, keys_of
from app.bench.machine import machine
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.snapshot import SETTINGS, fill, save_everywhere
from node.client import LedgerClient, LedgerError
from node.client.kv import KvClient

MEMBER: Final = "n2"
KEYS: Final = 20_000
TOGETHER: Final = 2_000
FILE_MIB: Final = 32  # small files, so that trimming leaves little of what the snapshot holds
TRIMMED_WITHIN_S: Final = 60.0
BACK_WITHIN_S: Final = 600.0
BESIDE_S: Final = 5.0  # of puts that arrive: with the member away, and from its start on


@dataclass(slots=True, frozen=True)
class InstallOptions:
    """`state_mb`: of values, in `value_bytes` each; `entries`: puts of `body_bytes` behind the snapshot; `rate`: puts a
    second that arrive while it is sent, and before."""

    flush: str = "sync"
    state_mb: int = 1000
    value_bytes: int = 4096
    entries: int = 1_000_000
    body_bytes: int = 64
    rate: float = 500.0
    directory: Path | None = None


async def _trim(client: LedgerClient, member_id: str, through_index: int) -> int:
    """Removes what the snapshot stands for; where the log begins then. Raises RuntimeError."""
    async for _piece in remove_files(client, member_id, through_index, TRIMMED_WITHIN_S):
        continue
    return int((await client.state(member_id))["log"]["begin_index"])


async def _put_behind(store: KvClient, options: InstallOptions) -> bytes:
    """What the member has to catch up with beside the snapshot; the last key."""
    puts, done = Puts(store, keys_of(KEYS), options.body_bytes), 0
    while done < options.entries:
        count = min(TOGETHER, options.entries - done)
        await puts.append_many([b""] * count)
        done += count
        if done % 100_000 < TOGETHER:
            say(f"{done:,} of {options.entries:,} entries behind the snapshot")
    last = b"the last one"
    await store.put(last, b"put")
    return last


async def _back(client: LedgerClient, committed_index: int, last_key: bytes) -> tuple[float, float]:
    """Seconds until it votes, and until it serves all of it, too."""
    began, voter_s = time.perf_counter(), 0.0
    store = KvClient(client, member_id=MEMBER, deadline_s=5.0)
    async with asyncio.timeout(BACK_WITHIN_S):
        while True:
            try:
                state = await client.state(MEMBER)
                now_s = time.perf_counter() - began
                voter_s = voter_s or (now_s if state["voter_state"] == "VOTER" else 0.0)
                if voter_s and (state["log"]["applied_index"] or -1) >= committed_index:
                    for key in (b"state-%08d" % 0, last_key):
                        if await store.get(key) is None:
                            raise RuntimeError(f"{MEMBER} came back without {key!r}")
                    return voter_s, time.perf_counter() - began
            except LedgerError:
                pass
            await asyncio.sleep(0.05)


async def _run(options: InstallOptions) -> dict[str, Any]:
    settings = (*SETTINGS, f"store.mapped_file_size_for_entry_data_bytes={FILE_MIB * 1024 * 1024}")
    cluster = BenchCluster(options.flush, parent=options.directory, with_kv=True, settings=settings)
    on = machine(cluster.directory)
    async with cluster, AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        store = KvClient(client, deadline_s=30.0)
        say(f"putting {options.state_mb} MB")
        await fill(store, options.state_mb, options.value_bytes)
        await save_everywhere(client, list(cluster.processes))
        leader_id = await client.leader()
        through = int((await client.state(leader_id))["log"]["applied_index"])
        begins = [await _trim(client, one, through) for one in cluster.processes]
        say(f"saved up to entry {through:,} and trimmed: the logs begin at {min(begins):,} to {max(begins):,}")
        if min(begins) <= 0:
            raise RuntimeError("nothing was trimmed: give more state (--state-mb), so that data files fill")
        last_key = await _put_behind(store, options)
        if await client.leader() == MEMBER:
            await client.transfer("n0")
        await cluster.kill(MEMBER)
        shutil.rmtree(cluster.directory / MEMBER)
        puts = Puts(store, keys_of(KEYS), options.body_bytes)
        control = await paced(puts, options.rate, options.body_bytes, BESIDE_S)
        committed_index = int((await client.state(await client.leader()))["log"]["committed_index"])
        say(f"{MEMBER} starts with an empty disk")
        await cluster.start(MEMBER)
        (voter_s, serves_s), meanwhile = await asyncio.gather(
            _back(client, committed_index, last_key),
            paced(puts, options.rate, options.body_bytes, BESIDE_S),
        )
        begin_index = int((await client.state(MEMBER))["log"]["begin_index"])
        snapshots = list((cluster.directory / MEMBER).glob("dledger-*/snapshot/snapshot_*/data"))
        snapshot_bytes = max((one.stat().st_size for one in snapshots), default=0)
    return {
        "state_mb": options.state_mb, "value_bytes": options.value_bytes, "entries": options.entries,
        "body_bytes": options.body_bytes, "flush": options.flush, "snapshot_bytes": snapshot_bytes,
        "begin_index": begin_index, "committed_index": committed_index, "voter_s": round(voter_s, 2),
        "serves_s": round(serves_s, 2), "rate_per_s": options.rate, "p99_ms_control": control.p99_ms,
        "p99_ms_meanwhile": meanwhile.p99_ms, "p50_ms_control": control.p50_ms, "p50_ms_meanwhile": meanwhile.p50_ms,
        "machine": on,
    }  # fmt: skip


def run(options: InstallOptions) -> dict[str, Any]:
    """Starts a group, fills and trims it, empties a member, and returns what `--json` prints. Raises RuntimeError."""
    return measured(_run(options))
