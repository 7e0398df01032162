"""The demo with brokers: what is fed is consumed by both groups, and masters that die lose nothing acknowledged."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable
from random import Random
from typing import Any

import httpx2
import pytest

from app.demo.processes import descendants_of
from app.demo.state import DemoState
from node.message_client import ClientError, MessageConsumer, MessageProducer, OutgoingMessage
from tests.process.test_demo import eventually, found_demo, gone
from tests.unit.engine_kit import until

pytestmark = [pytest.mark.process, pytest.mark.long]
TOPIC = "proof"
IN_FLIGHT = 32
BETWEEN_KILLS = 60  # messages that are acknowledged between two kills, at least
WITHIN_S = 60.0
TRIES = 600


class Proof:
    """Sends numbered messages to the demo's brokers, and kills whoever is master."""

    def __init__(self, demo: DemoState) -> None:
        self.demo = demo
        self.name_servers = demo.name_servers.split(";")
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # queue and offset
        self.ended_otherwise = 0
        self.tried = 0
        self.stopping = False

    async def send(self, producer: MessageProducer) -> None:
        while not self.stopping:
            body = b"%d" % self.tried
            self.tried += 1
            try:
                sent = await producer.send(OutgoingMessage(TOPIC, body, keys=(body.decode(),)))
            except ClientError:
                self.ended_otherwise += 1
            else:
                self.acknowledged[body] = sent.queue_id, sent.queue_offset

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted)

    async def kill_the_master(self) -> None:
        """Its engine and its broker; where it is just being started again, a moment later."""
        async with httpx2.AsyncClient(trust_env=False, timeout=WITHIN_S) as client:
            for _ in range(TRIES):
                if (await client.post(f"{self.demo.demo_url}/break/kill")).status_code == 200:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError("there is never a master to kill")

    async def all_of_it(self) -> dict[bytes, list[tuple[int, int]]]:
        """Where a group of its own finds each message: until it has seen all that was acknowledged."""
        found: dict[bytes, list[tuple[int, int]]] = {}
        missing = set(self.acknowledged)
        async with asyncio.timeout(WITHIN_S), MessageConsumer(self.name_servers, "auditors", TOPIC) as consumer:
            async for message in consumer:
                record = message.record
                place = record.queue_id, record.queue_offset
                if place not in found.setdefault(bytes(record.body), []):  # a consumer may get a message again
                    found[bytes(record.body)].append(place)
                missing.discard(bytes(record.body))
                if not missing:
                    break
        return found

    async def run(self, kills: int) -> None:
        random = Random(2013)
        async with MessageProducer(self.name_servers) as producer:
            sending = [asyncio.create_task(self.send(producer)) for _ in range(IN_FLIGHT)]
            for _ in range(kills):
                await self.more(BETWEEN_KILLS)
                await asyncio.sleep(random.random())
                await self.kill_the_master()
            await self.more(BETWEEN_KILLS)
            self.stopping = True
            await asyncio.gather(*sending)
        found = await self.all_of_it()
        for body, place in self.acknowledged.items():
            assert found[body] == [place]
        assert max(map(len, found.values())) == 1, "none is stored twice, known or not"


def state(demo: DemoState) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{demo.demo_url}/state", trust_env=False, timeout=60).json()
    return found


def consumed(demo: DemoState) -> dict[str, int]:
    return {one["group"]: one["messages"] for one in state(demo)["consumed"]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, 20])
def test_masters_die_and_nothing_acknowledged_is_lost(demo: Callable[..., subprocess.Popen[str]], kills: int) -> None:
    process = demo("--headless", "--messages", "--rate", "50")
    found = found_demo(process)
    assert [int(one.rpartition(":")[2]) % 10 for one in found.name_servers.split(";")] == [1, 1, 1]
    eventually("both groups consume", lambda: all(consumed(found).values()))
    asyncio.run(Proof(found).run(kills))
    before = consumed(found)
    assert set(before) == {"boards", "two-carriers"}
    eventually("both groups go on", lambda: all(now > before[group] for group, now in consumed(found).items()))
    everything = [one for one in state(found)["consumed"] if one["tags"] == "*"]
    assert [one["left_out"] for one in everything] == [0]
    # Three supervisors with three processes each, one of which may just be started again, and two consumers.
    eventually("every process is there", lambda: len(list(descendants_of(process.pid))) >= 3 * 4 + 2)
    ours = [process.pid, *descendants_of(process.pid)]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0
    eventually("no process is left", lambda: gone(ours))
    assert process.stdout is not None
    assert f"  Name server  {found.name_servers}\n" in process.stdout.read()
