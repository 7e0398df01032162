"""Calls that change a group: leadership transfer, and appends by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from app.api.cluster_models import TransferDryRun
from app.api.common import ClusterId, ConsoleDep, Json, OfALog, ViewerDep, note
from app.api.models import OperationView
from app.api.node_models import NodeAppended
from app.console.cursors import INT64_MAX
from app.console.errors import ConsoleError, Invalid, NodeUnreachable, NothingListens
from app.console.member_changes import check_term
from app.console.nodes import NodeRefused
from app.console.preflight import Preflight
from app.console.proxy import pick
from node.openapi_statuses import says
from node.views.request_body import NO_KEY, RequestBody
from node.views.transfer import Transfer

router = APIRouter(prefix="/clusters/{cluster_id}", tags=["operator actions"], dependencies=[OfALog])
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=128)]
APPEND_TIMEOUT_S = 15.0


class NewEntries(RequestBody):
    entries: Annotated[list[Annotated[str, Field(max_length=4 << 20)]], Field(min_length=1, max_length=1000)]
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"
    expected_index: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None


class GroupTransfer(Transfer):
    """`accept_data_loss`: an admin accepts that the member named in `to`, a plain DLedger that leads for the first time
    since its process started, cuts its followers."""

    accept_data_loss: bool = False


@router.get("/leadership-transfer", responses=says(Preflight))
async def preflight(cluster_id: ClusterId, console: ConsoleDep, to: str | None = None) -> Json:
    """What a transfer would mean; changes nothing."""
    return console.preflight(cluster_id, to).to_json()


@router.post(
    "/leadership-transfer",
    status_code=202,
    responses=says(OperationView, 202) | says(TransferDryRun, 200, "a dry run: what it would do"),
)
async def transfer(
    request: Request, cluster_id: ClusterId, body: GroupTransfer, console: ConsoleDep, viewer: ViewerDep,
    response: Response, key: Key = None,
) -> Json:  # fmt: skip
    if body.dry_run:
        check_term(console.group_view(cluster_id), body.if_term)
        response.status_code = 200
        return {"dry_run": True, **console.preflight(cluster_id, body.to).to_json()}
    asked = {"to": body.to, "if_term": body.if_term, "accept_data_loss": body.accept_data_loss}
    note(request, f"clusters/{cluster_id}/leadership", after=asked)
    operation = await console.transfer(
        cluster_id,
        body.to,
        if_term=body.if_term,
        deadline_ms=body.deadline_ms,
        accept_data_loss=body.accept_data_loss,
        caller=viewer,
        idempotency_key=key,
    )
    note(request, f"clusters/{cluster_id}/leadership", after={**asked, "operation": operation["id"]})
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


@router.post("/entries", status_code=200, responses=says(NodeAppended))
async def append(cluster_id: ClusterId, body: NewEntries, request: Request, console: ConsoleDep) -> Json:
    """Appends through the leader. 504 with `outcome: unknown` must not be repeated blindly."""
    if "idempotency-key" in request.headers:
        raise Invalid(NO_KEY, outcome="not_appended")
    note(request, f"clusters/{cluster_id}/entries", after={"entries": len(body.entries)})
    view = console.group_view(cluster_id)
    node_id, url = pick(view, view.leader_id)
    sent: dict[str, Any] = body.model_dump(by_alias=True, exclude_none=True)
    try:
        answer = await console.nodes.json("POST", url, "entries", json=sent, timeout_s=APPEND_TIMEOUT_S)
    except NothingListens as error:
        raise with_outcome(error, "not_appended") from None
    except NodeRefused as error:  # a node's own answers say it
        raise with_outcome(error, "unknown") from None
    except NodeUnreachable as error:
        detail = (
            f"{error.detail}. The entries may have been appended, or may yet be: look before you append them again."
        )
        raise NodeUnreachable(
            detail, status=504, title="Outcome unknown", code=error.code, outcome="unknown", safe_to_retry=False
        ) from None
    indexes = {
        name: answer[name] for name in ("first_index", "last_index", "term") if isinstance(answer.get(name), int)
    }
    note(request, f"clusters/{cluster_id}/entries", after={"entries": len(body.entries), **indexes})
    return {**answer, "node_id": node_id}


def with_outcome(error: ConsoleError, outcome: str) -> ConsoleError:
    """What an append's answer has to say, unless it does (SAFETY C2)."""
    error.extra.setdefault("outcome", outcome)
    return error
