"""The member's state, events, metrics and health."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from node.control.common import Cursor, Json, Limit, Parts, PartsDep
from node.control.metrics import exposition

router = APIRouter(prefix="/api/v1", tags=["state"])
health = APIRouter(tags=["health"])
EVENTS_POLL_S = 0.5
BEAT_POLLS = 10
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=128)]


@router.get("/state")
async def state(parts: PartsDep) -> Json:
    return await parts.snapshots.get("state")


@router.get("/watermarks")
async def watermarks(parts: PartsDep) -> Json:
    """Only a leader knows them; a follower answers with no peers, the reason and the leader's control_url."""
    return await parts.snapshots.get("watermarks")


@router.get("/dispatchers")
async def dispatchers(parts: PartsDep) -> Json:
    return await parts.snapshots.get("dispatchers")


@router.get("/closures")
async def closures(parts: PartsDep) -> Json:
    return await parts.snapshots.get("closures")


@router.get("/events", response_model=None)
async def events(
    request: Request,
    parts: PartsDep,
    limit: Limit = 500,
    cursor: Cursor = None,
    since: Annotated[str | None, Query(max_length=128)] = None,
    last_event_id: LastEventId = None,
) -> Json | Response:
    """Oldest first, after `cursor`; as text/event-stream on demand. A range that is lost shows as a `gap`."""
    after = cursor or since or last_event_id
    if "text/event-stream" in request.headers.get("accept", ""):
        return StreamingResponse(event_stream(parts, after), media_type="text/event-stream")
    answer = await parts.snapshots.events(after)
    if len(answer["items"]) > limit:
        answer["items"] = answer["items"][:limit]
        answer["next"] = answer["items"][-1]["id"]
    return answer


async def event_stream(parts: Parts, after: str | None) -> AsyncIterator[str]:
    polls = 0
    while not parts.stopping.is_set():
        answer = await parts.snapshots.events(after)
        for item in answer["items"]:
            yield f"id: {item['id']}\nevent: {item['kind']}\ndata: {json.dumps(item)}\n\n"
        after = answer["next"] or after
        polls += 1
        if polls % BEAT_POLLS == 0:
            yield ": beat\n\n"
        try:
            async with asyncio.timeout(EVENTS_POLL_S):
                await parts.stopping.wait()
        except TimeoutError:
            continue


@health.get("/healthz")
async def healthz() -> Json:
    """The control plane itself."""
    return {"status": "ok"}


@health.get("/readyz", response_model=None)
async def readyz(parts: PartsDep) -> Response:
    """200 while the engine runs and knows a leader."""
    told = await parts.snapshots.get("state")
    return verdict(told["engine"] == "ok" and told.get("leader_id") is not None, told)


@health.get("/leaderz", response_model=None)
async def leaderz(parts: PartsDep) -> Response:
    """200 only on a leader that can commit."""
    told = await parts.snapshots.get("state")
    leads = told["engine"] == "ok" and told.get("role") == "LEADER" and told.get("leader_ready", True)
    contact_ms = told.get("quorum_contact_ms")
    limit_ms = (told.get("timing") or {}).get("election_timeout_max_ms", 1000)
    full = (told.get("disk") or {}).get("full", False)
    return verdict(leads and not full and (contact_ms is None or contact_ms <= limit_ms), told)


def verdict(fine: bool, told: Json) -> Response:
    body = {key: told.get(key) for key in ("engine", "role", "term", "leader_id")}
    return JSONResponse({"ok": fine, **body}, status_code=200 if fine else 503)


@health.get("/metrics", response_model=None)
async def metrics(parts: PartsDep) -> Response:
    names = ("state", "watermarks", "closures")
    told = dict(zip(names, await asyncio.gather(*(parts.snapshots.get(one) for one in names)), strict=True))
    return PlainTextResponse(exposition(told), media_type="text/plain; version=0.0.4; charset=utf-8")
