"""A broker beside a real engine in the test's own loop, and a client of it over a socket."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.config import Settings, load
from node.engine.engine import Engine
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.new_message import NewMessage
from node.message_store.record import Host
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode, encode
from node.server import group_kind, open_store
from node.store.log_store import LogStore
from tests.unit.engine_kit import running, until

HOST = Host(bytes([10, 1, 2, 3]), 34567)
STORE = Host(bytes([127, 0, 0, 1]), 10911)
SIZES = DerivedSizes(queue_file_bytes=320, index_slots=100, index_entries=400)


def message(body: bytes = b"body", **changes: Any) -> NewMessage:
    return dataclasses.replace(NewMessage("TopicTest", 0, body, HOST, STORE), **changes)


def settings_of(data: Path, peers: Sequence[int], number: int = 0, **values: str) -> Settings:
    """Of one member; `peers` are the ports of all."""
    given = {
        "node.id": f"n{number}", "node.init": "true", "node.data": str(data / f"n{number}"),
        "peers": ";".join(f"n{at}-127.0.0.1:{port}" for at, port in enumerate(peers)),
        "broker.address": "127.0.0.1:10911", "store.mapped_file_size_for_entry_data_bytes": "65536",
    }  # fmt: skip
    return load(given | values, None, {})


@asynccontextmanager
async def engine_of(settings: Settings, store: LogStore | None = None) -> AsyncGenerator[Engine, None]:
    """`store` None: in files."""
    opened = open_store(settings) if store is None else store
    try:
        engine = Engine(settings, opened, kind=group_kind(settings))
        async with running([engine]):
            yield engine
    finally:
        if store is None:
            opened.close()


@asynccontextmanager
async def broker_of(settings: Settings, *, as_master: bool = True) -> AsyncGenerator[Broker, None]:
    noted: list[tuple[str, str, dict[str, Any]]] = []
    broker = Broker(settings, lambda *event: noted.append(event), SIZES)
    task = asyncio.create_task(broker.run())
    try:
        if as_master:
            await until(lambda: broker.is_master or task.done())
        if task.done():
            await task
        yield broker
    finally:
        task.cancel()
        await asyncio.wait([task])


class Client:
    """Requests that leave together, and their answers by number."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._opaque = reader, writer, 0

    async def ask(self, *requests: tuple[int, dict[str, str], bytes]) -> list[Command]:
        numbers = []
        for code, fields, body in requests:
            self._opaque += 1
            numbers.append(self._opaque)
            self._writer.write(encode(Command(code, self._opaque, 0, fields, None, body, "JAVA", binary=True)))
        found: dict[int, Command] = {}
        while len(found) < len(requests):
            head = await self._reader.readexactly(4)
            answer = decode(head + await self._reader.readexactly(struct.unpack(">i", head)[0]))
            if answer.is_response:  # and no request of the broker's own
                found[answer.opaque] = answer
        return [found[one] for one in numbers]

    async def send(self, *bodies: bytes, **fields: str) -> list[Command]:
        return await self.ask(*((Request.SEND_MESSAGE_V2, send_fields(**fields), body) for body in bodies))


def send_fields(**changes: str) -> dict[str, str]:
    """Of 310 and 320."""
    given = {
        "a": "G", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795000000000", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return given | changes


def pull_fields(offset: int, queue_id: int = 0, topic: str = "TopicTest") -> dict[str, str]:
    """Of 11."""
    return {
        "consumerGroup": "G", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0",
        "subscription": "*", "expressionType": "TAG",
    }  # fmt: skip


@asynccontextmanager
async def client_of(broker: Broker) -> AsyncGenerator[Client, None]:
    """Over a socket, to a server in front of this broker."""
    server = ClientPort(broker)
    port = await server.open("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        server.close()
