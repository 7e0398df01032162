"""The page behind "Scrub and repair": what it does, what it costs, the button, and the same from a shell.

Invariants: the button stands only where the role allows it, and the gate asks again; the operation is followed on the
operation's own page.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response

from app.api.audits import runner_of
from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep
from app.api.nodes import Member
from app.api.repairs import Repair, audit_cost, begin, member_of
from app.console.cursors import INT64_MAX
from app.console.drawing import page, see
from app.console.preflight import Commands
from app.health.facts import spelled_range
from app.health.group_view import GroupView, MemberView
from app.health.next_steps import TOKEN_HEADER

Json = dict[str, Any]
router = APIRouter(include_in_schema=False, dependencies=[OfALog])
From = Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)]
To = Annotated[int | None, Query(alias="to", ge=0, le=INT64_MAX)]
FormBound = Annotated[int | None, Form(ge=0, le=INT64_MAX)]


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
        "audit_cost": await audit_cost(runner_of(request).kept, cluster_id),
        "commands": commands(request, view, member, low, high),
        "key": str(uuid.uuid4()),
    }
    return page(request, "repair", context)


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
    return see(f"/operations/{operation['id']}")
