"""Three members with brokers, over sockets, while masters die: what was acknowledged is there, once, without gaps."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from node.message_client import MessageConsumer, MessageProducer, OutgoingMessage, routes
from node.message_store.record import decode_record
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from tests.process.broker_group import BrokerGroup
from tests.process.group import START_WITHIN_S
from tests.unit.broker_kit import Client, pull_fields, send_fields
from tests.unit.engine_kit import until

pytestmark = pytest.mark.process
QUEUES: Final = 3


class Producer:
    """Sends on, to whoever takes it; each try has a body of its own, so that what became of each can be seen."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # queue and offset
        self.tried = 0
        self.masters: list[str] = []  # as they took messages, one for each connection
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            for node_id in self.group.ports:
                await self._at(node_id)
            await asyncio.sleep(0.02)

    async def _at(self, node_id: str) -> None:
        """As long as this one takes them."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.group.ports[node_id])
        except OSError:
            return
        client = Client(reader, writer)
        is_first = True
        try:
            while not self.stopping:
                bodies = [b"%d" % (self.tried + n) for n in range(20)]
                self.tried += len(bodies)
                sends = [(Request.SEND_MESSAGE_V2, send_fields(e=str(int(one) % QUEUES)), one) for one in bodies]
                async with asyncio.timeout(START_WITHIN_S):
                    answers = await client.ask(*sends)
                for body, answer in zip(bodies, answers, strict=True):
                    self._note(body, answer)
                if all(one.code != Answer.SUCCESS for one in answers):
                    return
                if is_first:
                    self.masters.append(node_id)
                    is_first = False
        except (OSError, EOFError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def _note(self, body: bytes, answer: Command) -> None:
        if answer.code == Answer.SUCCESS:
            assert answer.fields is not None
            self.acknowledged[body] = int(answer.fields["queueId"]), int(answer.fields["queueOffset"])

    async def until(self, more: int, masters: int) -> None:
        """So many more are acknowledged, and that many masters have taken some."""
        wanted = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= wanted and len(self.masters) >= masters)


async def queues_of(port: int, at_least: list[int]) -> list[list[bytes]]:
    """All queues of one broker, read to their ends; waits until each has as many as that."""
    found: list[list[bytes]] = []
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
        client = Client(reader, writer)
        for queue_id in range(QUEUES):
            bodies: list[bytes] = []
            while True:
                [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(len(bodies), queue_id), b""))
                data = bytes(answer.body)
                if answer.code != Answer.SUCCESS:
                    if len(bodies) >= at_least[queue_id]:
                        break
                    await asyncio.sleep(0.05)
                while data:
                    record = decode_record(data)
                    assert (record.queue_id, record.queue_offset) == (queue_id, len(bodies))  # no gap, none twice
                    bodies.append(record.body)
                    data = data[record.total_size :]
            found.append(bodies)
        writer.close()
    return found


@pytest.mark.long
def test_masters_die_and_what_was_acknowledged_is_there_once(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)

    async def story() -> None:
        producer = Producer(group)
        running = asyncio.create_task(producer.run())
        await producer.until(200, 1)
        dead = producer.masters[-1]
        group.kill(dead)
        group.end_broker(dead, signal.SIGKILL)
        await producer.until(200, 2)
        second = producer.masters[-1]
        assert second != dead
        group.end_broker(second, signal.SIGKILL)  # the broker alone: its engine leads on, and its lane is void
        group.start_broker(second)
        group.start(dead)
        await producer.until(200, len(producer.masters) + 1)
        producer.stopping = True
        await running

        highest = [
            max((at for queue, at in producer.acknowledged.values() if queue == one), default=-1) + 1
            for one in range(QUEUES)
        ]
        everywhere = [await queues_of(port, highest) for port in group.ports.values()]
        first = everywhere[0]
        for other in everywhere[1:]:
            for mine, theirs in zip(first, other, strict=True):
                shared = min(len(mine), len(theirs))
                assert mine[:shared] == theirs[:shared]
        counts = Counter(body for queue in first for body in queue)
        assert max(counts.values()) == 1
        for body, (queue_id, offset) in producer.acknowledged.items():
            assert first[queue_id][offset] == body

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()


@pytest.mark.long  # twenty seconds, and several times as long where a request's time-out is met more than once
def test_what_follows_a_master_that_is_stopped_goes_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP, or a cut: no connection ends. Our own clients went on with the old master for as long as they kept its
    route."""
    monkeypatch.setattr(routes, "KEPT_S", 3600.0)
    group = BrokerGroup(tmp_path)

    async def story() -> None:
        names = group.name_servers.split(";")
        async with (
            MessageProducer(names, deadline_s=60.0) as producer,
            MessageConsumer(names, "G", "T") as consumer,
        ):
            async with asyncio.timeout(START_WITHIN_S):
                await producer.send(OutgoingMessage("T", b"first"))
                assert (await consumer.receive()).body == b"first"
                client = group.client()
                master = await client.leader()
                await client.close()
            group.signal(master, signal.SIGSTOP)
            group.brokers[master].send_signal(signal.SIGSTOP)
            try:
                waiting = [producer.submit(OutgoingMessage("T", b"%d" % number)) for number in range(8)]
                async with asyncio.timeout(2 * START_WITHIN_S):  # an election, and two routes, on a starved machine
                    while True:  # those at the stopped one are unknown; what follows has to be stored meanwhile
                        waiting.append(producer.submit(OutgoingMessage("T", b"%d" % len(waiting))))
                        await asyncio.sleep(0.05)
                        done = [at for at, one in enumerate(waiting) if one.done() and one.exception() is None]
                        if done:
                            break
                    stored = {b"%d" % at for at in done}
                    while (await consumer.receive()).body not in stored:
                        continue
                for one in waiting:
                    one.cancel()
            finally:
                group.brokers[master].send_signal(signal.SIGCONT)
                group.signal(master, signal.SIGCONT)

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()
