"""A member's own scrub, repairs and snapshots through the console, and the operations of one group.

The member is the one that `node` names, else the leader. Each operation is the console's own, is followed to the end
that the member says, and is in the trail.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from app.api.cluster_models import WouldDo
from app.api.common import ClusterId, ConsoleDep, Cursor, Limit, NodeId, OfALog, SightDep, ViewerDep, note
from app.api.models import OperationView, Page
from app.api.node_models import NodeSnapshots
from app.api.operations import operations as operations_of
from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.member_changes import check_term
from app.db.idempotency import fingerprint
from app.security.roles import Viewer
from node.openapi_statuses import says
from node.views.request_body import RequestBody

Json = dict[str, Any]
router = APIRouter(prefix="/clusters/{cluster_id}", tags=["operator actions"])
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=128)]
STARTED: Final = says(OperationView, 202) | says(WouldDo, 200, "a dry run: what it would do")
WOULD: Final = {
    "scrub": "read the whole log of {node}, and verify it",
    "repairs": "have {node} ask every peer for what is damaged in its log",
    "snapshots": "save the state machine of {node}",
}


class Asked(RequestBody):
    """`if_term` refuses with 412 when the term moved."""

    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/scrub", status_code=202, responses=STARTED, dependencies=[OfALog])
async def scrub(
    request: Request, response: Response, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
    body: Asked | None = None, node: NodeId = None, key: Key = None,
) -> Json:  # fmt: skip
    """One member reads its whole log once, at once; what is damaged it then repairs by itself."""
    return await begin(request, response, console, cluster_id, node, "scrub", body or Asked(), viewer, key)


@router.post("/repairs", status_code=202, responses=STARTED, dependencies=[OfALog])
async def repairs(
    request: Request, response: Response, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
    body: Asked | None = None, node: NodeId = None, key: Key = None,
) -> Json:  # fmt: skip
    """One member asks all its peers again, now, for what is damaged in its log."""
    return await begin(request, response, console, cluster_id, node, "repairs", body or Asked(), viewer, key)


@router.post("/snapshots", status_code=202, responses=STARTED, dependencies=[OfALog])
async def save_snapshot(
    request: Request, response: Response, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
    body: Asked | None = None, node: NodeId = None, key: Key = None,
) -> Json:  # fmt: skip
    """One member saves its state machine now. In a group without one the operation fails, and says so."""
    return await begin(request, response, console, cluster_id, node, "snapshots", body or Asked(), viewer, key)


@router.get("/snapshots", responses=says(NodeSnapshots), dependencies=[OfALog])
async def snapshots(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    """One member's snapshots, newest first; 404 in a group without a state machine."""
    return await console.ask(cluster_id, "snapshots", node_id=node, limit=limit, cursor=cursor)


@router.get("/operations", response_model=Page[OperationView])
async def operations(
    cluster_id: ClusterId, console: ConsoleDep, sight: SightDep, limit: Limit = 50, cursor: Cursor = None
) -> Json:
    """This group's operations, newest first, as `GET operations?cluster=` lists them."""
    console.group_view(cluster_id)
    return await operations_of(console, sight, limit, cursor, cluster_id)


async def begin(
    request: Request, response: Response, console: Console, cluster_id: str, node: str | None, what: str, asked: Asked,
    caller: Viewer, key: str | None,
) -> Json:  # fmt: skip
    """The operation, new or the one of the same key. Raises NotFound, NodeUnreachable, TermMoved, Invalid."""
    said = fingerprint(caller, what, {"cluster": cluster_id, "node": node, "if_term": asked.if_term})
    known = None if asked.dry_run else await console.operations_kept.earlier(caller.name, key, said)
    if known is None:
        node_id, url = console.control_url(cluster_id, node)
        check_term(console.group_view(cluster_id), asked.if_term)
        if asked.dry_run:
            response.status_code = 200
            return {"dry_run": True, "would": WOULD[what].format(node=node_id)}
        fields = asked.model_dump(exclude_none=True, exclude={"dry_run"})
        note(request, f"clusters/{cluster_id}/nodes/{node_id}", after={"what": what, **fields})
        known, fresh = await console.operations_kept.open(
            cluster_id, what, caller.name, node_id=node_id, key=key, progress={"detail": f"asking {node_id}"},
            fingerprint=said,
        )  # fmt: skip
        if fresh:
            console.remote_operations.start(known["id"], url, what, fields, node_id)
    response.headers["location"] = f"/api/v1/operations/{known['id']}"
    return known
