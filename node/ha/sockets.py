"""The sockets of classic HA: AcceptSocketService at a master, HAClientService at a slave; the rest is state machines.

Invariants: what is written waits for the socket (a slow slave costs a bounded buffer); a connection that the state
machine closed is closed here at once; a slave connects again for ever, after `reconnect_ms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Final, cast

from node.background import Background
from node.ha.client import HAClient
from node.ha.connection import HAConnection
from node.ha.service import HAService
from node.ha.settings import HaSettings
from node.host_names import connect
from node.protocol.entry import BytesLike

READ_BYTES: Final = 1 << 18
FOLLOW_BYTES: Final = 1 << 20  # that a slave reads at once: what it dispatches at once, too
WRITE_BYTES: Final = 1 << 18  # frames that are written at once
LOOK_MS_MAX: Final = 1000
CONNECT_S: Final = 5.0


def now_ms() -> int:
    """Monotonic: intervals are measured with it."""
    return time.monotonic_ns() // 1_000_000


class CannotListen(OSError):
    """The HA port cannot be had; its cause says why."""


class AcceptSocketService:
    """Listens for slaves (haListenPort)."""

    def __init__(self, service: HAService) -> None:
        self._service = service
        self._served: dict[HAConnection, tuple[asyncio.StreamWriter, asyncio.Event]] = {}  # each with what wakes it
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._background = Background()
        service.on_data.append(self.wake)

    async def begin_accept(self, host: str, port: int) -> int:
        """The port. Raises CannotListen."""
        try:
            self._server = await asyncio.start_server(self._accepted, host, port, limit=READ_BYTES)
        except OSError as error:
            raise CannotListen(error.strerror or str(error)) from error
        self._background.keep("ha waits", self._tick)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def wake(self) -> None:
        """There is more to send."""
        for _writer, wake in self._served.values():
            wake.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._background.stop()
        self._service.end("this master stops")

    async def _tick(self) -> None:
        """Ends waits that took too long."""
        while True:
            deadline_ms = self._service.transfers.next_deadline_ms
            left_ms = LOOK_MS_MAX if deadline_ms is None else deadline_ms - now_ms()
            await asyncio.sleep(min(max(left_ms, 5), 100) / 1000)
            self._service.tick(now_ms())
            for connection, (writer, wake) in list(self._served.items()):
                if connection.is_closed and writer.transport.get_write_buffer_size():
                    writer.transport.abort()  # it takes nothing, and its writer waits for that
                elif connection.is_closed:
                    wake.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer, connection = writer.get_extra_info("peername"), None  # no peer: reset before it was accepted
        try:
            if peer is not None:
                connection = self._service.accept("{}:{}".format(*peer[:2]), now_ms())
            if connection is not None:
                _no_delay(writer.transport)
                with contextlib.suppress(asyncio.CancelledError):  # `close`: asyncio would complain of one that ends so
                    await self._serve(connection, reader, writer)
        finally:
            self._tasks.discard(task)
            if connection is not None:
                self._service.remove(connection)
            writer.close()

    async def _serve(
        self, connection: HAConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:  # fmt: skip
        wake = asyncio.Event()
        self._served[connection] = writer, wake
        reading = self._background.run(f"ha reports of {connection.address}", self._read(connection, reader, wake))
        try:
            with contextlib.suppress(ConnectionError):
                while not connection.is_closed:
                    wake.clear()
                    pieces: list[BytesLike] = []
                    size = 0
                    while size < WRITE_BYTES and (data := connection.next_bytes(now_ms())):
                        pieces.append(data)
                        size += len(data)
                    if pieces and not writer.is_closing():  # uvloop raises where it was lost; the reader says so next
                        writer.writelines(pieces)
                        await writer.drain()
                        continue
                    wait_ms = min(connection.writing.data_wait_ms(now_ms()), LOOK_MS_MAX)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_ms / 1000):
                            await wake.wait()
        finally:
            del self._served[connection]
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, connection: HAConnection, reader: asyncio.StreamReader, wake: asyncio.Event) -> None:
        """ReadSocketService's part of it."""
        try:
            while data := await reader.read(READ_BYTES):
                connection.receive(data, now_ms())
                wake.set()
            connection.close("the slave closed the connection")
        except ConnectionError as error:
            connection.close(str(error))
        finally:
            connection.close("its reports are not read any more")
            wake.set()


class _FromMaster(asyncio.BufferedProtocol):
    """A master's bytes: the socket writes where `room` says, `taken` hears how many. So many a turn of the loop, that
    others run in between."""

    def __init__(self, room: Callable[[], memoryview], taken: Callable[[int], None]) -> None:
        self._room, self._taken, self._loop = room, taken, asyncio.get_running_loop()
        self._turn_bytes = 0
        self._resuming: asyncio.Handle | None = None
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room()

    def buffer_updated(self, nbytes: int) -> None:
        self._turn_bytes += nbytes
        if self._turn_bytes >= FOLLOW_BYTES:  # or the loop would read on and on, and run nothing else
            self._turn_bytes = 0
            self.wait()
            self.go_on()
        self._taken(nbytes)

    def wait(self) -> None:
        """Nothing more is taken until `go_on`."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        if self._transport is not None and not self._transport.is_closing() and self._transport.is_reading():
            self._transport.pause_reading()

    def go_on(self) -> None:
        """In the next turn of the loop."""
        if self._resuming is None:
            self._resuming = self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = None
        if self._transport is not None and not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.ended.set()


class HAClientService:
    """Keeps a slave connected. `on_data` is called when something was written to its log."""

    def __init__(
        self, client: HAClient, address: Callable[[], tuple[str, int] | None], settings: HaSettings,
        on_data: Callable[[], None],
    ) -> None:  # fmt: skip
        self._client, self._address, self._settings, self._on_data = client, address, settings, on_data
        self._transport: asyncio.Transport | None = None
        self._incoming: _FromMaster | None = None
        self._background = Background()
        self._tried = ""
        client.on_kept = self._was_kept

    async def run(self) -> None:
        """For ever. `address` None: no master is known yet."""
        while True:
            address = None if self._client.is_cutting else self._address()
            if address is not None:
                self._tried = f"{address[0]}:{address[1]}"
                try:
                    async with asyncio.timeout(CONNECT_S):
                        transport, incoming = await connect(self._from_master, *address)
                    await self._follow(transport, incoming)
                except (OSError, TimeoutError) as error:
                    self._client.unreachable(f"{self._tried}: {_why(error)}")
            await asyncio.sleep(self._settings.reconnect_ms / 1000)

    def report(self) -> None:
        """Something is on disk now: its report leaves at once. Where the connection was just lost it goes nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            data = self._client.next_bytes(now_ms())
            if data:
                self._transport.write(data)
            if self._client.is_closed:
                self._transport.close()

    def _from_master(self) -> _FromMaster:
        return _FromMaster(lambda: self._client.room, self._take)

    def _take(self, size_bytes: int) -> None:
        client = self._client
        if self._transport is None:
            return
        before = client.taken_bytes
        client.received(size_bytes, now_ms())
        if client.is_keeping and self._incoming is not None:
            self._incoming.wait()
        if client.taken_bytes != before:
            self._on_data()
        self.report()

    def _was_kept(self) -> None:
        """Its epochs are on disk, or the connection is over."""
        if self._incoming is not None:
            self._incoming.go_on()
            self._on_data()
            self.report()

    async def _follow(self, transport: asyncio.Transport, incoming: _FromMaster) -> None:
        client = self._client
        try:
            _no_delay(transport)
            client.peer = str(transport.get_extra_info("peername")[0])
            client.tried = self._tried
            client.connected(now_ms())
            self._transport, self._incoming = transport, incoming
            looking = self._background.run("ha client", self._look())
            try:
                self.report()
                await incoming.ended.wait()
            finally:
                looking.cancel()
        finally:
            self._transport = self._incoming = None
            client.close("the connection ended")
            transport.close()

    async def _look(self) -> None:
        """Time goes by: heartbeats, housekeeping, a master that does not answer the handshake."""
        while not self._client.is_closed:
            await asyncio.sleep(min(0.1, self._settings.java_after_ms / 2000))
            self.report()


def _why(error: OSError | TimeoutError) -> str:
    """Without the addresses that asyncio adds, all of a host's."""
    if isinstance(error, TimeoutError):
        return f"no connection within {CONNECT_S:g} s"
    return os.strerror(error.errno).lower() if error.errno is not None and error.errno > 0 else str(error)


def _no_delay(transport: asyncio.BaseTransport) -> None:
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
