"""The groups that the console watches, their views and their history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from app.api.addresses import NodeToken
from app.api.cluster_models import ClusterList, ClusterSummary, GroupProblems, History, Problems, StoredEvents
from app.api.common import (
    ClusterId,
    ConsoleDep,
    Cursor,
    Json,
    Limit,
    NameCursor,
    RowCursor,
    SightDep,
    Time,
    ViewerDep,
    note,
    paged,
    time_or_none,
)
from app.api.models import PRINTABLE
from app.console.addresses import normal_control_url
from app.console.errors import ConsoleError
from app.health.group_view import GroupView
from node.openapi_statuses import says
from node.views.request_body import RequestBody

router = APIRouter(tags=["clusters"])


class NewCluster(RequestBody):
    """The control plane of any member; it names the others. Where a token is in force, the addresses of those wait
    for an approval (`clusters/{id}/addresses`)."""

    control_url: Annotated[str, Field(min_length=1, max_length=512)]
    name: Annotated[str | None, Field(min_length=1, max_length=128, pattern=PRINTABLE)] = None
    node_token: NodeToken | None = None


class ClusterPatch(RequestBody):
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]


SHOWN = ("as_of", "severity", "sentence", "leader_id", "term", "flush", "quorum", "quorum_index", "leader_end_index")
MEMBER_SHOWN = {"id", "address", "control_url", "role", "reach"}


def summary(view: GroupView) -> Json:
    fields = view.model_dump(mode="json", include=set(SHOWN))
    members = [one.model_dump(mode="json", include=MEMBER_SHOWN) for one in view.members]
    problems = len([one for one in view.problems if one.severity != "info"])
    return {
        **view.cluster.to_json(), **{name: fields[name] for name in SHOWN}, "problems": problems, "members": members,
    }  # fmt: skip


@router.get("/clusters", responses=says(ClusterList))
async def list_clusters(console: ConsoleDep, sight: SightDep, limit: Limit = 1000, cursor: Cursor = None) -> Json:
    """The groups that the caller has a right to see."""
    seeds = (
        []
        if not sight.everything
        else [{"field": f"seed {url}", "reason": why, "since": None} for url, why in console.seed_problems.items()]
    )
    seen = [summary(view) for view in console.clusters(sight)]
    return paged(seen, lambda one: str(one["id"]), limit, cursor, unknown=seeds)


@router.post("/clusters", status_code=201, responses=says(ClusterSummary, 201))
async def add_cluster(
    body: NewCluster, request: Request, console: ConsoleDep, viewer: ViewerDep, response: Response
) -> Json:
    view = await add_noted(request, console, viewer, body.control_url, body.name, body.node_token)
    response.headers["location"] = f"/api/v1/clusters/{view.cluster.id}"
    return summary(view)


async def add_noted(
    request: Request, console: ConsoleDep, viewer: ViewerDep, control_url: str, name: str | None, token: str | None
) -> GroupView:
    """The trail says which address was asked, also where nothing came of it."""
    after = {"control_url": normal_control_url(control_url), "node_token": "given" if token else "none"}
    note(request, "clusters", after=after)
    view = await console.add_cluster(control_url, name, by=viewer.name, token=token)
    note(request, f"clusters/{view.cluster.id}", after={**after, "name": view.cluster.name})
    return view


@router.get("/clusters/{cluster_id}", responses=says(ClusterSummary))
async def one_cluster(cluster_id: ClusterId, console: ConsoleDep) -> Json:
    return summary(console.group_view(cluster_id))


@router.patch("/clusters/{cluster_id}", responses=says(ClusterSummary))
async def rename_cluster(cluster_id: ClusterId, body: ClusterPatch, request: Request, console: ConsoleDep) -> Json:
    before = {"name": console.group_view(cluster_id).cluster.name}
    note(request, f"clusters/{cluster_id}", before=before, after={"name": body.name})
    return summary(await console.rename_cluster(cluster_id, body.name))


@router.delete("/clusters/{cluster_id}", status_code=204)
async def remove_cluster(cluster_id: ClusterId, request: Request, console: ConsoleDep) -> None:
    known = console.group_view(cluster_id)
    members = {one.id: one.control_url for one in known.members}
    note(request, f"clusters/{cluster_id}", before={"name": known.cluster.name, "members": members})
    await console.remove_cluster(cluster_id)


@router.get("/clusters/{cluster_id}/view", response_model=GroupView)
async def view(cluster_id: ClusterId, console: ConsoleDep, at: Time = None) -> Response:
    """The GroupView that the page draws; with `at`, as it was then."""
    moment = time_or_none(at, "at")
    shown = console.group_view(cluster_id) if moment is None else await console.view_at(cluster_id, moment)
    return Response(shown.to_bytes(), media_type="application/json")


@router.get("/clusters/{cluster_id}/history", responses=says(History))
async def history(
    cluster_id: ClusterId,
    console: ConsoleDep,
    since: Time = None,
    until: Time = None,
    points: Annotated[int, Query(ge=2, le=5000)] = 600,
) -> Json:
    """Every replica over time; each point is the worst of its bucket, and `note` says so."""
    return await console.history(cluster_id, time_or_none(since, "since"), time_or_none(until, "until"), points)


@router.get("/clusters/{cluster_id}/problems", responses=says(GroupProblems))
async def cluster_problems(
    cluster_id: ClusterId, console: ConsoleDep, limit: Limit = 1000, cursor: NameCursor = None
) -> Json:
    return paged(console.problems(cluster_id), name_of, limit, cursor)


def no_stream(request: Request) -> None:
    """Raises ConsoleError for whoever takes a stream only: what is kept here is read page by page."""
    wanted = request.headers.get("accept", "").lower()
    if "text/event-stream" in wanted and not any(one in wanted for one in ("json", "*/*", "application/*")):
        raise ConsoleError(
            "The console keeps events and does not stream them.", status=406, title="Not acceptable",
            action="Ask for application/json, page by page; a member's own `GET /api/v1/events` streams.",
        )  # fmt: skip


@router.get("/clusters/{cluster_id}/events", responses=says(StoredEvents), dependencies=[Depends(no_stream)])
async def cluster_events(
    cluster_id: ClusterId, console: ConsoleDep, limit: Limit = 100, cursor: RowCursor = None
) -> Json:
    return await console.events(cluster_id, limit, cursor)


@router.get("/problems", responses=says(Problems))
async def problems(console: ConsoleDep, sight: SightDep, limit: Limit = 1000, cursor: NameCursor = None) -> Json:
    """The problems of all groups that the caller sees; `console`: the console's own, for callers who see everything."""
    own = [one.to_json() for one in console.own_problems()] if sight.everything else []
    return paged(console.problems(sight=sight), name_of, limit, cursor, console=own)


def name_of(problem: Json) -> str:
    return f"{problem['cluster_id']}/{problem['id']}"


@router.get("/events", responses=says(StoredEvents), dependencies=[Depends(no_stream)])
async def events(console: ConsoleDep, sight: SightDep, limit: Limit = 100, cursor: RowCursor = None) -> Json:
    return await console.events(None, limit, cursor, sight)
