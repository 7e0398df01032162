"""What `status` learns of brokers, and of control planes: engines know nothing of them, so control planes are asked
for their alarms.

Invariants: all are asked at once, so that one that hangs costs its own time only, and hides no other one's alarms; a
control plane that does not answer takes nothing away from what its engine said, and how its broker is is then said to
be unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from app.commands.broker_calls import with_reason
from app.commands.control_calls import SILENT_AFTER_S, control_state
from app.commands.endings import Exit, Failure
from app.commands.standing import AskedMember
from app.commands.targets import Target
from node.views.state import AlarmView, StateView

CODES: Final = "broker_"
# Of a broker, of a control plane's own files, and of the directory, which it looks at by itself.
NOT_THE_ENGINES: Final = (CODES, "control_", "data_unwritable")


async def with_broker_alarms(members: Sequence[AskedMember], target: Target) -> list[AskedMember]:
    """The same members; the states of those whose control planes answer have what these warn of. Where nobody knows
    beforehand whether the group has brokers, control planes say."""
    if target.demo and not target.has_brokers:  # its note says so
        return list(members)
    named = {one.id: target.control_urls.get(one.id) or one.control_url for one in members if one.state}
    urls = {member_id: url for member_id, url in named.items() if url}
    found = await asyncio.gather(*(asyncio.to_thread(state_at, target, one, url) for one, url in urls.items()))
    states = dict(zip(urls, found, strict=True))
    add = completed if target.has_brokers or any(map(has_broker, found)) else with_alarms
    return [add(one, states[one.id]) if one.id in states else one for one in members]


def state_at(target: Target, member_id: str, url: str) -> StateView | Failure:
    try:
        state = control_state(url, None, target.token_for(url), target.control_tls, SILENT_AFTER_S)
    except Failure as failure:
        return with_reason(failure, target, url)
    if state.self_id not in (None, member_id):  # members on several machines may each name their own loopback
        return Failure(Exit.UNREACHABLE, f"{url} is {state.self_id}'s control plane")
    return state


def has_broker(state: StateView | Failure) -> bool:
    return isinstance(state, StateView) and (state.broker is not None or bool(broker_alarms(state)))


def broker_alarms(state: StateView) -> tuple[AlarmView, ...]:
    return tuple(one for one in state.alarms or () if (one.code or "").startswith(CODES))


def completed(member: AskedMember, said: StateView | Failure) -> AskedMember:
    if isinstance(said, Failure):
        why = f"{member.id}'s broker is not known to be well: {said}"
        return member.model_copy(update={"broker_unknown": why})
    return with_alarms(member, said)


def with_alarms(member: AskedMember, said: StateView | Failure) -> AskedMember:
    """With what its control plane warns of, and its engine knows nothing of."""
    if isinstance(said, Failure) or member.state is None:
        return member
    alarms = tuple(one for one in said.alarms or () if (one.code or "").startswith(NOT_THE_ENGINES))
    if not alarms:
        return member
    state = member.state.model_copy(update={"alarms": (*(member.state.alarms or ()), *alarms)})
    return member.model_copy(update={"state": state})
