"""Who belongs to a group, and changes of it, over REST; the page "Members" is built from the same calls."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from app.api.common import ClusterId, ConsoleDep, Cursor, Json, Limit, NodeId, OfALog, ViewerDep, note
from app.api.models import OperationView
from app.api.node_models import NodeMembers
from app.api.nodes import Member
from app.console import proxy
from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.errors import Invalid
from app.console.member_changes import KIND, MemberChange, MemberPreflight, check_term, preflight, refused_change
from app.db.idempotency import fingerprint
from app.security.roles import Viewer
from node.openapi_statuses import says
from node.views.member_requests import Change, Moved, NewMember

router = APIRouter(prefix="/clusters/{cluster_id}/members", tags=["members"], dependencies=[OfALog])
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=128)]


class MembersDryRun(MemberPreflight):
    """What the change would mean; nothing was done."""

    dry_run: bool


STARTED: dict[int | str, dict[str, Any]] = says(OperationView, 202) | says(
    MembersDryRun, 200, "a dry run: what would follow"
)


@router.get("", responses=says(NodeMembers))
async def members(
    cluster_id: ClusterId, console: ConsoleDep, node: NodeId = None, limit: Limit = 1000, cursor: Cursor = None
) -> Json:
    """The configuration in effect at the leader, or at another member by its own log."""
    return await console.ask(cluster_id, "members", node_id=node, limit=limit, cursor=cursor)


@router.post("", status_code=202, responses=STARTED)
async def add(
    request: Request, response: Response, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
    body: NewMember, key: Key = None,
) -> Json:  # fmt: skip
    """Take in a new member, which was started with `--join`; with `replaces` in place of another one."""
    if body.learner and body.replaces:
        raise Invalid("`replaces` goes without `learner`: only a voter replaces one.")
    wanted = MemberChange("add", body.id, body.address, body.learner, body.replaces or None)
    return await answer(request, response, console, viewer, cluster_id, wanted, body, key)


@router.delete("/{member_id}", status_code=202, responses=STARTED)
async def remove(
    request: Request, response: Response, cluster_id: ClusterId, member_id: Member, console: ConsoleDep,
    viewer: ViewerDep, dry_run: bool = False, if_term: Annotated[int | None, Query(ge=0, le=INT64_MAX)] = None,
    key: Key = None,
) -> Json:  # fmt: skip
    """The member leaves; a leader that is removed hands over."""
    body = Change(if_term=if_term, dry_run=dry_run)
    return await answer(request, response, console, viewer, cluster_id, MemberChange("remove", member_id), body, key)


@router.post("/{member_id}/promotion", status_code=202, responses=STARTED)
async def promote(
    request: Request, response: Response, cluster_id: ClusterId, member_id: Member, console: ConsoleDep,
    viewer: ViewerDep, body: Change, key: Key = None,
) -> Json:  # fmt: skip
    """A learner becomes a voter; refused while it has not caught up."""
    return await answer(request, response, console, viewer, cluster_id, MemberChange("promote", member_id), body, key)


@router.put("/{member_id}/address", status_code=202, responses=STARTED)
async def move(
    request: Request, response: Response, cluster_id: ClusterId, member_id: Member, console: ConsoleDep,
    viewer: ViewerDep, body: Moved, key: Key = None,
) -> Json:  # fmt: skip
    """The same member, reached elsewhere."""
    wanted = MemberChange("address", member_id, body.address)
    return await answer(request, response, console, viewer, cluster_id, wanted, body, key)


async def answer(
    request: Request, response: Response, console: Console, viewer: Viewer, cluster_id: str, wanted: MemberChange,
    body: Change, key: str | None,
) -> Json:  # fmt: skip
    if body.dry_run:
        response.status_code = 200
        found = await preflight(console.nodes, console.group_view(cluster_id), wanted, body.if_term)
        return {"dry_run": True, **found.to_json()}
    operation = await begin(request, console, viewer, cluster_id, wanted, body.if_term, key)
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


async def begin(
    request: Request, console: Console, caller: Viewer, cluster_id: str, wanted: MemberChange, if_term: int | None,
    key: str | None,
) -> Json:  # fmt: skip
    """The operation, new or the one of the same key. Raises TermMoved, Conflict."""
    asked: Json = {**wanted._asdict(), "if_term": if_term}
    note(request, f"clusters/{cluster_id}/members/{wanted.member_id}", after=asked)
    view = console.group_view(cluster_id)
    said = fingerprint(caller, KIND, {"cluster": cluster_id, **asked})
    # First of all: the group has changed by what the first call did.
    known = await console.operations_kept.earlier(caller.name, key, said)
    if known is not None:
        note(request, f"clusters/{cluster_id}/members/{wanted.member_id}", after={**asked, "operation": known["id"]})
        return known
    check_term(view, if_term)
    checked = await preflight(console.nodes, view, wanted, if_term)
    if not checked.allowed:
        raise refused_change(checked)
    leader_id, url = proxy.pick(view, view.leader_id)
    operation, fresh = await console.operations_kept.open(
        cluster_id, KIND, caller.name, node_id=leader_id, key=key, progress={"detail": wanted.words}, fingerprint=said
    )
    note(request, f"clusters/{cluster_id}/members/{wanted.member_id}", after={**asked, "operation": operation["id"]})
    if fresh:
        console.member_changes.start(operation["id"], url, wanted, checked.if_term)
    return operation
