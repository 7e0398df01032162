"""Starting a member's engine or state machine again over REST; its page is built from the same call."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.api.cluster_models import WouldDo
from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep, note
from app.api.models import OperationView
from app.api.nodes import Member
from app.api.repairs import Key, member_of
from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.member_changes import check_term
from app.db.idempotency import fingerprint
from app.security.roles import Viewer
from node.openapi_statuses import says
from node.views.request_body import RequestBody

Json = dict[str, Any]
KIND: Final = "restart"
What = Literal["engine", "state_machine"]
router = APIRouter(prefix="/clusters/{cluster_id}/nodes/{node_id}", tags=["operator actions"], dependencies=[OfALog])


class Restart(RequestBody):
    """What hangs. What answers and goes on is refused: `quorumscope restart --force` ends that, too."""

    what: What = "engine"
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/restart", status_code=202, responses=says(OperationView, 202) | says(WouldDo, 200, "a dry run"))
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
    asked = body or Restart()
    if asked.dry_run:
        check(console, cluster_id, node_id, asked)
        response.status_code = 200
        words = asked.what.replace("_", " ")
        return {"dry_run": True, "would": f"end the {words} of {node_id}, if it hangs, and start it again"}
    operation = await begin(request, console, cluster_id, node_id, asked, viewer, key)
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


def check(console: Console, cluster_id: str, node_id: str, asked: Restart) -> None:
    """Raises NotFound, TermMoved."""
    view = console.group_view(cluster_id)
    member_of(view, node_id)
    check_term(view, asked.if_term)


async def begin(
    request: Request, console: Console, cluster_id: str, node_id: str, asked: Restart, caller: Viewer, key: str | None
) -> Json:
    """The operation, new or the one of the same key. Raises NotFound, TermMoved."""
    fields = asked.model_dump(exclude_none=True, exclude={"dry_run"})
    note(request, f"clusters/{cluster_id}/nodes/{node_id}", after=fields)
    said = fingerprint(caller, KIND, {"cluster": cluster_id, "node": node_id, **fields})
    known = await console.operations_kept.earlier(caller.name, key, said)
    if known is not None:
        return known
    check(console, cluster_id, node_id, asked)
    _, url = console.control_url(cluster_id, node_id)
    operation, fresh = await console.operations_kept.open(
        cluster_id, KIND, caller.name, node_id=node_id, key=key, progress={"detail": f"asking {node_id}"},
        fingerprint=said,
    )  # fmt: skip
    if fresh:
        words = asked.what.replace("_", " ")
        console.remote_operations.start(operation["id"], url, KIND, {"what": asked.what}, f"the {words}")
    return operation
