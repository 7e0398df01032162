"""Trims by hand, and pins: what goes from the front of this node's log, and what must not go by itself.

A trim is an operation of the node that is asked, leader or not; `dry_run` says what would go and who keeps what.
A pin keeps entries from the retention policy for a bounded time; audits and back-ups hold one while they read.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field

from node.control.common import INT64_MAX, Cursor, Json, Limit, Parts, PartsDep, engine_away, paged, state_to_act_on
from node.control.engine_link import EngineAway, EngineDeclined, EngineRefused, EngineSilent
from node.control.leadership import STARTED, Key, name_of
from node.control.operations import act, located, once_begun
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.openapi_statuses import says
from node.protocol.codes import RequestCode, ResponseCode
from node.views.answers import Pin, Pins
from node.views.request_body import RequestBody
from node.views.state import RetentionView, StateView

router = APIRouter(prefix="/api/v1", tags=["retention"])
ASK_S = 60.0  # ten files of a gigabyte each, on a slow disk
PIN_ASK_S = 5.0
PIN_S_MAX = 24 * 3600
RETRY = {"retry-after": "1"}
Owner = Annotated[str, Path(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")]


class Trim(RequestBody):
    """`force`: past pins, and members that are not known to hold these entries."""

    through_index: Annotated[int, Field(ge=0, le=INT64_MAX)]
    force: bool = False
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


class NewPin(RequestBody):
    from_index: Annotated[int, Field(ge=0, le=INT64_MAX)]
    for_s: Annotated[int, Field(ge=1, le=PIN_S_MAX)]


@router.post("/trim", status_code=202, responses=STARTED)
async def trim(parts: PartsDep, response: Response, body: Trim, key: Key = None) -> Json:
    """Remove the oldest data files that hold only entries up to `through_index` from this node's log.

    What a member is not known to hold, or a pin keeps, stays; with `force` it goes, and the outcome says whom it leaves
    behind. What a state machine applies again when it starts stays in any case: save a snapshot first.
    """
    asked = body.model_dump(exclude={"dry_run"})
    known = parts.operations.earlier("trim", key, asked)
    if known is not None and not body.dry_run:
        return located(response, known)
    state = await state_to_act_on(parts, body.if_term)
    if body.dry_run:
        response.status_code = 200
        return await would(parts, body)
    begun: Json = {}
    begin = state.marks.begin_index
    begun["operation"] = operation = parts.operations.start(
        "trim", key, asked, f"from entry {begin}", lambda: go_on(parts, body, begun["operation"])
    )
    return located(response, operation)


async def ask(parts: Parts, body: Trim, *, dry_run: bool) -> Json:
    fields = {"throughIndex": body.through_index, "force": body.force, "dryRun": dry_run}
    return await act(parts.link, "trim", ASK_S, **fields)


async def would(parts: Parts, body: Trim) -> Json:
    try:
        answer = await ask(parts, body, dry_run=True)
    except EngineDeclined as error:
        raise Problem(409, "Refused", str(error), code=error.code) from None
    except (EngineAway, EngineSilent, EngineRefused) as error:
        raise Problem(503, "The engine does not answer", str(error), headers=RETRY) from None
    files, begin = answer["files"], answer["beginIndex"]
    if files:
        through = answer["throughIndex"]
        text = f"remove {files} data files, {answer['bytes']} bytes: entries {begin} to {through}"
        begin = through + 1
    else:
        text = "remove nothing: only whole data files go, never the last one"
    known = {"files": files, "bytes": answer["bytes"], "begin_index": begin, "kept_by": answer["keptBy"]}
    return {"dry_run": True, "would": text, "trim": known}


async def go_on(parts: Parts, body: Trim, operation: Json) -> Json:
    """A few files at a time until nothing more goes, or it is cancelled."""
    outcome: Json = {"removed_files": 0, "removed_bytes": 0, "kept_by": [], "forced": body.force}
    while not parts.operations.is_unwanted(operation):
        asking = ask(parts, body, dry_run=False)
        try:
            answer = await (once_begun(asking) if outcome["removed_files"] else asking)
        except EngineDeclined as error:
            if not outcome["removed_files"]:
                raise
            return not_all(str(error), outcome)
        outcome["removed_files"] += answer["removedFiles"]
        outcome["removed_bytes"] += answer["removedBytes"]
        outcome["begin_index"] = answer["beginIndex"]
        outcome["kept_by"] = answer["keptBy"] or outcome["kept_by"]
        parts.snapshots.outdate()
        if answer["detail"]:
            return not_all(answer["detail"], outcome)
        if not answer["removedFiles"]:
            return {"state": "done", "progress": None, "outcome": outcome}
        operation["progress"] = f"{outcome['removed_files']} files, the log begins at {answer['beginIndex']}"
    return {"state": "cancelled", "progress": None, "outcome": outcome}


def not_all(why: str, outcome: Json) -> Json:
    return {"state": "failed", "problem": {"title": "Not all of it went", "detail": why}, "outcome": outcome}


# --- pins -------------------------------------------------------------------------------------------------------------
@router.get("/pins", responses=says(Pins))
async def pins(parts: PartsDep, limit: Limit = 1000, cursor: Cursor = None) -> Json:
    """Who keeps which entries of this node's log, and for how much longer."""
    state = await parts.snapshots.get(StateView)
    if state.engine != "ok":
        raise engine_away(state)
    found = (state.retention or RetentionView()).pins or ()
    shown, then = paged(found, lambda one: str(one.owner), limit, cursor)
    return {"as_of": now_text(), "items": [one.to_json() for one in shown], "next": then}


@router.put("/pins/{owner}", responses=says(Pin))
async def pin(parts: PartsDep, owner: Owner, body: NewPin) -> Json:
    """Keep entries from `from_index` on, for so long; the same owner's next pin replaces this one."""
    answer = await asked(parts, {"what": "pin", "owner": owner, "fromIndex": body.from_index, "forSeconds": body.for_s})
    code = answer.get("code")
    if code != ResponseCode.SUCCESS:
        gone = code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
        begin = answer.get("beginIndex")
        status, title = (410, "Trimmed") if gone else (409, "Not pinned")
        raise Problem(status, title, str(answer.get("detail")), code=code, begin_index=begin)
    parts.snapshots.outdate()
    return {"owner": owner, "from_index": body.from_index, "expires_in_s": body.for_s}


@router.delete("/pins/{owner}", status_code=204)
async def release(parts: PartsDep, owner: Owner) -> Response:
    """This owner needs nothing any more; one without a pin is fine."""
    answer = await asked(parts, {"what": "release", "owner": owner})
    if (code := answer.get("code")) != ResponseCode.SUCCESS:
        raise Problem(409, "Not released", str(answer.get("detail") or name_of(code)), code=code)
    parts.snapshots.outdate()
    return Response(status_code=204)


async def asked(parts: Parts, fields: Json) -> Json:
    await state_to_act_on(parts, None)
    try:
        return await parts.link.json(RequestCode.OPERATOR_ACTION, fields, PIN_ASK_S)
    except (EngineAway, EngineSilent, EngineRefused) as error:
        raise Problem(503, "The engine does not answer", str(error), headers=RETRY) from None
