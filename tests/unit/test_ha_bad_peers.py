"""Peers over real sockets that say what no peer says: refused with a reason that ends, nothing is written, and the
slave that belongs there is served on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.ha.client import State
from node.ha.frames import ASK, SAY, encode_header, encode_report, master_says, slave_says
from node.ha.handshake import Hello, Stand, Verdict, hello_of
from node.ha.lineage import Lineage
from node.ha.service import TROUBLE_MS
from node.ha.settings import BrokerRole
from node.message_store.local_flush import FlushMode
from node.message_store.put_result import PutStatus
from tests.ports import free_ports
from tests.unit.classic_kit import story
from tests.unit.ha_kit import content
from tests.unit.test_ha_sockets import SETTINGS, MasterSide, SlaveSide, message, put_many, until

QUICK = dataclasses.replace(SETTINGS, handshake_ms=200, housekeeping_ms=400)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def master_at(root: Path) -> AsyncIterator[tuple[MasterSide, int]]:
    """With messages, and the port where it listens for slaves."""
    master = MasterSide(root / "master", FlushMode.ASYNC_FLUSH)
    port = await master.acceptor.begin_accept("127.0.0.1", 0)
    for number in range(50):
        master.store.put(message(number), lambda _result: None)
    try:
        yield master, port
    finally:
        await master.acceptor.close()
        await master.stop()


async def heard(streams: Streams) -> dict[str, Any]:
    offset, size = struct.unpack(">qi", await streams[0].readexactly(12))
    assert offset == SAY
    found: dict[str, Any] = json.loads(await streams[0].readexactly(size))
    return found


async def handshaken(streams: Streams, hello: Hello) -> dict[str, Any]:
    """The master's verdict."""
    streams[1].write(encode_report(ASK))
    await heard(streams)
    streams[1].write(slave_says(hello.to_json()))
    return await heard(streams)


def own_hello(master: MasterSide, **changes: Any) -> Hello:
    """Of a slave that has all that its master has."""
    found = hello_of(master.store.log, master.service.lineage, "s1", "r1")
    return dataclasses.replace(found, **changes)


async def too_far(master: MasterSide, streams: Streams) -> str:
    streams[1].write(encode_report(master.store.log.max_offset + 1000))
    return "it holds what this master never wrote"


async def within_a_record(master: MasterSide, streams: Streams) -> str:
    streams[1].write(encode_report(master.store.log.last_records(2)[0].offset + 5))
    return "where no record begins"


async def goes_back(master: MasterSide, streams: Streams) -> str:
    first, second = master.store.log.last_records(2)
    streams[1].write(encode_report(second.offset) + encode_report(first.offset))
    return "its log went back"


async def goes_back_behind_the_handshake(master: MasterSide, streams: Streams) -> str:
    assert (await handshaken(streams, own_hello(master)))["verdict"] == Stand.IN_STEP
    end = master.store.log.max_offset
    streams[1].write(encode_report(end) + encode_report(end - 1))
    return "its log went back"


async def acknowledges_what_was_never_sent(master: MasterSide, streams: Streams) -> str:
    await handshaken(streams, own_hello(master))
    streams[1].write(encode_report(master.store.log.max_offset + 1))
    return "is all that was sent"


async def other_file_size(master: MasterSide, streams: Streams) -> str:
    said = await handshaken(streams, own_hello(master, file_bytes=4096))
    assert said["verdict"] == Stand.REFUSED and "mappedFileSizeCommitLog" in said["reason"]
    streams[1].write(encode_report(master.store.log.max_offset))
    return "mappedFileSizeCommitLog"


async def other_records(master: MasterSide, streams: Streams) -> str:
    hello = own_hello(master)
    last = (*hello.last[:-1], dataclasses.replace(hello.last[-1], crc=hello.last[-1].crc ^ 1))
    assert (await handshaken(streams, dataclasses.replace(hello, last=last)))["verdict"] == Stand.FORKED
    return "is not this master's"


async def garbage(_master: MasterSide, streams: Streams) -> str:
    streams[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    return "it holds what this master never wrote"


async def garbage_behind_the_question(_master: MasterSide, streams: Streams) -> str:
    streams[1].write(encode_report(ASK) + b"\xff" * 500)
    return "and it has not said what it has"


async def a_huge_object(_master: MasterSide, streams: Streams) -> str:
    streams[1].write(encode_report(ASK) + struct.pack(">qi", SAY, 1 << 30))
    return "an object of 1073741824 bytes"


BAD_SLAVES: list[Callable[[MasterSide, Streams], Awaitable[str]]] = [
    too_far, within_a_record, goes_back, goes_back_behind_the_handshake, acknowledges_what_was_never_sent,
    other_file_size, other_records, garbage, garbage_behind_the_question, a_huge_object,
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_SLAVES)
@story
async def test_a_slave_that_says_what_cannot_be_is_refused_and_the_alarm_ends(
    bad: Callable[[MasterSide, Streams], Awaitable[str]], tmp_path: Path
) -> None:
    async with master_at(tmp_path) as (master, port):
        before = content(master.store.log)
        streams = await asyncio.open_connection("127.0.0.1", port)
        says = await bad(master, streams)
        await until(lambda: any(says in why for why in master.service.troubles.values()))
        refused = list(master.service.connections)
        streams[1].close()
        await until(lambda: not master.service.connections)
        assert all(one.slave_ack_offset <= master.store.log.max_offset for one in refused)
        assert content(master.store.log) == before and master.service.is_serving
        slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, port)
        await until(lambda: len(master.service.acks()) == 1)
        assert set(await put_many(master, 50, 20)) == {PutStatus.PUT_OK}
        await until(lambda: content(slave.store.log) == content(master.store.log))
        await slave.stop()
        master.service.tick(master.service._now_ms + TROUBLE_MS + 1000)
        assert master.service.troubles == {}


@story
async def test_a_second_slave_of_an_id_is_refused_and_the_first_is_served_on(tmp_path: Path) -> None:
    async with master_at(tmp_path) as (master, port):
        slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, port)
        await until(lambda: master.service.acks() == {"slave": master.store.log.max_offset})
        [first] = master.service.connections
        streams = await asyncio.open_connection("127.0.0.1", port)
        said = await handshaken(streams, own_hello(master, slave="slave", run="another"))
        assert said["verdict"] == Stand.REFUSED and "a slave with the id slave is connected from" in said["reason"]
        streams[1].write(encode_report(1 << 40))
        assert await streams[0].read() == b""
        assert set(await put_many(master, 50, 20)) == {PutStatus.PUT_OK}
        assert master.service.connections == [first] and first.closed_by == ""
        assert master.service.acks() == {"slave": master.store.log.max_offset}
        streams[1].close()
        await slave.stop()


@pytest.mark.parametrize("sent", [b"", b"\xff", encode_report(ASK), encode_report(ASK) + slave_says({})[:-1]])
@story
async def test_who_stops_within_what_it_says_keeps_no_place_at_a_master(sent: bytes, tmp_path: Path) -> None:
    async with master_at(tmp_path) as (master, port):
        master.service.settings = QUICK
        streams = await asyncio.open_connection("127.0.0.1", port)
        streams[1].write(sent)
        async with asyncio.timeout(60):
            await streams[0].read()
        await until(lambda: not master.service.connections)
        streams[1].close()


class Scripted:
    """A master of ours by its handshake; `then` says what it sends behind it."""

    def __init__(self, end: int, then: bytes) -> None:
        self._end, self._then = end, then
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(8)
            lineage = Lineage("pair", ((1, 0),))
            own = Hello(lineage, 0, self._end, 65_536, role=BrokerRole.SYNC_MASTER.value)
            writer.write(master_says(own.to_json()))
            await reader.readexactly(8)
            [size] = struct.unpack(">i", await reader.readexactly(4))
            said = json.loads(await reader.readexactly(size))
            stand = Stand.BEHIND if said["end"] else Stand.EMPTY
            writer.write(master_says(Verdict(stand, "", said["end"]).to_json()) + self._then)
            await reader.read()
        writer.close()


def shifted(data: bytes) -> bytes:
    """The first record says that it lies elsewhere."""
    return data[:28] + (7).to_bytes(8, "big") + data[36:]


BAD_MASTERS: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda _data: b"\xff" * 400, "a frame"),
    (lambda data: encode_header(65_536 * 3 + 1, len(data)) + data, "begins at"),
    (lambda data: encode_header(0, len(data)) + shifted(data), "says that it lies at 7"),
    (lambda data: encode_header(0, len(data)) + data[:88] + b"B" + data[89:], "its CRC is another"),
    (lambda data: encode_header(0, 300) + b"x" * 300, "neither a record nor a blank"),
    (lambda _data: encode_header(0, 9 << 20), "a frame of 9437184 bytes"),
    (lambda data: encode_header(0, len(data)) + data + encode_header(0, len(data)) + data, "goes on at"),
    (lambda data: encode_header(0, len(data)) + data + master_says({}), "was not asked for"),
    (lambda _data: encode_header(0, 65_537) + bytes(65_537), "reach over the end of a file"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD_MASTERS)))
@story
async def test_a_slave_writes_only_what_is_a_masters_log_and_says_what_was_wrong(number: int, tmp_path: Path) -> None:
    making, says = BAD_MASTERS[number]
    async with master_at(tmp_path) as (master, port):
        whole = master.store.log.read(0, master.store.log.max_offset)
        async with Scripted(len(whole), making(whole)) as bad:
            slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, bad.port)
            said: list[str] = []
            slave.client._note = lambda kind, _severity, text: said.append(f"{kind}: {text}")
            await until(lambda: bad.connections > 1)
            assert any(one.startswith("ha_not_served") and says in one for one in said), said
            log = slave.store.log
            assert content(log)[: log.max_offset] == whole[: log.max_offset] and log.border_flaw(log.max_offset) == ""
            assert content(log)[log.max_offset :].strip(b"\0") == b""
            slave.service._address = lambda: ("127.0.0.1", port)  # the right one
            await until(lambda: log.max_offset == len(whole) and slave.store.end_position == len(whole))
            await until(lambda: slave.client.state is State.TRANSFER)
            assert slave.client.trouble == "" and content(log)[: len(whole)] == whole
            await slave.stop()


@story
async def test_a_slave_names_the_address_at_which_it_was_refused_and_says_where_nothing_listens(tmp_path: Path) -> None:
    async with master_at(tmp_path) as (master, _port):
        whole = master.store.log.read(0, master.store.log.max_offset)
        (closed,) = free_ports(1)
        async with Scripted(len(whole), b"\xff" * 400) as bad:
            slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, closed)
            client = slave.client
            await until(lambda: client.closed_by == f"127.0.0.1:{closed}: connection refused")
            assert client.trouble == ""
            slave.service._address = lambda: ("127.0.0.1", bad.port)
            await until(lambda: "a frame" in client.trouble)
            slave.service._address = lambda: ("127.0.0.1", closed)
            await until(lambda: client.closed_by.endswith("connection refused"))
            assert "a frame" in client.trouble and client.refused_at == f"127.0.0.1:{bad.port}"
            await slave.stop()


@pytest.mark.parametrize("held_back", [1, 12, 100])
@story
async def test_half_a_frame_is_not_written_and_the_slave_leaves_a_silent_master(held_back: int, tmp_path: Path) -> None:
    async with master_at(tmp_path) as (master, port):
        whole = master.store.log.read(0, master.store.log.max_offset)
        sent = encode_header(0, len(whole)) + whole
        async with Scripted(len(whole), sent[:-held_back]) as bad:
            slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, bad.port)
            slave.client._settings = QUICK
            await until(lambda: bad.connections > 1)
            assert slave.store.log.is_empty
            slave.service._address = lambda: ("127.0.0.1", port)
            await until(lambda: slave.store.end_position == len(whole))
            await slave.stop()
