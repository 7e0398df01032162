"""Schedules of audits over REST: which group is audited by itself, how deeply, and every how many seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Query, Request, Response
from pydantic import BaseModel, Field

from app.api.audits import Depth, cluster_view
from app.api.common import ConsoleDep, Json, Limit, RowCursor, RowId, SightDep, ViewerDep, need, note, time_or_none
from app.api.models import Page
from app.console.console import Console
from app.console.cursors import before_id
from app.console.errors import Conflict, Invalid, NotFound
from app.console.schedules import start_what_is_due
from app.db.schedules import ScheduleRow, Schedules, as_json
from app.health.group_view import GroupView
from app.security.roles import Right, Viewer
from app.times import utc_now
from node.openapi_statuses import says
from node.views.request_body import RequestBody

router = APIRouter(tags=["audits"])
SCHEDULES_MAX: Final = 200
EVERY_S_MIN: Final = 600
EVERY_S_MAX: Final = 31 * 86_400
AHEAD_MAX: Final = timedelta(days=366)


class Schedule(BaseModel):
    """`next_at`: when it is due next. `last_at`: when it was due last; `last_audit_id`: the newest audit that it
    started; `skipped`: why the last time none was."""

    id: int
    cluster_id: str
    depth: Depth
    every_s: int
    next_at: str
    created_by: str
    created_at: str
    last_at: str | None
    last_audit_id: str | None
    skipped: str | None


class NewSchedule(RequestBody):
    """`cluster` is the id or the name of a group that this console watches. `first_at` absent: one period from now."""

    cluster: Annotated[str, Field(min_length=1, max_length=128)]
    depth: Depth = "bytes"
    every_s: Annotated[int, Field(ge=EVERY_S_MIN, le=EVERY_S_MAX)]
    first_at: Annotated[str | None, Field(max_length=40, description="RFC 3339")] = None


async def start(app: FastAPI) -> None:
    console: Console = app.state.console
    kept = app.state.schedules = Schedules(app.state.sessions)
    console.background.keep(
        "starting scheduled audits", partial(start_what_is_due, console, app.state.audit_runner, kept)
    )


async def stop(app: FastAPI) -> None:
    """Its loop ends with the console's others."""


def schedules_of(request: Request) -> Schedules:
    kept: Schedules = request.app.state.schedules
    return kept


async def add_schedule(request: Request, view: GroupView, depth: str, every_s: int, first_at: datetime | None) -> Json:
    """In the name of the request's viewer. Raises Invalid, Conflict."""
    viewer: Viewer = request.state.viewer
    now = utc_now()
    if view.is_pair and depth != "bytes":
        raise Invalid("a classic pair is audited as a whole: depth is bytes")
    if first_at is not None and not now <= first_at <= now + AHEAD_MAX:
        raise Invalid("first_at: a time from now on, within a year")
    row = ScheduleRow(
        cluster_id=view.cluster.id, depth=depth, every_s=every_s, created_by=viewer.name, created_at=now,
        next_at=first_at or now + timedelta(seconds=every_s), last_at=None, last_audit_id=None, skipped=None,
    )  # fmt: skip
    added = await schedules_of(request).add(row, SCHEDULES_MAX)
    if added is None:
        raise Conflict(f"There are {SCHEDULES_MAX} schedules already; remove one first.")
    note(request, f"schedules/{added.id}", after=as_json(added))
    return as_json(added)


async def schedule_or_404(request: Request, schedule_id: int) -> ScheduleRow:
    """Unknown, too, where it is of a group that the caller does not see. Raises NotFound."""
    found = await schedules_of(request).get(schedule_id)
    if found is None or not request.state.viewer.sight.sees(found.cluster_id):
        raise NotFound(f"There is no schedule {schedule_id}.", title="Unknown schedule")
    return found


async def drop_schedule(request: Request, row: ScheduleRow) -> None:
    need(request.state.viewer, Right.OPERATE, row.cluster_id)
    note(request, f"schedules/{row.id}", before=as_json(row))
    await schedules_of(request).remove(row.id)


@router.get("/schedules", responses=says(Page[Schedule]))
async def list_schedules(
    request: Request,
    sight: SightDep,
    limit: Limit = 100,
    cursor: RowCursor = None,
    cluster: Annotated[str | None, Query(max_length=64)] = None,
) -> Json:
    """Schedules, newest first."""
    rows = await schedules_of(request).newest(cluster, limit + 1, before_id(cursor), sight)
    return {
        "items": [as_json(row) for row in rows[:limit]],
        "next": str(rows[limit - 1].id) if len(rows) > limit else None,
    }


@router.post("/schedules", status_code=201, responses=says(Schedule, 201))
async def new_schedule(
    request: Request, response: Response, body: NewSchedule, console: ConsoleDep, viewer: ViewerDep
) -> Json:
    """From now on the console audits a group every so often."""
    view = cluster_view(console, body.cluster, viewer)
    made = await add_schedule(request, view, body.depth, body.every_s, time_or_none(body.first_at, "first_at"))
    response.headers["location"] = f"/api/v1/schedules/{made['id']}"
    return made


@router.get("/schedules/{schedule_id}", responses=says(Schedule))
async def get_schedule(request: Request, schedule_id: RowId) -> Json:
    return as_json(await schedule_or_404(request, schedule_id))


@router.delete("/schedules/{schedule_id}", status_code=204)
async def remove_schedule(request: Request, schedule_id: RowId) -> None:
    """Audits that it has started go on."""
    await drop_schedule(request, await schedule_or_404(request, schedule_id))
