"""A member's own operations, asked for by the console and followed to their end: restart, scrub, repairs, snapshots.

Invariants: an operation of the console has exactly one end, and that is what the member says of its own; an answer that
never came is `unknown`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from app.console.errors import ConsoleError, NodeUnreachable
from app.console.nodes import NodeRefused, Nodes
from app.console.transfers import FORGOTTEN, as_json, begun, operation_of, problem_of
from app.db.repositories import CANCELLED, DONE, FAILED, RUNNING, UNKNOWN, Operations
from node.background import Background, reason_of

Json = dict[str, Any]
ENDS: Final = frozenset({DONE, FAILED, CANCELLED, UNKNOWN})
POLL_S: Final = 0.25
# A member that does not answer for so long has taken its operation with it, as far as anybody can know.
SILENT_S: Final = 30.0


async def followed(
    nodes: Nodes, url: str, what: str, body: Json, key: str, saw: Callable[[Json], Awaitable[object]]
) -> Json:
    """The operation as it ended. `key`: asking twice with it starts one; `saw` is called while it runs.

    Raises NodeRefused where it was not begun, and NodeUnreachable where nothing was heard for SILENT_S, or the member
    knows nothing of it any more.
    """
    remote = await begun(nodes, "POST", url, what, json=body, headers={"idempotency-key": key})
    heard_s = time.monotonic()
    while remote.get("state") == RUNNING:
        await saw(remote)
        await asyncio.sleep(POLL_S)
        try:
            remote = await operation_of(nodes, url, remote["id"])
            heard_s = time.monotonic()
        except NodeUnreachable as error:
            if error.code == FORGOTTEN or time.monotonic() - heard_s > SILENT_S:
                raise
    return remote


class RemoteOperations:
    """Starts operations and follows them in tasks; what still runs when these are stopped is left to
    `Operations.orphaned` at the next start."""

    def __init__(self, nodes: Nodes, operations: Operations, background: Background) -> None:
        self.nodes, self.operations, self.background = nodes, operations, background

    def start(self, operation_id: str, url: str, what: str, body: Json, waits_for: str) -> None:
        """`what`: the member's call. `waits_for`: shown until the member says how far it is."""
        self.background.run(f"{what} {operation_id}", self.follow(operation_id, url, what, body, waits_for))

    async def follow(self, operation_id: str, url: str, what: str, body: Json, waits_for: str) -> None:
        async def saw(remote: Json) -> None:
            progress = {"detail": remote.get("progress") or f"waiting for {waits_for}"}
            await self.operations.set(operation_id, progress=progress)

        try:
            remote = await followed(self.nodes, url, what, body, operation_id, saw)
        except NodeRefused as refusal:
            await self.end(operation_id, FAILED, None, problem_of(refusal))
        except ConsoleError as error:
            await self.end(operation_id, UNKNOWN, None, {"title": "Outcome unknown", "detail": error.detail})
        except Exception as error:  # an answer that is none: whoever asked must not wait for ever
            await self.end(operation_id, UNKNOWN, None, {"title": "Outcome unknown", "detail": reason_of(error)})
            raise
        else:
            state = str(remote.get("state"))
            ended = state if state in ENDS else UNKNOWN
            await self.end(operation_id, ended, as_json(remote.get("outcome")), as_json(remote.get("problem")))

    async def end(self, operation_id: str, state: str, outcome: Json | None, problem: Json | None) -> None:
        await self.operations.set(operation_id, state=state, outcome=outcome, problem=problem)
