"""Members of a broker group come and go: a new one joins with a broker of its own, and the master leaves.

Messages that were acknowledged stay readable at every member that is left, the new one among them; `members replace`
puts another one in a dead one's place.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from node.client import LedgerClient
from node.message_client import ClientError, MessageProducer, OutgoingMessage
from node.message_client.consumer import records_of
from node.message_client.routes import NEW_TOPIC_QUEUES as QUEUES
from node.rocketmq.codes import Request
from tests.ports import free_ports
from tests.process.broker_group import BrokerGroup
from tests.process.group import START_WITHIN_S
from tests.process.test_members import command, until, voters_of
from tests.unit.broker_kit import Client, pull_fields

pytestmark = [pytest.mark.process, pytest.mark.long]


class Load:
    """Sends one message after another; what is acknowledged is in `bodies`."""

    def __init__(self, producer: MessageProducer) -> None:
        self.producer, self.stopped = producer, False
        self.bodies: list[bytes] = []
        self.unknown = 0

    async def run(self) -> None:
        number = 0
        while not self.stopped:
            body = b"%d" % number
            number += 1
            try:
                await self.producer.send(OutgoingMessage("Kept", body))
            except ClientError:
                self.unknown += 1
            else:
                self.bodies.append(body)

    async def goes_on(self) -> None:
        before = len(self.bodies)

        async def more() -> bool:
            return len(self.bodies) > before + 20

        await until(more)


async def all_at(port: int, wanted: set[bytes]) -> None:
    """One broker alone, whatever its role, is asked for all queues, until it has all of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client, missing, offsets = Client(reader, writer), set(wanted), dict.fromkeys(range(QUEUES), 0)
    try:
        async with asyncio.timeout(START_WITHIN_S):
            while missing:
                for queue_id, offset in offsets.items():
                    [answer] = await client.ask((Request.PULL_MESSAGE, pull_fields(offset, queue_id, "Kept"), b""))
                    for record in records_of(answer.body):
                        assert record.queue_offset == offsets[queue_id]
                        offsets[queue_id] += 1
                        missing.discard(bytes(record.body))
                await asyncio.sleep(0.01)
    finally:
        writer.close()


def test_messages_stay_while_members_are_added_removed_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = BrokerGroup(tmp_path)
    engines = dict(zip(("n3", "n4"), (f"127.0.0.1:{port}" for port in free_ports(2)), strict=True))
    group.ports |= dict(zip(engines, free_ports(2), strict=True))
    birth = dict(group.peers)

    async def story() -> None:
        everybody = LedgerClient({**birth, **engines}, group=group.group, deadline_s=30.0)
        async with MessageProducer(group.name_servers.split(";")) as producer:
            load = Load(producer)
            running = asyncio.create_task(load.run())
            try:
                await load.goes_on()
                await comes(everybody, "n3", ["n0", "n1", "n2", "n3"], "add", "n3", engines["n3"])
                await load.goes_on()
                master = await everybody.leader()
                await changed("remove", master)
                left = sorted({*birth, "n3"} - {master})
                await voters(everybody, left)
                await load.goes_on()
                master = await everybody.leader()
                dead = next(one for one in left if one in birth and one != master)
                group.kill(dead)
                group.end_broker(dead, signal.SIGKILL)
                left = sorted({*left, "n4"} - {dead})
                await comes(everybody, "n4", left, "replace", dead, "n4", engines["n4"])
                await load.goes_on()
            finally:
                load.stopped = True
                await running
            for member in left:
                await all_at(group.ports[member], set(load.bodies))
        await everybody.close()

    async def changed(*words: str) -> None:
        code, text = await asyncio.to_thread(command, capsys, group, *words, "--yes", "--json")
        assert code == 0 and json.loads(text), text

    async def comes(everybody: LedgerClient, member: str, wanted: list[str], *words: str) -> None:
        await asyncio.to_thread(group.join, member, engines[member])
        group.start_broker(member)
        await changed(*words)
        await voters(everybody, wanted)

    async def voters(everybody: LedgerClient, wanted: list[str]) -> None:
        async def they_are() -> bool:
            return await voters_of(everybody, await everybody.leader()) == wanted

        await until(they_are)

    try:
        group.start_all()
        asyncio.run(story())
    finally:
        group.close()
