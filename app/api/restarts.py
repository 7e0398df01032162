"""Starting a member's engine or state machine again over REST; its page is built from the same call."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep, note
from app.api.models import OperationView
from app.api.nodes import Member
from app.api.repairs import Key, member_of
from app.console.console import Console
from app.console.restarts import KIND, What
from app.db.idempotency import fingerprint
from app.security.roles import Viewer
from node.openapi_statuses import says

Json = dict[str, Any]
router = APIRouter(prefix="/clusters/{cluster_id}/nodes/{node_id}", tags=["operator actions"], dependencies=[OfALog])


class Restart(BaseModel):
    """What hangs. What answers and goes on is refused: `quorumscope restart --force` ends that, too."""

    model_config = ConfigDict(extra="forbid")
    what: What = "engine"


@router.post("/restart", status_code=202, responses=says(OperationView, 202))
async def restart(
    request: Request,
    response: Response,
    cluster_id: ClusterId,
    node_id: Member,
    console: ConsoleDep,
    viewer: ViewerDep,
    body: Restart | None = None,
    key: Key = None,
) -> Json:
    """This member's node ends its engine, or its state machine, which hangs, and starts it again."""
    operation = await begin(request, console, cluster_id, node_id, body or Restart(), viewer, key)
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


async def begin(
    request: Request, console: Console, cluster_id: str, node_id: str, asked: Restart, caller: Viewer, key: str | None
) -> Json:
    """The operation, new or the one of the same key. Raises NotFound."""
    note(request, f"clusters/{cluster_id}/nodes/{node_id}", after=asked.model_dump())
    member_of(console.group_view(cluster_id), node_id)
    _, url = console.control_url(cluster_id, node_id)
    said = {"cluster": cluster_id, "node": node_id, **asked.model_dump()}
    operation, fresh = await console.operations_kept.open(
        cluster_id, KIND, caller.name, node_id=node_id, key=key, progress={"detail": f"asking {node_id}"},
        fingerprint=fingerprint(caller, KIND, said),
    )  # fmt: skip
    if fresh:
        console.restarts.start(operation["id"], url, asked.what)
    return operation
