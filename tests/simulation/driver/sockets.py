"""TCP between simulated machines: streams of bytes that arrive late, in pieces, or not at all.

A `Socket` is one end, and the transport that asyncio's protocols are given. What a protocol writes is kept as the
objects that it handed over until the kernel takes it, at the end of the iteration or when there is room: a buffer that
is changed meanwhile leaves changed, as it would. What was taken travels with a delay and at the link's pace, is cut
into pieces anywhere, and waits in the receiver's kernel while nobody reads; the window bounds it.

What happens in the network is no step of the world: only a loop that runs changes anything that matters.

Invariants: per direction, bytes arrive in the order in which they were sent, each once; a blocked direction holds
everything back; a killed process's kernel says so to the other side, a machine without power does not; nothing is
called on a loop that is dead.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS, SECOND
from node.engine.places import Place, Places
from node.transport.connection import Connection

if TYPE_CHECKING:
    from tests.simulation.driver.loop import SimulatedLoop, Timeline

WINDOW_BYTES = 256 * 1024  # on the way and unread, per direction
PACKET_BYTES, PIECES_PER_S = 1448, 100
SYN_AGAIN_NS = 300 * MS
SLOW_FACTOR = 15
Watcher = Callable[["Socket", Sequence[Any]], None]


class Socket(asyncio.Transport):
    """One end of a connection; `other` is the far end. `dialled`: this end opened it."""

    def __init__(self, network: Network, loop: SimulatedLoop, number: int, *, dialled: bool, port: int) -> None:
        super().__init__()
        self.network, self.loop, self.number, self.dialled, self.port = network, loop, number, dialled, port
        self.other: Socket = self  # until it is joined
        self.protocol: Any = None
        self.tap: Any = None  # what a watcher keeps about this end
        self.closing = self.gone = self.loss_reported = False  # gone: the kernel knows this end no more
        self.reset_came = False
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._high = 64 * 1024
        self._writing_paused = False
        self._flush_due = False
        self._under_way = 0  # sent, and not read yet over there
        self._in = bytearray()
        self._eof_came = False
        self._reading = True
        self._read_due = False

    # --- the transport that protocols know ------------------------------------------------------------------------
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000 + self.number) if name == "peername" else default

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._high // 4, self._high

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        if self.closing or self.gone or not self.loop.alive:
            return
        pieces = [memoryview(piece).cast("B") for piece in list_of_data if len(piece)]
        self.network.written(self, pieces)
        self._out.extend(pieces)
        self._out_bytes += sum(map(len, pieces))
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self.loop.at_end(self._flush)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._read_later()

    def is_reading(self) -> bool:
        return self._reading

    def close(self) -> None:
        if not self.closing and not self.gone:
            self.closing = True
            self._flush_later()

    def abort(self) -> None:
        if self.gone:
            return
        self.closing = True
        self._drop_out()
        self.network.reset(self)
        self._end(None)

    # --- the kernel's side ----------------------------------------------------------------------------------------
    def _drop_out(self) -> None:
        self._out.clear()
        self._out_bytes = 0

    def _flush(self) -> None:
        """The kernel takes what there is room for."""
        self._flush_due = False
        if self.gone:
            return
        while self._out and self._under_way < WINDOW_BYTES:
            piece = self._out[0]
            taken = min(len(piece), WINDOW_BYTES - self._under_way, self.network.piece_bytes())
            data = bytes(piece[:taken])
            if taken == len(piece):
                self._out.popleft()
            else:
                self._out[0] = piece[taken:]
            self._out_bytes -= taken
            self._under_way += taken
            self.network.carry(self, data)
        self._tell_pressure()
        if self.closing and not self._out:
            self.network.carry(self, None)
            self._end(None)

    def _tell_pressure(self) -> None:
        if not self._writing_paused and self._out_bytes > self._high:
            self._writing_paused = True
            self.protocol.pause_writing()
        elif self._writing_paused and self._out_bytes <= self._high // 4:
            self._writing_paused = False
            self.protocol.resume_writing()

    def taken(self, size: int) -> bool:
        """The far side read so much: there is room again."""
        self._under_way -= size
        if self._out and not self.gone:
            self.loop.socket_ready(self._flush)
        return False

    def arrived(self, data: bytes | None) -> None:
        """From the network; None: the far side sends no more."""
        if self.gone:
            if data is not None:
                self.network.reset(self)
            return
        if data is None:
            self._eof_came = True
        else:
            self._in += data
        self._read_later()

    def was_reset(self) -> None:
        """The far side does not know this connection; what was not read yet may be lost."""
        if not self.gone:
            self.reset_came = True
            if self.network.rng.random() < 0.5:
                self._in.clear()
            self._read_later()

    def _read_later(self) -> None:
        if not self._read_due and not self.gone:
            self._read_due = True
            self.loop.socket_ready(self._read)

    def _read(self) -> None:
        """One read of the loop, as long as the protocol's buffer."""
        self._read_due = False
        if self.gone or self.protocol is None:
            return
        if self._in and self._reading and not self.closing:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(self._in))
            room[:size] = self._in[:size]
            del self._in[:size]
            self.network.credit(self.other, size)
            self.protocol.buffer_updated(size)
        if self.gone:
            return
        if self.reset_came and (not self._in or self.closing or not self._reading):
            self._drop_out()
            self._end(ConnectionResetError("Connection reset by peer"))
        elif self._in and (self._reading and not self.closing):
            self._read_later()
        elif self._eof_came and (self._reading or self.closing) and not self._in:
            if not self.protocol.eof_received():
                self.close()
        elif self._in and self.closing:
            self.network.credit(self.other, len(self._in))
            self._in.clear()

    def _end(self, error: Exception | None) -> None:
        """This end is closed; its protocol hears of it from its loop."""
        if not self.gone:
            self.gone = self.closing = True
            self._drop_out()
            self.network.closed(self)
            self.loop.call_soon(self._connection_lost, error)

    def _connection_lost(self, error: Exception | None) -> None:
        if not self.loss_reported and self.protocol is not None:
            self.loss_reported = True
            self.protocol.connection_lost(error)


class Server:
    """What `create_server` gives."""

    def __init__(self, network: Network, port: int) -> None:
        self._network, self._port = network, port
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._network.listeners.pop(self._port, None)

    async def wait_closed(self) -> None:
        return


class Listening:
    """What a member's port listens with, in place of `node.engine.listener`: there are descriptors enough here."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    def renew(self, tls: Any) -> None:
        """There is no TLS here."""

    def close(self) -> None:
        self._server.close()


async def listen(
    host: str, port: int, tls: Any, places: Places, connection: Callable[[Place], Connection]
) -> Listening:
    """As `node.engine.listener.listen`, in the simulated network."""

    def accepted() -> Connection:
        made: list[Connection] = []
        made.append(connection(places.take(lambda _why: made[0].abort())))
        return made[0]

    return Listening(await asyncio.get_running_loop().create_server(accepted, host, port, ssl=tls))


class Network:
    """All sockets, and what is wrong between the machines. Times in nanoseconds of true time."""

    def __init__(self, timeline: Timeline, rng: random.Random, delay_ns: int, piece_max_bytes: int) -> None:
        self.timeline, self.rng = timeline, rng
        self._delay_ns, self._piece_max = delay_ns, piece_max_bytes
        self.listeners: dict[int, tuple[SimulatedLoop, Callable[[], Any]]] = {}
        self.blocked: set[tuple[str, str]] = set()  # (from, to) by machine
        self.slow: set[tuple[str, str]] = set()
        self.bytes_per_s: dict[tuple[str, str], int] = {}  # what a way carries; without an entry as much as comes
        self.dark: set[str] = set()  # machines without power
        self.watchers: list[Watcher] = []  # called with what a process writes, before it leaves
        self.opened = 0
        self._sockets: dict[int, Socket] = {}  # open ends
        self._held: deque[tuple[Socket, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._arrives: dict[Socket, int] = {}  # when the last thing that this end sent arrives
        self._free_at: dict[tuple[str, str], int] = {}

    # --- opening --------------------------------------------------------------------------------------------------
    def listen(self, loop: SimulatedLoop, factory: Callable[[], Any], host: str, port: int) -> Server:
        if port in self.listeners:
            raise OSError(98, "Address already in use")
        self.listeners[port] = loop, factory
        return Server(self, port)

    async def connect(self, loop: SimulatedLoop, factory: Callable[[], Any], host: str, port: int) -> Any:
        answered: asyncio.Future[Socket | None] = loop.create_future()
        self.timeline.schedule(self._latency(loop.machine, ""), self._syn, loop, port, answered)
        found = await answered
        if found is None:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        found.protocol = factory()
        found.protocol.connection_made(found)
        found._read_later()
        return found, found.protocol

    def _syn(self, loop: SimulatedLoop, port: int, answered: asyncio.Future[Socket | None]) -> bool:
        if not loop.alive or answered.cancelled():
            return False
        listener, factory = self.listeners.get(port, (None, None))
        there = self.machine_of_port(port)
        ways = {(loop.machine, there), (there, loop.machine)}
        if there in self.dark or (ways & self.blocked) or loop.machine in self.dark:
            self.timeline.schedule(SYN_AGAIN_NS, self._syn, loop, port, answered)
            return False
        if listener is None or factory is None or not listener.alive:
            loop.socket_ready(_settle, answered, None)
            return False
        self.opened += 1
        ours = Socket(self, loop, 2 * self.opened, dialled=True, port=port)
        theirs = Socket(self, listener, 2 * self.opened + 1, dialled=False, port=port)
        ours.other, theirs.other = theirs, ours
        self._sockets[ours.number], self._sockets[theirs.number] = ours, theirs
        listener.socket_ready(self._accepted, theirs, factory)
        self.timeline.schedule(self._latency(there, loop.machine), self._syn_answered, ours, answered)
        return False

    def machine_of_port(self, port: int) -> str:
        """Set by the world: whose port that is, also while nobody listens."""
        raise NotImplementedError

    def _accepted(self, theirs: Socket, factory: Callable[[], Any]) -> None:
        theirs.protocol = factory()
        theirs.protocol.connection_made(theirs)
        theirs._read_later()

    def _syn_answered(self, ours: Socket, answered: asyncio.Future[Socket | None]) -> bool:
        if not ours.loop.alive or answered.done():
            self._forget(ours)
            return False
        ours.loop.socket_ready(self._connected, ours, answered)
        return False

    def _connected(self, ours: Socket, answered: asyncio.Future[Socket | None]) -> None:
        if answered.done():
            self._forget(ours)
        else:
            answered.set_result(ours)

    def _forget(self, socket: Socket) -> None:
        """Nobody wants this end any more."""
        socket.gone = socket.closing = True
        self.closed(socket)
        self.reset(socket)

    # --- carrying -------------------------------------------------------------------------------------------------
    def piece_bytes(self) -> int:
        """Where the next piece is cut. On a slow network a packet takes its time, but not as long as a whole window."""
        most = self._piece_max
        if self.bytes_per_s:
            most = min(most, max(PACKET_BYTES, min(self.bytes_per_s.values()) // PIECES_PER_S))
        return most if self.rng.random() < 0.7 else self.rng.randrange(1, most + 1)

    def _latency(self, one: str, other: str, size_bytes: int = 0) -> int:
        delay = self._delay_ns // 2 + self.rng.randrange(self._delay_ns + 1)
        return delay * (SLOW_FACTOR if (one, other) in self.slow else 1)

    def written(self, socket: Socket, pieces: Sequence[memoryview]) -> None:
        for watcher in self.watchers:
            watcher(socket, pieces)

    def carry(self, socket: Socket, data: bytes | None) -> None:
        self._send(socket, socket.other.arrived, data, size_bytes=len(data or b""))

    def reset(self, socket: Socket) -> None:
        self._send(socket, socket.other.was_reset)

    def credit(self, reader_of: Socket, size: int) -> None:
        """Tells the sender's kernel that so much was read."""
        self.timeline.schedule(self._delay_ns, reader_of.taken, size)

    def _send(self, socket: Socket, deliver: Callable[..., Any], *args: Any, size_bytes: int = 0) -> None:
        way = socket.loop.machine, socket.other.loop.machine
        now = self.timeline.now
        at = now + self._latency(*way)
        bytes_per_s = self.bytes_per_s.get(way)
        if bytes_per_s and size_bytes:
            self._free_at[way] = max(now, self._free_at.get(way, 0)) + size_bytes * SECOND // bytes_per_s
            at = max(at, self._free_at[way] + self._delay_ns // 2)
        self._arrives[socket] = at = max(at, self._arrives.get(socket, 0) + 1)
        self.timeline.schedule(at - now, self._arrive, socket, deliver, args)

    def _arrive(self, socket: Socket, deliver: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        way = socket.loop.machine, socket.other.loop.machine
        if way in self.blocked or any(held[0] is socket for held in self._held):
            self._held.append((socket, deliver, args))
            return False
        if socket.other.loop.machine not in self.dark:
            deliver(*args)
        return False

    def unblock(self, *ways: tuple[str, str]) -> None:
        """What was held back arrives at once: what was sent later is still on its way."""
        self.blocked.difference_update(ways)
        held, self._held = self._held, deque()
        for socket, deliver, args in held:
            way = socket.loop.machine, socket.other.loop.machine
            if way in self.blocked:
                self._held.append((socket, deliver, args))
            elif socket.other.loop.machine not in self.dark:
                deliver(*args)

    # --- ends -----------------------------------------------------------------------------------------------------
    def closed(self, socket: Socket) -> None:
        self._sockets.pop(socket.number, None)

    def ends(self) -> list[Socket]:
        """All open ends, oldest first."""
        return list(self._sockets.values())

    def process_gone(self, loop: SimulatedLoop) -> None:
        """The kernel closes what a process had open: the far side hears of it, unless the machine is dark."""
        for port in [port for port, (listener, _) in self.listeners.items() if listener is loop]:
            del self.listeners[port]
        for socket in self.ends():
            if socket.loop is loop:
                socket.gone = socket.closing = True
                self.closed(socket)
                if loop.machine in self.dark:
                    continue
                if socket._in or self.rng.random() < 0.5:
                    self.reset(socket)
                else:
                    self.carry(socket, None)

    def machine_back(self, machine: str) -> None:
        """It answers again: what others still hold open to it is reset."""
        self.dark.discard(machine)
        for socket in self.ends():
            if socket.other.loop.machine == machine and socket.other.gone:
                self.reset(socket.other)

    def break_between(self, one: str, other: str) -> None:
        """Every connection of a pair of machines is reset, wherever in a frame it is."""
        for socket in self.ends():
            if socket.dialled and {socket.loop.machine, socket.other.loop.machine} == {one, other}:
                for end in (socket, socket.other):
                    self.timeline.schedule(self.rng.randrange(2 * self._delay_ns + 1), end.was_reset)


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
