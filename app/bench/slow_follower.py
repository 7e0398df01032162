"""`bench slow-follower`: what one bad member costs the others, and how fast it comes back.

A paced load runs throughout. In each round: all well; one follower stopped (SIGSTOP) or behind a slow link; then, with
a backlog of `backlog_mb` written meanwhile, the follower is let go, and catches up under the load. At the end once
more without a load.

The catch-up rate counts what the follower lacked when it was let go, and the time until it held that.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import Sample, say
from app.bench.load import different_bodies
from app.bench.machine import machine, touch_memory
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.views import leaders_watermarks, state_of
from node.client import LedgerClient
from node.protocol.entry import HEAD_BYTES

HOWS: Final = ("stopped", "throttled")
BACKLOG_BATCH: Final = 1000
CATCH_UP_WITHIN_S: Final = 300.0
LOOK_EVERY_S: Final = 0.02


@dataclass(slots=True, frozen=True)
class SlowFollowerOptions:
    """`rate`: single appends a second; `link_mb_per_s`: what the throttled follower's links let through."""

    how: str = "stopped"
    flush: str = "async"
    rate: float = 1000.0
    body_bytes: int = 256
    seconds: float = 4.0
    rounds: int = 3
    backlog_mb: int = 256
    link_mb_per_s: float = 10.0
    directory: Path | None = None


@dataclass(slots=True)
class Patient:
    """The member that is made slow."""

    cluster: BenchCluster
    node_id: str
    options: SlowFollowerOptions

    def slow(self) -> None:
        if self.options.how == "stopped":
            self.cluster.signal(self.node_id, signal.SIGSTOP)
            return
        assert self.cluster.links is not None
        for relay in self.cluster.links.of(self.node_id):
            relay.bytes_per_s = self.options.link_mb_per_s * 1e6

    def well(self) -> None:
        if self.options.how == "stopped":
            self.cluster.signal(self.node_id, signal.SIGCONT)
            return
        assert self.cluster.links is not None
        self.cluster.links.mend(self.node_id)


@dataclass(slots=True, frozen=True)
class CatchUp:
    """What was lacking, in megabytes of log, and the seconds until it was there."""

    mb: float
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.mb / max(self.seconds, LOOK_EVERY_S)


async def match_and_end(client: LedgerClient, node_id: str) -> tuple[int, int]:
    """Up to where the leader knows the member to hold its log, and that log's end. Raises RuntimeError."""
    marks = await leaders_watermarks(client)
    held = {peer.id: peer.match_index for peer in marks.peers or ()}
    match, end = held.get(node_id), held.get(marks.leader_id or "")
    if match is None or end is None:
        raise RuntimeError(f"the leader does not tell how far {node_id} is")
    return match, end


async def write_backlog(client: LedgerClient, options: SlowFollowerOptions) -> None:
    """`backlog_mb` of log, as fast as the two others take it."""
    bodies = different_bodies(BACKLOG_BATCH, options.body_bytes)
    batches = int(options.backlog_mb * 1e6 / (BACKLOG_BATCH * (options.body_bytes + HEAD_BYTES)))

    async def write(count: int) -> None:
        for _ in range(count):
            await client.append_many(bodies)

    await asyncio.gather(*(write(batches // 4 + 1) for _ in range(4)))


async def catch_up(cluster: BenchCluster, patient: Patient, entry_bytes: int) -> CatchUp:
    """Lets the follower go, and waits until it holds what it lacked then. Raises RuntimeError."""
    async with cluster.using() as looking:
        match, target = await match_and_end(looking, patient.node_id)
        if await looking.leader() == patient.node_id:
            raise RuntimeError(
                f"{patient.node_id}, {patient.options.how}, was elected: this machine is too busy to tell"
            )
        began = time.perf_counter()
        lacking_mb = (target - match) * entry_bytes / 1e6
        patient.well()
        while match < target:
            if time.perf_counter() - began > CATCH_UP_WITHIN_S:
                raise RuntimeError(f"{patient.node_id} did not catch up within {CATCH_UP_WITHIN_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)
            match, _ = await match_and_end(looking, patient.node_id)
        return CatchUp(lacking_mb, time.perf_counter() - began)


async def _run(options: SlowFollowerOptions) -> dict[str, Any]:
    cluster = BenchCluster(options.flush, parent=options.directory, over_relays=options.how == "throttled")
    on = machine(cluster.directory)
    entry_bytes = options.body_bytes + HEAD_BYTES
    well: list[Sample] = []
    slow: list[Sample] = []
    catching: list[Sample] = []
    under_load: list[CatchUp] = []
    async with cluster, cluster.using() as client:

        async def load(seconds: float) -> Sample:
            return await paced(client, options.rate, options.body_bytes, seconds)

        await load(1.0)
        term = await term_of(client)
        for number in range(options.rounds):
            await asyncio.to_thread(touch_memory, options.seconds)
            patient = await a_follower(cluster, client, options)
            well.append(await load(options.seconds))
            patient.slow()
            try:
                slow.append(await load(options.seconds))
                await write_backlog(client, options)
                caught = asyncio.create_task(catch_up(cluster, patient, entry_bytes))
                while not caught.done():
                    catching.append(await load(1.0))
                under_load.append(await caught)
            finally:
                patient.well()
            say(
                f"round {number + 1}/{options.rounds}: p99 {well[-1].p99_ms:.2f} ms well, {slow[-1].p99_ms:.2f} ms with"
                f" {patient.node_id} {options.how}, {catching[-1].p99_ms:.2f} ms while it caught up at"
                f" {under_load[-1].mb_per_s:.0f} MB/s"
            )
        patient = await a_follower(cluster, client, options)
        patient.slow()
        await write_backlog(client, options)
        alone = await catch_up(cluster, patient, entry_bytes)
        elections = await term_of(client) - term
    return {
        "how": options.how, "flush": options.flush, "rate_per_s": options.rate, "body_bytes": options.body_bytes,
        "results": [
            phase("all well", well, well), phase(options.how, slow, well), phase("catching up", catching, well),
        ],
        "catch_up_mb_per_s": round(statistics.median(one.mb_per_s for one in under_load), 1),
        "catch_up_alone_mb_per_s": round(alone.mb_per_s, 1),
        "catch_up_mb": round(statistics.median(one.mb for one in under_load), 1),
        "link_mb_per_s": options.link_mb_per_s if options.how == "throttled" else None,
        "elections": elections,
        "machine": on,
    }  # fmt: skip


async def term_of(client: LedgerClient) -> int:
    term = (await state_of(client, await client.leader())).term
    assert term is not None, "our own engines tell it"
    return term


async def a_follower(cluster: BenchCluster, client: LedgerClient, options: SlowFollowerOptions) -> Patient:
    """The first member that does not lead now."""
    leader_id = await client.leader()
    return Patient(cluster, next(node_id for node_id in cluster.processes if node_id != leader_id), options)


def phase(name: str, samples: Sequence[Sample], well: Sequence[Sample]) -> dict[str, Any]:
    """Medians over the rounds, and how the p99 compares with the one while all was well."""
    p99_ms = statistics.median(sample.p99_ms for sample in samples)
    return {
        "phase": name,
        "p50_ms": round(statistics.median(sample.p50_ms for sample in samples), 3),
        "p99_ms": round(p99_ms, 3),
        "p99_ratio": round(p99_ms / statistics.median(sample.p99_ms for sample in well), 2),
    }


def run(options: SlowFollowerOptions) -> dict[str, Any]:
    """Starts three engines, makes a follower slow, measures, and returns what `--json` prints."""
    return measured(_run(options))
