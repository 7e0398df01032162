"""What `status` learns of brokers, and of control planes: engines know nothing of them, so control planes are asked
for their alarms.

Invariants: all are asked at once, so that one that hangs costs its own time only, and hides no other one's alarms; a
control plane that does not answer takes nothing away from what its engine said, and how its broker is is then said to
be unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from app.commands.broker_calls import with_reason
from app.commands.control_calls import SILENT_AFTER_S, control_state
from app.commands.endings import Failure
from app.commands.standing import AskedMember
from app.commands.targets import Target
from node.views.state import AlarmView, StateView

CODES: Final = "broker_"
# Of a broker, of a control plane's own files, and of the directory, which it looks at by itself.
NOT_THE_ENGINES: Final = (CODES, "control_", "data_unwritable")


async def with_broker_alarms(members: Sequence[AskedMember], target: Target) -> list[AskedMember]:
    """The same members; the states of those that answer have their brokers' alarms. Where the members' own addresses
    are all that is known, the leader's control plane, as it names it, says whether there are brokers at all."""
    if target.demo and not target.has_brokers:  # its note says so
        return list(members)
    named = {one.id: target.control_urls.get(one.id) or one.control_url for one in members if one.state}
    urls = {member_id: url for member_id, url in named.items() if url}
    leads = {one.id for one in members if one.state and one.state.role == "LEADER"}
    first = urls.keys() & (urls if target.control_urls or target.has_brokers else leads)
    states = await states_at(target, {one: urls[one] for one in first})
    if not target.has_brokers and not any(has_broker(one) for one in states.values()):
        return [with_alarms(one, said) if (said := states.get(one.id)) else one for one in members]
    states |= await states_at(target, {one: url for one, url in urls.items() if one not in first})
    return [completed(one, states[one.id]) if one.id in states else one for one in members]


async def states_at(target: Target, urls: Mapping[str, str]) -> dict[str, StateView | Failure]:
    found = await asyncio.gather(*(asyncio.to_thread(state_at, target, url) for url in urls.values()))
    return dict(zip(urls, found, strict=True))


def state_at(target: Target, url: str) -> StateView | Failure:
    try:
        return control_state(url, None, target.token_for(url), target.control_tls, SILENT_AFTER_S)
    except Failure as failure:
        return with_reason(failure, target, url)


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
