"""Two groups in one process: one port and one set of threads, and neither group sees anything of the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.client import LedgerClient
from node.config import Settings, load
from node.engine.engine import Engine
from node.engine.process import Process
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.server import open_store
from node.store.file_store import FileStore
from node.transport.bodies import dump
from node.transport.bodies import load as load_body
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendRequest, encode_append
from tests.ports import free_ports


@dataclass
class Group:
    """One group's member in the process."""

    name: str
    engine: Engine
    store: FileStore
    running: asyncio.Task[int]
    client: LedgerClient

    async def end(self) -> None:
        """As one that ends while others go on."""
        await self.client.close()
        self.engine.stop()
        assert await self.running == 0
        await self.engine.duties.disk.drained()
        self.store.close()


def settings_of(place: Path, name: str, port: int) -> Settings:
    values = {
        "node.id": "n0", "node.group": name, "node.data": str(place / name), "node.init": True, "node.flush": "sync",
        "peers": f"n0-127.0.0.1:{port}",
    }  # fmt: skip
    return load(values, None, {})


async def group_in(process: Process, place: Path, name: str, port: int) -> Group:
    settings = settings_of(place, name, port)
    store = open_store(settings)
    engine = Engine(settings, store, process)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(engine.run(ready.set_result))
    assert await ready == port
    return Group(name, engine, store, running, LedgerClient(f"n0-127.0.0.1:{port}", group=name, deadline_s=10.0))


@asynccontextmanager
async def two_groups(place: Path) -> AsyncIterator[tuple[Process, Group, Group]]:
    (port,) = free_ports(1)
    process = Process()
    orders = await group_in(process, place, "orders", port)
    bills = await group_in(process, place, "bills", port)
    try:
        yield process, orders, bills
    finally:
        for group in (orders, bills):
            if not group.running.done():
                await group.end()
        process.close()


async def first_answer(port: int, code: RequestCode, body: bytes) -> Frame:
    """What a connection's first frame is answered with."""
    answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
    connection = Connection(lambda _connection, frame: answer.set_result(frame), lambda _connection: None)
    await dial(connection, "127.0.0.1", port, None)
    connection.send_body(code, 0, 1, [body])
    try:
        return await asyncio.wait_for(answer, 30)
    finally:
        connection.abort()


def test_two_groups_share_a_port_and_the_disks_threads(tmp_path: Path) -> None:
    async def both() -> None:
        async with two_groups(tmp_path) as (process, orders, bills):
            results = await asyncio.gather(
                *(orders.client.append(b"order %d" % number) for number in range(20)),
                *(bills.client.append(b"bill %d" % number) for number in range(20)),
            )
            assert len(results) == 40
            for group, word in ((orders, b"order"), (bills, b"bill")):
                bodies = [bytes(entry.body) for entry in await group.client.read(0, 100)]
                assert sorted(bodies) == sorted(word + b" %d" % number for number in range(20))
            assert set(process.port.connections.values()) == {
                orders.engine.group_end, bills.engine.group_end,
            }  # fmt: skip
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("store-write") == 1, "one thread writes for both"

    asyncio.run(both())


def test_a_group_ends_and_the_other_one_goes_on(tmp_path: Path) -> None:
    async def both() -> None:
        async with two_groups(tmp_path) as (process, orders, bills):
            await asyncio.gather(orders.client.append(b"order"), bills.client.append(b"bill"))
            await orders.end()
            assert set(process.port.connections.values()) <= {bills.engine.group_end}
            await bills.client.append(b"one more bill")
            assert [bytes(entry.body) for entry in await bills.client.read(0, 10)] == [b"bill", b"one more bill"]
        again = open_store(settings_of(tmp_path, "orders", 1))
        try:
            assert again.end_index >= 1, "what it acknowledged is there"
        finally:
            again.close()

    asyncio.run(both())


def test_what_names_no_group_of_several_reaches_none(tmp_path: Path) -> None:
    async def both() -> None:
        async with two_groups(tmp_path) as (_process, orders, bills):
            port = orders.engine.settings.self_address.rpartition(":")[2]
            unnamed = await first_answer(
                int(port), RequestCode.FAST_APPEND, b"".join(encode_append(AppendRequest([b"whose?"], -1, False)))
            )
            assert unnamed.code == RemotingCode.SYSTEM_ERROR and "several groups" in unnamed.remark
            other = await first_answer(int(port), RequestCode.METADATA, dump({"group": "letters"}))
            fields = load_body(other.body).values
            assert fields["code"] == ResponseCode.UNKNOWN_GROUP and "orders, bills" in fields["detail"]
            known = await first_answer(int(port), RequestCode.METADATA, dump({"group": "bills"}))
            assert load_body(known.body).values["group"] == "bills"
            for group in (orders, bills):
                assert await group.client.read(0, 10) == []

    asyncio.run(both())


def test_a_process_has_one_port_and_each_group_once(tmp_path: Path) -> None:
    async def both() -> None:
        async with two_groups(tmp_path) as (process, orders, _bills):
            (other_port,) = free_ports(1)
            address = orders.engine.settings.self_address
            with pytest.raises(ValueError, match="served in this process already"):
                await process.port.serve("orders", orders.engine.group_end, address, None)
            with pytest.raises(ValueError, match="give all its groups one address"):
                await process.port.serve("third", orders.engine.group_end, f"127.0.0.1:{other_port}", None)
            await orders.client.append(b"served as before")

    asyncio.run(both())
