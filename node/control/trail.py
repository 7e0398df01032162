"""Records what operators ask of this control plane in the node's trail (node.operator_trail).

Every call that needs the right `operate` is a row, refused ones by a known caller, too (of one token REFUSED_MAX a
minute, then they are counted): who, what, to what, from where, through which token; what was before (who led, in which
term) and what was asked; and when its operation is over, how.
Invariant: a call that cannot be recorded is not carried out (503).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.control.operations import Operations
from node.control.problems import Problem
from node.control.rights import ANYBODY, Caller
from node.control.snapshots import Snapshots
from node.control_tokens import words_of
from node.operator_trail import DamagedTrail, OperatorTrail
from node.views.state import StateView

log = logging.getLogger(__name__)
Json = dict[str, Any]


@dataclass(slots=True)
class Recording:
    """The row of the call that runs; `asked` and `operation` are known once it has started one."""

    row: int
    caller: str
    asked: Json | None = None
    operation: str | None = None


REFUSED_MAX: Final = 30
REFUSED_WITHIN_S: Final = 60.0
RECORDING: Final[ContextVar[Recording | None]] = ContextVar("recording", default=None)


@dataclass(slots=True)
class Refusals:
    """Of one token within a minute; what is beyond REFUSED_MAX of them is counted, and the next row says so."""

    since_s: float = -REFUSED_WITHIN_S
    recorded: int = 0
    left_out: int = 0

    def admits(self, now_s: float) -> bool:
        if now_s - self.since_s >= REFUSED_WITHIN_S:
            self.since_s, self.recorded = now_s, 0
        if self.recorded >= REFUSED_MAX:
            self.left_out += 1
            return False
        self.recorded += 1
        return True


def caller_now() -> str:
    """Whose call is being carried out; empty outside of one."""
    recording = RECORDING.get()
    return "" if recording is None else recording.caller


def row_now() -> int | None:
    """Of the call that is being carried out, or that began the operation that is."""
    recording = RECORDING.get()
    return None if recording is None else recording.row


class Recorder:
    def __init__(self, trail: OperatorTrail, snapshots: Snapshots, operations: Operations) -> None:
        self.trail, self.snapshots = trail, snapshots
        operations.started, operations.ended, operations.caller = self.started, self.ended, caller_now
        self.refusals: dict[str, Refusals] = {}  # by token, of which there is a bounded number

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
            step = "" if isinstance(error, DamagedTrail) else " Look at its disk."
            detail = f"The trail cannot be written ({error.strerror or error}), so nothing was done.{step}"
            raise Problem(503, "Not recorded", detail, headers={"retry-after": "5"}) from None

    async def refused(self, scope: Scope, problem: Problem) -> Problem:
        """What to answer: the refusal, or that it could not be recorded. A token that is refused over and over fills no
        file with it, which would push out what others did."""
        known = self.refusals.setdefault(scope["state"]["caller"].token_id, Refusals())
        if not known.admits(time.monotonic()):
            return problem
        left_out, known.left_out = known.left_out, 0
        try:
            row = await self.begin(scope, refused=True)
        except Problem as unrecorded:
            known.left_out = left_out
            return unrecorded
        await self.end(row, problem.status, {"refused": problem.detail, "left_out_before": left_out or None})
        return problem

    async def carry_out(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        before = await self.snapshots.get(StateView)
        recording, status = Recording(await self.begin(scope), scope["state"]["caller"].name), 500

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
