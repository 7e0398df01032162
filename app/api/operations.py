"""Operations over REST: what operators asked of the groups, and the state of each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from app.api.common import ConsoleDep, Cursor, Json, Limit, page_of, time_or_none
from app.api.models import OperationView, Page

router = APIRouter(tags=["operations"])
OperationId = Annotated[str, Path(max_length=36)]


@router.get("/operations", response_model=Page[OperationView])
async def operations(
    console: ConsoleDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    cluster: Annotated[str | None, Query(max_length=64)] = None,
) -> Json:
    before = time_or_none(cursor, "cursor")
    return page_of(await console.operations_kept.list(cluster, limit + 1, before), limit, "created_at")


@router.get("/operations/{operation_id}", response_model=OperationView)
async def operation(operation_id: OperationId, console: ConsoleDep) -> Json:
    return await console.operation(operation_id)


@router.delete("/operations/{operation_id}", status_code=202, response_model=OperationView)
async def cancel(operation_id: OperationId, console: ConsoleDep) -> Json:
    return await console.cancel(operation_id)
