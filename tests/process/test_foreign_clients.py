"""A client of RocketMQ that knows nothing of us sends and consumes: librocketmq, against a group of three brokers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.children import apart, environment, python
from node.message_client import MessageProducer, OutgoingMessage
from node.message_client.errors import ClientError
from tests.ports import free_ports
from tests.process.broker_group import BrokerGroup
from tests.process.classic_brokers import ClassicBrokers
from tests.process.group import ROOT, START_WITHIN_S
from tests.process.librocketmq_client import LONG_BODY, SINGLES

pytestmark = pytest.mark.process
TOPIC = "Foreign"


async def first_message(name_servers: list[str]) -> None:
    """There is a master that the name servers know, and the topic."""
    async with asyncio.timeout(START_WITHIN_S):
        async with MessageProducer(name_servers) as producer:
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
        asyncio.run(first_message(group.name_servers.split(";")))
        done = subprocess.run(
            [sys.executable, "-m", "tests.process.librocketmq_client", group.name_servers, TOPIC],
            cwd=ROOT, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
    finally:
        group.close()
    judge(found)


def judge(found: dict[str, Any]) -> None:
    """What it sent, and what each of its consumers got."""
    assert {status for status, _ in found["sent"].values()} == {0}
    singles, shard = [f"single {n}" for n in range(SINGLES)], [f"ordered {n}" for n in range(4)]
    assert sorted(found["tagged"]) == singles[::2]
    everything = sorted([*singles, *shard, LONG_BODY, "ours"])
    assert sorted(found["ordered"]) == everything and sorted(found["pulled"]) == everything
    assert [one for one in found["ordered"] if one in shard] == shard  # of one queue


@pytest.mark.long
def test_the_cpp_client_sends_to_a_classic_pair_and_consumes(tmp_path: Path) -> None:
    """What it sends is on the slave when it is answered."""

    async def story() -> dict[str, Any]:
        [port] = free_ports(1)
        name_server = f"127.0.0.1:{port}"
        server = await asyncio.create_subprocess_exec(
            *python("-m", "node.name_service", "--listen", name_server), env=environment(),
            preexec_fn=apart(signal.SIGKILL),
        )  # fmt: skip
        try:
            async with ClassicBrokers(tmp_path, "m", "s", **{"broker.name_servers": name_server}) as brokers:
                await asyncio.gather(brokers.start("m", "sync_master"), brokers.start("s", "slave"))
                await brokers.served("m", "s")
                await first_message([name_server])
                client = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "tests.process.librocketmq_client", name_server, TOPIC, cwd=ROOT,
                    env={**os.environ, "HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )  # fmt: skip
                async with asyncio.timeout(180):
                    out, errors = await client.communicate()
                assert client.returncode == 0, errors[-4000:]
                await brokers.in_step("m")
                found: dict[str, Any] = json.loads(out.splitlines()[-1])
                assert set(brokers.bodies_of("s")) >= {b"single %d" % number for number in range(SINGLES)}
                assert brokers.log_of("s") == brokers.log_of("m")
        finally:
            server.kill()
            await server.wait()
        return found

    judge(asyncio.run(story()))
