"""What `status` learns of brokers: engines know nothing of them, so control planes are asked for their alarms.

Invariants: one request more is all that a group without brokers costs; a control plane that does not answer takes
nothing away from what its engine said, and how its broker is is then said to be unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from app.commands.control_calls import SILENT_AFTER_S, control_answer, control_state
from app.commands.endings import Failure
from app.commands.standing import AskedMember
from app.commands.targets import Target
from node.views.state import AlarmView

CODES: Final = "broker_"


async def with_broker_alarms(members: Sequence[AskedMember], target: Target) -> list[AskedMember]:
    """The same members; the states of those that answer have their brokers' alarms."""
    urls = {one.id: target.control_urls[one.id] for one in members if one.state and one.id in target.control_urls}
    if not urls or not await asyncio.to_thread(has_brokers, target, next(iter(urls.values()))):
        return list(members)
    found = await asyncio.gather(*(asyncio.to_thread(alarms_at, target, url) for url in urls.values()))
    alarms = dict(zip(urls, found, strict=True))
    return [completed(one, alarms.get(one.id, ())) for one in members]


def has_brokers(target: Target, url: str) -> bool:
    """A demo's note says it; else a control plane has that resource, or not."""
    if target.demo:
        return target.has_brokers
    try:
        status, _ = control_answer("GET", url, "broker", target.token, tls=target.control_tls, within_s=SILENT_AFTER_S)
    except Failure:
        return False
    return status == 200


def alarms_at(target: Target, url: str) -> tuple[AlarmView, ...] | Failure:
    try:
        state = control_state(url, None, target.token, target.control_tls, SILENT_AFTER_S)
    except Failure as failure:
        return failure
    return tuple(one for one in state.alarms or () if (one.code or "").startswith(CODES))


def completed(member: AskedMember, alarms: Sequence[AlarmView] | Failure) -> AskedMember:
    if isinstance(alarms, Failure):
        why = f"{member.id}'s broker is not known to be well: {alarms}"
        return member.model_copy(update={"broker_unknown": why})
    if not alarms or member.state is None:
        return member
    state = member.state.model_copy(update={"alarms": (*(member.state.alarms or ()), *alarms)})
    return member.model_copy(update={"state": state})
