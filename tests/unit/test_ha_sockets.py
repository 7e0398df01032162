"""Master and slaves over real sockets, in one process: what is put arrives, whatever is cut, and puts wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
import struct
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from node.ha import sockets
from node.ha.client import HAClient, State
from node.ha.keeper import StoreKeeper
from node.ha.lineage import Lineage
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.ha.sockets import AcceptSocketService, HAClientService, now_ms
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.local_flush import FlushMode
from node.message_store.local_log import Flush
from node.message_store.local_mark import read_log_mark
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.new_message import NewMessage
from node.message_store.put_result import PutStatus
from node.message_store.record import Host
from node.message_store.write_files import Disk
from tests.unit.classic_kit import story
from tests.unit.ha_kit import content
from tests.unit.test_dispatch import queue_files

HOST = Host(bytes([10, 0, 0, 1]), 10911)
SETTINGS = HaSettings(reconnect_ms=20, slave_timeout_ms=30_000)
SIZES = DerivedSizes(2000, 100, 400)


def quiet(_kind: str, _severity: str, _text: str) -> None: ...


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - facts of several tasks
            await asyncio.sleep(0.005)


class Side:
    """A store and the tasks of one broker."""

    keeper: StoreKeeper

    def __init__(self, root: Path, flush: FlushMode) -> None:
        settings = LocalSettings(file_bytes=65_536, flush=flush, sizes=SIZES, sync_flush_timeout_ms=30_000)
        self.store = LocalMessageStore(root, settings, lambda: time.time_ns() // 1_000_000, elapsed_ms=now_ms)
        self.tasks: list[asyncio.Task[None]] = []

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.store.close()


class MasterSide(Side):
    def __init__(self, root: Path, flush: FlushMode) -> None:
        super().__init__(root, flush)
        self.store.become_master()
        lineage = Lineage().begun("pair", self.store.log.max_offset)
        self.service = HAService(self.store.log, SETTINGS, BrokerRole.SYNC_MASTER, lineage, quiet)
        self.store.slaves = self.service
        self.service.on_statuses.append(self.store.settle)
        self.acceptor = AcceptSocketService(self.service)
        self.keeper = StoreKeeper(self.store, self.acceptor.wake)
        self.tasks += [asyncio.create_task(self.keeper.run())]


class SlaveSide(Side):
    def __init__(self, root: Path, flush: FlushMode, port: int) -> None:
        super().__init__(root, flush)
        self.client = HAClient(self.store, SETTINGS, root.name, "run", Lineage(), lambda _, then: then(""), quiet)
        self.service = HAClientService(self.client, lambda: ("127.0.0.1", port), SETTINGS, lambda: self.keeper.wake())
        self.keeper = StoreKeeper(self.store, after_flush=self.service.report)
        self.tasks += [asyncio.create_task(self.keeper.run()), asyncio.create_task(self.service.run())]


@contextlib.asynccontextmanager
async def pair_at(root: Path, flush: FlushMode) -> AsyncIterator[tuple[MasterSide, SlaveSide]]:
    master = MasterSide(root / "master", flush)
    port = await master.acceptor.begin_accept("127.0.0.1", 0)
    slave = SlaveSide(root / "slave", flush, port)
    try:
        yield master, slave
    finally:
        await slave.stop()
        await master.acceptor.close()
        await master.stop()


def message(number: int) -> NewMessage:
    return NewMessage("TopicTest", number % 4, b"body %d" % number, HOST, HOST, b"KEYS\x01k%d\x02" % number)


async def put_many(master: MasterSide, first: int, count: int) -> list[PutStatus]:
    puts = [master.keeper.put(message(number)) for number in range(first, first + count)]
    async with asyncio.timeout(60):
        return [(await one).status for one in puts]


def test_puts_wait_for_the_slave_and_everything_is_the_same_at_both(tmp_path: Path) -> None:
    async def scenario() -> None:
        for flush in FlushMode:
            root = tmp_path / flush.value
            async with pair_at(root, flush) as (master, slave):
                assert (await put_many(master, 0, 1))[0] in (PutStatus.SLAVE_NOT_AVAILABLE, PutStatus.PUT_OK)
                await until(lambda: bool(master.service.acks()))
                assert set(await put_many(master, 1, 600)) == {PutStatus.PUT_OK}
                await until(lambda: slave.store.end_position == master.store.log.max_offset)
                assert content(slave.store.log) == content(master.store.log)
                assert len(master.store.log.starts) > 1
            assert queue_files(root / "slave") == queue_files(root / "master")

    asyncio.run(scenario())


def test_an_acknowledgement_answers_at_once_without_anybody_who_looks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair_at(tmp_path, FlushMode.ASYNC_FLUSH) as (master, _slave):
            await until(lambda: bool(master.service.acks()))
            master.tasks[0].cancel()
            assert await put_many(master, 0, 20) == [PutStatus.PUT_OK] * 20

    asyncio.run(scenario())


def test_a_slave_whose_connection_is_cut_again_and_again_gets_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair_at(tmp_path, FlushMode.ASYNC_FLUSH) as (master, slave):
            for at in range(8):
                for one in range(100):
                    master.store.put(message(at * 100 + one), lambda _result: None)
                master.service.connections[0].close("cut") if master.service.connections else None
                master.acceptor.wake()
                await asyncio.sleep(0.01)
            await until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            assert content(slave.store.log) == content(master.store.log)
            await until(lambda: master.store.end_position == master.store.log.max_offset)

    asyncio.run(scenario())


def test_a_flush_that_ends_as_the_connection_is_lost_ends_no_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report went to a closed socket: uvloop raises there, and the slave's broker ended with its master."""
    reported: list[bool] = []

    async def scenario() -> None:
        async with pair_at(tmp_path, FlushMode.ASYNC_FLUSH) as (master, slave):
            await until(lambda: slave.client.state is State.TRANSFER)
            lost = sockets._FromMaster.connection_lost

            def report() -> None:
                slave.service.report()
                reported.append(True)

            def losing(incoming: sockets._FromMaster, exc: Exception | None) -> None:
                asyncio.get_running_loop().call_soon(report)  # before whoever follows hears of it
                lost(incoming, exc)

            monkeypatch.setattr(sockets._FromMaster, "connection_lost", losing)
            monkeypatch.setattr(slave.client, "next_bytes", lambda _now_ms: b"a report")
            master.service.connections[0].close("cut")
            master.acceptor.wake()
            await until(lambda: bool(reported))

    uvloop.run(scenario())


def test_a_master_that_answers_no_handshake_is_served_as_rocketmqs(tmp_path: Path) -> None:
    """A socket that speaks RocketMQ's protocol only: -1 is no request for it, the next report is."""

    async def scenario() -> None:
        reports: list[int] = []

        async def java(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    (found,) = struct.unpack(">q", await reader.readexactly(8))
                    reports.append(found)
                    if found >= 0:
                        writer.write(struct.pack(">qi", found, 0))

        server = await asyncio.start_server(java, "127.0.0.1", 0)
        slave = SlaveSide(tmp_path / "slave", FlushMode.ASYNC_FLUSH, server.sockets[0].getsockname()[1])
        await until(lambda: slave.client.state is State.TRANSFER and slave.client.master_offset == 0)
        assert reports[:2] == [-1, 0] and not slave.client.is_ours
        await slave.stop()
        server.close()

    asyncio.run(scenario())


def test_a_connection_that_was_reset_before_it_is_accepted_leaves_nothing(tmp_path: Path) -> None:
    """It has no peer any more: asking for that ended the task before anything would have closed the socket."""

    async def scenario() -> None:
        reports: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        master = MasterSide(tmp_path / "master", FlushMode.ASYNC_FLUSH)
        port = await master.acceptor.begin_accept("127.0.0.1", 0)
        for _ in range(3):  # within one turn of the loop, which accepts later
            with socket.create_connection(("127.0.0.1", port)) as asking:
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.sleep(0.1)
        assert not reports and not master.acceptor._tasks and not master.service.connections
        await master.acceptor.close()
        await master.stop()

    uvloop.run(scenario())


def test_a_slave_that_takes_nothing_and_says_nothing_keeps_no_place(tmp_path: Path) -> None:
    """Its writer waited for the socket for ever, so that no deadline was looked at."""

    async def scenario() -> None:
        master = MasterSide(tmp_path, FlushMode.ASYNC_FLUSH)
        port = await master.acceptor.begin_accept("127.0.0.1", 0)
        for number in range(200):  # more than the kernel takes
            await master.keeper.put(dataclasses.replace(message(number), body=bytes(60_000)))
        master.service.settings = dataclasses.replace(SETTINGS, housekeeping_ms=300)
        deaf = socket.socket()
        try:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.connect(("127.0.0.1", port))
            deaf.send(struct.pack(">q", master.store.log.min_offset))  # so RocketMQ's slaves begin, and get the log
            await until(lambda: bool(master.service.acks()))
            (connection,) = master.service.connections
            await until(lambda: not master.service.connections)
            assert connection.writing.sent_bytes < master.store.log.max_offset
            assert "nothing was heard" in connection.closed_by
        finally:
            deaf.close()
            await master.acceptor.close()
            await master.stop()

    asyncio.run(scenario())


@story
async def test_nothing_is_synced_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SAFETY S9: not by puts that begin files, nor by flushes, marks and saves."""
    loops, on_loop = threading.get_ident(), list[str]()

    def watched(name: str) -> Callable[[int], None]:
        real = getattr(os, name)

        def call(fd: int) -> None:
            if threading.get_ident() == loops:
                on_loop.append("".join(traceback.format_stack(limit=6)))
            real(fd)

        return call

    monkeypatch.setattr("node.ha.keeper.SAVE_EVERY_MS", 1)
    master = MasterSide(tmp_path / "m", FlushMode.SYNC_FLUSH)
    log = master.store.log
    await until(lambda: log.next_file.is_ready)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, watched(name))
    for number in range(12):  # the first begins the first file
        message = NewMessage("T", 0, bytes(30_000), HOST, HOST, b"WAIT\x01false\x02")
        assert (await master.keeper.put(message)).status is PutStatus.PUT_OK, number
        await until(lambda: log.next_file.is_ready and log.flushed_offset == log.max_offset)
    assert len(log.starts) > 4 and not on_loop, on_loop[:1]
    monkeypatch.undo()
    await master.stop()


@story
async def test_a_slave_whose_disk_is_full_takes_nothing_until_there_is_room(tmp_path: Path) -> None:
    """A write that failed ended its log, until an operator started it anew."""
    said: list[tuple[str, str, str]] = []
    free_bytes = 1 << 40
    async with pair_at(tmp_path, FlushMode.ASYNC_FLUSH) as (master, slave):
        slave.store._free_bytes = lambda: free_bytes
        slave.client._note = lambda *words: said.append(words)
        await until(lambda: bool(master.service.acks()))
        await put_many(master, 0, 50)
        await until(lambda: slave.store.end_position == master.store.log.max_offset)
        free_bytes, before = slave.store.settings.reserve_bytes - 1, slave.store.log.max_offset
        waiting = master.keeper.put(message(50))
        await until(lambda: slave.client.state is State.CLOSED and "the disk is full" in slave.client.trouble)
        connections = slave.client._connection
        await until(lambda: slave.client._connection > connections + 3)
        assert slave.store.log.max_offset == before and not slave.store.log.broken_by
        # Its master knows why, and serves it for no moment: a put would wait for it, and be answered too late.
        assert master.service.troubles == {slave.client._slave: f"it takes nothing now: {slave.client.trouble}"}
        assert not master.service.acks()
        assert (await master.keeper.put(message(51))).status is PutStatus.SLAVE_NOT_AVAILABLE
        assert [kind for kind, _severity, _text in said] == ["ha_not_served"]  # once, however often it comes again
        free_bytes = 1 << 40
        await until(lambda: slave.store.end_position == master.store.log.max_offset)
        assert [kind for kind, _severity, _text in said] == ["ha_not_served", "ha_served"]
        assert content(slave.store.log) == content(master.store.log) and not master.service.troubles
        assert (await waiting).status is PutStatus.PUT_OK


@story
async def test_a_slave_dispatches_what_it_gets_while_a_flush_is_under_way(tmp_path: Path) -> None:
    """It waited for the flush, of hundreds of megabytes in one that caught up, and read all of it again then."""
    goes_on, is_held = threading.Event(), threading.Event()
    async with pair_at(tmp_path, FlushMode.ASYNC_FLUSH) as (master, slave):
        await until(lambda: bool(master.service.acks()))
        real = slave.store.begin_flush

        def held() -> Flush:
            found = real()

            def sync(disk: Disk) -> None:
                is_held.set()
                goes_on.wait(60)
                found.sync(disk)

            return dataclasses.replace(found, sync=sync)

        slave.store.begin_flush = held  # type: ignore[method-assign]
        try:
            await put_many(master, 0, 20)
            await until(is_held.is_set)
            flushed = slave.store.log.flushed_offset
            await put_many(master, 20, 20)
            await until(lambda: slave.store.end_position == master.store.log.max_offset)
            assert slave.store.log.flushed_offset == flushed < slave.store.log.max_offset
        finally:
            goes_on.set()
        await until(lambda: slave.store.log.flushed_offset == slave.store.log.max_offset)


@story
async def test_a_flush_that_fails_ends_the_keeper_and_all_waits(tmp_path: Path) -> None:
    master = MasterSide(tmp_path, FlushMode.SYNC_FLUSH)
    (keeping,) = master.tasks

    def failing(_disk: Disk) -> None:
        raise OSError("the disk is gone")

    real = master.store.begin_flush
    master.store.begin_flush = lambda: dataclasses.replace(real(), sync=failing)  # type: ignore[method-assign]
    master.service.role = BrokerRole.ASYNC_MASTER
    assert (await master.keeper.put(message(1))).status is PutStatus.FLUSH_DISK_TIMEOUT
    await asyncio.wait([keeping])
    assert isinstance(keeping.exception(), OSError) and "the disk is gone" in master.store.log.broken_by
    await master.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_a_keeper_that_is_stopped_ends_after_its_flush(fails: bool, tmp_path: Path) -> None:
    """Else the store is closed, and marked as flushed, while a thread still syncs; and nobody hears how that ended."""
    syncing, stopping = threading.Event(), threading.Event()

    async def scenario() -> None:
        side = Side(tmp_path, FlushMode.SYNC_FLUSH)
        side.store.become_master()
        before = side.store.log.flushed_offset
        side.keeper = StoreKeeper(side.store)
        begin_flush = side.store.begin_flush

        def watched() -> Flush:
            found = begin_flush()

            def sync(disk: Disk) -> None:
                syncing.set()
                stopping.wait()
                if fails:
                    raise OSError(errno.EIO, "Input/output error")
                found.sync(disk)

            return dataclasses.replace(found, sync=sync)

        side.store.begin_flush = watched  # type: ignore[method-assign]
        running = asyncio.create_task(side.keeper.run())
        put = side.keeper.put(message(0))
        await until(syncing.is_set)
        running.cancel()
        for _turn in range(10):
            await asyncio.sleep(0)
        was_done = running.done()
        stopping.set()
        assert not was_done
        await asyncio.wait([running])
        if fails:
            with pytest.raises(OSError, match="Input/output"):
                running.result()
            assert (await put).status is PutStatus.FLUSH_DISK_TIMEOUT
        else:
            assert running.cancelled()
        side.store.close()
        mark = read_log_mark(tmp_path)
        assert mark is not None and mark.flushed == (before if fails else side.store.log.max_offset)
        assert (tmp_path / "abort").exists() is fails

    asyncio.run(scenario())
