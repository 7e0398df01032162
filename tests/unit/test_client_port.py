"""A broker before a real engine, as RocketMQ's clients meet it: both ports, routes, waiting pulls, name servers."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from node.broker.broker import Broker
from node.broker.client_port import VIP_BELOW, ClientPort
from node.config import Settings
from node.message_store.record import decode_record
from node.name_service.__main__ import name_server
from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode, encode
from node.rocketmq.java_json import load
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, pull_fields, send_fields, settings_of
from tests.unit.engine_kit import until


async def ask(port: int, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(encode(Command(code, 1, 0, fields, None, body, "JAVA")))
        head = await reader.readexactly(4)
        return decode(head + await reader.readexactly(struct.unpack(">i", head)[0]))
    finally:
        writer.close()


def ports_of_a_broker() -> int:
    """A port whose VIP port is ours as well."""
    while True:
        found = free_ports(VIP_BELOW + 1)
        if found[-1] - VIP_BELOW in found:
            return found[-1]


def with_name_server(data: Path, name_server_port: int) -> tuple[Settings, int]:
    port = ports_of_a_broker()
    values = {"broker.address": f"127.0.0.1:{port}", "broker.name_servers": f"127.0.0.1:{name_server_port}"}
    return settings_of(data, free_ports(1), **values), port


def test_clients_find_the_master_send_over_both_ports_and_wait_for_messages(tmp_path: Path) -> None:
    async def story() -> None:
        registry = Registry()
        names = name_server(NameService(registry, lambda: 0))
        settings, port = with_name_server(tmp_path, await names.listen("127.0.0.1", 0))
        async with engine_of(settings), broker_of(settings) as broker:
            clients = ClientPort(broker)
            await clients.open("127.0.0.1", port, vip=True)
            try:
                waiting = asyncio.create_task(until(lambda: bool(registry.route("TBW102"))))
                await waiting
                await story_of(broker, port, registry)
            finally:
                clients.close()
        await until(lambda: not registry.brokers)  # its connection ended, and it with it
        names.close()

    asyncio.run(story())


async def story_of(broker: Broker, port: int, registry: Registry) -> None:
    sent = await ask(port, Request.SEND_MESSAGE_V2, send_fields(), b"first")
    assert sent.code == 0
    over_vip = await ask(port - VIP_BELOW, Request.SEND_MESSAGE_V2, send_fields(), b"second")
    assert over_vip.fields is not None and over_vip.fields["queueOffset"] == "1"
    await until(lambda: registry.route("TopicTest") is not None)  # a new topic is registered at once
    route = await ask(port, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicTest"})
    said = load(route.body)
    assert said["brokerDatas"] == [
        {"brokerAddrs": {"0": f"127.0.0.1:{port}"}, "brokerName": "default", "cluster": "default"}
    ]
    assert said["queueDatas"][0]["writeQueueNums"] == 4
    found = registry.route("TopicTest")
    assert found is not None and found[1][0].addresses == {0: f"127.0.0.1:{port}"}
    assert registry._live[f"127.0.0.1:{port}"].version.state_version == broker.roles.term
    pulled = asyncio.create_task(ask(port, Request.PULL_MESSAGE, pull_fields(2) | {"sysFlag": "6"}))
    await asyncio.sleep(0)
    await ask(port, Request.SEND_MESSAGE_V2, send_fields(), b"third")
    assert decode_record((await pulled).body).body == b"third"


def test_a_broker_that_does_not_lead_is_no_master_to_anybody(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(3))
        async with engine_of(settings), broker_of(settings, as_master=False) as broker:
            clients = ClientPort(broker)
            port = await clients.open("127.0.0.1", 0)
            try:
                clients.registrar.look()
                info = load((await ask(port, Request.GET_BROKER_CLUSTER_INFO)).body)
                addresses = [one["brokerAddrs"] for one in info["brokerAddrTable"].values()]
                assert all(0 not in one for one in addresses)
                refused = await ask(port, Request.SEND_MESSAGE_V2, send_fields(), b"x")
                assert refused.code == 14
                assert broker.log.next_offsets == {}
            finally:
                clients.close()

    asyncio.run(story())
