"""An operator ends what hangs, this node's engine or its state machine; what keeps it running starts it again.

Invariant: what answers and goes on is ended only with `force`; an engine that is asked to end hands leadership over
first, one that does not within the supervisor's time is killed. Nothing that was acknowledged is lost with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Response
from pydantic import Field

from node.control.common import INT64_MAX, Json, Parts, PartsDep, check_term, state_to_act_on
from node.control.engine_link import EngineAway, EngineRefused, EngineSilent
from node.control.leadership import STARTED, Key
from node.control.operations import act, located
from node.control.problems import Problem
from node.control.repair import ASK_S, LOOK_S
from node.supervised import ask_for_another_engine, is_supervised
from node.views.request_body import RequestBody
from node.views.state import StateView

router = APIRouter(prefix="/api/v1", tags=["operator actions"])
FOLLOWED_S: Final = 60.0
BY_ITSELF: Final = "Its supervisor starts it again, unless it refused: then it stays down until somebody settles why."


class Restart(RequestBody):
    """What is ended and started again; `force`: although it answers. `if_term`: as it was heard last."""

    what: Literal["engine", "state_machine"] = "engine"
    force: bool = False
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/restart", status_code=202, responses=STARTED)
async def restart(parts: PartsDep, response: Response, body: Restart | None = None, key: Key = None) -> Json:
    """End this node's engine, or its state machine, which hangs, and have it started again."""
    body = body or Restart()
    asked = body.model_dump(exclude={"dry_run"})
    known = parts.operations.earlier("restart", key, asked)
    if known is not None and not body.dry_run:
        return located(response, known)
    if body.what == "engine":  # a silent one can be ended: whoever asks for that does not wait for it
        state = await parts.snapshots.get(StateView)
        check_term(body.if_term, state)
        check_engine(state, force=body.force)
        work: Callable[[], Awaitable[Json]] = partial(another_engine, parts, parts.snapshots.last_boot_id())
    else:
        check_kind(parts)
        state = await state_to_act_on(parts, body.if_term)
        check_machine(state, force=body.force)
        work = partial(another_machine, parts)
    if body.dry_run:
        response.status_code = 200
        words = body.what.replace("_", " ")
        return {"dry_run": True, "would": f"end the {words} of {state.self_id} and start it again"}
    operation = parts.operations.start("restart", key, asked, state.self_id or "", work)
    return located(response, operation)


def check_engine(state: StateView, *, force: bool) -> None:
    """Raises Problem."""
    if not is_supervised():
        text = "This control plane was not started by `quorumscope node`: start the engine again by what started it."
        raise Problem(409, "No supervisor", text)
    if state.engine == "down":
        text = f"There is nothing to end: {state.engine_reason}. {BY_ITSELF}"
        raise Problem(409, "The engine is down", text)
    if state.engine == "ok" and not force:
        text = "It answers its control plane, so it does not hang. With force it is ended and started all the same."
        raise Problem(409, "The engine answers", text)


def check_kind(parts: Parts) -> None:
    """Raises Problem."""
    if not parts.settings.node.state_machine:
        raise Problem(409, "No state machine", "This group has no state machine: only its log is replicated.")


def check_machine(state: StateView, *, force: bool) -> None:
    """Raises Problem."""
    if any(one.code == "applier_silent" for one in state.alarms or ()):
        return  # it hangs, though nothing is left to apply
    applied, committed = applied_and_committed(state)
    if applied is not None and committed is not None and applied >= committed and not force:
        text = "It has applied all that is committed. With force it is ended and started all the same."
        raise Problem(409, "The state machine goes on", text)


async def another_engine(parts: Parts, before: str | None) -> Json:
    if not ask_for_another_engine():
        return failed("Its supervisor is gone; start this node again.")
    began_s = time.monotonic()
    while time.monotonic() < began_s + FOLLOWED_S:
        await asyncio.sleep(LOOK_S)
        try:
            state = await parts.snapshots.ask(StateView, timeout_s=ASK_S)
        except (EngineAway, EngineSilent, EngineRefused):
            continue
        if state.boot_id != before:
            parts.snapshots.outdate()
            outcome = {"boot_id": state.boot_id, "took_ms": round((time.monotonic() - began_s) * 1000)}
            return {"state": "done", "progress": None, "outcome": outcome}
    return failed(f"No other engine answered within {FOLLOWED_S:.0f} s; this node's log says what its supervisor did.")


async def another_machine(parts: Parts) -> Json:
    """Until it applies again, all that was committed when it was ended."""
    answer = await act(parts.link, "restart_machine", ASK_S)
    began_s, wanted, why = time.monotonic(), int(answer["committedIndex"]), "it goes on by itself"
    while time.monotonic() < began_s + FOLLOWED_S:
        await asyncio.sleep(LOOK_S)
        try:
            state = await parts.snapshots.ask(StateView, timeout_s=ASK_S)
        except (EngineAway, EngineSilent, EngineRefused):
            continue
        applied, _ = applied_and_committed(state)
        if state.applier is not None and state.applier.last_error is not None:
            why = state.applier.last_error
        if applied is not None and applied >= wanted:
            outcome = {"applied_index": applied, "took_ms": round((time.monotonic() - began_s) * 1000)}
            return {"state": "done", "progress": None, "outcome": outcome}
    return failed(f"It was ended, and has not applied entry {wanted} within {FOLLOWED_S:.0f} s: {why}.")


def applied_and_committed(state: StateView) -> tuple[int | None, int | None]:
    return (None, None) if state.log is None else (state.log.applied_index, state.log.committed_index)


def failed(text: str) -> Json:
    return {"state": "failed", "problem": {"title": "Not started again", "detail": text}}
