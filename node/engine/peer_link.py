"""One peer's connections and what is under way on them, for what dials (`dialler`) and what talks (`peer_links`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from node.engine.link_health import LinkHealth
from node.protocol.codes import RequestCode
from node.transport.connection import Connection


@dataclass(slots=True)
class Link:
    """Both connections of one peer."""

    peer_id: str
    outbound: Connection | None = None  # only once its HELLO was accepted
    inbound: Connection | None = None
    connected_at: float = 0.0
    hello: asyncio.Future[bool] | None = None
    unreachable: str = ""  # why it cannot be reached, as it was last reported
    why: str = ""  # why our connection to it is being closed
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    pending: dict[int, tuple[RequestCode, int]] = field(default_factory=dict)  # opaque -> (code, seq)
    health: LinkHealth = field(default_factory=LinkHealth)
    keeper: asyncio.Task[None] | None = None  # dials it for ever
