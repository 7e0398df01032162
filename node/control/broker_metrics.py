"""The Prometheus gauges of this member's broker, as it said them last. What it does not say is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from node.control.gauges import gauge, labelled, one_hot
from node.views.broker import BrokerSaid

ROLES: Final = ("MASTER", "SLAVE")


class BrokerSnapshot:
    """A collector over what `node/broker/introspection.py` answers to "broker". In classic mode it dispatches bytes of
    a commit log of its own, no entries: `node/control/ha_metrics.py` has those."""

    def __init__(self, said: BrokerSaid, *, dispatches_entries: bool = True) -> None:
        self.said, self.dispatches_entries = said, dispatches_entries

    def collect(self) -> Iterator[GaugeMetricFamily]:
        said = self.said
        yield one_hot("quorumscope_broker_role", "This member's broker's role", "role", ROLES, said.role)
        if self.dispatches_entries:
            dispatch, behind = said.dispatch, "Committed entries that are not in its queues"
            yield from gauge("quorumscope_broker_dispatch_behind_entries", behind, dispatch.behind_entries)
            yield from gauge("quorumscope_broker_dispatch_behind_ms", f"{behind}: for how long", dispatch.behind_ms)
        lost = sum(one.registered_ms is None for one in said.name_servers)
        yield from gauge("quorumscope_broker_name_servers_lost", "Name servers that it is not registered at", lost)
        schedule, transactions = said.schedule, said.transactions
        if schedule is not None:
            levels = {str(one.level): one.waiting for one in schedule.levels}
            yield labelled("quorumscope_broker_schedule_waiting", "Messages that wait for their time", "level", levels)
            overdue = max((one.overdue_ms for one in schedule.levels), default=0)
            text = "For how long the oldest delivery has been due"
            yield from gauge("quorumscope_broker_schedule_overdue_ms", text, overdue)
        if transactions is not None:
            yield from gauge("quorumscope_broker_transactions_open", "Open transactions", transactions.open)
            text = "Open transactions that were asked about three times or more"
            yield from gauge("quorumscope_broker_transactions_unanswered", text, transactions.unanswered)
