"""Connections by host names: a resolver that hangs holds up whoever waits for it, and nobody's end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from node import host_names
from node.broker.registration import Registrar
from node.client.link import Lost, MemberLink
from node.ha.asking import NoMaster, ask
from node.ha.settings import HaSettings
from node.ha.sockets import HAClientService
from node.host_names import addresses_of, connect
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.name_service.registry import Registry
from tests.ports import free_ports
from tests.unit.engine_kit import until

WITHIN_S = 20.0


class Resolver:
    """In the system's place; it answers once it is `let`."""

    def __init__(self) -> None:
        self.asked, self.let = 0, threading.Event()
        self.found: list[tuple[Any, ...]] = []

    def __call__(self, *_: object, **__: object) -> list[tuple[Any, ...]]:
        self.asked += 1
        self.let.wait()
        return self.found


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    one = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", one)
    yield one
    one.let.set()


async def ask_a_member() -> None:
    link = MemberLink("n0", "a-host:20911", "g")
    with pytest.raises(Lost):
        await link.request(0, [], 0.05)  # type: ignore[arg-type]
    link.close()


async def ask_a_broker() -> None:
    link = Link("a-host:10911")
    with pytest.raises((Unavailable, TimeoutError)):
        async with asyncio.timeout(0.05):
            await link.connect()
    await link.close()


async def ask_the_other_of_a_pair() -> None:
    with pytest.raises(NoMaster):
        await ask(("a-host", 10912), None, None, 0.05)  # type: ignore[arg-type]


async def follow_a_master() -> None:
    client = SimpleNamespace(is_cutting=False, unreachable=lambda _why: None)
    service = HAClientService(client, lambda: ("a-host", 10912), HaSettings(), lambda: None)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await service.run()


async def register() -> None:
    own: Any = SimpleNamespace(is_known=False)
    registrar = Registrar(own, Registry(), ["a-host:9876"])
    await asyncio.sleep(0.05)
    registrar.close()


@pytest.mark.parametrize("asks", [ask_a_member, ask_a_broker, ask_the_other_of_a_pair, follow_a_master, register])
def test_whoever_gave_up_ends_while_the_resolver_hangs(resolver: Resolver, asks: Any) -> None:
    """`asyncio.run` waits for all threads of the loop's executor: half a minute with a resolver that is away."""
    ended: list[str] = []

    def run() -> None:
        asyncio.run(asks())
        ended.append("it ended")

    program = threading.Thread(target=run, daemon=True)
    program.start()
    program.join(WITHIN_S)
    assert ended and resolver.asked == 1


def test_of_one_name_one_question_is_under_way_and_who_goes_away_leaves_it_to_the_others(resolver: Resolver) -> None:
    resolver.found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]

    async def work() -> None:
        waiting = [asyncio.create_task(addresses_of("a-host", 1)) for _ in range(8)]
        await until(lambda: resolver.asked == 1)
        waiting[0].cancel()
        resolver.let.set()
        assert await asyncio.gather(*waiting[1:]) == [resolver.found] * 7 and resolver.asked == 1
        assert await addresses_of("a-host", 1) == resolver.found and resolver.asked == 2, "it is asked anew"
        assert host_names.ASKED == {}

    asyncio.run(work())


def test_the_next_address_is_tried_where_one_takes_no_connection(resolver: Resolver) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        [closed], open_ = free_ports(1), server.sockets[0].getsockname()[1]
        tcp = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        resolver.found = [(*tcp, ("127.0.0.1", closed)), (*tcp, ("127.0.0.1", open_))]
        resolver.let.set()
        transport, _ = await connect(asyncio.Protocol, "a-host", open_)
        assert transport.get_extra_info("peername")[1] == open_
        transport.close()
        resolver.found = resolver.found[:1]
        with pytest.raises(ConnectionRefusedError):
            await connect(asyncio.Protocol, "a-host", closed)
        server.close()
        await server.wait_closed()

    asyncio.run(work())


def test_a_certificate_is_held_to_the_name_and_an_address_asks_nobody(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        resolver.found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        resolver.let.set()
        loop, asked, tls = asyncio.get_running_loop(), [], ssl.create_default_context()

        async def create_connection(_: object, host: object = None, port: object = None, **named: Any) -> Any:
            asked.append((host, named.get("server_hostname"), named["ssl"]))
            if "sock" in named:
                named["sock"].close()
            return None, None

        monkeypatch.setattr(loop, "create_connection", create_connection)
        await connect(asyncio.Protocol, "a-host", port, tls)
        await connect(asyncio.Protocol, "::1", port, tls)
        assert asked == [(None, "a-host", tls), ("::1", None, tls)] and resolver.asked == 1
        server.close()

    asyncio.run(work())
