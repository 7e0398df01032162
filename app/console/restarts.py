"""An engine or a state machine that hangs is ended and started again by its own node; the console asks, and follows.

Invariants: an operation has exactly one end, and the end is what the node says of it; an answer that never came is
`unknown`. What answers and goes on is refused by its node: the console has no button for that.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from app.console.errors import ConsoleError
from app.console.nodes import NodeRefused, Nodes
from app.console.remote_operations import followed
from app.console.transfers import as_json, problem_of
from app.db.repositories import CANCELLED, DONE, FAILED, UNKNOWN, Operations
from node.background import Background, reason_of

Json = dict[str, Any]
KIND: Final = "restart"
What = Literal["engine", "state_machine"]
ENDS: Final = frozenset({DONE, FAILED, CANCELLED, UNKNOWN})


class Restarts:
    """Starts operations and follows them in tasks; what still runs when these are stopped is left to
    `Operations.orphaned` at the next start."""

    def __init__(self, nodes: Nodes, operations: Operations, background: Background) -> None:
        self.nodes, self.operations, self.background = nodes, operations, background

    def start(self, operation_id: str, url: str, what: What) -> None:
        self.background.run(f"{KIND} {operation_id}", self.follow(operation_id, url, what))

    async def follow(self, operation_id: str, url: str, what: What) -> None:
        async def saw(remote: Json) -> None:
            progress = {"detail": remote.get("progress") or f"waiting for the {what.replace('_', ' ')}"}
            await self.operations.set(operation_id, progress=progress)

        try:
            remote = await followed(self.nodes, url, KIND, {"what": what}, operation_id, saw)
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
