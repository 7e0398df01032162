"""Operator actions on leadership: a transfer, as an operation."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Response

from node.control.common import Cursor, Json, Limit, Parts, PartsDep, not_leader, state_to_act_on
from node.control.operations import located, unknown
from node.control.problems import Problem
from node.control.snapshots import LATE_S
from node.openapi_statuses import says
from node.protocol.codes import RequestCode, ResponseCode
from node.views.answers import DryRun, Operation, OperationList
from node.views.state import StateView
from node.views.transfer import Transfer

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
OperationId = Annotated[str, Path(max_length=36)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=128)]
# Beyond its own deadline the engine has this long to say how it went.
GRACE_S = 3.0
STARTED: dict[int | str, Json] = says(Operation, 202) | says(DryRun, 200, "a dry run: what it would do")


@router.post("/leadership-transfer", status_code=202, responses=STARTED)
async def transfer(body: Transfer, parts: PartsDep, response: Response, key: Key = None) -> Json:
    asked = body.model_dump(exclude={"dry_run"})
    known = parts.operations.earlier("leadership_transfer", key, asked)
    if known is not None and not body.dry_run:
        return located(response, known)
    within_s = LATE_S if body.deadline_ms is None else body.deadline_ms / 1000
    state = await state_to_act_on(parts, body.if_term, within_s)
    check(body, state)
    if body.dry_run:
        response.status_code = 200
        return {"dry_run": True, "would": f"hand leadership of term {state.term} to {body.to or 'the best peer'}"}
    progress = f"from {state.self_id} to {body.to or 'the best peer'}"
    operation = parts.operations.start("leadership_transfer", key, asked, progress, lambda: carry_out(parts, body))
    return located(response, operation)


def check(body: Transfer, state: StateView) -> None:
    """Refuses before anything is asked of the engine. Raises Problem."""
    if state.role != "LEADER":
        raise not_leader(state)
    ids = [one.id for one in state.peers or ()]
    if body.to is not None and body.to not in ids:
        code = int(ResponseCode.UNKNOWN_MEMBER)
        raise Problem(422, "Unknown member", f"{body.to!r} is not one of {', '.join(ids)}.", code=code)
    if body.to == state.self_id:
        raise Problem(409, "It leads already", f"{body.to} is the leader.")


async def carry_out(parts: Parts, body: Transfer) -> Json:
    timing = parts.settings.timing
    deadline_ms = body.deadline_ms or timing.leadership_transfer_wait_timeout_ms
    fields: Json = {"transfereeId": body.to or "", "deadlineMs": deadline_ms}
    if body.if_term is not None:
        fields["ifTerm"] = body.if_term
    answer = await parts.link.json(RequestCode.LEADERSHIP_TRANSFER, fields, deadline_ms / 1000 + GRACE_S)
    code = answer.get("code")
    if code == ResponseCode.SUCCESS:
        outcome = {"leader_id": answer.get("leaderId"), "term": answer.get("term"), "detail": answer.get("detail")}
        return {"state": "done", "progress": None, "outcome": outcome}
    detail = answer.get("detail") or name_of(code)
    if code == ResponseCode.TIMEOUT:  # its order left, and it leads no more: whom it ordered may lead by now
        return unknown(f"{detail}: look who leads")
    return {"state": "failed", "problem": {"title": "The transfer failed", "detail": detail, "code": code}}


def name_of(code: object) -> str:
    try:
        return ResponseCode(int(str(code))).name
    except ValueError:
        return f"code {code}"


@router.get("/operations", responses=says(OperationList))
async def operations(parts: PartsDep, limit: Limit = 1000, cursor: Cursor = None) -> Json:
    """Newest first; those that ended longest ago are forgotten."""
    found = list(reversed(parts.operations.kept.values()))
    if cursor is not None:
        place = next((at for at, one in enumerate(found) if one["id"] == cursor), None)
        if place is None:
            raise Problem(422, "Invalid request", f"{cursor!r} is no cursor of this list (any more).")
        found = found[place + 1 :]
    return {"items": found[:limit], "next": found[limit - 1]["id"] if len(found) > limit else None}


@router.get("/operations/{operation_id}", responses=says(Operation))
async def operation(operation_id: OperationId, parts: PartsDep) -> Json:
    return parts.operations.get(operation_id)


@router.delete("/operations/{operation_id}", status_code=202, responses=says(Operation, 202))
async def cancel(operation_id: OperationId, parts: PartsDep) -> Json:
    """A trim ends before its next files go. What is done in one step ends by itself (409)."""
    return parts.operations.cancel(operation_id)
