"""Three members with brokers in one process: metadata at slaves, and at a new master after the old one is gone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.message_store.broker_tables import CONSUMER_OFFSETS, TOPICS
from node.message_store.put_result import PutStatus
from node.rocketmq.bodies import MessageQueue
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, message, settings_of
from tests.unit.engine_kit import until

TOPIC = {"perm": 6, "readQueueNums": 2, "writeQueueNums": 2, "topicName": "Made"}


class Member:
    """An engine and a broker, which end together."""

    def __init__(self, data: Path, ports: list[int], number: int) -> None:
        self.settings = settings_of(data, ports, number)
        self.stack = AsyncExitStack()
        self.broker: Broker
        self.port: ClientPort

    async def start(self) -> None:
        await self.stack.enter_async_context(engine_of(self.settings))
        self.broker = await self.stack.enter_async_context(broker_of(self.settings, as_master=False))
        self.port = ClientPort(self.broker)

    async def end(self) -> None:
        self.port.close()
        await self.stack.aclose()

    def applied(self) -> dict[str, dict[str, object]]:
        state = self.broker.log.state
        return {} if state is None else state.tables


async def master_of(members: list[Member]) -> Member:
    await until(lambda: any(one.broker.is_master and one.broker.lane.is_open for one in members))
    return next(one for one in members if one.broker.is_master and one.broker.lane.is_open)


def test_a_new_master_has_what_is_committed_and_the_old_one_what_the_log_says(tmp_path: Path) -> None:
    async def story() -> None:
        ports = free_ports(3)
        members = [Member(tmp_path, ports, number) for number in range(3)]
        await asyncio.gather(*(one.start() for one in members))
        old = await master_of(members)
        await old.broker.metadata.change({TOPICS: {"Made": TOPIC}})
        old.port.context.groups.find("G")
        queues = [MessageQueue("Made", "b", queue_id) for queue_id in range(2)]
        assert old.port.context.locks.lock("G", "c1", queues) == queues
        for offset in range(5):
            old.port.context.offsets.put("G", "Made", 1, offset)
        put = await old.broker.lane.put(message(b"x", topic="Made"))
        assert put.status is PutStatus.PUT_OK
        wanted = {"Made@G": {"1": 4}}
        await until(lambda: all(one.applied().get(CONSUMER_OFFSETS) == wanted for one in members))
        for one in members:
            context = one.port.context
            assert context.offsets.get("G", "Made", 1) == 4 and "G" in context.groups.groups
            topic = context.topics.get("Made")
            assert topic is not None and topic.write_queues == 2
        slave = next(one for one in members if one is not old)
        slave.port.context.groups.find("OnlyHere")
        assert "OnlyHere" not in slave.port.context.groups.groups
        await old.end()
        left = [one for one in members if one is not old]
        new = await master_of(left)
        assert new.port.context.offsets.get("G", "Made", 1) == 4 and "G" in new.port.context.groups.groups
        locks = new.port.context.locks
        assert (locks.lock("G", "c2", queues), locks.lock("G", "c1", queues[:1])) == ([], queues[:1])
        new.port.context.topics.delete("Made")
        await new.broker.metadata.settled()
        await new.broker.metadata.change({TOPICS: {"Made": TOPIC}})
        again = await new.broker.lane.put(message(b"y", topic="Made"))
        assert (again.status, again.queue_offset) == (PutStatus.PUT_OK, 0)
        back = Member(tmp_path, ports, members.index(old))
        await back.start()
        await until(
            lambda: back.broker.log.next_offset("Made", 0) == 1 and back.applied().get(CONSUMER_OFFSETS) is None
        )
        assert back.broker.log.state is not None and new.broker.log.state is not None
        assert back.broker.log.state.incarnations == new.broker.log.state.incarnations
        [record] = back.broker.reads.get("Made", 0, 0).records
        assert bytes(record).find(b"y") > 0
        for one in (*left, back):
            await one.end()

    asyncio.run(story())
