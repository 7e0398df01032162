"""The page behind "Scrub and repair": what it does, what it costs, the button, and the same from a shell.

Invariants: the button stands only where the role allows it, and the gate asks again; the operation is followed on the
operation's own page.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from app.api.audits import runner_of
from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep
from app.api.nodes import Member
from app.api.repairs import Repair, begin, member_of
from app.console.cursors import INT64_MAX
from app.console.preflight import Commands
from app.health.facts import spelled_range
from app.health.group_view import GroupView, MemberView
from app.health.next_steps import TOKEN_HEADER

Json = dict[str, Any]
router = APIRouter(include_in_schema=False, dependencies=[OfALog])
From = Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)]
To = Annotated[int | None, Query(alias="to", ge=0, le=INT64_MAX)]
FormBound = Annotated[int | None, Form(ge=0, le=INT64_MAX)]
# Measured on two cores that had more to do: the JVM's start and reading Spark's files are most of it.
COLD_AUDIT_S: Final = 97
AUDITS_LOOKED_AT: Final = 20


@router.get("/clusters/{cluster_id}/nodes/{node_id}/repair")
async def repair_page(
    request: Request, cluster_id: ClusterId, node_id: Member, console: ConsoleDep, low: From = None, high: To = None
) -> Response:
    view = console.group_view(cluster_id)
    member = member_of(view, node_id)
    context: Mapping[str, object] = {
        "view": view,
        "cluster": view.cluster,
        "member": member,
        "faults": (member.state and member.state.faults) or (),
        "range": None if low is None or high is None else spelled_range(low, high),
        "low": low,
        "high": high,
        "audit_cost": await audit_cost(request, cluster_id),
        "commands": commands(request, view, member, low, high),
        "key": str(uuid.uuid4()),
    }
    answer: Response = request.app.state.templates.TemplateResponse(request, "repair.html", dict(context))
    return answer


async def audit_cost(request: Request, cluster_id: str) -> str:
    """How long an audit takes: as the last ones took here, else as one took elsewhere."""
    rows = await runner_of(request).kept.newest(cluster_id, AUDITS_LOOKED_AT)
    took = [seconds(row.created_at, row.finished_at) for row in rows if row.state == "done" and row.finished_at]
    cold = f"a cold one, the first since a machine started, took {COLD_AUDIT_S} s on two busy cores"
    if not took:
        return f"None has run here yet; {cold}."
    return f"The last one here took {took[0]:.0f} s, the slowest of {len(took)} took {max(took):.0f} s; {cold}."


def seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


def commands(request: Request, view: GroupView, member: MemberView, low: int | None, high: int | None) -> Commands:
    url = member.control_url or "CONTROL_URL"
    body = {name: value for name, value in (("from_index", low), ("to_index", high)) if value is not None}
    own = str(request.base_url).rstrip("/")
    path = f"{own}/api/v1/clusters/{view.cluster.id}/nodes/{member.id}/repair"
    return Commands(
        cli=f"quorumscope scrub --node {url}",
        curl=f"curl -X POST {path} -H 'Content-Type: application/json'{TOKEN_HEADER} -d '{json.dumps(body)}'",
    )


@router.post("/clusters/{cluster_id}/nodes/{node_id}/repair")
async def repair_from_form(
    request: Request,
    cluster_id: ClusterId,
    node_id: Member,
    console: ConsoleDep,
    viewer: ViewerDep,
    from_index: FormBound = None,
    to_index: FormBound = None,
    key: Annotated[str, Form(max_length=128)] = "",
) -> Response:
    asked = Repair(from_index=from_index, to_index=to_index)
    operation = await begin(request, console, cluster_id, node_id, asked, viewer, key or None)
    return RedirectResponse(f"/operations/{operation['id']}", status_code=303)
