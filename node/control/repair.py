"""Operator actions on one node's own log: a scrub of all of it, and another try at repairing what is damaged.

Both are operations of the node that is asked, leader or not; a scrub has no deadline but its own end, and a repair is
followed for `FOLLOWED_S`: what is not healed by then goes on by itself, and the operation says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import Field

from node.control.common import INT64_MAX, Json, Parts, PartsDep, state_to_act_on
from node.control.leadership import STARTED, Key
from node.control.operations import act, located, once_begun, unknown
from node.views.request_body import RequestBody
from node.views.state import RepairView, ScrubPassView, ScrubView, StateView

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
LOOK_S = 0.25
ASK_S = 5.0
FOLLOWED_S = 60.0
SNAPSHOT_ALARM = "snapshot_damaged"


class Asked(RequestBody):
    """Nothing needs to be said."""

    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/scrub", status_code=202, responses=STARTED)
async def scrub(parts: PartsDep, response: Response, body: Asked | None = None, key: Key = None) -> Json:
    """Read the whole log of this node once, at once, and a state machine's snapshots, and verify them; what is damaged
    is then repaired by itself."""
    return await start(parts, response, body or Asked(), key, "scrub", "read this node's whole log once", follow_scrub)


@router.post("/repairs", status_code=202, responses=STARTED)
async def repairs(parts: PartsDep, response: Response, body: Asked | None = None, key: Key = None) -> Json:
    """Try again, now, to repair what is damaged in this node's log: every peer is asked again."""
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
    asked = body.model_dump(exclude={"dry_run"})
    known = parts.operations.earlier(kind, key, asked)
    if known is not None and not body.dry_run:
        return located(response, known)
    state = await state_to_act_on(parts, body.if_term)
    if body.dry_run:
        response.status_code = 200
        faults = None if state.faults is None else [one.to_json() for one in state.faults]
        return {"dry_run": True, "would": would, "faults": faults}
    begun: Json = {}
    begun["operation"] = operation = parts.operations.start(
        kind, key, asked, state.self_id, lambda: work(parts, begun["operation"])
    )
    return located(response, operation)


async def look(parts: Parts) -> StateView:
    await asyncio.sleep(LOOK_S)
    return await once_begun(parts.snapshots.ask(StateView, timeout_s=ASK_S))


async def follow_scrub(parts: Parts, operation: Json) -> Json:
    """Until that pass is through; its progress in entries, and then in snapshots."""
    number = (await act(parts.link, "scrub", ASK_S))["passNumber"]
    while True:
        scrub = (await look(parts)).scrub or ScrubView()
        last, running = scrub.last, scrub.running
        if last is not None and last.number is not None and last.number >= number:
            if last.damaged_snapshots:
                return await follow_save(parts, operation, last)
            return {"state": "done", "progress": None, "outcome": last.to_json()}
        if running is None or (running.number or 0) < number:  # a later one takes its place where a fork asks for it
            return unknown("the engine was restarted meanwhile")
        operation["progress"] = progress_of(running)


def progress_of(running: ScrubPassView) -> str:
    """Entries first, then a state machine's snapshots."""
    if running.snapshots is not None and (running.next_index or 0) > (running.last_index or 0):
        return f"all entries; snapshots read: {running.snapshots}"
    return f"entry {running.next_index} of {running.last_index}"


async def follow_save(parts: Parts, operation: Json, last: ScrubPassView) -> Json:
    """Until a sound snapshot stands for those that are damaged, or for FOLLOWED_S."""
    ends = time.monotonic() + FOLLOWED_S
    while True:
        state = await look(parts)
        texts = [one.text or "" for one in state.alarms or () if one.code == SNAPSHOT_ALARM]
        if not texts:
            return {"state": "done", "progress": None, "outcome": last.to_json()}
        if time.monotonic() > ends:
            return {"state": "failed", "problem": {"title": "The state is not saved again yet", "detail": texts[0]}}
        operation["progress"] = f"damaged snapshots: {last.damaged_snapshots}; the state is saved again"


async def follow(parts: Parts, operation: Json) -> Json:
    """Until nothing is damaged any more, or nobody can help, or for FOLLOWED_S."""
    await act(parts.link, "repairs", ASK_S)
    ends = time.monotonic() + FOLLOWED_S
    while True:
        state = await look(parts)
        faults, repair = state.faults or (), state.repair or RepairView()
        if not faults:
            return {"state": "done", "progress": None, "outcome": repair.to_json()}
        if (repair.hopeless or 0) >= len(faults):
            alarms = (one.text for one in state.alarms or () if one.code == "log_unrecoverable")
            text = next(alarms, None) or ""
            return {"state": "failed", "problem": {"title": "No member can give what was written", "detail": text}}
        if time.monotonic() > ends:
            text = f"{len(faults)} damaged ranges are left; the repair goes on by itself"
            return {"state": "failed", "problem": {"title": "Not repaired yet", "detail": text}}
        operation["progress"] = f"{len(faults)} damaged ranges left"
