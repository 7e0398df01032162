"""Scrub and repair of one member over REST; its page is built from the same call."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from app.api.audits import replicas_of, runner_of
from app.api.cluster_models import WouldDo
from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep, note
from app.api.models import OperationView
from app.api.nodes import Member
from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.errors import Invalid, NotFound
from app.console.member_changes import check_term
from app.console.repairs import KIND, Work
from app.db.audits import Audits
from app.db.idempotency import fingerprint
from app.health.group_view import GroupView, MemberView
from app.security.roles import Viewer
from node.openapi_statuses import says
from node.views.request_body import RequestBody

Json = dict[str, Any]
router = APIRouter(prefix="/clusters/{cluster_id}/nodes/{node_id}", tags=["operator actions"], dependencies=[OfALog])
Bound = Annotated[int | None, Field(ge=0, le=INT64_MAX)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=128)]
# Measured on two cores that had more to do: the JVM's start and reading Spark's files are most of it.
COLD_AUDIT_S: Final = 97
AUDITS_LOOKED_AT: Final = 20


class Repair(RequestBody):
    """The entries that it is about, where they are known: they are audited again at the end. `if_term` refuses with 412
    when the term moved."""

    from_index: Bound = None
    to_index: Bound = None
    if_term: Bound = None
    dry_run: bool = False


def member_of(view: GroupView, node_id: str) -> MemberView:
    member = view.member(node_id)
    if member is None:
        raise NotFound(f"{node_id} is no member of this group.", title="Unknown node")
    return member


@router.post("/repair", status_code=202, responses=says(OperationView, 202) | says(WouldDo, 200, "a dry run"))
async def repair(
    request: Request,
    response: Response,
    cluster_id: ClusterId,
    node_id: Member,
    console: ConsoleDep,
    viewer: ViewerDep,
    body: Repair | None = None,
    key: Key = None,
) -> Json:
    """This member reads its whole log and repairs what is damaged; then that range is audited on all members."""
    asked = body or Repair()
    if asked.dry_run:
        check(console, cluster_id, node_id, asked)
        response.status_code = 200
        return {"dry_run": True, "would": f"have {node_id} read its whole log and repair it, then audit that range"}
    operation = await begin(request, console, cluster_id, node_id, asked, viewer, key)
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


async def audit_cost(kept: Audits, cluster_id: str) -> str:
    """How long an audit takes: as the last ones took here, else as one took elsewhere."""
    rows = await kept.newest(cluster_id, AUDITS_LOOKED_AT)
    took = [seconds(row.created_at, row.finished_at) for row in rows if row.state == "done" and row.finished_at]
    cold = f"a cold one, the first since a machine started, took {COLD_AUDIT_S} s on two busy cores"
    if not took:
        return f"None has run here yet; {cold}."
    return f"The last one here took {took[0]:.0f} s, the slowest of {len(took)} took {max(took):.0f} s; {cold}."


def seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


def check(console: Console, cluster_id: str, node_id: str, asked: Repair) -> GroupView:
    """The group as it is now. Raises Invalid, NotFound, TermMoved."""
    if asked.from_index is not None and asked.to_index is not None and asked.from_index > asked.to_index:
        raise Invalid(f"from_index {asked.from_index} lies behind to_index {asked.to_index}")
    view = console.group_view(cluster_id)
    member_of(view, node_id)
    check_term(view, asked.if_term)
    return view


async def begin(
    request: Request, console: Console, cluster_id: str, node_id: str, asked: Repair, caller: Viewer, key: str | None
) -> Json:
    """The operation, new or the one of the same key. Raises Invalid, NotFound, TermMoved."""
    range_ = asked.model_dump(exclude={"dry_run"})
    note(
        request,
        f"clusters/{cluster_id}/nodes/{node_id}",
        after=asked.model_dump(exclude_none=True, exclude={"dry_run"}),
    )
    by, said = caller.name, fingerprint(caller, KIND, {"cluster": cluster_id, "node": node_id, **range_})
    known = await console.operations_kept.earlier(by, key, said)
    if known is not None:
        return known
    view = check(console, cluster_id, node_id, asked)
    _, url = console.control_url(cluster_id, node_id)
    runner = runner_of(request)
    cost = await audit_cost(runner.kept, cluster_id)  # before: what fails behind it leaves one that nobody follows
    operation, fresh = await console.operations_kept.open(
        cluster_id, KIND, by, node_id=node_id, key=key, progress={"detail": f"asking {node_id}"}, fingerprint=said
    )
    if fresh:

        async def launch(low: int | None, high: int | None) -> Json:
            return await runner.launch(
                cluster_id=cluster_id, cluster_name=view.cluster.name, replicas=replicas_of(console, view),
                depth="bytes", from_index=low, to_index=high, requested_by=by,
            )  # fmt: skip

        console.repairs.start(
            Work(operation["id"], node_id, url, asked.from_index, asked.to_index, launch, runner.get, cost)
        )
    return operation
