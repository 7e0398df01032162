"""`bench slow-network`: links that are slow but alive, and more asked of them than they carry.

Each member reaches each other one over a relay of `link_mb_per_s` each way; clients reach them directly, each over a
connection of its own, with one append in flight at a time. Two cases in turn: bodies of `body_bytes`, and the largest
that an entry may have. What counts: how much of one link's rate was acknowledged, how many outcomes stayed unknown, and
whether anybody was elected: nobody may be, since every member is up and reachable.

A round ends when every append that began in it has its outcome; its rate is what was acknowledged over all that time.

The relays run in this process, beside the clients: while it stands still, no link carries anything, and members that
hear nothing for `election_min` are right to elect. So its longest gap is reported, beside the engines' between ticks;
and for each outcome that stayed unknown, why.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import percentile, say
from app.bench.leaderships import tick_gaps_ms
from app.bench.load import different_bodies
from app.bench.machine import machine
from app.bench.running import measured
from app.bench.slow_follower import term_of
from app.bench.views import leaders_watermarks
from node.client import LedgerClient, LedgerError, NotAppended, OutcomeUnknown
from node.protocol.entry import BODY_BYTES_MAX

BACK_OFF_S: Final = 0.2  # after a refusal that the client gave up on
SETTLE_WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.01
DEADLINE_TIMES: Final = 3  # what one link takes for all that is in flight: so long an append is tried at least


@dataclass(slots=True, frozen=True)
class SlowNetworkOptions:
    """`in_flight` clients with one append each; `largest`: a second case with bodies of the largest size."""

    flush: str = "sync"
    in_flight: int = 24
    body_bytes: int = 1_000_000
    largest: bool = True
    link_mb_per_s: float = 5.0
    seconds: float = 15.0
    rounds: int = 1
    deadline_s: float = 30.0
    directory: Path | None = None


@dataclass(slots=True)
class Outcomes:
    """Of one round: how many appends ended how, and how long the acknowledged ones took."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    elapsed_s: float = 0.0
    elections: int = 0
    gap_max_s: float = 0.0  # so long this process, and with it every link, stood still
    why_unknown: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    @property
    def unknown_share(self) -> float:
        """Of all that was asked."""
        return self.unknown / max(1, self.acknowledged + self.unknown + self.refused)


async def _ask(client: LedgerClient, body: bytes, stop_at: float, outcomes: Outcomes) -> None:
    while (sent := time.perf_counter()) < stop_at:
        try:
            await client.append(body)
        except OutcomeUnknown as error:
            outcomes.unknown += 1
            outcomes.why_unknown.append(f"after {time.perf_counter() - sent:.1f} s: {error}")
        except (NotAppended, LedgerError):
            outcomes.refused += 1
            await asyncio.sleep(BACK_OFF_S)
        else:
            outcomes.acknowledged += 1
            outcomes.latencies_s.append(time.perf_counter() - sent)


async def _watch(outcomes: Outcomes) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(LOOK_EVERY_S)
        outcomes.gap_max_s = max(outcomes.gap_max_s, time.perf_counter() - before - LOOK_EVERY_S)


async def one_round(clients: Sequence[LedgerClient], body_bytes: int, seconds: float) -> Outcomes:
    """All clients at once for `seconds`, until the last of their appends has ended."""
    outcomes = Outcomes()
    bodies = different_bodies(len(clients), body_bytes)
    began = time.perf_counter()
    work = (_ask(one, body, began + seconds, outcomes) for one, body in zip(clients, bodies, strict=True))
    watching = asyncio.create_task(_watch(outcomes))
    try:
        await asyncio.gather(*work)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching  # what went wrong there ends the round
    outcomes.elapsed_s = time.perf_counter() - began
    return outcomes


async def _settled(client: LedgerClient) -> None:
    """Until all members hold everything again: what one round left on its way must not slow the next."""
    async with asyncio.timeout(SETTLE_WITHIN_S):
        while True:
            marks = await leaders_watermarks(client)
            if len({peer.match_index for peer in marks.peers or ()}) == 1:
                return
            await asyncio.sleep(0.1)


def row(body_bytes: int, options: SlowNetworkOptions, rounds: Sequence[Outcomes]) -> dict[str, Any]:
    """Medians over the rounds; outcomes and elections are summed up."""
    link = options.link_mb_per_s * 1e6
    acknowledged_mb_per_s = statistics.median(one.acknowledged * body_bytes / one.elapsed_s for one in rounds) / 1e6
    latencies = sorted(took for one in rounds for took in one.latencies_s)
    asked = sum(one.acknowledged + one.unknown + one.refused for one in rounds)
    return {
        "body_bytes": body_bytes,
        "in_flight": options.in_flight,
        "acknowledged": sum(one.acknowledged for one in rounds),
        "unknown": sum(one.unknown for one in rounds),
        "refused": sum(one.refused for one in rounds),
        "acknowledged_mb_per_s": round(acknowledged_mb_per_s, 2),
        "share_of_link": round(acknowledged_mb_per_s * 1e6 / link, 3),
        "unknown_share": round(sum(one.unknown for one in rounds) / max(1, asked), 4),
        "elections": sum(one.elections for one in rounds),
        "links_gap_max_ms": round(max(one.gap_max_s for one in rounds) * 1000),
        "why_unknown": [why for one in rounds for why in one.why_unknown],
        "p50_s": round(percentile(latencies, 0.5), 2),
        "p99_s": round(percentile(latencies, 0.99), 2),
    }


async def _run(options: SlowNetworkOptions) -> dict[str, Any]:
    cluster = BenchCluster(options.flush, parent=options.directory, over_relays=True)
    on = machine(cluster.directory)
    link_bytes_per_s = options.link_mb_per_s * 1e6
    sizes = [options.body_bytes, *([BODY_BYTES_MAX] if options.largest else [])]
    rounds: dict[int, list[Outcomes]] = {size: [] for size in sizes}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(cluster)
        deadline_s = max(options.deadline_s, DEADLINE_TIMES * options.in_flight * max(sizes) / link_bytes_per_s)
        clients = [await stack.enter_async_context(cluster.using(deadline_s)) for _ in range(options.in_flight)]
        looking = await stack.enter_async_context(cluster.using())
        assert cluster.links is not None
        for relay in cluster.links.relays.values():
            relay.bytes_per_s = link_bytes_per_s
        at_first_ms = await tick_gaps_ms(cluster, looking)
        for number in range(options.rounds):
            for size in sizes:
                term = await term_of(looking)
                outcomes = await one_round(clients, size, options.seconds)
                outcomes.elections = await term_of(looking) - term
                rounds[size].append(outcomes)
                rate = outcomes.acknowledged * size / outcomes.elapsed_s / 1e6
                say(
                    f"round {number + 1}/{options.rounds}: {size:,} bytes: {outcomes.acknowledged} acknowledged at"
                    f" {rate:.2f} MB/s, {outcomes.unknown} unknown, {outcomes.refused} refused,"
                    f" {outcomes.elections} elections, in {outcomes.elapsed_s:.1f} s"
                )
                await _settled(looking)
        gaps_ms = await tick_gaps_ms(cluster, looking)
    return {
        "flush": options.flush, "link_mb_per_s": options.link_mb_per_s,
        "tick_gap_max_ms": gaps_ms, "tick_gap_max_ms_at_first": at_first_ms,
        "results": [row(size, options, rounds[size]) for size in sizes],
        "machine": on,
    }  # fmt: skip


def run(options: SlowNetworkOptions) -> dict[str, Any]:
    """Starts three engines behind slow links, measures, and returns what `--json` prints."""
    return measured(_run(options))
