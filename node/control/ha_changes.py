"""Changing a pair over REST: `POST /api/v1/ha/promote`, and what it would lose first (`dry_run`).

Invariants: without `dry_run` nothing is changed unless the answer says `promoted`, or 504 that it is not known; an
Idempotency-Key finds the promotion that it began, also one of which nobody knows how it ended, and promotes no second
time. What changed nothing takes no key.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import Field

from node.broker.classic.control_key import read_key
from node.broker.introspection import PROMOTE
from node.control.broker_link import RETRY, broker_away, refusal, unknown
from node.control.common import INT64_MAX, Json, Parts, PartsDep, answer, check_term
from node.control.leadership import Key
from node.control.messages import link_of
from node.control.problems import Problem
from node.control.trail import caller_now
from node.message_client.errors import Unavailable
from node.openapi_statuses import says
from node.rocketmq.codes import Answer
from node.views.ha import HaMasterRole, HaPromotion
from node.views.request_body import RequestBody
from node.views.state import StateView

router = APIRouter(prefix="/api/v1/ha", tags=["operator actions"])
WITHIN_S: Final = 60.0
CODES_MAX: Final = 16
KIND: Final = "promotion"
MOVED: Final = "epoch_moved"  # a finding of the broker's: the epoch is not `if_term` any more
Code = Annotated[str, Field(max_length=64)]


class Promote(RequestBody):
    """`accept`: codes of findings that stop a promotion, and are to be passed over. `role`: what it becomes; null: what
    its master was, as far as that was heard. `if_term`: only in this epoch, which `GET state` calls the term (412)."""

    role: HaMasterRole | None = None
    accept: Annotated[list[Code], Field(max_length=CODES_MAX)] = Field(default_factory=list)
    if_term: Annotated[int | None, Field(ge=0, le=INT64_MAX)] = None
    dry_run: bool = False


@router.post("/promote", response_model=HaPromotion, responses=says(HaPromotion))
async def promote(parts: PartsDep, body: Promote, key: Key = None) -> Response:
    """Make this slave its pair's master. With `dry_run`: what stands against it, and what would be lost."""
    said = body.model_dump(exclude={"dry_run"})
    if body.dry_run or parts.operations.earlier(KIND, key, said) is None:
        await check_epoch(parts, body.if_term)
    if body.dry_run:
        return answer(await asked(parts, body))
    operation = parts.operations.start(KIND, key, said, "", partial(carry_out, parts, body))
    await parts.operations.until_ended(operation)
    if operation["state"] == "done":
        return answer(HaPromotion.model_validate(operation["outcome"]))
    if operation["state"] == "failed":
        parts.operations.forget(operation)
    raise problem_of(operation["problem"])


async def check_epoch(parts: Parts, if_term: int | None) -> None:
    """A look at it first, for a broker of an older release that knows no `if_term`. Raises Problem."""
    if if_term is not None:
        check_term(if_term, await parts.snapshots.get(StateView))


async def carry_out(parts: Parts, body: Promote) -> Json:
    """The end of the operation: what the promotion came to, or the problem to answer with."""
    try:
        found = await asked(parts, body)
        if found.promoted:
            return {"state": "done", "progress": None, "outcome": found.to_json()}
        raise not_promoted(body, found)
    except Problem as problem:
        state = "unknown" if problem.status == 504 else "failed"
        known = {"status": problem.status, "title": problem.title, "detail": problem.detail, **problem.extra}
        return {"state": state, "problem": known}


def not_promoted(body: Promote, found: HaPromotion) -> Problem:
    stopping = [one for one in found.findings if one.stops and one.code not in body.accept]
    status, title = (412, "The term moved") if any(one.code == MOVED for one in stopping) else (409, "Not promoted")
    findings = [one.to_json() for one in found.findings]
    return Problem(status, title, "; ".join(one.text for one in stopping), findings=findings)


def problem_of(known: Json) -> Problem:
    """As `carry_out` kept it; 504 where this process was stopped meanwhile."""
    extra = dict(known)
    status = int(extra.pop("status", 504))
    if status == 504:
        extra |= {"outcome": "unknown", "safe_to_retry": False}
    title, detail = extra.pop("title"), extra.pop("detail")
    return Problem(status, title, detail, headers=RETRY if status == 503 else None, **extra)


async def asked(parts: Parts, body: Promote) -> HaPromotion:
    """Raises Problem."""
    try:
        key = read_key(parts.settings.node.data)
    except OSError as error:
        raise Problem(503, "The broker does not answer", f"its key cannot be read ({error.strerror})") from None
    said = {"key": key, "by": caller_now(), **body.model_dump()}
    try:
        got = await link_of(parts).command(PROMOTE, {}, json.dumps(said).encode(), WITHIN_S)
    except Unavailable as error:
        raise (unknown(str(error)) if error.sent and not body.dry_run else broker_away(error)) from None
    if got.code == Answer.SUCCESS:
        return HaPromotion.model_validate_json(bytes(got.body))
    remark = got.remark or ""
    if body.dry_run and got.code == Answer.SYSTEM_ERROR:  # it changes nothing, whatever went wrong
        raise Problem(503, "Not looked at", f"What a promotion would lose cannot be said: {remark}", headers=RETRY)
    if "not known" in remark:
        raise unknown(remark)
    raise refusal(got.code, remark)
