"""Brokers in classic mode in the test's own loop, over sockets, and clients of them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ParamSpec

from node.broker.classic.broker import ClassicBroker, open_files
from node.broker.client_port import ClientPort
from node.config import Settings, load, split_address
from node.message_store.record import decode_record
from node.rocketmq.codes import Answer, Request
from tests.ports import free_ports
from tests.unit.broker_kit import SIZES, Client, pull_fields
from tests.unit.engine_kit import until

P = ParamSpec("P")
CLIENTS: dict[int, int] = {}


def story(making: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test in a loop of its own."""

    @functools.wraps(making)
    def run(*given: P.args, **named: P.kwargs) -> None:
        asyncio.run(making(*given, **named))

    return run


def classic_settings(root: Path, name: str, role: str, ports: dict[str, int], **values: str) -> Settings:
    """`ports`: of all brokers of the pair, where they listen for slaves."""
    given = {
        "node.id": name, "node.group": "pair", "node.data": str(root / name), "ha.role": role,
        "ha.address": f"127.0.0.1:{ports[name]}", "broker.address": f"127.0.0.1:{CLIENTS.get(ports[name], 1)}",
        "ha.peers": ";".join(f"127.0.0.1:{port}" for other, port in ports.items() if other != name),
        "store.mapped_file_size_for_entry_data_bytes": "65536", "ha.reconnect_ms": "50",
    }  # fmt: skip
    return load(given | values, None, {}).check_node()


class Served:
    """A broker that clients reach."""

    def __init__(self, broker: ClassicBroker, port: ClientPort, bound: int, notes: list[tuple[str, str, str]]) -> None:
        self.broker, self.port, self.bound, self.notes = broker, port, bound, notes
        self.running: asyncio.Future[None]

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client, None]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.bound)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()


@asynccontextmanager
async def classic(settings: Settings) -> AsyncGenerator[Served, None]:
    """From its start to its clean end."""
    notes: list[tuple[str, str, str]] = []
    settings.node.data.mkdir(parents=True, exist_ok=True)
    broker = ClassicBroker(settings, open_files(settings, SIZES), lambda *said: notes.append(said))
    port = ClientPort(broker)
    running = asyncio.create_task(broker.run())
    try:
        await broker.open()
        bound = await port.open(*split_address(settings.broker.address))
        served = Served(broker, port, bound, notes)
        served.running = running
        yield served
    finally:
        port.close()
        running.cancel()
        await asyncio.wait([running])
        port.save()
        broker.close()
    if not running.cancelled():
        running.result()


def pair_ports(*names: str) -> dict[str, int]:
    """Where each listens for slaves; where clients reach it, `CLIENTS` says."""
    ports = free_ports(2 * len(names))
    CLIENTS.update(zip(ports[::2], ports[1::2], strict=True))
    return dict(zip(names, ports[::2], strict=True))


@asynccontextmanager
async def two(root: Path, role: str = "sync_master", **values: str) -> AsyncGenerator[tuple[Served, Served], None]:
    """A master m and a slave s that is served."""
    ports = pair_ports("m", "s")
    async with (
        classic(classic_settings(root, "m", role, ports, **values)) as master,
        classic(classic_settings(root, "s", "slave", ports, **values)) as slave,
    ):
        await until(lambda: bool(master.broker.pair.service.acks()))
        yield master, slave


async def pulled(client: Client, count: int, queue_id: int = 0, **changes: Any) -> list[bytes]:
    """The first so many messages of a queue, once they are there."""
    found: list[bytes] = []
    while len(found) < count:
        fields = pull_fields(len(found), queue_id) | changes
        [answer] = await client.ask((Request.PULL_MESSAGE, fields, b""))
        assert answer.code in (Answer.SUCCESS, Answer.PULL_NOT_FOUND, Answer.TOPIC_NOT_EXIST), answer
        data = bytes(answer.body)
        while data:
            record = decode_record(data)
            found.append(record.body)
            data = data[record.total_size :]
        if answer.code != Answer.SUCCESS:
            await asyncio.sleep(0.02)
    return found
