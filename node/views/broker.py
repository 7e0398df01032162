"""What a broker says of itself to its own control plane (`node/broker/introspection.py`).

Alarms, metrics, REST and the hand-over of leadership read it here. Times are epoch milliseconds; REST gives them as
RFC 3339 (`message_answers.py`).

Invariant: a broker of this version sets every field; an answer that lacks one is refused, never read as 0.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from node.views.base import Bounded, Flag, Number, Text, View, Whole
from node.views.message_answers import Counts, DamagedMessage, Dispatch, GroupTransactions, Outcome, Role, RoleStep


class NameServerSaid(View):
    """`registered_ms`: see `message_answers.NameServer`."""

    address: Text
    registered_ms: Whole | None


class RoleChangeSaid(View):
    """See `message_answers.RoleChange`."""

    began_at_ms: Whole | None
    state: Text
    term: Whole
    change: Text
    outcome: Outcome
    took_ms: Number
    steps: Annotated[tuple[RoleStep, ...], Bounded]


class LevelSaid(View):
    """See `message_answers.LevelPending`."""

    level: Whole
    delay_ms: Whole
    waiting: Whole
    due_ms: Whole | None
    overdue_ms: Whole


class ScheduleSaid(View):
    """See `message_answers.Schedule`."""

    waiting: Whole
    delivered: Whole
    levels: Annotated[tuple[LevelSaid, ...], Bounded]


class TransactionsSaid(View):
    """See `message_answers.Transactions`."""

    open: Whole
    all_read: Flag
    oldest_born_ms: Whole | None
    unanswered: Whole
    checks_max: Whole
    groups: Annotated[tuple[GroupTransactions, ...], Bounded]


class BrokerSaid(View):
    """The answer to "broker". `role`: None before the first election; `schedule`, `transactions`: a master's."""

    role: Role | None
    broker_id: Whole | None
    term: Whole | None
    leader_id: Text | None
    address: Text
    vip: Flag
    name_servers: Annotated[tuple[NameServerSaid, ...], Bounded]
    dispatch: Dispatch
    connections: Whole
    pulls_held: Whole
    counts: Counts
    schedule: ScheduleSaid | None
    transactions: TransactionsSaid | None
    role_changes: Annotated[tuple[RoleChangeSaid, ...], Bounded]
    damaged_messages: Annotated[tuple[DamagedMessage, ...], Bounded]


class GroupStand(View):
    """A consumer group in brief. `lag_since_ms`: when the oldest message that waits for it was stored; `oldest_at`:
    that one's topic, queue and offset; `members`: how many there are."""

    group: Text
    consume_enabled: Flag
    lag_messages: Whole
    lag_ms: Whole
    lag_since_ms: Whole | None
    oldest_at: tuple[Text, Whole, Whole] | None
    members: Whole


class GroupStands(View):
    """The answer to "groups", in brief. `next`: the cursor of the next page, None at the end."""

    items: Annotated[tuple[GroupStand, ...], Field(max_length=1000)]
    next: Text | None
