"""The forms on a group's audits page that have it audited every so often, and end that.

Pages and the REST API call the same functions. Times of day are UTC, as everywhere in the console.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from app.api.common import ClusterId, RowId
from app.api.schedules import add_schedule, drop_schedule, schedule_or_404
from app.audit.result import DEPTHS
from app.console.audit_pages import cluster_page
from app.console.drawing import see
from app.console.errors import ConsoleError, Invalid, NotFound
from app.console.schedules import PERIODS
from app.times import utc_now

router = APIRouter(include_in_schema=False)
TIME: Final = "%H:%M"


@router.post("/clusters/{cluster_id}/audits/schedules")
async def add_from_form(
    request: Request,
    cluster_id: ClusterId,
    depth: Annotated[str, Form(max_length=16)] = "bytes",
    every: Annotated[str, Form(max_length=16)] = "day",
    at: Annotated[str, Form(max_length=16)] = "",
) -> Response:
    """A wrong field comes back in the form, filled in as it was."""
    view = request.app.state.console.group_view(cluster_id)
    try:
        if depth not in DEPTHS:
            raise Invalid(f"depth is one of {', '.join(DEPTHS)}")
        if every not in PERIODS:
            raise Invalid(f"every is one of {', '.join(PERIODS)}")
        await add_schedule(request, view, depth, PERIODS[every], next_time(at, PERIODS[every], utc_now()))
    except ConsoleError as error:
        form = {"depth": depth, "every": every, "at": at, "error": error.detail}
        return await cluster_page(request, view, scheduled=form, status=error.status)
    return see(f"/clusters/{cluster_id}/audits#schedules")


@router.post("/clusters/{cluster_id}/audits/schedules/{schedule_id}/remove")
async def remove_from_form(request: Request, cluster_id: ClusterId, schedule_id: RowId) -> Response:
    row = await schedule_or_404(request, schedule_id)
    if row.cluster_id != cluster_id:
        raise NotFound(f"There is no schedule {schedule_id} of this group.", title="Unknown schedule")
    await drop_schedule(request, row)
    return see(f"/clusters/{cluster_id}/audits#schedules")


def next_time(at: str, every_s: int, now: datetime) -> datetime | None:
    """The next time of that UTC time of day; None for none: one period from now. Raises Invalid."""
    if not at.strip():
        return None
    try:
        said = datetime.strptime(at.strip(), TIME)
    except ValueError:
        raise Invalid(f"at: {at!r} is no time of day like 03:30") from None
    found = now.replace(hour=said.hour, minute=said.minute, second=0, microsecond=0)
    while found <= now:
        found += timedelta(seconds=min(every_s, 86_400))
    return found
