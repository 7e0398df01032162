"""What all routers share: bounded parameters, the console of a request, and lists with a cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from app.console.console import Console
from app.console.cursors import INT64_MAX
from app.console.errors import Forbidden, Invalid, NoReplicatedLog, UnknownCluster
from app.db.engine import Sessions
from app.security.roles import Right, Sight, Viewer
from app.times import parse_time
from node.paging import page

Json = dict[str, Any]

ClusterId = Annotated[str, Path(max_length=64)]
NodeId = Annotated[str | None, Query(max_length=64, description="a member; the leader when absent")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=128)]
NameCursor = Annotated[str | None, Query(max_length=512)]  # of lists whose items are called by what people wrote
RowCursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$")]  # of lists in the order of their rows
Index = Annotated[int, Path(ge=0, le=INT64_MAX)]
From = Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)]
IndexCursor = Annotated[int | None, Query(ge=0, le=INT64_MAX, description="`next` of the answer before this one")]
RFC3339 = {"format": "date-time"}
Time = Annotated[str | None, Query(max_length=40, description="RFC 3339", json_schema_extra=RFC3339)]
RowId = Annotated[int, Path(ge=1, le=INT64_MAX)]


def begin_at(from_: From = None, cursor: IndexCursor = None) -> int | None:
    """Where a list of entries begins: whoever follows `next` names what it named before, and the cursor."""
    return from_ if cursor is None else cursor


Begin = Annotated[int | None, Depends(begin_at)]


def console_of(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def viewer_of(request: Request) -> Viewer:
    viewer: Viewer = request.state.viewer
    return viewer


def sight_of(request: Request) -> Sight:
    return viewer_of(request).sight


def need(viewer: Viewer, right: Right, cluster_id: str) -> None:
    """For calls whose path names no group: the right on this one, which is unknown to whoever may not see it.

    Raises Forbidden, UnknownCluster.
    """
    if not viewer.can(Right.VIEW, cluster_id):
        raise UnknownCluster(cluster_id)
    if not viewer.can(right, cluster_id):
        role = viewer.role_on(cluster_id)
        raise Forbidden(f"This needs the right `{right}` on {cluster_id}; {role}s do not have it.")


def replicated_log(cluster_id: ClusterId, console: Annotated[Console, Depends(console_of)]) -> None:
    """For what a classic pair does not have. Raises UnknownCluster, NoReplicatedLog."""
    if console.group_view(cluster_id).is_pair:
        raise NoReplicatedLog(cluster_id)


ConsoleDep = Annotated[Console, Depends(console_of)]
SessionsDep = Annotated[Sessions, Depends(sessions_of)]
ViewerDep = Annotated[Viewer, Depends(viewer_of)]
SightDep = Annotated[Sight, Depends(sight_of)]
OfALog = Depends(replicated_log)


def time_or_none(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        return parse_time(text.replace(" ", "+"))  # a plus that somebody forgot to encode
    except ValueError as error:
        raise Invalid(f"{name}: {error}") from None


def note(request: Request, target: str, *, before: Any = None, after: Any = None) -> None:
    """What the trail says of this change: what it was done to, and how that was before and is after."""
    said = {"target": target, "before": before, "after": after}
    request.state.trail_detail = {name: value for name, value in said.items() if value is not None}


def paged(items: Sequence[Json], name: Callable[[Json], str], limit: int, cursor: str | None, **beside: Any) -> Json:
    """A page of a list that is whole in memory; `name`: what an item is called in a cursor. Raises Invalid."""
    try:
        shown, then = page(items, name, limit, cursor)
    except ValueError as error:
        raise Invalid(str(error)) from None
    return {"items": list(shown), "next": then, **beside}


def page_of(items: list[Json], limit: int, key: str = "id") -> Json:
    """`items` was asked for with one more than `limit`."""
    shown = items[:limit]
    return {"items": shown, "next": str(shown[-1][key]) if len(items) > limit else None}
