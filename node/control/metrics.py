"""The Prometheus exposition of one node's snapshots. What is unknown is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

Json = dict[str, Any]
ROLES = ("LEADER", "FOLLOWER", "CANDIDATE")
ENGINES = ("ok", "stale", "down")
LOG_GAUGES = ("begin_index", "end_index", "durable_index", "committed_index", "applied_index", "size_bytes")
PEER_GAUGES = ("match_index", "durable_index", "lag_entries", "lag_bytes", "lag_ms", "last_ack_ms")
REPAIR_GAUGES = ("repaired_faults", "repaired_entries")
CLOSURE_GAUGES = ("pending", "limit", "oldest_age_ms", "pending_bytes")


class Snapshot:
    """A collector over snapshots that were taken already."""

    def __init__(self, told: dict[str, Json]) -> None:
        self.state, self.watermarks, self.closures = told["state"], told["watermarks"], told["closures"]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield one_hot("quorumscope_engine", "What the engine is", "state", ENGINES, self.state.get("engine"))
        yield one_hot("quorumscope_role", "This member's role", "role", ROLES, self.state.get("role"))
        yield from gauge("quorumscope_term", "The term", self.state.get("term"))
        log, disk = self.state.get("log") or {}, self.state.get("disk") or {}
        for name in LOG_GAUGES:
            yield from gauge(f"quorumscope_log_{name}", f"The log's {name.replace('_', ' ')}", log.get(name))
        yield from gauge("quorumscope_disk_free_bytes", "Free on the log's disk", disk.get("free_bytes"))
        gap_text = "The longest time between two ticks of the engine so far, in milliseconds"
        yield from gauge("quorumscope_tick_gap_max_ms", gap_text, self.state.get("tick_gap_max_ms"))
        yield from gauge("quorumscope_alarms", "Alarms that stand", len(self.state.get("alarms") or []))
        yield from self.damage()
        for name in CLOSURE_GAUGES:
            yield from gauge(f"quorumscope_closures_{name}", f"Waiting writes: {name}", self.closures.get(name))
        yield from gauge("quorumscope_quorum_index", "The quorum's index", self.watermarks.get("quorum_index"))
        for name in PEER_GAUGES:
            family = GaugeMetricFamily(
                f"quorumscope_peer_{name}", f"Of each peer, by the leader: {name}", labels=["peer"]
            )
            for peer in self.watermarks.get("peers") or []:
                if peer.get(name) is not None:
                    family.add_metric([str(peer["id"])], peer[name])
            yield family

    def damage(self) -> Iterator[GaugeMetricFamily]:
        """What is damaged in this log, what was repaired, and how far the scrub is."""
        faults, repair, scrub = self.state.get("faults"), self.state.get("repair"), self.state.get("scrub")
        if faults is not None:
            entries = sum(one["last_index"] - one["first_index"] + 1 for one in faults)
            yield from gauge("quorumscope_damaged_ranges", "Ranges of entries that are damaged here", len(faults))
            yield from gauge("quorumscope_damaged_entries", "Entries that are damaged here", entries)
        for name in REPAIR_GAUGES:
            text = f"Since the engine started: {name.replace('_', ' ')}"
            yield from gauge(f"quorumscope_{name}", text, (repair or {}).get(name))
        running = (scrub or {}).get("running") or {}
        yield from gauge("quorumscope_scrub_next_index", "How far the scrub is", running.get("next_index"))
        last = (scrub or {}).get("last") or {}
        yield from gauge("quorumscope_scrub_passes", "Scrubs of the whole log that ended", last.get("number"))


def gauge(name: str, text: str, value: Any) -> Iterator[GaugeMetricFamily]:
    if value is not None:
        yield GaugeMetricFamily(name, text, value=value)


def one_hot(name: str, text: str, label: str, values: tuple[str, ...], current: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value in values:
        family.add_metric([value], 1 if value == current else 0)
    return family


def exposition(told: dict[str, Json]) -> str:
    registry = CollectorRegistry()
    registry.register(Snapshot(told))
    return generate_latest(registry).decode()
