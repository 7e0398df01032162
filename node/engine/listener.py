"""Accepts connections for the member port: each has its place before it costs more than a descriptor.

The loop's own server would hand us a connection only after its TLS handshake, stop for a second where descriptors run
out, and accept as fast as others connect. Invariants: no error of `accept` ends the listening; at most ACCEPTS_MAX
connections are accepted each ACCEPT_EVERY_S, and the fewer the later the loop is, so that a flood of them and of what
they ask for first leaves time for those that are there; a TLS
handshake ends within HANDSHAKE_WITHIN_S; descriptors are left for the store, whatever others open.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, cast

from node.background import Background
from node.descriptors import Descriptors
from node.engine.places import Place, Places
from node.transport.connection import Connection

BACKLOG: Final = 1024
ACCEPTS_MAX: Final = 3  # few at a time: what each asks for first is served in the same turn of the loop
ACCEPT_EVERY_S: Final = 0.002
ACCEPT_EVERY_S_MAX: Final = 0.016  # where the loop is late for it again and again
LATE_S: Final = 0.002
AFTER_ERROR_S: Final = 0.1
HANDSHAKE_WITHIN_S: Final = 5.0


class Listening(Protocol):
    """An open port."""

    port: int

    def renew(self, tls: ssl.SSLContext) -> None:
        """Who connects from now on is shown that context's certificate."""

    def close(self) -> None: ...


class Listen(Protocol):
    """Opens a port; `connection(place)` makes what an accepted socket speaks to. Raises OSError."""

    async def __call__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        places: Places,
        connection: Callable[[Place], Connection],
    ) -> Listening: ...


class Opened(Protocol):
    """What an accepted socket speaks to: a protocol of asyncio that can be ended."""

    def abort(self) -> None: ...


class Listener:
    """See the module's docstring."""

    def __init__(
        self, sockets: list[socket.socket], tls: ssl.SSLContext | None, places: Places,
        connection: Callable[[Place], Opened],
    ) -> None:  # fmt: skip
        self._sockets, self._tls, self._places, self._connection = sockets, tls, places, connection
        self._loop = asyncio.get_running_loop()
        self.port = int(sockets[0].getsockname()[1])
        self._opening = Background()
        self._accepted, self._counted_from_s, self._every_s = 0, 0.0, ACCEPT_EVERY_S
        self._due_s = 0.0  # when to go on
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._watch()

    def _watch(self) -> None:
        if self._timer is not None:
            late = self._loop.time() - self._due_s >= LATE_S
            self._every_s = min(max(self._every_s * (2 if late else 0.5), ACCEPT_EVERY_S), ACCEPT_EVERY_S_MAX)
        self._timer = None
        if not self._closed:
            for one in self._sockets:
                self._loop.add_reader(one.fileno(), self._ready, one)

    def _pause(self, for_s: float) -> None:
        if self._timer is None and not self._closed:
            for one in self._sockets:
                self._loop.remove_reader(one.fileno())
            self._timer, self._due_s = self._loop.call_later(for_s, self._watch), self._loop.time() + for_s

    def _ready(self, listening: socket.socket) -> None:
        now = self._loop.time()
        if now - self._counted_from_s >= self._every_s:
            self._accepted, self._counted_from_s = 0, now
        while self._accepted < ACCEPTS_MAX:
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor, no memory: somebody who earned nothing goes, and we come back
                self._places.give_way()
                self._pause(AFTER_ERROR_S)
                return
            self._accepted += 1
            accepted.setblocking(False)
            self._open(accepted)
        self._pause(self._every_s)

    def _open(self, accepted: socket.socket) -> None:
        """Its place, and then a connection."""
        made: list[Opened] = []

        def end(_why: str) -> None:
            if made:
                made[0].abort()
            task.cancel()

        def ended(_task: asyncio.Task[None]) -> None:
            if not made:  # no transport has taken the socket, so none closes it
                accepted.close()

        place = self._places.take(end)
        task = self._opening.run("a connection's opening", self._handshake(accepted, place, made))
        task.add_done_callback(ended)

    async def _handshake(self, accepted: socket.socket, place: Place, made: list[Opened]) -> None:
        def make() -> asyncio.BaseProtocol:
            made.append(self._connection(place))
            return cast(asyncio.BaseProtocol, made[0])

        within = None if self._tls is None else HANDSHAKE_WITHIN_S
        try:
            await self._loop.connect_accepted_socket(make, accepted, ssl=self._tls, ssl_handshake_timeout=within)
        except (Exception, asyncio.CancelledError):  # no TLS, not in time, or it had to go
            self._places.leave(place)

    def renew(self, tls: ssl.SSLContext) -> None:
        self._tls = tls

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one.fileno())
            one.close()
        for task in self._opening.tasks:
            task.cancel()


async def listen(
    host: str, port: int, tls: ssl.SSLContext | None, places: Places, connection: Callable[[Place], Opened]
) -> Listening:
    """A port of this machine. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
            one.listen(BACKLOG)
    except OSError:
        for one in sockets:
            one.close()
        raise
    places.descriptors_left = Descriptors().left
    return Listener(sockets, tls, places, connection)
