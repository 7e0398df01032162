"""A broker group's master is killed, engine and broker: when our producer's next send is stored, and consumed.

Counted from the signal. The producer sends one message after the other, each with a number; the consumer waits for the
first that was sent after the kill. What the change to master took its broker says itself (`role_changed` in its log).

What was acknowledged and did not come is counted in the end, and what came more than once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from app.bench.cluster import BenchCluster
from app.bench.common import percentile
from node.background import Background
from node.message_client import ClientError, MessageConsumer, MessageProducer, OutgoingMessage

TOPIC: Final = "BenchFailover"
GROUP: Final = "bench-failover"
SETTLE_S: Final = 2.0
WITHIN_S: Final = 30.0
ONE_TRY_S: Final = 10.0


@dataclass(slots=True)
class Followed:
    """What came at the consumer: each body, and when."""

    came_at_s: dict[bytes, float] = field(default_factory=dict)
    waiting: dict[bytes, asyncio.Future[None]] = field(default_factory=dict)
    repeated: int = 0

    async def follow(self, consumer: MessageConsumer) -> None:
        async for message in consumer:
            self.repeated += message.body in self.came_at_s
            self.came_at_s.setdefault(message.body, time.perf_counter())
            waiting = self.waiting.pop(message.body, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    async def until(self, body: bytes) -> float:
        """When it came. Raises TimeoutError."""
        if body not in self.came_at_s:
            self.waiting[body] = asyncio.get_running_loop().create_future()
            await asyncio.wait_for(self.waiting[body], WITHIN_S)
        return self.came_at_s[body]


async def failovers(cluster: BenchCluster, runs: int) -> dict[str, Any]:
    """Medians and worst of `runs` kills; what was acknowledged and lost, and what came again."""
    sends_s: list[float] = []
    consumes_s: list[float] = []
    acknowledged: list[bytes] = []
    followed = Followed()
    async with (
        MessageProducer(cluster.name_servers, deadline_s=ONE_TRY_S) as producer,
        MessageConsumer(cluster.name_servers, GROUP, TOPIC) as consumer,
    ):
        await producer.send(OutgoingMessage(TOPIC, b"first"))
        background = Background()
        background.run("what comes", followed.follow(consumer))
        try:
            await followed.until(b"first")
            for number in range(runs):
                async with cluster.using() as client:
                    await cluster.wait_for_all(client)
                    master = await client.leader()
                await asyncio.sleep(SETTLE_S)
                killed_at = time.perf_counter()
                await asyncio.gather(cluster.kill(master), cluster.kill_broker(master))
                body = await _next_stored(producer, number)
                sends_s.append(time.perf_counter() - killed_at)
                acknowledged.append(body)
                with suppress(TimeoutError):  # it is counted as lost
                    consumes_s.append(await followed.until(body) - killed_at)
                await cluster.start(master)
                await cluster.start_broker(master)
        finally:
            await background.stop()
    changes = sorted(float(one["took_ms"]) for one in changes_to_master(cluster))
    seconds = _spread(sends_s)
    return {
        "runs": runs, "median_s": seconds.get("median"), "max_s": seconds.get("most"),
        "lost_acknowledged": sum(body not in followed.came_at_s for body in acknowledged),
        "repeated": followed.repeated, "send_s": seconds, "consume_s": _spread(consumes_s),
        "to_master_ms": _spread(changes), "to_master_changes": len(changes),
    }  # fmt: skip


async def _next_stored(producer: MessageProducer, number: int) -> bytes:
    """Each try has a body of its own."""
    attempt = 0
    while True:
        attempt += 1
        body = b"after kill %d, try %d" % (number, attempt)
        try:
            await producer.send(OutgoingMessage(TOPIC, body))
        except ClientError:
            continue
        return body


def changes_to_master(cluster: BenchCluster) -> Iterator[dict[str, Any]]:
    """What the brokers say of their changes that were done."""
    for node_id in cluster.broker_ports:
        for line in (cluster.directory / f"{node_id}.log").read_text(errors="replace").splitlines():
            if '"role_changed"' in line and line.startswith("{"):
                said = json.loads(line)
                if said.get("change") == "changeToMaster" and said.get("outcome") == "done":
                    yield said


def _spread(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    return {"median": round(percentile(values, 0.5), 3), "most": round(values[-1], 3)} if values else {}
