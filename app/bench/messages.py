"""`bench messages`: what three brokers take, store and pass on, and what a message costs each process.

Sends by our producer, by requests with JSON headers, and in batches; pulls as bytes and as objects; one message at a
time beside the engine's own appends; how soon a waiting consumer has a message; a load of 60 % of what was taken; and
the master's end. Rounds of the cases are interleaved and medians reported: machines are shared and noisy, and the CPU
of a message says more than the rate of a busy one.

Invariants: batches count once they are dispatched on all three; leadership changes under load are counted and reported.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.beside import appended_beside
from app.bench.cluster import GROUP, BenchCluster
from app.bench.common import Sample, percentile, say
from app.bench.leaderships import agreed
from app.bench.load import Case, measure
from app.bench.machine import machine, python_step_ns, spread_of
from app.bench.message_failover import Followed, failovers
from app.bench.message_load import TOPIC, JsonSends, Sends
from app.bench.message_pulls import as_objects, counted, end_of, pulled
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.usage import cpu_s
from node.background import Background
from node.message_client import MessageConsumer, MessageProducer, OutgoingMessage
from node.message_client.errors import ClientError
from node.message_client.link import Link
from node.message_client.routes import Queue, Routes

ONE: Final = Case(1, 1)
SEEN_TOPIC: Final = "BenchSeen"
SEEN_MESSAGES: Final = 200
SHARE_OF_LOAD: Final = 0.6
BESIDE_PER_S: Final = 100.0  # appends to a plain group beside that load: too few to be a load themselves
STARTED_S: Final = 1.0  # by then who measures beside it appends
WITHIN_S: Final = 30.0


@dataclass(slots=True, frozen=True)
class MessagesOptions:
    """`kills`: how often the master is killed; 0: not at all."""

    flush: str = "async"
    body_bytes: int = 256
    in_flight: int = 512
    batch: int = 100
    seconds: float = 3.0
    rounds: int = 3
    kills: int = 5
    directory: Path | None = None


@dataclass(slots=True)
class Costs:
    """CPU microseconds of a message, by who uses them: master's broker, its engine, the others' mean, the client."""

    cluster: BenchCluster
    master_id: str

    def now_s(self) -> dict[str, float]:
        found = {name: cpu_s([pid], with_own=False) or 0.0 for name, pid in self.cluster.pids_by_name().items()}
        return found | {"client": cpu_s([]) or 0.0}

    def of(self, before: dict[str, float], messages: float) -> dict[str, float]:
        us = {name: (after - before[name]) / max(1.0, messages) * 1e6 for name, after in self.now_s().items()}
        found: dict[str, float] = {"all": sum(us.values()), "client": us["client"]}
        for kind in ("broker", "engine"):
            found[f"master's {kind}"] = us[f"{kind} {self.master_id}"]
            others = [
                value for name, value in us.items() if name.startswith(kind) and not name.endswith(self.master_id)
            ]
            found[f"another {kind}"] = statistics.mean(others)
        return {name: round(value, 2) for name, value in found.items()}


@dataclass(slots=True)
class Round:
    """One run of a case. `in_step_s`: after the last acknowledgement, until all three had dispatched everything."""

    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_us: dict[str, float]
    in_step_s: float | None = None


class Group:
    """A running group, its producer, and the master as they found it."""

    def __init__(
        self, cluster: BenchCluster, options: MessagesOptions, producer: MessageProducer, routes: Routes,
        queues: tuple[Queue, ...],
    ) -> None:  # fmt: skip
        self.cluster, self.options, self.producer, self.routes, self.queues = cluster, options, producer, routes, queues
        self.link: Link = routes.link(queues[0].address)
        port = int(queues[0].address.rpartition(":")[2])
        self.master_id = next(one for one, its in cluster.broker_ports.items() if its == port)
        self.costs = Costs(cluster, self.master_id)

    async def sends(self, appender: Any, case: Case, *, in_step: bool = False) -> Round:
        """`in_step`: the time until all three have dispatched it counts as the load's."""
        options, before, began = self.options, self.costs.now_s(), time.perf_counter()
        sample: Sample = await measure(appender, case, options.body_bytes, options.seconds)
        acknowledged_s = time.perf_counter() - began
        behind_s = await self.in_step_s() if in_step else None
        messages = sample.entries_per_s * acknowledged_s
        per_s = messages / (acknowledged_s + (behind_s or 0.0))
        return Round(per_s, sample.p50_ms, sample.p99_ms, self.costs.of(before, messages), behind_s)

    async def pulls(self, take: Callable[[Any], int]) -> Round:
        before, began = self.costs.now_s(), time.perf_counter()
        count = await pulled(self.link, self.queues, TOPIC, self.options.seconds, take)
        return Round(count / (time.perf_counter() - began), None, None, self.costs.of(before, count))

    async def in_step_s(self) -> float:
        """Until every broker has as many messages of each queue as the master has now."""
        began = time.perf_counter()
        due = [await end_of(self.link, queue, TOPIC) for queue in self.queues]
        async with asyncio.timeout(WITHIN_S):
            for address in self.cluster.name_servers:
                await self._reaches(self.routes.link(address), due)
        return time.perf_counter() - began

    async def _reaches(self, link: Link, due: list[int]) -> None:
        for _try in itertools.count():
            ends = [await end_of(link, queue, TOPIC) for queue in self.queues]
            if all(end >= wanted for end, wanted in zip(ends, due, strict=True)):
                return
            await asyncio.sleep(0.002)


async def seen_ms(cluster: BenchCluster) -> list[float]:
    """How long after its acknowledgement each of some messages was at a consumer that waited for it, ascending."""
    found: list[float] = []
    followed = Followed()
    async with (
        MessageProducer(cluster.name_servers) as producer,
        MessageConsumer(cluster.name_servers, "bench-seen", SEEN_TOPIC) as consumer,
    ):
        await producer.send(OutgoingMessage(SEEN_TOPIC, b"first"))
        background = Background()
        background.run("what comes", followed.follow(consumer))
        try:
            await followed.until(b"first")
            for number in range(SEEN_MESSAGES):
                body = b"%d" % number
                await producer.send(OutgoingMessage(SEEN_TOPIC, body))
                acknowledged_at = time.perf_counter()
                found.append(max(0.0, await followed.until(body) - acknowledged_at) * 1000)
                await asyncio.sleep(0.01)
        finally:
            await background.stop()
    return sorted(found)


async def at_part_of_load(group: Group, per_s: float, plain: BenchCluster) -> dict[str, Any]:
    """An even load; engines that change their leader meanwhile; and what it costs a plain group of engines, whose few
    even appends are measured without the load and beside it: nobody but brokers may append to their own group."""
    body_bytes, seconds = group.options.body_bytes, group.options.seconds
    alone = await appended_beside(GROUP, plain.peers, BESIDE_PER_S, body_bytes, seconds)
    async with group.cluster.using() as client:
        term = (await agreed(group.cluster, client))[0]
        sample, beside = await asyncio.gather(
            paced(Sends(group.producer), per_s, body_bytes, seconds + STARTED_S),
            appended_beside(GROUP, plain.peers, BESIDE_PER_S, body_bytes, seconds),
        )
        after = (await agreed(group.cluster, client))[0]
    return {
        "per_s": round(per_s), "p50_ms": round(sample.p50_ms, 2), "p99_ms": round(sample.p99_ms, 2),
        "leader_changes": after - term, "engine_p99_ms": round(beside["p99_ms"], 2),
        "engine_p99_alone_ms": round(alone["p99_ms"], 2),
        "engine_p99_ratio": round(beside["p99_ms"] / alone["p99_ms"], 2),
    }  # fmt: skip


def case_of(name: str, rounds: list[Round], body_bytes: int) -> dict[str, Any]:
    """Medians of a case's rounds of messages of `body_bytes`."""

    def median(of: Callable[[Round], float | None], digits: int = 2) -> float | None:
        values = [value for value in map(of, rounds) if value is not None]
        return round(statistics.median(values), digits) if values else None

    per_s = median(lambda one: one.per_s, 1)
    return {
        "case": name, "messages_per_s": per_s,
        "mb_per_s": None if per_s is None else round(per_s * body_bytes / 1e6, 2),
        "p50_ms": median(lambda one: one.p50_ms),
        "p99_ms": median(lambda one: one.p99_ms), "in_step_s": median(lambda one: one.in_step_s, 3),
        "cpu_us": {key: median(lambda one, key=key: one.cpu_us[key]) for key in rounds[0].cpu_us},  # type: ignore[misc]
        "messages_per_s_rounds": [round(one.per_s, 1) for one in rounds],
    }  # fmt: skip


async def _run(options: MessagesOptions) -> dict[str, Any]:
    cluster = BenchCluster(
        options.flush, parent=options.directory, with_brokers=True, settings=("node.log_format=json",)
    )  # fmt: skip
    plain = BenchCluster(options.flush, parent=options.directory)
    on, steps_ns = machine(cluster.directory), list[float]()
    rounds: dict[str, list[Round]] = {}
    engine_ms: list[float] = []
    async with cluster, plain, AsyncExitStack() as stack:
        producer = await stack.enter_async_context(MessageProducer(cluster.name_servers, deadline_s=WITHIN_S))
        await producer.send(OutgoingMessage(TOPIC, b"first"))
        routes = Routes(cluster.name_servers)
        stack.push_async_callback(routes.close)
        group = Group(cluster, options, producer, routes, await _queues(routes))
        await group.link.connect()
        singles, batches = Case(options.in_flight, 1), Case(max(1, 2000 // options.batch), options.batch)
        cases: dict[str, Callable[[], Awaitable[Round]]] = {
            "sends": lambda: group.sends(Sends(producer), singles),
            "sends in JSON": lambda: group.sends(JsonSends(group.link, group.queues), singles),
            f"batches of {options.batch}": lambda: group.sends(Sends(producer), batches, in_step=True),
            "pulls": lambda: group.pulls(counted),
            "pulls as objects": lambda: group.pulls(as_objects),
            "one at a time": lambda: group.sends(Sends(producer), ONE),
        }
        client = await stack.enter_async_context(plain.using())
        for number in range(options.rounds):
            steps_ns += python_step_ns()
            for name, work in cases.items():
                one = await work()
                rounds.setdefault(name, []).append(one)
                say(f"round {number + 1}/{options.rounds}: {name}: {one.per_s:,.0f}/s, {one.cpu_us['all']:.1f} us")
            engine_ms.append((await measure(client, ONE, options.body_bytes, options.seconds)).p50_ms)
        seen = await seen_ms(cluster)
        taken = statistics.median(one.per_s for one in rounds["sends"])
        part = await at_part_of_load(group, taken * SHARE_OF_LOAD, plain)
        killed = await failovers(cluster, options.kills) if options.kills else None
    return {
        "results": [case_of(name, found, options.body_bytes) for name, found in rounds.items()],
        "engine_one_at_a_time_p50_ms": round(statistics.median(engine_ms), 3),
        "seen_ms": {"p50": round(percentile(seen, 0.5), 2), "p99": round(percentile(seen, 0.99), 2)},
        "at_part_of_load": part, "failover": killed, "flush": options.flush, "body_bytes": options.body_bytes,
        "in_flight": options.in_flight, "rounds": options.rounds, "load_1m_at_end": round(os.getloadavg()[0], 2),
        "machine": on | {"python_step_ns": spread_of(steps_ns)},
    }  # fmt: skip


async def _queues(routes: Routes) -> tuple[Queue, ...]:
    """Of the topic, once name servers know it."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                return (await routes.of(TOPIC)).read
            except ClientError:
                await asyncio.sleep(0.05)


def run(options: MessagesOptions) -> dict[str, Any]:
    """Starts a group of brokers and one of plain engines, measures, and returns what `--json` prints."""
    return measured(_run(options))
