"""A group's state machine over REST: commands, questions and snapshots, where the group has one.

For one's own state machine as for the one that ships: commands and questions are bytes here (text, or base64).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from node.control.common import Json, Parts, PartsDep
from node.control.entries import raw_bytes
from node.control.leadership import STARTED, Key
from node.control.machine_calls import ask_waiting, commands, shown
from node.control.read_modes import Consistency
from node.control.repair import Asked, start
from node.openapi_statuses import says
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.machine_frames import QUESTION_BYTES_MAX
from node.views.machine_answers import Answered, Commanded
from node.views.request_body import RequestBody

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
calls = APIRouter(prefix="/api/v1/machine", tags=["state machine"])
SAVE_S = 3600.0  # a state of many gigabytes on a slow disk
COMMANDS_MAX: Final = 1024
BYTES_MAX: Final = 1024 * 1024
QUESTION_MAX: Final = QUESTION_BYTES_MAX - 64  # its frame's numbers beside it
WAIT_MS_MAX: Final = 30_000


class NewCommands(RequestBody):
    """Commands in the order in which they are to be applied, one behind the other."""

    commands: Annotated[list[str], Field(min_length=1, max_length=COMMANDS_MAX)]
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"


class Question(RequestBody):
    """`wait_ms`: how long it may wait for something to happen, where the state machine has no answer yet."""

    question: str
    as_: Annotated[Literal["text", "base64"], Field(alias="as")] = "text"
    consistency: Consistency = "linearizable"
    wait_ms: Annotated[int, Field(ge=0, le=WAIT_MS_MAX)] = 0


@calls.post("/command", responses=says(Commanded))
async def command(parts: PartsDep, body: NewCommands) -> Json:
    """Has the group apply commands; answers with each one's result. 421 names the leader.

    504 with `outcome: unknown`: they may have been applied; ask the state machine before they are sent again.
    """
    bodies = [raw_bytes(one, body.as_, f"commands.{at}", BYTES_MAX) for at, one in enumerate(body.commands)]
    done = await commands(parts, bodies)
    last_index = done.first_index + len(bodies) - 1
    results = [shown(one, body.as_) for one in done.results]
    return {"first_index": done.first_index, "last_index": last_index, "term": done.term, "results": results}


@calls.post("/query", responses=says(Answered))
async def query(request: Request, parts: PartsDep, body: Question) -> Json:
    """Asks this member's state machine; it changes nothing. Fresh at every member, unless `consistency` is `stale`."""
    question = raw_bytes(body.question, body.as_, "question", QUESTION_MAX)
    found = await ask_waiting(request, parts, question, body.consistency, body.wait_ms)
    if found is None:
        return {"answer": None, "applied_index": None, "consistency": body.consistency}
    answer = shown(found.content, body.as_)
    return {"answer": answer, "applied_index": found.applied_index, "consistency": body.consistency}


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
