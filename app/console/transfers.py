"""Leadership transfers that the console started: asked of the leader's control plane, followed to their end.

Invariants: an operation has exactly one end, and the end is what the group then shows, not what we asked for; an answer
that never came is `unknown`. The leader's own Idempotency-Key is our operation's id, so asking twice transfers once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from app.console.errors import ConsoleError, NodeUnreachable
from app.console.nodes import NodeRefused, Nodes
from app.db.repositories import CANCELLED, DONE, FAILED, RUNNING, UNKNOWN, Operations
from node.background import Background, reason_of

Json = dict[str, Any]
POLL_S = 0.25
# Beyond its own deadline the leader has this long to say how it went.
GRACE_S = 5.0
BEGUN_WITHIN_S = 15.0  # a member's engine that is late has 5 s, and its leader's look at a change as long again
FORGOTTEN = "forgotten"
MAY_BE_DONE = frozenset({500, 502, 504})
STATES = frozenset({RUNNING, DONE, FAILED, CANCELLED, UNKNOWN})


class Transfers:
    """Starts operations and follows them in tasks; what still runs when these are stopped is left to
    `Operations.orphaned` at the next start."""

    def __init__(self, nodes: Nodes, operations: Operations, background: Background) -> None:
        self.nodes, self.operations, self.background = nodes, operations, background

    def transfer(
        self, operation: Json, leader_url: str, body: Json, deadline_ms: int, leader_now: Callable[[], str | None]
    ) -> None:
        following = self.follow_transfer(operation["id"], leader_url, body, deadline_ms, leader_now)
        self.background.run(f"transfer {operation['id']}", following)

    async def follow_transfer(
        self, operation_id: str, leader_url: str, body: Json, deadline_ms: int, leader_now: Callable[[], str | None]
    ) -> None:
        try:
            async with asyncio.timeout(deadline_ms / 1000 + GRACE_S):
                remote = await self.ask(operation_id, leader_url, body, deadline_ms)
                while remote.get("state") == RUNNING:
                    progress = {"node_operation_id": remote["id"], "detail": remote.get("progress")}
                    await self.operations.set(operation_id, progress=progress)
                    await asyncio.sleep(POLL_S)
                    remote = await operation_of(self.nodes, leader_url, remote["id"])
        except NodeRefused as refusal:
            await self.end(operation_id, FAILED, None, problem_of(refusal))
        except (TimeoutError, NodeUnreachable) as error:
            await self.end_unknown(operation_id, body.get("to"), str(error), leader_now)
        except Exception as error:  # an answer that is none: whoever asked must not wait for ever
            await self.end_unknown(operation_id, body.get("to"), reason_of(error), leader_now)
            raise
        else:
            state = str(remote.get("state"))
            await self.end(
                operation_id,
                state if state in STATES else UNKNOWN,
                as_json(remote.get("outcome")),
                as_json(remote.get("problem")),
            )

    async def ask(self, operation_id: str, leader_url: str, body: Json, deadline_ms: int) -> Json:
        return await begun(
            self.nodes,
            "POST",
            leader_url,
            "leadership-transfer",
            json=body,
            headers={"idempotency-key": operation_id},
            timeout_s=deadline_ms / 1000 + GRACE_S,
        )

    async def end_unknown(
        self, operation_id: str, to: str | None, why: str, leader_now: Callable[[], str | None]
    ) -> None:
        """The old leader fell silent; if the wanted one leads by now, that is the outcome all the same."""
        if to is not None and leader_now() == to:
            await self.end(operation_id, DONE, {"leader_id": to, "detail": "seen by the console"}, None)
            return
        detail = f"No answer came ({why or 'timed out'}); the group shows who leads."
        await self.end(operation_id, UNKNOWN, None, {"title": "Outcome unknown", "detail": detail})

    async def end(self, operation_id: str, state: str, outcome: Json | None, problem: Json | None) -> None:
        await self.operations.set(operation_id, state=state, outcome=outcome, problem=problem)

    async def cancel(self, operation: Json, leader_url: str | None) -> None:
        """Asks the node to cancel; the follower sees the end. Raises NodeUnreachable."""
        remote_id = (operation["progress"] or {}).get("node_operation_id")
        if leader_url is None or remote_id is None:
            raise NodeUnreachable("no node is known that could cancel this")
        await self.nodes.json("DELETE", leader_url, f"operations/{remote_id}")


async def begun(nodes: Nodes, method: str, url: str, path: str, **more: Any) -> Json:
    """The operation that a member begins. Raises NodeRefused where it begins none, NodeUnreachable where nobody knows:
    also where it failed in the midst of it, or a proxy had no answer of it."""
    try:
        return await nodes.json(method, url, path, **{"timeout_s": BEGUN_WITHIN_S} | more)
    except NodeRefused as refusal:
        if refusal.node_status not in MAY_BE_DONE:
            raise
        raise NodeUnreachable(f"{url} answered {refusal.node_status}: {refusal.detail}", code="failed") from None


async def operation_of(nodes: Nodes, url: str, operation_id: Any) -> Json:
    """How far a member's own operation is. Raises NodeUnreachable, also where it does not say: a control plane that was
    started again has forgotten what it began, and nobody learns from its 404 how that ended."""
    try:
        return await nodes.get(url, f"operations/{operation_id}")
    except NodeRefused as refusal:
        code = FORGOTTEN if refusal.node_status == 404 else "refused"
        raise NodeUnreachable(f"it was begun, and {url} does not say how it is: {refusal.detail}", code=code) from None


def as_json(answer: Any) -> Json | None:
    if answer is None or isinstance(answer, dict):
        return answer
    return {"detail": str(answer)}


def problem_of(error: ConsoleError) -> Json:
    answer: Json = {"title": error.title, "detail": error.detail, "status": error.status}
    return answer | ({"code": error.code} if error.code is not None else {})
