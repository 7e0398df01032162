"""One TCP connection that carries RocketMQ's commands, our end of it.

Bytes go from the socket straight into the stream's buffer. Invariants: each whole command is handled once, in order; a
connection whose bytes are no command is closed, as RocketMQ does; nothing is read from one that has more requests open
than OPEN_MAX or does not take its answers, and what was read by then is handled when it does, so what it makes us hold
is bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Final, cast

from node.protocol.entry import BytesLike
from node.rocketmq.command import Command, CommandError, encode
from node.rocketmq.command_stream import CommandStream
from node.rocketmq.send_frames import SendFrame, SendReader
from node.transport.reading_stops import ReadingStops
from node.transport.remoting import JOINED_BYTES_MAX

WRITE_BUFFER_HIGH_BYTES: Final = 256 * 1024
OPEN_MAX: Final = 1024  # requests of one connection that are not answered
OPEN_BYTES_MAX: Final = 8 * 1024 * 1024  # and their bodies; one that is longer is read all the same, alone


class Load:
    """The bodies of all requests that are not answered, of all connections of a server."""

    def __init__(self) -> None:
        self.open_bytes = 0


class ClientConnection(asyncio.BufferedProtocol):
    """See the module's docstring. What it must have to be counted and ended is `places.Connected`."""

    def __init__(
        self,
        on_command: Callable[[ClientConnection, Command | SendFrame], None],
        on_open: Callable[[ClientConnection], None],
        on_part: Callable[[ClientConnection], None],
        on_untaken: Callable[[ClientConnection], None],
        on_closed: Callable[[ClientConnection], None],
        load: Load,
        reader: SendReader,
    ) -> None:
        self._on_command, self._on_open, self._on_part, self._on_closed = on_command, on_open, on_part, on_closed
        self._on_untaken = on_untaken  # more was sent than was taken at once
        self._stream: CommandStream[Command | SendFrame] = CommandStream(reader.read)
        self._transport: asyncio.Transport | None = None
        self._stops = ReadingStops()
        self._load = load
        self._open, self._open_bytes = 0, 0
        self._out: list[BytesLike] = []  # what leaves together once all commands of one read were handled
        self._out_bytes = 0
        self._reading = False
        self._left: Sequence[Command | SendFrame] = ()  # of one read: handled when the answers before were taken
        self.address = ""
        self.whole_reads = 0
        self.active_at_s = 0.0  # by the loop's clock: something came or went
        self.closed = False

    # --- the transport's side -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._stops.made(self._transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        name = transport.get_extra_info("peername")
        self.address = address_of(name)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._note_active()
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._stream.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._note_active()
        commands = self._stream.filled(nbytes)
        if commands:
            self.whole_reads += 1
            self._handle(commands)
        elif self._stream.broken is None:
            self._on_part(self)
        if self._stream.broken is not None and not self._left and not self.closed:
            self.close()

    def _handle(self, commands: Sequence[Command | SendFrame]) -> None:
        """In order, until their answers are as much as may wait to be taken: a short request may have a long one."""
        self._reading, self._left = True, ()
        room_bytes = WRITE_BUFFER_HIGH_BYTES - self.backlog_bytes
        for number, command in enumerate(commands, 1):
            if self.closed:
                break
            self._on_command(self, command)
            if self._out_bytes > room_bytes and number < len(commands):
                self._left = commands[number:]
                self.stop_reading("answers")
                asyncio.get_running_loop().call_soon(self._go_on)
                break
        self._reading = False
        self._flush()

    def _go_on(self) -> None:
        """With what is left of a read, once the answers before it are taken."""
        if self.closed or not self._left or self.backlog_bytes > WRITE_BUFFER_HIGH_BYTES:
            return  # `resume_writing` comes back to it
        self._handle(self._left)
        if not self._left:
            self.resume_reading("answers")
            if self._stream.broken is not None:
                self.close()

    def pause_writing(self) -> None:
        self.stop_reading("writes")

    def resume_writing(self) -> None:
        self._go_on()
        self.resume_reading("writes")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._out.clear()
        self._left = ()
        self._stream.end()
        self._on_closed(self)

    def _note_active(self) -> None:
        self.active_at_s = asyncio.get_running_loop().time()

    # --- as its place sees it -----------------------------------------------------------------------------------
    @property
    def unfinished_bytes(self) -> int:
        return self._stream.unfinished_bytes

    @property
    def frame_memory_bytes(self) -> int:
        return self._stream.memory_bytes

    @property
    def backlog_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def reading_stopped(self) -> bool:
        return bool(self._stops)

    def spare_memory(self) -> None:
        self._stream.spare_memory()

    def stop_reading(self, why: str) -> None:
        self._stops.stop(why)

    def resume_reading(self, why: str) -> None:
        self._stops.resume(why)

    # --- our side -----------------------------------------------------------------------------------------------
    def note_open(self, change: int, body_bytes: int) -> None:
        """Requests under way: beyond OPEN_MAX nothing more is read."""
        self._open += change
        self._open_bytes += change * body_bytes
        self._load.open_bytes += change * body_bytes
        if self._open > OPEN_MAX or self._open_bytes > OPEN_BYTES_MAX:
            self.stop_reading("requests")
        elif self._open <= OPEN_MAX // 2 and self._open_bytes <= OPEN_BYTES_MAX // 2:
            self.resume_reading("requests")

    def send(self, command: Command) -> None:
        try:
            data = encode(command)
        except CommandError:  # an answer that no client could read
            data = encode(command._replace(code=1, body=b"", fields=None, remark="the answer is too long"))
        self.send_encoded(data)

    def send_encoded(self, data: bytes) -> None:
        """What is sent within one turn of the loop leaves together: a system call costs more than a short answer."""
        if self.closed:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._reading and len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._note_active()
            if self._out_bytes > JOINED_BYTES_MAX:
                self._transport.writelines(self._out)  # joined they would be in memory twice
            else:
                self._transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            if self.backlog_bytes:
                self._on_untaken(self)
        self._out.clear()
        self._out_bytes = 0

    def close(self) -> None:
        """Sends what is queued, then closes."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()


def address_of(name: object) -> str:
    """ip:port of a socket's name, as Java shows it."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host = str(name[0]).removeprefix("::ffff:")
    return f"[{host}]:{name[1]}" if ":" in host else f"{host}:{name[1]}"
