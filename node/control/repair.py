"""What a person may ask of one node's own log: a scrub of all of it, and another try at repairing what is damaged.

Both are operations of the node that is asked, leader or not; a scrub has no deadline but its own end, and a repair is
followed for `FOLLOWED_S`: what is not healed by then goes on by itself, and the operation says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from node.control.common import INT64_MAX, Json, Parts, PartsDep
from node.control.engine_link import EngineAway, EngineRefused, EngineSilent
from node.control.leadership import Key
from node.control.operations import unknown
from node.control.problems import Problem
from node.protocol.codes import RequestCode, ResponseCode

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
LOOK_S = 0.25
ASK_S = 5.0
FOLLOWED_S = 60.0


class Asked(BaseModel):
    """Nothing needs to be said."""

    model_config = ConfigDict(extra="forbid")
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/scrub", status_code=202)
async def scrub(parts: PartsDep, response: Response, body: Asked | None = None, key: Key = None) -> Json:
    """Read the whole log of this node once, at once, and verify it; what is damaged is then repaired by itself."""
    return await start(parts, response, body or Asked(), key, "scrub", "read this node's whole log once", follow_scrub)


@router.post("/repairs", status_code=202)
async def repairs(parts: PartsDep, response: Response, body: Asked | None = None, key: Key = None) -> Json:
    """Try again, now, to repair what is damaged in this node's log: every peer is asked anew."""
    return await start(parts, response, body or Asked(), key, "repair", "ask every peer for what is damaged", follow)


async def start(
    parts: Parts,
    response: Response,
    body: Asked,
    key: str | None,
    kind: str,
    would: str,
    work: Callable[[Parts, Json], Awaitable[Json]],
) -> Json:
    """One operation; the same Idempotency-Key finds the one that it started."""
    known = parts.operations.by_key.get(key or "")
    if known is not None and not body.dry_run:
        return parts.operations.get(known)
    state = await parts.snapshots.get("state")
    if state["engine"] != "ok":
        text = f"The engine is {state['engine']}: {state.get('engine_reason')}"
        raise Problem(503, "The engine does not answer", text, headers={"retry-after": "1"})
    if body.if_term is not None and body.if_term != state["term"]:
        code = int(ResponseCode.TERM_CHANGED)
        raise Problem(412, "The term moved", f"The term is {state['term']}, not {body.if_term}.", code=code)
    if body.dry_run:
        response.status_code = 200
        return {"dry_run": True, "would": would, "faults": state.get("faults")}
    begun: Json = {}

    async def carry_out() -> Json:
        try:
            return await work(parts, begun["operation"])
        except EngineAway as error:
            return {"state": "failed", "problem": {"title": "The engine is down", "detail": str(error)}}
        except (EngineSilent, EngineRefused) as error:
            return unknown(str(error))

    begun["operation"] = operation = parts.operations.start(kind, key, state["self_id"], carry_out)
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


async def ask(parts: Parts, what: str) -> Json:
    """The engine's answer. Raises EngineRefused where it says no."""
    answer = await parts.link.json(RequestCode.STEER, {"what": what}, ASK_S)
    if answer.get("code") != ResponseCode.SUCCESS:
        raise EngineRefused(str(answer.get("detail") or f"the engine answers {answer.get('code')}"))
    return answer


async def look(parts: Parts) -> Json:
    await asyncio.sleep(LOOK_S)
    return await parts.link.json(RequestCode.INTROSPECT, {"what": "state"}, ASK_S)


async def follow_scrub(parts: Parts, operation: Json) -> Json:
    """Until that pass is through; its progress in entries."""
    number = (await ask(parts, "scrub"))["passNumber"]
    while True:
        told = (await look(parts)).get("scrub") or {}
        last, running = told.get("last") or {}, told.get("running") or {}
        if last.get("number", -1) >= number:
            return {"state": "done", "progress": None, "outcome": last}
        if running.get("number") != number:
            return unknown("the engine started anew meanwhile")
        operation["progress"] = f"entry {running['next_index']} of {running['last_index']}"


async def follow(parts: Parts, operation: Json) -> Json:
    """Until nothing is damaged any more, or nobody can help, or for FOLLOWED_S."""
    await ask(parts, "repairs")
    ends = time.monotonic() + FOLLOWED_S
    while True:
        state = await look(parts)
        faults, repair = state.get("faults") or [], state.get("repair") or {}
        if not faults:
            return {"state": "done", "progress": None, "outcome": repair}
        if repair.get("hopeless", 0) >= len(faults):
            text = next((one["text"] for one in state["alarms"] if one["code"] == "log_unrecoverable"), "")
            return {"state": "failed", "problem": {"title": "No member can give what was written", "detail": text}}
        if time.monotonic() > ends:
            text = f"{len(faults)} damaged ranges are left; the repair goes on by itself"
            return {"state": "failed", "problem": {"title": "Not repaired yet", "detail": text}}
        operation["progress"] = f"{len(faults)} damaged ranges left"
