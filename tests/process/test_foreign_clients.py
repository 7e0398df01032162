"""A client of RocketMQ that knows nothing of us sends and consumes: librocketmq, against a group of three brokers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.message_client import MessageProducer, OutgoingMessage
from node.message_client.errors import ClientError
from tests.process.broker_group import BrokerGroup
from tests.process.group import ROOT, START_WITHIN_S
from tests.process.librocketmq_client import LONG_BODY, SINGLES

pytestmark = pytest.mark.process
TOPIC = "Foreign"


async def first_message(group: BrokerGroup) -> None:
    """There is a master that the name servers know, and the topic."""
    async with asyncio.timeout(START_WITHIN_S):
        async with MessageProducer(group.name_servers.split(";")) as producer:
            while True:
                try:
                    await producer.send(OutgoingMessage(TOPIC, b"ours", tags="C"))
                    return
                except ClientError:
                    await asyncio.sleep(0.1)


def test_the_cpp_client_sends_and_consumes(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    try:
        group.start_all()
        asyncio.run(first_message(group))
        done = subprocess.run(
            [sys.executable, "-m", "tests.process.librocketmq_client", group.name_servers, TOPIC],
            cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
    finally:
        group.close()
    assert {status for status, _ in found["sent"].values()} == {0}
    singles, shard = [f"single {n}" for n in range(SINGLES)], [f"ordered {n}" for n in range(4)]
    assert sorted(found["tagged"]) == singles[::2]
    everything = sorted([*singles, *shard, LONG_BODY, "ours"])
    assert sorted(found["ordered"]) == everything and sorted(found["pulled"]) == everything
    assert [one for one in found["ordered"] if one in shard] == shard  # of one queue
