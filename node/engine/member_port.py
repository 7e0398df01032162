"""The port that members and clients connect to, one for all groups of the process; it gives connections to groups.

With one group every connection is that group's. With several, a connection belongs to the one that its first frame
names; its group tells members from clients (`group_end`). Invariants: every connection has a place, and goes when that
is taken from it (`places`); what names no group that is served here is refused, and reaches none.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Protocol

from node.engine.certificates import PortCertificates
from node.engine.listener import Listen, Listening
from node.engine.memory_share import MOST, MemoryShare
from node.engine.places import LOOK_EVERY_S, Place, Places
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.peers import split_address
from node.transport.bodies import BodyError, dump, load
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame
from node.transport.tls import server_context

TlsFiles = tuple[Path, Path, Path]  # certificate, key, authority


class Served(Protocol):
    """What the port needs of a group."""

    def read_done(self) -> None: ...
    def on_frame(self, connection: Connection, frame: Frame) -> None: ...
    def on_part(self, connection: Connection) -> None: ...
    def on_closed(self, connection: Connection) -> None: ...


class MemberPort:
    """One per process; `connections` are those that others opened, each with its group."""

    def __init__(self, loop: AbstractEventLoop, listen: Listen, share: MemoryShare = MOST) -> None:
        self._loop, self._listen = loop, listen
        self._groups: dict[str, Served] = {}
        self._listening: Listening | None = None
        self._also: dict[str, Listening] = {}  # by group: where else its members look for this one
        self.places = Places(share)
        self.certificates = PortCertificates()
        self._look_timer: TimerHandle | None = None
        self._looked_at_s = 0.0
        self._opened_as: tuple[str, TlsFiles | None] | None = None
        self.connections: dict[Connection, Served | None] = {}

    async def serve(self, group: str, served: Served, address: str, files: TlsFiles | None) -> int:
        """The port's number. Raises OSError when it cannot be had; ValueError where the process cannot serve both."""
        if group in self._groups:
            raise ValueError(f"the group {group!r} is served in this process already")
        if self._opened_as is not None and self._opened_as != (address, files):
            raise ValueError(
                f"this process listens on {self._opened_as[0]}, and the group {group!r} wants"
                f" {address}: give all its groups one address and the same TLS files"
            )
        self._groups[group] = served
        if self._listening is None:
            host, port = split_address(address)
            self._opened_as = (address, files)
            tls = None if files is None else server_context(*files)
            try:
                self._listening = await self._listen(host, port, tls, self.places, self._connection)
            except OSError:
                self.leave(group)
                raise
        return self._listening.port

    async def also(self, group: str, address: str | None) -> None:
        """Listens for a group that is served at that address, too, and no longer at the one before; None: at none.

        Raises OSError where it cannot be had: nothing else changes then.
        """
        if group in self._also:
            self._also.pop(group).close()
        if address is None or self._opened_as is None:
            return
        host, port = split_address(address)
        files = self._opened_as[1]
        tls = None if files is None else server_context(*files)
        listening = await self._listen(host, port, tls, self.places, self._connection)
        if group in self._groups:
            self._also[group] = listening
        else:  # it left meanwhile
            listening.close()

    def renew(self, tls: SSLContext) -> None:
        """For connections that are opened from now on."""
        for listening in (self._listening, *self._also.values()):
            if listening is not None:
                listening.renew(tls)

    def leave(self, group: str) -> None:
        """Nobody new gets to that group; behind the last one the port is closed."""
        del self._groups[group]
        if group in self._also:
            self._also.pop(group).close()
        if not self._groups:
            self._close_server()

    def end(self, served: Served) -> None:
        """Ends every connection of that group, with what is queued on it."""
        for connection, owner in list(self.connections.items()):
            if owner is served:
                connection.close()

    def close(self) -> None:
        """Ends every connection that is left."""
        self._close_server()
        for connection in list(self.connections):
            connection.close()

    def _close_server(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._listening = self._opened_as = None
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _connection(self, place: Place) -> Connection:
        closed = partial(self._on_closed, place)
        if len(self._groups) == 1:
            (served,) = self._groups.values()
            opened, part = partial(self._on_open, place, served), partial(self._on_part, place, served)
            return Connection(served.on_frame, closed, opened, served.read_done, part)
        opened, part = partial(self._on_open, place, None), partial(self._on_part, place, None)
        return Connection(partial(self._on_first_frame, place), closed, opened, on_part=part)

    def _on_open(self, place: Place, served: Served | None, connection: Connection) -> None:
        self.connections[connection] = served
        self.certificates.note(connection)
        place.connection = connection
        connection.on_earned = partial(self._on_earned, place)
        if self._look_timer is None:
            self._look_later()

    def _on_earned(self, place: Place, connection: Connection) -> None:
        self.places.earned(place, member=connection.peer_id is not None)

    def _on_part(self, place: Place, served: Served | None, connection: Connection) -> None:
        if connection.peer_id is None:
            self.places.part_came(place)
        elif served is not None and not connection.closed:
            served.on_part(connection)

    def _on_closed(self, place: Place, connection: Connection) -> None:
        self.places.leave(place)
        served = self.connections.pop(connection, None)
        if served is not None:
            served.on_closed(connection)

    def _look_later(self) -> None:
        self._looked_at_s = self._loop.time()
        self._look_timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        """Now and then, while there is anybody who may have to go."""
        self._look_timer = None
        self.places.look(self._loop.time() - self._looked_at_s)
        if self.places.need_looks:
            self._look_later()

    def _on_first_frame(self, place: Place, connection: Connection, frame: Frame) -> None:
        """Of several groups, the one that it names is this connection's from now on."""
        if frame.flag & FLAG_RESPONSE:
            return
        try:
            name = load(frame.body).text("group", "")
        except BodyError:
            name = ""
        served = self._groups.get(name)
        if served is not None:
            self.connections[connection] = served
            connection.hand_over(served.on_frame, served.read_done, partial(self._on_part, place, served))
            served.on_frame(connection, frame)
            return
        text = f"several groups are served here ({', '.join(self._groups)}): the first frame names one of them"
        if name or frame.code in (RequestCode.HELLO, RequestCode.METADATA):
            answer = {"code": int(ResponseCode.UNKNOWN_GROUP), "group": name, "detail": text}
            connection.answer(frame, dump(answer))
        else:
            # Nothing was begun: this code says so, where a failure leaves the outcome of an append unknown.
            connection.refuse(frame, RemotingCode.REQUEST_CODE_NOT_SUPPORTED, text)
        connection.close()
