"""Audits over REST: start, follow, read findings, cancel. Their pages are built from the same calls."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import Field

from app.api.cluster_models import Audit, AuditDryRun, AuditFinding
from app.api.common import ConsoleDep, Json, Limit, RowCursor, SightDep, ViewerDep, need, note
from app.api.models import Page
from app.audit.replicas import ReplicaSpec
from app.audit.runner import AuditRunner
from app.console.console import Console
from app.console.cursors import INT64_MAX, before_id
from app.console.errors import Conflict, Invalid, NotFound
from app.db.audits import as_json
from app.db.idempotency import fingerprint
from app.health.group_view import GroupView
from app.security.roles import Right, Viewer
from node.openapi_statuses import says
from node.views.request_body import RequestBody

router = APIRouter(tags=["audits"])
AuditId = Annotated[str, Path(max_length=36)]
Depth = Literal["chain", "digest", "bytes"]
Bound = Annotated[int | None, Field(ge=0, le=INT64_MAX)]


class NewAudit(RequestBody):
    """What to audit; `cluster` is the id or the name of a group that this console watches."""

    cluster: Annotated[str, Field(min_length=1, max_length=128)]
    depth: Depth = "bytes"
    from_index: Bound = None
    to_index: Bound = None
    dry_run: bool = False


def runner_of(request: Request) -> AuditRunner:
    runner: AuditRunner = request.app.state.audit_runner
    return runner


def cluster_view(console: Console, cluster: str, viewer: Viewer) -> GroupView:
    """By id, otherwise by name; raises where the viewer does not see it, or may not have it audited."""
    named = [view for view in console.clusters(viewer.sight) if cluster in (view.cluster.id, view.cluster.name)]
    by_id = [view for view in named if view.cluster.id == cluster]
    if not named:
        raise NotFound(f"No group is called {cluster!r} here.", title="Unknown cluster")
    if not by_id and len(named) > 1:
        raise Conflict(f"{len(named)} groups are called {cluster!r}; name one by its id.")
    found = (by_id or named)[0]
    need(viewer, Right.OPERATE, found.cluster.id)
    return found


def replicas_of(console: Console, view: GroupView) -> list[ReplicaSpec]:
    """Every member is audited; one whose control plane is unknown is named to the job all the same, as unreadable."""
    settings = console.settings
    ca_file = str(settings.node_ca_file) if settings.node_ca_file is not None else None
    return [
        ReplicaSpec("http", url, member.id, console.addresses.token_for(url) if url else None, ca_file)
        for member in view.members
        for url in [member.control_url or ""]
    ]


def check_asked(view: GroupView, depth: str, from_index: int | None, to_index: int | None) -> None:
    """Raises Invalid."""
    if view.is_pair and (depth != "bytes" or from_index is not None or to_index is not None):
        raise Invalid("a classic pair is audited as a whole: depth is bytes, from_index and to_index are left out")
    if from_index is not None and to_index is not None and from_index > to_index:
        raise Invalid(f"from_index {from_index} lies behind to_index {to_index}")


async def start_audit(
    request: Request,
    view: GroupView,
    *,
    depth: str,
    from_index: int | None,
    to_index: int | None,
    idempotency_key: str | None = None,
) -> Json:
    """Starts an audit of a whole group in the name of the request's viewer. Raises Invalid."""
    check_asked(view, depth, from_index, to_index)
    asked = {"cluster": view.cluster.id, "depth": depth, "from_index": from_index, "to_index": to_index}
    note(request, f"clusters/{view.cluster.id}/audits", after=asked)
    audit = await runner_of(request).launch(
        cluster_id=view.cluster.id,
        cluster_name=view.cluster.name,
        replicas=replicas_of(request.app.state.console, view),
        depth=depth,
        from_index=from_index,
        to_index=to_index,
        requested_by=request.state.viewer.name,
        ha=view.is_pair,
        idempotency_key=idempotency_key,
        fingerprint=fingerprint(request.state.viewer, "audit", asked),
    )
    note(request, f"audits/{audit['id']}", after=asked)
    return audit


@router.post(
    "/audits",
    status_code=202,
    responses=says(Audit, 202) | says(AuditDryRun, 200, "a dry run: what it would do"),
)
async def start_one(
    request: Request,
    response: Response,
    body: NewAudit,
    console: ConsoleDep,
    viewer: ViewerDep,
    idempotency_key: Annotated[str | None, Header(max_length=128)] = None,
) -> Json:
    """Starts an audit of a group; follow it at `audits/{id}`."""
    view = cluster_view(console, body.cluster, viewer)
    check_asked(view, body.depth, body.from_index, body.to_index)
    if body.dry_run:
        replicas = [{"id": one.id, "source": one.public} for one in replicas_of(console, view)]
        response.status_code = 200
        return {"dry_run": True, "cluster_id": view.cluster.id, "depth": body.depth, "replicas": replicas}
    if idempotency_key is not None and not re.fullmatch(r"[\x21-\x7e]+", idempotency_key):
        raise Invalid("Idempotency-Key must be printable ASCII without spaces")
    audit = await start_audit(
        request, view, depth=body.depth, from_index=body.from_index, to_index=body.to_index,
        idempotency_key=idempotency_key,
    )  # fmt: skip
    response.headers["location"] = f"/api/v1/audits/{audit['id']}"
    return audit


@router.get("/audits", responses=says(Page[Audit]))
async def list_audits(
    request: Request,
    sight: SightDep,
    limit: Limit = 50,
    cursor: RowCursor = None,
    cluster: Annotated[str | None, Query(max_length=64)] = None,
) -> Json:
    """Audits, newest first."""
    rows = await runner_of(request).kept.newest(cluster, limit + 1, before_id(cursor), sight)
    return {
        "items": [as_json(row) for row in rows[:limit]],
        "next": str(rows[limit - 1].number) if len(rows) > limit else None,
    }


async def audit_or_404(request: Request, audit_id: str) -> Json:
    """Unknown, too, where it is of a group that the caller does not see. Raises NotFound."""
    found = await runner_of(request).get(audit_id)
    if found is None or not request.state.viewer.sight.sees(found["cluster_id"]):
        raise NotFound(f"There is no audit {audit_id}.", title="Unknown audit")
    return found


@router.get("/audits/{audit_id}", responses=says(Audit))
async def get_audit(request: Request, audit_id: AuditId) -> Json:
    return await audit_or_404(request, audit_id)


@router.get("/audits/{audit_id}/findings", responses=says(Page[AuditFinding]))
async def get_findings(
    request: Request,
    audit_id: AuditId,
    limit: Limit = 100,
    cursor: RowCursor = None,
    severity: Literal["critical", "warning", "info"] | None = None,
) -> Json:
    """An audit's findings in the order of its result: worst first, then by index."""
    await audit_or_404(request, audit_id)
    items, after = await runner_of(request).kept.findings(audit_id, limit, before_id(cursor), severity)
    return {"items": items, "next": None if after is None else str(after)}


@router.post("/audits/{audit_id}/cancel", status_code=202, responses=says(Audit, 202))
async def cancel_audit(request: Request, audit_id: AuditId) -> Json:
    """Asks an audit to end, whether or not it has started; a finished one stays as it is."""
    need(request.state.viewer, Right.OPERATE, (await audit_or_404(request, audit_id))["cluster_id"])
    found = await runner_of(request).cancel(audit_id)
    if found is None:
        raise NotFound(f"There is no audit {audit_id}.", title="Unknown audit")
    return found
