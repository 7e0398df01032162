"""Snapshots of a state machine on request: `POST /api/v1/snapshots`, where the group has one."""

from __future__ import annotations

from fastapi import APIRouter, Response

from node.control.common import Json, Parts, PartsDep
from node.control.leadership import STARTED, Key
from node.control.repair import Asked, start
from node.protocol.codes import RequestCode, ResponseCode

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
SAVE_S = 3600.0  # a state of many gigabytes on a slow disk


@router.post("/snapshots", status_code=202, responses=STARTED)
async def snapshots(parts: PartsDep, response: Response, body: Asked | None = None, key: Key = None) -> Json:
    """Save this member's state machine now; `outcome` names the last entry that the newest snapshot stands for."""
    return await start(parts, response, body or Asked(), key, "snapshot", "save this member's state machine", save)


async def save(parts: Parts, _: Json) -> Json:
    """Raises EngineAway, EngineSilent, EngineRefused."""
    answer = await parts.link.json(RequestCode.OPERATOR_ACTION, {"what": "snapshot"}, SAVE_S)
    if answer.get("code") != ResponseCode.SUCCESS or answer.get("detail"):
        return {"state": "failed", "problem": {"title": "Not saved", "detail": str(answer.get("detail"))}}
    return {"state": "done", "progress": None, "outcome": {"last_included_index": answer.get("snapshotIndex")}}
