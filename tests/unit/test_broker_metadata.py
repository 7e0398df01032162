"""Topics, groups and offsets in the log: a broker beside a real engine, and the next one, which knows what it knew."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.config import Settings
from node.message_store.broker_tables import CONSUMER_OFFSETS, DELAY_OFFSETS, TOPICS
from node.message_store.put_result import PutStatus
from node.message_store.record import decode_record
from node.rocketmq.bodies import ConsumerData, Heartbeat
from node.rocketmq.codes import Answer, Request
from tests.ports import free_ports
from tests.unit.broker_kit import Client, broker_of, engine_of, message, pull_fields, settings_of
from tests.unit.engine_kit import until

CREATE = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
OFFSET = {"consumerGroup": "Mine", "topic": "Made", "queueId": "1", "commitOffset": "7"}


@asynccontextmanager
async def client_port(settings: Settings) -> AsyncGenerator[tuple[Broker, ClientPort, Client], None]:
    async with broker_of(settings) as broker:
        port = ClientPort(broker)
        reader, writer = await asyncio.open_connection("127.0.0.1", await port.open("127.0.0.1", 0))
        try:
            yield broker, port, Client(reader, writer)
        finally:
            writer.close()
            port.close()


def test_what_clients_changed_is_committed_and_the_next_broker_knows_it(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings):
            async with client_port(settings) as (broker, _port, client):
                [made] = await client.ask((Request.UPDATE_AND_CREATE_TOPIC, CREATE, b""))
                assert made.code == 0 and broker.metadata.value(TOPICS, "Made")["writeQueueNums"] == 3
                beat = Heartbeat("c1", (), (ConsumerData("Mine", ()),))
                [heard] = await client.ask((Request.HEART_BEAT, {}, beat.encode()))
                assert heard.code == 0 and broker.metadata.value("groups", "Mine")["retryQueueNums"] == 1
                assert broker.metadata.value(TOPICS, "%RETRY%Mine") is not None
                [sent] = await client.send(b"first", b="Unknown")
                assert sent.code == 0 and broker.metadata.value(TOPICS, "Unknown") is not None
                await client.ask((Request.UPDATE_CONSUMER_OFFSET, OFFSET, b""))
                await until(lambda: broker.metadata.value(CONSUMER_OFFSETS, "Made@Mine") == {"1": 7})
                await broker.metadata.change({DELAY_OFFSETS: {"3": 12}})
                known = (
                    {name: dict(table) for name, table in broker.log.state.tables.items()} if broker.log.state else {}
                )
            shutil.rmtree(tmp_path / "n0" / "config", ignore_errors=True)  # it is for tools: the log has it all
            async with client_port(settings) as (broker, port, client):
                assert broker.log.state is not None and broker.log.state.tables == known
                [found] = await client.ask((Request.QUERY_CONSUMER_OFFSET, OFFSET, b""))
                assert found.fields == {"offset": "7"}
                topic = port.context.topics.get("Made")
                assert topic is not None and topic.read_queues == 3 and "Mine" in port.context.groups.groups
                [delays] = await client.ask((Request.GET_ALL_DELAY_OFFSET, {}, b""))
                assert bytes(delays.body) == b'{"offsetTable":{3:12}}'

    asyncio.run(story())


def test_a_topic_that_is_made_again_begins_at_0(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1))
        async with engine_of(settings):
            async with client_port(settings) as (broker, port, client):
                sent = await client.send(*(b"old %d" % n for n in range(20)))
                assert [one.code for one in sent] == [0] * 20
                await client.ask((Request.UPDATE_CONSUMER_OFFSET, OFFSET | {"topic": "TopicTest"}, b""))
                port.context.topics.delete("TopicTest")
                again = asyncio.gather(*(client.send(*(b"new %d" % n for n in range(3))) for _ in range(1)))
                [answers] = await again
                assert [one.fields and one.fields["queueOffset"] for one in answers] == ["0", "1", "2"]
                await is_the_new_one(broker, client)
                assert broker.log.state is not None and broker.log.state.incarnations["TopicTest"] > 20
                [gone] = await client.ask((Request.QUERY_CONSUMER_OFFSET, OFFSET | {"topic": "TopicTest"}, b""))
                assert gone.fields == {"offset": "0"}
            async with client_port(settings) as (broker, _port, client):
                await is_the_new_one(broker, client)
                # A consumer that lived through it goes on behind the old ones: it was sent behind the new ones.
                [late] = await client.ask((Request.PULL_MESSAGE, pull_fields(20), b""))
                assert late.code == Answer.PULL_OFFSET_MOVED and (late.fields or {})["nextBeginOffset"] == "0"
                result = await broker.lane.put(message(b"new 3"))
                assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 3)

    asyncio.run(story())


async def is_the_new_one(broker: Broker, client: Client) -> None:
    [pulled] = await client.ask((Request.PULL_MESSAGE, pull_fields(0), b""))
    data, found = bytes(pulled.body), []
    while data:
        record = decode_record(data)
        found.append((record.queue_offset, record.body))
        data = data[record.total_size :]
    assert found == [(n, b"new %d" % n) for n in range(3)]
    assert broker.reads.max_offset("TopicTest", 0) == 3
