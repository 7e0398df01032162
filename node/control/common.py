"""What the routers share: the parts of a control plane, and bounded parameters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from node.config import Settings
from node.control.engine_link import EngineLink
from node.control.log_files import LogFiles
from node.control.operations import Operations
from node.control.problems import Problem
from node.control.snapshots import Snapshots
from node.protocol.codes import ResponseCode

Json = dict[str, Any]
INT64_MAX = (1 << 63) - 1

Index = Annotated[int, Path(ge=0, le=INT64_MAX)]
From = Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)]
To = Annotated[int | None, Query(ge=0, le=INT64_MAX)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=128)]


@dataclass(slots=True)
class Parts:
    """One control plane."""

    settings: Settings
    link: EngineLink
    files: LogFiles
    bulk: LogFiles
    snapshots: Snapshots
    operations: Operations
    version: str
    stopping: asyncio.Event


async def parts_of(request: Request) -> Parts:  # async: FastAPI sends a plain function through a thread, each time
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]


def leader_of(state: Json) -> Json:
    """Where a misdirected call should go, as far as this node knows."""
    leader_id = state.get("leader_id")
    found = next((one for one in state.get("peers") or [] if one["id"] == leader_id), None) or {}
    return {
        "leader_id": leader_id,
        "leader_address": found.get("address"),
        "leader_api_url": found.get("control_url"),
    }


def not_leader(state: Json, **extra: Any) -> Problem:
    """421 where a leader is known; 503 to try again while there is none."""
    where = leader_of(state)
    code = int(ResponseCode.NOT_LEADER)
    if where["leader_id"] is None:
        text = "There is no leader at the moment; try again."
        return Problem(503, "No leader", text, headers={"retry-after": "1"}, code=code, **extra)
    text = f"{where['leader_id']} leads; send this to it."
    return Problem(421, "Not the leader", text, code=code, **where, **extra)
