"""A slave that learns from a name server where its master listens for slaves (FORMATS-ROCKETMQ 9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.broker.classic.promotion import Promotion
from node.config import ConfigError
from node.ha.client import State
from node.name_service.__main__ import name_server
from node.name_service.registry import Registered, Registration, Registry
from node.name_service.requests import NameService
from tests.unit.classic_kit import classic, classic_settings, pair_ports, story
from tests.unit.engine_kit import until


@asynccontextmanager
async def naming(registry: Registry) -> AsyncGenerator[dict[str, str], None]:
    """How brokers are told of a name server, and of no address of the pair's."""
    server = name_server(NameService(registry, lambda: 0))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield {"ha.peers": "", "broker.name_servers": f"127.0.0.1:{port}"}
    finally:
        server.close()


@story
async def test_a_slave_without_addresses_follows_whom_a_name_server_names(tmp_path: Path) -> None:
    """Also one that was there before its master, and one whose master comes back."""
    ports = pair_ports("m", "s")
    async with naming(Registry()) as asks:
        of_master = classic_settings(tmp_path, "m", "sync_master", ports, **asks)
        async with classic(classic_settings(tmp_path, "s", "slave", ports, **asks)) as slave:
            for number in range(2):
                async with classic(of_master) as master, master.client() as client:
                    await until(lambda: slave.broker.pair.client.state is State.TRANSFER)
                    await client.send(b"message %d" % number)
                    log = master.broker.store.log
                    await until(lambda log=log: slave.broker.store.log.max_offset == log.max_offset)
                    assert slave.broker.pair.following == f"127.0.0.1:{ports['m']}"
                    # A promotion asks there, too.
                    found = await Promotion(slave.broker.pair, "s").look()
                    assert "master_is_there" in {one.code for one in found}
                    assert not master.broker.pair._learned


class Noting(Registry):
    """Keeps what brokers said of their HA addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.ha_addresses: list[str] = []

    def register(self, said: Registration, now_ms: int, owner: object) -> Registered:
        self.ha_addresses.append(said.ha_address)
        return super().register(said, now_ms, owner)


@story
async def test_oddity_13_the_ha_address_of_the_configuration_is_listened_at_and_registered(tmp_path: Path) -> None:
    """A release of RocketMQ reads haListenPort and then listens elsewhere."""
    ports, registry = pair_ports("m"), Noting()
    async with naming(registry) as asks, classic(classic_settings(tmp_path, "m", "sync_master", ports, **asks)):
        await until(lambda: bool(registry.ha_addresses))
        assert set(registry.ha_addresses) == {f"127.0.0.1:{ports['m']}"}
        _, writer = await asyncio.open_connection("127.0.0.1", ports["m"])
        writer.close()


class Lying(Registry):
    """Says that any master is there."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.asked = address, 0

    def register(self, said: Registration, now_ms: int, owner: object) -> Registered:
        self.asked += 1
        return Registered("127.0.0.1:1", self.address)


@story
async def test_what_a_name_server_says_is_no_address_or_the_own_one(tmp_path: Path) -> None:
    ports = pair_ports("s")
    own = f"127.0.0.1:{ports['s']}"
    for number, address in enumerate(("nonsense", "127.0.0.1:0", "h:99999", "", own)):
        registry = Lying(address)
        async with naming(registry) as asks:
            settings = classic_settings(tmp_path / str(number), "s", "slave", ports, **asks)
            async with classic(settings) as slave:
                await until(lambda registry=registry: registry.asked > 0)
                await until(lambda slave=slave: _registered(slave.port.registrar.registered_ms))
                assert slave.broker.pair._peers == []
                said = {kind for kind, _severity, _text in slave.notes}
                assert ("ha_address_refused" in said) == (address not in ("", own))


def _registered(times: dict[str, int | None]) -> bool:
    return all(one is not None for one in times.values())


@story
async def test_a_name_server_that_answers_nothing_or_garbage_delays_no_other(tmp_path: Path) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\xff" * 64)

    ports = pair_ports("m", "s")
    hanging = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    talking = await asyncio.start_server(garbage, "127.0.0.1", 0)
    bad = [f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in (hanging, talking)]
    try:
        async with naming(Registry()) as asks:
            asks["broker.name_servers"] = ";".join([*bad, asks["broker.name_servers"]])
            async with (
                classic(classic_settings(tmp_path, "m", "async_master", ports, **asks)),
                classic(classic_settings(tmp_path, "s", "slave", ports, **asks)) as slave,
            ):
                await until(lambda: slave.broker.pair.client.state is State.TRANSFER)
                times = slave.port.registrar.registered_ms
                assert [times[one] for one in bad] == [None, None]
    finally:
        hanging.close()
        talking.close()


def test_a_slave_needs_addresses_or_name_servers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[broker\] name_servers, which say it"):
        classic_settings(tmp_path, "s", "slave", {"s": 1}, **{"ha.peers": ""})
