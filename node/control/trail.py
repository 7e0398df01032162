"""Records what operators ask of this control plane in the node's trail (node.operator_trail).

Every call that needs the right `operate` is a row, refused ones by a known caller, too: who, what, to what, from where,
through which token; what was before (who led, in which term) and what was asked; and when its operation is over, how.
Invariant: a call that cannot be recorded is not carried out (503).
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.control.operations import Operations
from node.control.problems import Problem
from node.control.rights import ANYBODY, Caller
from node.control.snapshots import Snapshots
from node.control_tokens import words_of
from node.operator_trail import OperatorTrail
from node.views.state import StateView

log = logging.getLogger(__name__)
Json = dict[str, Any]


@dataclass(slots=True)
class Recording:
    """The row of the call that runs; `asked` and `operation` are known once it has started one."""

    row: int
    asked: Json | None = None
    operation: str | None = None


RECORDING: Final[ContextVar[Recording | None]] = ContextVar("recording", default=None)


def row_now() -> int | None:
    """Of the call that is being carried out, or that began the operation that is."""
    recording = RECORDING.get()
    return None if recording is None else recording.row


class Recorder:
    def __init__(self, trail: OperatorTrail, snapshots: Snapshots, operations: Operations) -> None:
        self.trail, self.snapshots = trail, snapshots
        operations.started, operations.ended = self.started, self.ended

    async def begin(self, scope: Scope, *, refused: bool = False) -> int:
        caller: Caller = scope["state"]["caller"]
        client = scope.get("client")
        path: str = scope["path"]
        try:
            return await asyncio.to_thread(
                self.trail.begin,
                refused=refused,
                user_name=caller.name,
                role=words_of(caller.rights),
                via="no token is in force" if caller is ANYBODY else "token",
                credential=f"token {caller.token_id}" if caller.token_id else "",
                address=client[0] if client else "",
                action=f"{scope['method']} {path}",
                method=scope["method"],
                path=path,
                target=path.removeprefix("/api/v1").strip("/"),
            )
        except OSError as error:
            detail = f"The trail cannot be written ({error.strerror or error}), so nothing was done. Look at its disk."
            raise Problem(503, "Not recorded", detail, headers={"retry-after": "5"}) from None

    async def refused(self, scope: Scope, problem: Problem) -> Problem:
        """What to answer: the refusal, or that it could not be recorded."""
        try:
            row = await self.begin(scope, refused=True)
        except Problem as unrecorded:
            return unrecorded
        await self.end(row, problem.status, {"refused": problem.detail})
        return problem

    async def carry_out(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        before = await self.snapshots.get(StateView)
        recording, status = Recording(await self.begin(scope)), 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = RECORDING.set(recording)
        try:
            await app(scope, receive, note_status)
        finally:
            RECORDING.reset(token)
            known = {"leader_id": before.leader_id, "term": before.term, "role": before.role}
            await self.end(
                recording.row,
                status,
                {"before": known, "asked": recording.asked, "operation": recording.operation},
            )

    def started(self, operation: Json, asked: Json) -> int | None:
        """The row of the call that started this operation."""
        recording = RECORDING.get()
        if recording is None:
            return None
        recording.asked, recording.operation = asked, operation["id"]
        return recording.row

    async def ended(self, row: int, operation: Json) -> None:
        said = {name: operation[name] for name in ("id", "kind", "state", "outcome", "problem")}
        try:
            await asyncio.to_thread(self.trail.outcome, row, {"after": said})
        except OSError:
            log.exception("how operation %s ended could not be noted in row %d of the trail", operation["id"], row)

    async def end(self, row: int, status: int, detail: Json) -> None:
        try:
            await asyncio.to_thread(self.trail.end, row, status, detail)
        except OSError:
            log.exception("the answer %d could not be noted in row %d of the trail", status, row)
