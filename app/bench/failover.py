"""`bench failover`: take the leader away, and count the seconds to the next acknowledged append.

Four ways: `kill` (SIGKILL: its connections close, so every peer notices at once), `partition` (SIGSTOP: its
connections stay open and silence is the only sign), `transfer` (planned: the longest gap between two acknowledgements
of one writer), `stop` (SIGTERM: the leader hands over before it ends; the longest gap as well).

Nothing acknowledged may be lost or changed: at the end every acknowledged body is read back at its index and compared.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import START_WITHIN_S, BenchCluster
from app.bench.common import say
from app.bench.machine import machine
from app.bench.running import measured
from node.client import LedgerClient, LedgerError

READ_ENTRIES: Final = 2000
LOADERS: Final = 32
WAYS: Final = ("kill", "partition", "transfer", "stop")
# How long the writer of a planned transfer goes on before and afterwards: what it meets late belongs to the pause.
AROUND_TRANSFER_S: Final = 0.3


@dataclass(slots=True, frozen=True)
class FailoverOptions:
    """`load`: appends go on from LOADERS workers while the leader goes away."""

    runs: int = 10
    load: bool = False
    flush: str = "sync"
    how: str = "kill"
    members: int = 3
    settle_s: float = 0.5
    against: str | None = None
    directory: Path | None = None


@dataclass(slots=True)
class Acknowledged:
    """What the group promised: index -> body."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    unknown: int = 0

    async def append(self, client: LedgerClient, body: bytes) -> bool:
        """Appends once; an error counts as unknown and never as lost."""
        try:
            result = await client.append(body)
        except LedgerError:
            self.unknown += 1
            return False
        self.bodies[result.first_index] = body
        return True


async def load(client: LedgerClient, worker: int, promised: Acknowledged, stop: asyncio.Event) -> None:
    """Appends distinct bodies until asked to stop."""
    for number in itertools.count():
        if stop.is_set():
            return
        if not await promised.append(client, f"load {worker} {number}".encode()):
            await asyncio.sleep(0.01)


async def seconds_to_next(client: LedgerClient, promised: Acknowledged, number: int, since: float) -> float:
    """Appends until one is acknowledged; returns the seconds since `since` (perf_counter)."""
    for attempt in itertools.count():
        if await promised.append(client, f"after failover {number} {attempt}".encode()):
            break
    return time.perf_counter() - since


async def by_kill(cluster: BenchCluster, client: LedgerClient, promised: Acknowledged, number: int) -> float:
    """SIGKILL; the member is started again afterwards."""
    leader = await client.leader()
    began = time.perf_counter()
    await cluster.kill(leader)
    seconds = await seconds_to_next(client, promised, number, began)
    await cluster.start(leader)
    return seconds


async def by_partition(cluster: BenchCluster, client: LedgerClient, promised: Acknowledged, number: int) -> float:
    """SIGSTOP: silence, on connections that stay open; the member goes on afterwards."""
    leader = await client.leader()
    began = time.perf_counter()
    cluster.signal(leader, signal.SIGSTOP)
    try:
        return await seconds_to_next(client, promised, number, began)
    finally:
        cluster.signal(leader, signal.SIGCONT)


async def longest_gap_s(
    client: LedgerClient, promised: Acknowledged, what: str, meanwhile: Callable[[], Awaitable[None]]
) -> float:
    """Between two acknowledgements of one writer, while leadership moves."""
    stop = asyncio.Event()
    gaps_s: list[float] = []

    async def write() -> None:
        last = time.perf_counter()
        for attempt in itertools.count():
            if stop.is_set():
                return
            if await promised.append(client, f"during {what} {attempt}".encode()):
                now = time.perf_counter()
                gaps_s.append(now - last)
                last = now

    writer = asyncio.create_task(write())
    try:
        await asyncio.sleep(AROUND_TRANSFER_S)
        await meanwhile()
        await asyncio.sleep(AROUND_TRANSFER_S)
    finally:
        stop.set()
        await writer
    return max(gaps_s)


async def by_transfer(cluster: BenchCluster, client: LedgerClient, promised: Acknowledged, number: int) -> float:
    """A planned transfer to the best member. Raises RuntimeError."""

    async def transfer() -> None:
        async with cluster.using() as operator:
            answer = await operator.transfer()
        if answer.get("code") != 200:
            raise RuntimeError(f"the transfer was answered {answer.get('code')}: {answer.get('detail')}")

    return await longest_gap_s(client, promised, f"transfer {number}", transfer)


async def by_stop(cluster: BenchCluster, client: LedgerClient, promised: Acknowledged, number: int) -> float:
    """SIGTERM; the member is started again afterwards."""
    leader = await client.leader()
    seconds = await longest_gap_s(client, promised, f"stop {number}", lambda: cluster.kill(leader, signal.SIGTERM))
    await cluster.start(leader)
    await follows(client, leader)  # else the next stop leaves no quorum
    return seconds


async def follows(client: LedgerClient, member: str) -> None:
    """Once that member, started anew, follows a leader."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            with suppress(LedgerError):
                if (await client.state(member))["role"] == "FOLLOWER":
                    return
            await asyncio.sleep(0.05)


Way = Callable[[BenchCluster, LedgerClient, Acknowledged, int], Awaitable[float]]
DONE_BY: Final[Mapping[str, Way]] = {
    "kill": by_kill, "partition": by_partition, "transfer": by_transfer, "stop": by_stop,
}  # fmt: skip


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
    theirs_s: list[float] = []
    cluster = BenchCluster(options.flush, options.members, options.directory)
    on = machine(cluster.directory)
    async with cluster:
        client, loading = cluster.client(deadline_s=20.0), cluster.client(deadline_s=20.0)
        stop = asyncio.Event()
        loaders = [asyncio.create_task(load(loading, n, promised, stop)) for n in range(LOADERS if options.load else 0)]
        try:
            for number in range(options.runs):
                await cluster.wait_for_all(client)  # the member that was away is back and in step
                await asyncio.sleep(options.settle_s)
                runs_s.append(await DONE_BY[options.how](cluster, client, promised, number))
                say(f"run {number + 1}/{options.runs}: {runs_s[-1]:.3f} s")
                if options.against:
                    theirs_s.append(await asyncio.to_thread(other_failover_s, options.members))
                    say(f"run {number + 1}/{options.runs}: {options.against} {theirs_s[-1]:.3f} s")
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
        "how": options.how,
        "load": options.load,
        "flush": options.flush,
        "members": options.members,
        "against": timings(options.against, theirs_s),
        "machine": on,
    }


def timings(system: str | None, runs_s: list[float]) -> dict[str, Any] | None:
    """The other system's figures; None where it was not asked for."""
    if system is None:
        return None
    return {
        "system": system,
        "runs_s": [round(seconds, 4) for seconds in runs_s],
        "median_s": round(statistics.median(runs_s), 4),
        "max_s": round(max(runs_s), 4),
    }


def other_failover_s(members: int) -> float:
    """One failover of a new group of PySyncObj, in its low-latency mode."""
    from app.bench.pysyncobj_peer import PySyncObjCluster

    with PySyncObjCluster("unbatched", members) as cluster:
        return cluster.failover_s()


def run(options: FailoverOptions) -> dict[str, Any]:
    """Starts a group in a temporary directory, takes its leaders away, and returns what `--json` prints."""
    return measured(_run(options))
