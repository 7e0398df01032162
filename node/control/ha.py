"""A broker in classic master/slave mode over REST: `GET /api/v1/ha`.

Invariant: nothing is changed by looking; what its broker does not answer is null, and the reason is given.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Response

from node.control.broker_link import BrokerLink
from node.control.common import Json, Parts, PartsDep, answer
from node.control.engine_link import EngineAway
from node.control.ha_metrics import exposition
from node.control.messages import STATE_WITHIN_S, link_of
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.message_client.errors import Unavailable
from node.openapi_statuses import says
from node.views.base import AnswerView
from node.views.broker import BrokerSaid
from node.views.ha import HaView
from node.views.state import StateView

router = APIRouter(prefix="/api/v1", tags=["classic HA"])
DOWN: Final = "down"


async def said(parts: Parts, started_with: str | None = None) -> HaView:
    settings, link = parts.settings, link_of(parts)
    ha = settings.ha
    known: Json = {
        "as_of": now_text(), "broker": "ok", "reason": None, "name": settings.node.group, "self_id": settings.node.id,
        "address": settings.broker.address, "ha_address": ha.address, "peers": list(ha.peer_addresses),
        "started_with": started_with,
    }  # fmt: skip
    try:
        return HaView.model_validate(known | await link.json("ha", within_s=STATE_WITHIN_S))
    except Problem as problem:
        if problem.status != 503:
            raise
        why, reason = problem.__cause__, str(problem.__cause__ or problem)
        if isinstance(why, Unavailable) and not why.sent:
            reason = await parts.snapshots.down_reason(EngineAway(reason))
        return HaView.model_validate(known | {"broker": DOWN, "reason": reason})


@router.get("/ha", response_model=HaView, responses=says(HaView))
async def ha(parts: PartsDep) -> Response:
    """This broker's place in its pair: role, epoch, offsets, connections, whom puts wait for, what is wrong."""
    return answer(await said(parts, parts.started_with))


async def metrics(parts: Parts) -> str:
    """The text of `GET /metrics`."""
    found, broker = await asyncio.gather(said(parts), _broker(link_of(parts)))
    return exposition(found, broker)


async def _broker(link: BrokerLink) -> BrokerSaid | None:
    try:
        return await link.broker(STATE_WITHIN_S)
    except Problem:
        return None


async def _state(parts: Parts, view: type[AnswerView]) -> AnswerView:
    """A broker without an engine, for those who ask for a member's state: role, epoch as term, who leads."""
    found, node = await said(parts), parts.settings.node
    role: dict[str, Any] = {"role": None, "leader_id": None}
    if found.is_master is not None:
        role = {
            "role": "LEADER" if found.is_master else "FOLLOWER",
            "leader_id": node.id if found.is_master else _followed(found),
        }
    state = StateView(
        as_of=found.as_of, engine="ok" if found.broker == "ok" else DOWN, engine_reason=found.reason,
        group=node.group, self_id=node.id, term=found.epoch, **role, peers=(), alarms=(),
    )  # fmt: skip
    if not isinstance(state, view):
        raise Problem(404, "Not found", "In classic mode there is no replicated log.")
    return state


def _followed(found: HaView) -> str | None:
    """The address of the master that serves this slave."""
    following = found.following
    return following.address if following is not None and following.state == "transfer" else None


def use(parts: Parts) -> None:
    """Has the control plane answer `GET state` from a broker in classic mode, which has no engine."""
    parts.snapshots.without_log = partial(_state, parts)
