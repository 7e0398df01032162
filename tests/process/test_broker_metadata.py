"""Three members with brokers, and the master's processes killed: the next one knows its topics, groups and offsets."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from node.rocketmq.bodies import ConsumerData, Heartbeat
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.java_json import load
from tests.process.broker_group import BrokerGroup
from tests.process.group import START_WITHIN_S
from tests.unit.broker_kit import Client

pytestmark = [pytest.mark.process, pytest.mark.long]
CREATE = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
OFFSET = {"consumerGroup": "Mine", "topic": "Made", "queueId": "1"}
Request_ = tuple[int, dict[str, str], bytes]


async def asked(port: int, request: Request_) -> Command | None:
    """None: nobody is there."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        [answer] = await Client(reader, writer).ask(request)
    except (OSError, EOFError, asyncio.IncompleteReadError):
        return None
    else:
        return answer
    finally:
        writer.close()


async def at_master(group: BrokerGroup, request: Request_) -> tuple[str, Command]:
    """Whoever answers it as the master."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            for node_id in group.brokers:
                answer = await asked(group.ports[node_id], request)
                if answer is not None and answer.code == Answer.SUCCESS:
                    return node_id, answer
            await asyncio.sleep(0.05)


async def everywhere(group: BrokerGroup, request: Request_, wanted: bytes) -> None:
    """Every broker's answer holds it, sooner or later."""
    async with asyncio.timeout(START_WITHIN_S):
        for node_id in group.brokers:
            while True:
                answer = await asked(group.ports[node_id], request)
                if answer is not None and wanted in bytes(answer.body):
                    break
                await asyncio.sleep(0.05)


def test_a_killed_masters_topics_groups_and_offsets_are_at_the_next_one(tmp_path: Path) -> None:
    async def story(group: BrokerGroup) -> None:
        master, _ = await at_master(group, (Request.UPDATE_AND_CREATE_TOPIC, CREATE, b""))
        beat = Heartbeat("c1", (), (ConsumerData("Mine", ()),))
        heard = await asked(group.ports[master], (Request.HEART_BEAT, {}, beat.encode()))
        assert heard is not None and heard.code == Answer.SUCCESS
        await at_master(group, (Request.UPDATE_CONSUMER_OFFSET, OFFSET | {"commitOffset": "7"}, b""))
        await everywhere(group, (Request.GET_ALL_CONSUMER_OFFSET, {}, b""), b'"Made@Mine":{1:7}')
        group.end_broker(master, signal.SIGKILL)
        group.kill(master)
        following, found = await at_master(group, (Request.UPDATE_AND_CREATE_TOPIC, CREATE | {"topic": "Other"}, b""))
        assert following != master
        port = group.ports[following]
        found = await asked(port, (Request.GET_ALL_TOPIC_CONFIG, {}, b"")) or found
        topics = load(found.body)["topicConfigTable"]
        assert topics["Made"]["writeQueueNums"] == 3 and "%RETRY%Mine" in topics and "Other" in topics
        _, offset = await at_master(group, (Request.QUERY_CONSUMER_OFFSET, OFFSET, b""))
        assert offset.fields == {"offset": "7"}
        groups = await asked(port, (Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, b""))
        assert groups is not None and "Mine" in load(groups.body)["subscriptionGroupTable"]
        group.start(master)
        await everywhere(group, (Request.GET_ALL_TOPIC_CONFIG, {}, b""), b'"Other":')

    group = BrokerGroup(tmp_path)
    try:
        group.start_all()
        asyncio.run(story(group))
    finally:
        group.close()
