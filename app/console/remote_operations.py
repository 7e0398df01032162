"""A member's own operation, asked for by the console and followed to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from app.console.errors import NodeUnreachable
from app.console.nodes import Nodes
from app.db.repositories import RUNNING

Json = dict[str, Any]
POLL_S: Final = 0.25
# A member that does not answer for so long has taken its operation with it, as far as anybody can know.
SILENT_S: Final = 30.0


async def followed(
    nodes: Nodes, url: str, what: str, body: Json, key: str, saw: Callable[[Json], Awaitable[object]]
) -> Json:
    """The operation as it ended. `key`: asking twice with it starts one; `saw` is called while it runs.

    Raises NodeRefused, and NodeUnreachable where nothing was heard for SILENT_S.
    """
    remote = await nodes.json("POST", url, what, json=body, headers={"idempotency-key": key})
    heard_s = time.monotonic()
    while remote.get("state") == RUNNING:
        await saw(remote)
        await asyncio.sleep(POLL_S)
        try:
            remote = await nodes.get(url, f"operations/{remote['id']}")
            heard_s = time.monotonic()
        except NodeUnreachable:
            if time.monotonic() - heard_s > SILENT_S:
                raise
    return remote
