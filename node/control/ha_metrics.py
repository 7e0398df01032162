"""The Prometheus exposition of a broker in classic master/slave mode. What is unknown is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from node.control.broker_metrics import BrokerSnapshot
from node.control.gauges import gauge, labelled, one_hot
from node.ha.handshake import Stand
from node.ha.settings import BrokerRole
from node.views.broker import BrokerSaid
from node.views.ha import HaConnection, HaView

BROKERS: Final = ("ok", "down")
ROLES: Final = tuple(BrokerRole)
STANDS: Final = tuple(Stand)
# What `node/broker/classic` says in `problems`, each there also while nothing is wrong.
CODES: Final = (
    "slave_not_served", "fenced", "too_few_slaves", "no_slave", "no_master", "two_masters", "metadata_older",
    "log_broken", "log_damaged", "not_reread",
)  # fmt: skip


class HaSnapshot:
    """A collector over what a broker of a pair said of it."""

    def __init__(self, said: HaView) -> None:
        self.said = said

    def collect(self) -> Iterator[GaugeMetricFamily]:
        said = self.said
        yield one_hot("quorumscope_ha_broker", "What the broker is", "state", BROKERS, said.broker)
        if said.role is None:
            return
        yield one_hot("quorumscope_ha_role", "This broker's role", "role", ROLES, said.role)
        yield from gauge("quorumscope_ha_takes_messages", "Whether it is a master that takes messages", said.is_master)
        yield from gauge("quorumscope_ha_fenced_by_epoch", "The later epoch that fences it", said.fenced_by_epoch)
        yield from gauge("quorumscope_ha_epoch", "The epoch, one for each broker that became master", said.epoch)
        place = "Where its commit log {}, in bytes"
        yield from gauge("quorumscope_ha_begin_offset", place.format("begins"), said.begin_offset)
        yield from gauge("quorumscope_ha_flushed_offset", place.format("is on disk up to"), said.flushed_offset)
        yield from gauge("quorumscope_ha_end_offset", place.format("ends"), said.end_offset)
        yield from gauge("quorumscope_ha_dispatched_offset", place.format("is in queues up to"), said.dispatched_offset)
        yield from self.problems()
        if said.role == BrokerRole.SLAVE:
            yield from self.slave()
        else:
            yield from self.master()

    def problems(self) -> Iterator[GaugeMetricFamily]:
        found = dict.fromkeys(CODES, 0)
        for one in self.said.problems:
            found[one.code] = found.get(one.code, 0) + 1
        yield labelled("quorumscope_ha_problems", "What this broker says is wrong, by code", "code", found)

    def master(self) -> Iterator[GaugeMetricFamily]:
        said = self.said
        slaves = list(slaves_of(said.connections or ()).items())
        name = "quorumscope_ha_slave_{}".format
        served = {slave: float(one.state == "transfer") for slave, one in slaves}
        yield labelled(name("served"), "Whether a slave that is connected gets the log", "slave", served)
        for field, text in (
            ("acked_offset", "The place up to which a slave has the log, in bytes"),
            ("lag_bytes", "What a slave has not acknowledged"),
            ("rate_bytes_per_s", "What a slave acknowledges, in bytes a second"),
        ):
            yield labelled(name(field), text, "slave", {slave: getattr(one, field) for slave, one in slaves})
        late = {slave: None if one.lag_ms is None else one.lag_ms / 1000 for slave, one in slaves}
        yield labelled(name("lag_seconds"), "For how long a slave has not acknowledged it", "slave", late)
        yield from gauge("quorumscope_ha_sends_waiting", "Sends that wait for slaves", said.waiting_count)
        oldest = max((one.age_ms for one in said.waiting or ()), default=0) / 1000
        yield from gauge("quorumscope_ha_sends_waiting_oldest_seconds", "How long the oldest has waited", oldest)
        if said.so_far is not None:
            text = "Sends that were stored, and answered so because of slaves, since the broker started"
            ended = {
                "FLUSH_SLAVE_TIMEOUT": said.so_far.flush_slave_timeout,
                "SLAVE_NOT_AVAILABLE": said.so_far.slave_not_available,
            }
            yield labelled("quorumscope_ha_sends_not_on_slaves", text, "status", ended)
            text = "Connections of slaves that were refused since the broker started"
            yield from gauge("quorumscope_ha_slaves_refused", text, said.so_far.slaves_refused)

    def slave(self) -> Iterator[GaugeMetricFamily]:
        following = self.said.following
        if following is None:
            return
        served = float(following.state == "transfer")
        yield from gauge("quorumscope_ha_served", "Whether this slave gets its master's log", served)
        text = "The handshake's verdict on this slave's log, the newest"
        yield one_hot("quorumscope_ha_stand", text, "stand", STANDS, following.stand)
        yield from gauge("quorumscope_ha_behind_bytes", "What its master has and it has not", following.lag_bytes)


def slaves_of(connections: tuple[HaConnection, ...]) -> dict[str, HaConnection]:
    """By slave: one that is served, rather than one that is not. Who has not said who it is, or only asks, is none:
    its address is another one each time."""
    found: dict[str, HaConnection] = {}
    for one in connections:
        if one.peer_id and (one.peer_id not in found or one.state == "transfer"):
            found[one.peer_id] = one
    return found


def exposition(said: HaView, broker: BrokerSaid | None) -> str:
    """`broker`: what it answers to "broker"; None: nothing."""
    registry = CollectorRegistry()
    registry.register(HaSnapshot(said))
    if broker is not None:
        registry.register(BrokerSnapshot(broker, dispatches_entries=False))
    return generate_latest(registry).decode()
