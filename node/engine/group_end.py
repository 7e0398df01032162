"""One group's end of the member port: takes what members and clients send to that group.

Member codes go to the links, everything else to the client requests. Invariants: answers that nothing here
asked for are dropped; once the engine ends, nothing that arrives is looked at.
"""

from __future__ import annotations

from typing import Final, Protocol

from node.engine.client_requests import ClientRequests
from node.engine.peer_links import MEMBER_CODES, PeerLinks
from node.protocol.codes import RequestCode
from node.transport.connection import Connection
from node.transport.remoting import FLAG_RESPONSE, Frame

TRANSFER: Final = RequestCode.LEADERSHIP_TRANSFER  # of a client or an operator, or of the leader


class Driver(Protocol):
    """What it needs of the engine."""

    reason: str  # why it ends; empty: it does not

    def read_done(self) -> None: ...
    def leader_bytes(self, peer_id: str) -> None: ...
    def lane_lost(self, origin: Connection) -> None: ...


class GroupEnd:
    """One per engine."""

    def __init__(self, driver: Driver, links: PeerLinks, requests: ClientRequests) -> None:
        self._driver, self._links, self._requests = driver, links, requests
        self.read_done = driver.read_done  # once all frames of one read were handed in

    def on_closed(self, connection: Connection) -> None:
        self._links.closed(connection)
        self._requests.closed(connection)
        self._driver.lane_lost(connection)

    def on_part(self, connection: Connection) -> None:
        """Bytes of a member's came that complete no frame: of the leader's, they say that it is there."""
        if connection.peer_id is not None and not self._driver.reason:
            self._links.heard(connection.peer_id)
            self._driver.leader_bytes(connection.peer_id)

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        if self._driver.reason or frame.flag & FLAG_RESPONSE:
            return
        if frame.code in MEMBER_CODES or (frame.code == TRANSFER and connection.peer_id is not None):
            self._links.handle(connection, frame)
        else:
            self._requests.handle(connection, frame)
