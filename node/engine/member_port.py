"""The port that members and clients connect to, one for all groups of the process; it gives connections to groups.

With one group every connection is that group's. With several, a connection belongs to the one that its first frame
names; its group tells members from clients (`group_end`). Invariants: one connection too many is answered SYSTEM_BUSY
and closed; what names no group that is served here is refused, and reaches none.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Server
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.peers import split_address
from node.transport.bodies import BodyError, dump, load
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame
from node.transport.tls import server_context

CONNECTIONS_MAX: Final = 1024
TlsFiles = tuple[Path, Path, Path]  # certificate, key, authority


class Served(Protocol):
    """What the port needs of a group."""

    def read_done(self) -> None: ...
    def on_frame(self, connection: Connection, frame: Frame) -> None: ...
    def on_part(self, connection: Connection) -> None: ...
    def on_closed(self, connection: Connection) -> None: ...


class MemberPort:
    """One per process; `connections` are those that others opened, each with its group."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._groups: dict[str, Served] = {}
        self._server: Server | None = None
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
        if self._server is None:
            host, port = split_address(address)
            self._opened_as = (address, files)
            tls = None if files is None else server_context(*files)
            try:
                self._server = await self._loop.create_server(self._connection, host, port, ssl=tls)
            except OSError:
                self.leave(group)
                raise
        return int(self._server.sockets[0].getsockname()[1])

    def leave(self, group: str) -> None:
        """Nobody new gets to that group; behind the last one the port is closed."""
        del self._groups[group]
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
        if self._server is not None:
            self._server.close()
        self._server = self._opened_as = None

    def _connection(self) -> Connection:
        if len(self._groups) == 1:
            (served,) = self._groups.values()
            opened = partial(self._on_open, served)
            return Connection(served.on_frame, self._on_closed, opened, served.read_done, served.on_part)
        return Connection(self._on_first_frame, self._on_closed, partial(self._on_open, None))

    def _on_open(self, served: Served | None, connection: Connection) -> None:
        self.connections[connection] = served
        if len(self.connections) > CONNECTIONS_MAX:
            text = f"{CONNECTIONS_MAX} connections are open here already"
            connection.send_frame(Frame(RemotingCode.SYSTEM_BUSY, -1, b"", FLAG_RESPONSE, text))
            connection.close()

    def _on_closed(self, connection: Connection) -> None:
        served = self.connections.pop(connection, None)
        if served is not None:
            served.on_closed(connection)

    def _on_first_frame(self, connection: Connection, frame: Frame) -> None:
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
            connection.hand_over(served.on_frame, served.read_done, served.on_part)
            served.on_frame(connection, frame)
            return
        text = f"several groups are served here ({', '.join(self._groups)}): the first frame names one of them"
        if name or frame.code in (RequestCode.HELLO, RequestCode.METADATA):
            answer = {"code": int(ResponseCode.UNKNOWN_GROUP), "group": name, "detail": text}
            connection.answer(frame, dump(answer))
        else:
            connection.refuse(frame, RemotingCode.SYSTEM_ERROR, text)
        connection.close()
