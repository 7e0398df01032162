"""The port that members and clients connect to: whose a frame is, and how many connections there may be.

Member codes go to the peer links, everything else to client requests. Invariants: an answer without a request is
dropped; one connection too many gets an answer that says so, and is closed; once the engine ends, nothing that arrives
is looked at.
"""

from __future__ import annotations

import ssl
from asyncio import AbstractEventLoop, Server
from typing import Final, Protocol

from node.engine.client_requests import ClientRequests
from node.engine.peer_links import MEMBER_CODES, PeerLinks
from node.protocol.codes import RemotingCode, RequestCode
from node.protocol.peers import split_address
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame

CONNECTIONS_MAX: Final = 1024
TRANSFER: Final = RequestCode.LEADERSHIP_TRANSFER  # of a client or an operator, or of the leader


class Driver(Protocol):
    """What the port needs of the engine."""

    reason: str  # why it ends; empty: it does not

    def read_done(self) -> None: ...
    def leader_bytes(self, peer_id: str) -> None: ...
    def lane_lost(self, origin: Connection) -> None: ...


class MemberPort:
    """One per engine; `connections` are those that others opened."""

    def __init__(self, driver: Driver, links: PeerLinks, requests: ClientRequests) -> None:
        self._driver, self._links, self._requests = driver, links, requests
        self.connections: set[Connection] = set()

    async def listen(self, loop: AbstractEventLoop, address: str, tls: ssl.SSLContext | None) -> Server:
        """Raises OSError when the port cannot be had."""
        host, port = split_address(address)
        return await loop.create_server(
            lambda: Connection(self._on_frame, self._on_closed, self._on_open, self._driver.read_done, self._on_part),
            host,
            port,
            ssl=tls,
        )

    def close(self) -> None:
        """Ends every connection, with what is queued on it."""
        for connection in list(self.connections):
            connection.close()

    def _on_open(self, connection: Connection) -> None:
        self.connections.add(connection)
        if len(self.connections) > CONNECTIONS_MAX:
            text = f"{CONNECTIONS_MAX} connections are open here already"
            connection.send_frame(Frame(RemotingCode.SYSTEM_BUSY, -1, b"", FLAG_RESPONSE, text))
            connection.close()

    def _on_closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._links.closed(connection)
        self._driver.lane_lost(connection)

    def _on_part(self, connection: Connection) -> None:
        """Bytes came that complete no frame: of the leader's, they say that it is there."""
        if connection.peer_id is not None and not self._driver.reason:
            self._links.heard(connection.peer_id)
            self._driver.leader_bytes(connection.peer_id)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        if self._driver.reason or frame.flag & FLAG_RESPONSE:
            return
        if frame.code in MEMBER_CODES or (frame.code == TRANSFER and connection.peer_id is not None):
            self._links.handle(connection, frame)
        else:
            self._requests.handle(connection, frame)
