"""Operations over REST: what operators asked of the groups, and the state of each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.api.common import ConsoleDep, Cursor, Json, Limit, SightDep, ViewerDep, need, page_of
from app.api.models import OperationView, Page
from app.console.console import Console
from app.console.errors import Invalid
from app.security.roles import Right, Viewer

router = APIRouter(tags=["operations"])
OperationId = Annotated[str, Path(max_length=36)]


@router.get("/operations", response_model=Page[OperationView])
async def operations(
    console: ConsoleDep,
    sight: SightDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    cluster: Annotated[str | None, Query(max_length=64)] = None,
) -> Json:
    """Operations, newest first; a cursor is the id of the last one that the caller has."""
    if cursor is not None and await console.operations_kept.get(cursor) is None:
        raise Invalid(f"{cursor!r} is no cursor of this list")
    return page_of(await console.operations_kept.list(cluster, limit + 1, cursor, sight), limit)


@router.get("/operations/{operation_id}", response_model=OperationView)
async def operation(operation_id: OperationId, console: ConsoleDep, viewer: ViewerDep) -> Json:
    return await operation_for(console, viewer, operation_id)


async def operation_for(console: Console, viewer: Viewer, operation_id: str, right: Right = Right.VIEW) -> Json:
    """Unknown, where it is of a group that the caller does not see."""
    found = await console.operation(operation_id, viewer.sight)
    need(viewer, right, found["cluster_id"])
    return found


@router.delete("/operations/{operation_id}", status_code=202, response_model=OperationView)
async def cancel(operation_id: OperationId, console: ConsoleDep, viewer: ViewerDep) -> Json:
    await operation_for(console, viewer, operation_id, Right.OPERATE)
    return await console.cancel(operation_id)
