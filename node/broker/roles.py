"""Which role a broker has, by what its engine is: the table of transitions, and the steps of each change in order.

RocketMQ's DLedgerRoleChangeHandler: a candidate or follower is a SLAVE, a leader becomes MASTER once everything up to
its lane's end is committed and dispatched. `flow_chart` draws the table; who runs it is `role_changes.py`.

Invariants: a look for votes that changes no term (pre-vote) is no event; between two leaderships of one member there
is always a change to SLAVE; every pair of state and role is in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple


class RaftState(Enum):
    """What the own engine is."""

    CANDIDATE = "CANDIDATE"
    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class BrokerRole(Enum):
    """By RocketMQ's names. A broker has none before the first event."""

    MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Step(Enum):
    """What is done, under the name that the timeline shows."""

    OPEN_LANE = "open a lane"
    REACH_END = "committed and dispatched up to the lane's end"
    RECOVER_TOPIC_QUEUE_TABLE = "recoverTopicQueueTable"
    SCHEDULE_ON = "schedule service on"
    SCHEDULE_OFF = "schedule service off"
    TRANSACTION_CHECK_ON = "transaction check on"
    TRANSACTION_CHECK_OFF = "transaction check off"
    MASTER_ID = "brokerId 0"
    SLAVE_ID = "brokerId of the member"
    MASTER_ROLE = "role SYNC_MASTER"
    SLAVE_ROLE = "role SLAVE, the lane closed"
    REGISTER = "registerBrokerAll"


class Change(Enum):
    """A row's action."""

    NOTHING = "nothing"
    TO_SLAVE = "changeToSlave"
    TO_MASTER = "changeToMaster"


# In the order of RocketMQ's changeToSlave and changeToMaster; metadata comes with the log, so that nothing is
# synchronized from a master.
STEPS: Final[Mapping[Change, tuple[Step, ...]]] = {
    Change.NOTHING: (),
    Change.TO_SLAVE: (
        Step.SLAVE_ID, Step.SLAVE_ROLE, Step.SCHEDULE_OFF, Step.TRANSACTION_CHECK_OFF, Step.REGISTER,
    ),
    Change.TO_MASTER: (
        Step.OPEN_LANE, Step.REACH_END, Step.RECOVER_TOPIC_QUEUE_TABLE, Step.SCHEDULE_ON, Step.TRANSACTION_CHECK_ON,
        Step.MASTER_ID, Step.MASTER_ROLE, Step.REGISTER,
    ),
}  # fmt: skip
TRANSITIONS: Final[Mapping[tuple[RaftState, BrokerRole | None], Change]] = {
    (RaftState.CANDIDATE, None): Change.TO_SLAVE,
    (RaftState.CANDIDATE, BrokerRole.MASTER): Change.TO_SLAVE,
    (RaftState.CANDIDATE, BrokerRole.SLAVE): Change.NOTHING,
    (RaftState.FOLLOWER, None): Change.TO_SLAVE,
    (RaftState.FOLLOWER, BrokerRole.MASTER): Change.TO_SLAVE,
    (RaftState.FOLLOWER, BrokerRole.SLAVE): Change.TO_SLAVE,
    (RaftState.LEADER, None): Change.TO_MASTER,
    (RaftState.LEADER, BrokerRole.MASTER): Change.NOTHING,
    (RaftState.LEADER, BrokerRole.SLAVE): Change.TO_MASTER,
}


class RaftEvent(NamedTuple):
    """The own engine has become that."""

    state: RaftState
    term: int
    leader_id: str | None


def events(
    before: RaftEvent | None, term_before: int, term: int, leader_id: str | None, *, leads: bool
) -> list[RaftEvent]:
    """What has happened since, by what the engine says now; nothing where it only looks for votes (pre-vote).

    `before`: the last event; `term_before`: what the engine said last, -1 for nothing yet.
    """
    if leads:
        now = RaftEvent(RaftState.LEADER, term, leader_id)
        if before is not None and before.state is RaftState.LEADER and before.term != term:
            return [RaftEvent(RaftState.CANDIDATE, term, None), now]
    elif leader_id is not None:
        now = RaftEvent(RaftState.FOLLOWER, term, leader_id)
    elif (before is not None and before.state is RaftState.LEADER) or -1 < term_before < term:
        now = RaftEvent(RaftState.CANDIDATE, term, None)
    else:
        return []
    return [] if now == before else [now]


def broker_id_of(member_id: str) -> int:
    """A slave's: the digits of its name and one more, so that it is never 0, a master's."""
    return int("".join(one for one in member_id if one.isdigit()) or 0) + 1


def flow_chart() -> str:
    """The table as a flow chart, in Mermaid's language: how the engine's states lead to roles."""
    lines = ["flowchart TD", '    begin(["the engine is"])']
    for state in RaftState:
        rows = {role: TRANSITIONS[state, role] for role in (None, *BrokerRole)}
        lines.append(f'    begin --> {state.name}["{state.name}"]')
        changes = {change for change in rows.values() if change is not Change.NOTHING}
        idle = [role.value for role, change in rows.items() if change is Change.NOTHING and role is not None]
        if idle:
            lines.append(f'    {state.name} -->|"role is {", ".join(idle)}"| nothing(["nothing changes"])')
        for action in changes:
            wanted = f'|"role is not {", ".join(idle)}"| ' if idle else " "
            lines.append(f"    {state.name} -->{wanted}{action.name}_{STEPS[action][0].name}")
    for change, steps in STEPS.items():
        names = [f"{change.name}_{step.name}" for step in steps]
        lines += [f'    {name}["{step.value}"]' for name, step in zip(names, steps, strict=True)]
        lines += [f"    {one} --> {following}" for one, following in pairwise(names)]
        if steps:
            role = BrokerRole.MASTER if change is Change.TO_MASTER else BrokerRole.SLAVE
            lines.append(f'    {names[-1]} --> {role.name}(["{role.value}"])')
    lines.append('    TO_MASTER_REACH_END -->|"no longer leader"| given_up(["given up"])')
    return "\n".join(lines)
