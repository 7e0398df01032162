"""One connection to a broker or name server: requests by number, answers in any order.

What is sent within one turn of the loop leaves together, and bytes come straight into the stream's buffer: a system
call costs more than a short command. Headers are binary ones, which both sides read in a fraction of JSON's time.

Invariants: every request ends, with its answer, at its deadline, or with the connection; an error says whether the
request may have arrived. A connection on which a request was given up, and on which nothing has come for
DROPPED_AFTER_S, is dialled anew: a machine that is gone, or a firewall that forgot it, ends no stream.
"""

from __future__ import annotations

import asyncio
import bisect
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from node.host_names import connect
from node.message_client.errors import Unavailable
from node.protocol.peers import split_address
from node.rocketmq.codes import FLAG_ONE_WAY
from node.rocketmq.command import Command, CommandError, encode
from node.rocketmq.command_stream import CommandStream

DIAL_WITHIN_S: Final = 3.0
DROPPED_AFTER_S: Final = 3.0
OPAQUE_MAX: Final = 0x7FFFFFFF
Done = Callable[[Command | Unavailable], None]


class Link:
    """See the module's docstring. `on_request` gets what the other side asks (40)."""

    def __init__(self, address: str, on_request: Callable[[Command], None] | None = None) -> None:
        self.address, self._on_request = address, on_request
        self._wire: _Wire | None = None
        self._open: dict[int, Done] = {}
        self._due: deque[tuple[float, int]] = deque()  # when requests without a task of their own are given up
        self._timer: asyncio.TimerHandle | None = None
        self._opaque = 0
        self._dialling = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._heard_at = 0.0  # when something came last, or the first that waits was asked
        self._gave_up = False  # since then

    @property
    def is_open(self) -> bool:
        return self._wire is not None

    @property
    def silent_s(self) -> float:
        """For how long nothing has come though an answer is waited for, or was given up."""
        return self._loop.time() - self._heard_at if self._open or self._gave_up else 0.0

    async def connect(self) -> None:
        """Raises Unavailable."""
        async with self._dialling:
            if not self._open:
                self._drop_if_dead()
            if self._wire is not None:
                return
            host, port = split_address(self.address)
            try:
                async with asyncio.timeout(DIAL_WITHIN_S):
                    _transport, wire = await connect(self._new_wire, host, port)
            except (OSError, TimeoutError) as error:
                raise Unavailable(f"{self.address}: {error or 'no connection in time'}") from error
            self._wire, self._gave_up = None if wire.is_closed else wire, False

    def _new_wire(self) -> _Wire:
        return _Wire(self._came, self._ended)

    # --- requests -----------------------------------------------------------------------------------------------
    def next_number(self) -> int:
        """Of the next request."""
        self._opaque = (self._opaque + 1) & OPAQUE_MAX
        return self._opaque

    def call(self, opaque: int, data: bytes, due_at: float, done: Done) -> None:
        """Sends a request over the open connection; `done` gets the answer, or why there is none, exactly once.

        `due_at`, by the loop's clock: nearly always later than those before it.
        """
        if self._wire is None:
            done(Unavailable(f"{self.address}: the connection ended"))
            return
        self._wait_for(opaque, done)
        if not self._due or due_at >= self._due[-1][0]:
            self._due.append((due_at, opaque))
        else:  # it was sent before, and is sent again
            bisect.insort(self._due, (due_at, opaque))
        if self._timer is None or due_at < self._timer.when():
            self._look_at(due_at)
        self._wire.write(data)

    def _wait_for(self, opaque: int, done: Done) -> None:
        if not self._open and not self._gave_up:
            self._heard_at = self._loop.time()
        self._open[opaque] = done

    def _look_at(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due_at, self._look)

    def _look(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._due and (self._due[0][0] <= now or self._due[0][1] not in self._open):
            done = self._open.pop(self._due.popleft()[1], None)
            if done is not None:
                self._gave_up = True
                done(Unavailable(f"{self.address}: no answer in time", sent=True))
        self._drop_if_dead()
        if self._due:
            self._look_at(self._due[0][0])

    async def ask(self, code: int, fields: dict[str, str] | None, body: bytes, within_s: float) -> Command:
        """Raises Unavailable."""
        await self.connect()
        opaque = self.next_number()
        data = self._encoded(Command(code, opaque, 0, fields, None, body, binary=True))
        answer: asyncio.Future[Command] = self._loop.create_future()

        def done(outcome: Command | Unavailable) -> None:
            if answer.done():
                return
            if isinstance(outcome, Command):
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)

        if self._wire is None:
            raise Unavailable(f"{self.address}: the connection ended")
        self._wait_for(opaque, done)
        try:
            self._wire.write(data)
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError as error:
            self._gave_up = True
            self._drop_if_dead()
            raise Unavailable(f"{self.address}: no answer in time", sent=True) from error
        finally:
            self._open.pop(opaque, None)

    async def say(self, code: int, fields: dict[str, str] | None, body: bytes = b"") -> None:
        """Without an answer. Raises Unavailable."""
        await self.connect()
        if self._wire is not None:
            self._wire.write(self._encoded(Command(code, 0, FLAG_ONE_WAY, fields, None, body, binary=True)))

    def _encoded(self, command: Command) -> bytes:
        try:
            return encode(command)
        except CommandError as error:
            raise Unavailable(f"{self.address}: {error}") from error

    # --- what comes ---------------------------------------------------------------------------------------------
    def _came(self, commands: list[Command]) -> None:
        take = self._open.pop
        self._heard_at, self._gave_up = self._loop.time(), False
        for command in commands:
            if not command.flag & 1:
                if self._on_request is not None:
                    self._on_request(command)
                continue
            done = take(command.opaque, None)
            if done is not None:
                done(command)
        while self._due and self._due[0][1] not in self._open:
            self._due.popleft()

    def _ended(self, wire: _Wire, why: str) -> None:
        if self._wire is wire:
            self._wire = None
            waiting, self._open = self._open, {}
            self._due.clear()
            for done in waiting.values():
                done(Unavailable(f"{self.address}: {why}", sent=True))

    def _drop_if_dead(self) -> None:
        """Where nothing comes from it any more, so that the next request dials."""
        wire = self._wire
        if wire is not None and self._gave_up and self.silent_s >= DROPPED_AFTER_S:
            wire.abort()
            self._ended(wire, "nothing came from it any more")

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wire = self._wire
        if wire is not None:
            wire.close()
            self._ended(wire, "it was closed here")
            await asyncio.sleep(0)


class _Wire(asyncio.BufferedProtocol):
    """One connection's bytes."""

    def __init__(self, on_commands: Callable[[list[Command]], None], on_end: Callable[[_Wire, str], None]) -> None:
        self._on_commands, self._on_end = on_commands, on_end
        self._stream = CommandStream()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._on_commands(self._stream.filled(nbytes))
        if self._stream.broken is not None and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        broken = self._stream.broken
        self._stream.end()
        self._on_end(self, str(broken or exc or "the connection ended"))

    def write(self, data: bytes) -> None:
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._out.clear()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()
