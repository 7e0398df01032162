"""Two groups in one process: one port and one set of threads, and neither group sees anything of the other.

Groups of one member show what the process shares; groups of three, over three processes, that members find each other
through ports on which the other group's members greet, too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.client import LedgerClient
from node.config import Settings, load
from node.engine.engine import Engine
from node.engine.process import Process
from node.member_secret import make_secret
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.entry import Magic
from node.server import open_store
from node.store.file_store import FileStore
from node.transport.bodies import dump
from node.transport.bodies import load as load_body
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.slab_frames import AppendRequest, encode_append
from tests.ports import free_ports
from tests.unit.engine_kit import until


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


def settings_of(place: Path, name: str, ports: Sequence[int], number: int = 0, secret: Path | None = None) -> Settings:
    values = {
        "node.id": f"n{number}", "node.group": name, "node.data": str(place / name), "node.init": True,
        "node.flush": "sync", "peers": peers_of(ports), "node.secret_file": None if secret is None else str(secret),
    }  # fmt: skip
    return load(values, None, {})


def peers_of(ports: Sequence[int]) -> str:
    return ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))


async def group_in(
    process: Process, place: Path, name: str, ports: Sequence[int], number: int = 0, secret: Path | None = None
) -> Group:
    settings = settings_of(place, name, ports, number, secret)
    store = open_store(settings)
    engine = Engine(settings, store, process)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(engine.run(ready.set_result))
    assert await ready == ports[number]
    return Group(name, engine, store, running, LedgerClient(peers_of(ports), group=name, deadline_s=60.0))


@asynccontextmanager
async def two_groups(place: Path) -> AsyncIterator[tuple[Process, Group, Group]]:
    (port,) = free_ports(1)
    process = Process()
    orders = await group_in(process, place, "orders", [port])
    bills = await group_in(process, place, "bills", [port])
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
        again = open_store(settings_of(tmp_path, "orders", [1]))
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
            assert unnamed.code == RemotingCode.REQUEST_CODE_NOT_SUPPORTED and "several groups" in unnamed.remark
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


@asynccontextmanager
async def two_groups_of_three(place: Path) -> AsyncIterator[dict[str, list[Group]]]:
    """Three processes, each with a member of both; `orders` proves a secret to each other, `bills` has none."""
    make_secret(place / "secret")
    secrets = {"orders": place / "secret", "bills": None}
    ports = free_ports(3)
    processes = [Process() for _ in ports]
    groups: dict[str, list[Group]] = {name: [] for name in secrets}
    try:
        for number, process in enumerate(processes):
            for name, secret in secrets.items():
                groups[name].append(await group_in(process, place / str(number), name, ports, number, secret))
        yield groups
    finally:
        for member in (one for members in groups.values() for one in members):
            if not member.running.done():
                await member.end()
        for process in processes:
            process.close()


def test_members_of_two_groups_meet_each_other_on_shared_ports(tmp_path: Path) -> None:
    async def both() -> None:
        async with two_groups_of_three(tmp_path) as groups:
            for name, members in groups.items():
                await asyncio.gather(*(members[0].client.append(b"%s %d" % (name.encode(), n)) for n in range(20)))
            for name, members in groups.items():
                expected = sorted(b"%s %d" % (name.encode(), number) for number in range(20))
                await until(lambda members=members: all(held(one) >= 20 for one in members))  # type: ignore[misc]
                for one in members:
                    assert sorted(bodies_of(one)) == expected, "a log holds its own group's entries and no others"
                await until(lambda members=members: all(peers_met(one) == 2 for one in members))  # type: ignore[misc]
            # One group ends on every port; the other one elects, takes writes and is read as before.
            for member in groups["orders"]:
                await member.end()
            rest = groups["bills"]
            await rest[1].client.append(b"one more bill")
            assert await rest[2].client.leader() in ("n0", "n1", "n2")
            await until(lambda: all(b"one more bill" in bodies_of(one) for one in rest))

    asyncio.run(both())


def held(member: Group) -> int:
    return len(bodies_of(member))


def peers_met(member: Group) -> int:
    """Whose HELLO it accepted, and who accepted its own."""
    return len(list(member.engine.replica.peers.connected()))


def bodies_of(member: Group) -> list[bytes]:
    """Of the clients' entries that this member knows to be committed."""
    store, committed = member.store, member.engine.replica.committed_index
    entries = [store.get(index) for index in range(store.begin_index, committed + 1)]
    return [bytes(one.body) for one in entries if one is not None and one.magic == Magic.NORMAL]
