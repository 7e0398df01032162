"""Changing a pair over REST: `POST /api/v1/ha/promote`, and what it would lose first (`dry_run`).

Invariant: without `dry_run` nothing is changed unless the answer says `promoted`, or 504 that it is not known.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import Field

from node.broker.classic.control_key import read_key
from node.broker.introspection import PROMOTE
from node.control.broker_link import broker_away, refusal, unknown
from node.control.common import Parts, PartsDep, answer
from node.control.messages import link_of
from node.control.problems import Problem
from node.control.trail import caller_now
from node.message_client.errors import Unavailable
from node.openapi_statuses import says
from node.rocketmq.codes import Answer
from node.views.ha import HaMasterRole, HaPromotion
from node.views.request_body import RequestBody

router = APIRouter(prefix="/api/v1/ha", tags=["operator actions"])
WITHIN_S: Final = 60.0
CODES_MAX: Final = 16
Code = Annotated[str, Field(max_length=64)]


class Promote(RequestBody):
    """`accept`: codes of findings that stop a promotion, and are to be passed over. `role`: what it becomes; null: what
    its master was, as far as that was heard."""

    role: HaMasterRole | None = None
    accept: Annotated[list[Code], Field(max_length=CODES_MAX)] = Field(default_factory=list)
    dry_run: bool = False


@router.post("/promote", response_model=HaPromotion, responses=says(HaPromotion))
async def promote(parts: PartsDep, body: Promote) -> Response:
    """Make this slave its pair's master. With `dry_run`: what stands against it, and what would be lost."""
    found = await asked(parts, body)
    if not (found.promoted or body.dry_run):
        stopping = [one for one in found.findings if one.stops and one.code not in body.accept]
        text = "; ".join(one.text for one in stopping)
        raise Problem(409, "Not promoted", text, findings=[one.to_json() for one in found.findings])
    return answer(found)


async def asked(parts: Parts, body: Promote) -> HaPromotion:
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
    if "not known" in (got.remark or ""):
        raise unknown(got.remark or "")
    raise refusal(got.code, got.remark or "")
