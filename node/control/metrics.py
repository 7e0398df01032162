"""The Prometheus exposition of one node's snapshots. What is unknown is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from node.control.broker_metrics import BrokerSnapshot
from node.control.gauges import gauge, labelled, one_hot
from node.views.base import View
from node.views.broker import BrokerSaid
from node.views.closures import ClosuresView
from node.views.replication import WatermarksView
from node.views.state import DiskView, RepairView, RetentionView, ScrubView, StateView

ROLES: Final = ("LEADER", "FOLLOWER", "CANDIDATE")
ENGINES: Final = ("ok", "stale", "down")
# Fields of the views, by their names.
LOG_GAUGES: Final = ("begin_index", "end_index", "durable_index", "committed_index", "applied_index", "size_bytes")
PEER_GAUGES: Final = ("match_index", "durable_index", "lag_entries", "lag_bytes", "lag_ms", "last_ack_ms")
REPAIR_GAUGES: Final = ("repaired_faults", "repaired_entries")
RETENTION_GAUGES: Final = ("removed_files", "removed_bytes")
CLOSURE_GAUGES: Final = ("pending", "limit", "oldest_age_ms", "pending_bytes")


class Snapshot:
    """A collector over snapshots that were taken already."""

    def __init__(self, state: StateView, watermarks: WatermarksView, closures: ClosuresView) -> None:
        self.state, self.watermarks, self.closures = state, watermarks, closures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state = self.state
        yield one_hot("quorumscope_engine", "What the engine is", "state", ENGINES, state.engine)
        yield one_hot("quorumscope_role", "This member's role", "role", ROLES, state.role)
        yield from gauge("quorumscope_term", "The term", state.term)
        for name in LOG_GAUGES:
            yield from gauge(f"quorumscope_log_{name}", f"The log's {name.replace('_', ' ')}", value(state.marks, name))
        disk = state.disk or DiskView()
        yield from gauge("quorumscope_disk_free_bytes", "Free on the log's disk", disk.free_bytes)
        yield from gauge("quorumscope_disk_total_bytes", "The size of the log's disk", disk.total_bytes)
        gap_text = "The longest time between two ticks of the engine so far, in milliseconds"
        yield from gauge("quorumscope_tick_gap_max_ms", gap_text, state.tick_gap_max_ms)
        late_text = "Appends that waited for a new file of the log, as none was made ahead, since the engine started"
        yield from gauge("quorumscope_files_made_late", late_text, state.files_made_late)
        yield from self.connections()
        yield from gauge("quorumscope_alarms", "Alarms that stand", self.alarms())
        yield from self.damage()
        for name in CLOSURE_GAUGES:
            yield from gauge(f"quorumscope_closures_{name}", f"Waiting writes: {name}", value(self.closures, name))
        yield from gauge("quorumscope_quorum_index", "The quorum's index", self.watermarks.quorum_index)
        for name in PEER_GAUGES:
            family = GaugeMetricFamily(
                f"quorumscope_peer_{name}", f"Of each peer, by the leader: {name}", labels=["peer"]
            )
            for peer in self.watermarks.peers or ():
                if (known := value(peer, name)) is not None:
                    family.add_metric([peer.id], known)
            yield family

    def alarms(self) -> int | None:
        """Of an engine that is down they are not known: only the control plane's are there to count."""
        known = self.state.alarms
        return None if known is None or (self.state.engine == "down" and not known) else len(known)

    def connections(self) -> Iterator[GaugeMetricFamily]:
        """Who is connected to the member port, and what was ended or refused there."""
        view = self.state.connections
        if view is None:
            return
        kinds = {"member": view.members, "client": view.clients, "unproven": view.unproven}
        yield labelled("quorumscope_connections", "Connections to the member port", "kind", kinds)
        yield from gauge("quorumscope_connections_limit", "Connections that may be open beside members'", view.limit)
        yield from gauge("quorumscope_connections_accepted", "Connections accepted so far", view.accepted)
        yield from gauge("quorumscope_connections_accept_errors", "Accepts that failed so far", view.accept_errors)
        text = "Connections that the member ended so far, by reason"
        yield labelled("quorumscope_connections_ended", text, "reason", view.ended or {})
        yield labelled(
            "quorumscope_requests_refused", "Requests refused so far, by reason", "reason", view.refused or {}
        )

    def damage(self) -> Iterator[GaugeMetricFamily]:
        """What is damaged in this log, what was repaired, and how far the scrub is."""
        faults = self.state.faults
        if faults is not None:
            entries = sum(one.entries for one in faults)
            yield from gauge("quorumscope_damaged_ranges", "Ranges of entries that are damaged here", len(faults))
            yield from gauge("quorumscope_damaged_entries", "Entries that are damaged here", entries)
        for name in REPAIR_GAUGES:
            text = f"Since the engine started: {name.replace('_', ' ')}"
            yield from gauge(f"quorumscope_{name}", text, value(self.state.repair or RepairView(), name))
        retention = self.state.retention or RetentionView()
        for name in RETENTION_GAUGES:
            text = f"By retention, since the engine started: {name.replace('_', ' ')}"
            yield from gauge(f"quorumscope_retention_{name}", text, value(retention, name))
        if retention.pins is not None:
            yield from gauge("quorumscope_pins", "Who keeps entries from being removed", len(retention.pins))
        scrub = self.state.scrub or ScrubView()
        next_index = None if scrub.running is None else scrub.running.next_index
        yield from gauge("quorumscope_scrub_next_index", "How far the scrub is", next_index)
        passes = None if scrub.last is None else scrub.last.number
        yield from gauge("quorumscope_scrub_passes", "Scrubs of the whole log that ended", passes)


def value(view: View, name: str) -> float | None:
    """A number of a view by its name, which becomes part of the gauge's."""
    found: float | None = getattr(view, name)
    return found


def exposition(
    state: StateView, watermarks: WatermarksView, closures: ClosuresView, broker: BrokerSaid | None = None
) -> str:
    """`broker`: what this member's broker said last, where it has one that answers."""
    registry = CollectorRegistry()
    registry.register(Snapshot(state, watermarks, closures))
    if broker is not None:
        registry.register(BrokerSnapshot(broker))
    return generate_latest(registry).decode()
