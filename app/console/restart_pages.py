"""The page behind "Start again": what is ended, what it costs, the button, and the same from a shell.

Invariants: the button stands only where the role allows it, and the gate asks again; the operation is followed on the
operation's own page.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep
from app.api.nodes import Member
from app.api.repairs import member_of
from app.api.restarts import Restart, What, begin
from app.console.drawing import page, see
from app.console.preflight import Commands
from app.health.group_view import GroupView, MemberView
from app.health.next_steps import TOKEN_HEADER

router = APIRouter(include_in_schema=False, dependencies=[OfALog])


@router.get("/clusters/{cluster_id}/nodes/{node_id}/restart")
async def restart_page(
    request: Request,
    cluster_id: ClusterId,
    node_id: Member,
    console: ConsoleDep,
    what: Annotated[What, Query()] = "engine",
) -> Response:
    view = console.group_view(cluster_id)
    member = member_of(view, node_id)
    context: Mapping[str, object] = {
        "view": view,
        "cluster": view.cluster,
        "member": member,
        "what": what,
        "commands": commands(request, view, member, what),
        "key": str(uuid.uuid4()),
    }
    return page(request, "restart", context)


def commands(request: Request, view: GroupView, member: MemberView, what: What) -> Commands:
    own = str(request.base_url).rstrip("/")
    path = f"{own}/api/v1/clusters/{view.cluster.id}/nodes/{member.id}/restart"
    machine = " --state-machine" if what == "state_machine" else ""
    body = json.dumps({"what": what})
    return Commands(
        cli=f"quorumscope restart{machine} --node {member.control_url or 'CONTROL_URL'}",
        curl=f"curl -X POST {path} -H 'Content-Type: application/json'{TOKEN_HEADER} -d '{body}'",
    )


@router.post("/clusters/{cluster_id}/nodes/{node_id}/restart")
async def restart_from_form(
    request: Request,
    cluster_id: ClusterId,
    node_id: Member,
    console: ConsoleDep,
    viewer: ViewerDep,
    what: Annotated[What, Form()] = "engine",
    key: Annotated[str, Form(max_length=128)] = "",
) -> Response:
    operation = await begin(request, console, cluster_id, node_id, Restart(what=what), viewer, key or None)
    return see(f"/operations/{operation['id']}")
