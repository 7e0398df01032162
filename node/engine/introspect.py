"""Renders the core's snapshot into the control plane's JSON, to the letter of INTERFACES.

Invariants: nothing unknown reads 0: it is null and listed in `unknown`. Nothing here touches the log's bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from node.config import Settings
from node.consensus.status import ReplicaStatus
from node.engine.clock import wall_text
from node.engine.events import EventRing
from node.protocol.codes import Role
from node.store.log_store import LogStore

VERSION: Final = "0.1.0"
NOT_SAID: Final = "the state machine has not said yet what it has applied"


class Introspection:
    """One per engine."""

    def __init__(self, settings: Settings, store: LogStore, events: EventRing, boot_id: str) -> None:
        self._settings, self._store, self._events, self._boot_id = settings, store, events, boot_id
        self.scrub: Callable[[], dict[str, Any] | None] = lambda: None
        self.tick_gap_max_ns: Callable[[], int] = lambda: 0
        self.links: Callable[[], list[dict[str, Any]]] = list
        self._renderers: Mapping[str, Callable[[ReplicaStatus], dict[str, Any]]] = {
            "state": self._state,
            "watermarks": self._watermarks,
            "dispatchers": self._dispatchers,
            "closures": self._closures,
        }

    def knows(self, what: str) -> bool:
        return what == "events" or what in self._renderers

    def render(self, what: str, since: str | None, status: Callable[[], ReplicaStatus]) -> dict[str, Any]:
        """The body of the REST call of that name."""
        common = {"as_of": wall_text(), "engine": "ok", "boot_id": self._boot_id}
        if what == "events":
            return common | self._events.since(since)
        answer = common | self._renderers[what](status())
        answer.setdefault("unknown", [])
        return answer

    def _state(self, status: ReplicaStatus) -> dict[str, Any]:
        log, settings, store = status.log, self._settings, self._store
        unknown: list[dict[str, Any]] = []
        disk = _disk(str(settings.store_directory), unknown)
        size_bytes = _known(store, "size_bytes", "log.size_bytes", unknown)
        durable_position = _known(store, "durable_position", "durable_position", unknown)
        truncations = _known(store, "truncation_count", "truncation_count", unknown)
        if log.applied_index is None:
            _missing(unknown, "log.applied_index", NOT_SAID)
        if log.committed_chain is None:
            _missing(unknown, "log.committed_chain_crc", "no chain is known at the committed index")
        return {
            "group": status.group,
            "group_id": status.group_id,
            "self_id": status.self_id,
            "role": status.role.value,
            "role_since": wall_text(status.role_since_at_ns),
            "term": status.term,
            "leader_id": status.leader_id,
            "voted_for": status.voted_for,
            "vote_floor": status.vote_floor,
            "transferee": None if status.transfer is None else status.transfer.transferee_id,
            "flush": status.flush.value,
            "lease_reads": status.lease_reads,
            "voter_state": status.voter_state.value,
            "store_id": status.store_id,
            "sealed_from": status.sealed_from,
            "data_dir": str(settings.store_directory),
            "durable_position": durable_position,
            "truncation_count": truncations,
            "leader_ready": status.leader_ready,
            "quorum_contact_ms": status.quorum_contact_ms,
            "reads_pending": status.reads_pending,
            "tick_gap_max_ms": round(self.tick_gap_max_ns() / 1e6, 1),
            "timing": settings.timing.model_dump(),
            "log": {
                "begin_index": log.begin_index,
                "end_index": log.end_index,
                "end_term": log.end_term,
                "durable_index": log.durable_index,
                "committed_index": log.committed_index,
                "applied_index": log.applied_index,
                "verified_index": log.verified_index,
                "size_bytes": size_bytes,
                "committed_chain_crc": log.committed_chain,
                "log_epoch": log.log_epoch,
                "truncating_from_index": log.truncating_from_index,
            },
            "peers": [
                {
                    "id": peer.id,
                    "address": peer.address,
                    "control_url": self.own_url if peer.id == status.self_id else peer.api_url,
                    "connected": peer.connected,
                    "voter_state": None if peer.voter_state is None else peer.voter_state.value,
                    "store_id": peer.store_id,
                }
                for peer in status.peers
            ],
            "links": self.links(),
            "disk": disk | {"full": status.disk_full},
            "faults": [_fields(one) for one in status.faults],
            "repair": _fields(status.repair),
            "scrub": self.scrub(),
            "applier": None if status.applier is None else _fields(status.applier),
            "alarms": [
                {
                    "code": alarm.code,
                    "severity": alarm.severity,
                    "peer_id": alarm.peer_id,
                    "text": alarm.text,
                    "since": wall_text(alarm.since_at_ns),
                }
                for alarm in status.alarms
            ],
            "version": VERSION,
            "unknown": unknown,
        }

    @property
    def own_url(self) -> str:
        """Where this member's control plane is reached."""
        control = self._settings.control
        scheme = "https" if control.tls_cert_file is not None else "http"
        return f"{scheme}://{control.address}"

    def _leader_url(self, status: ReplicaStatus) -> str | None:
        return next((peer.api_url for peer in status.peers if peer.id == status.leader_id), None)

    def _watermarks(self, status: ReplicaStatus) -> dict[str, Any]:
        leads = status.role is Role.LEADER
        unknown: list[dict[str, Any]] = []
        answer: dict[str, Any] = {
            "term": status.term,
            "leader_id": status.leader_id,
            "quorum_index": status.quorum_index,
            "needed": status.quorum_needed,
            # The leader's own marks at the very instant of its peers' ones.
            "end_index": status.log.end_index if leads else None,
            "committed_index": status.log.committed_index if leads else None,
            "applied_index": status.log.applied_index if leads else None,
            "peers": [_fields(mark) for mark in status.watermarks],
            "unknown": unknown,
        }
        if leads and status.log.applied_index is None:
            _missing(unknown, "applied_index", NOT_SAID)
        if not leads:
            reason = "only the leader knows how far each member is"
            _missing(unknown, "peers", reason)
            _missing(unknown, "quorum_index", reason)
            answer |= {"reason": reason, "leader_control_url": self._leader_url(status)}
        return answer

    def _dispatchers(self, status: ReplicaStatus) -> dict[str, Any]:
        items = [
            {
                "peer_id": one.peer_id,
                "state": one.state.value,
                "since": wall_text(one.since_at_ns),
                "dispatch_epoch": one.dispatch_epoch,
                "in_flight": one.in_flight,
                "in_flight_bytes": one.in_flight_bytes,
                "write_index": one.write_index,
                "match_index": one.match_index,
                "resends": one.resends,
                "quota": {"bytes_per_s": one.quota_bytes_per_s, "capacity_bytes_per_s": one.capacity_bytes_per_s},
                "last_error": one.last_error,
                "transitions": [
                    {
                        "at": wall_text(step.at_ns),
                        "from": step.from_state.value,
                        "to": step.to_state.value,
                        "reason": step.reason,
                    }
                    for step in one.transitions
                ],
            }
            for one in status.dispatchers
        ]
        answer: dict[str, Any] = {"term": status.term, "leader_id": status.leader_id, "items": items, "next": None}
        if status.role is not Role.LEADER:
            answer |= {"reason": "only a leader dispatches", "leader_control_url": self._leader_url(status)}
        return answer

    def _closures(self, status: ReplicaStatus) -> dict[str, Any]:
        closures = status.closures
        at_ns, took_ns = closures.last_completed_at_ns, closures.last_completed_took_ns
        last = None
        if at_ns is not None and took_ns is not None:
            last = {"at": wall_text(at_ns), "took_ms": round(took_ns / 1e6, 3)}
        return {
            "term": status.term,
            "leader_id": status.leader_id,
            "pending": closures.pending,
            "limit": closures.limit,
            "pending_entries": closures.pending_entries,
            "pending_bytes": closures.pending_bytes,
            "oldest_age_ms": closures.oldest_age_ms,
            "groups": [_fields(group) for group in closures.groups],
            "items": [_fields(item) for item in closures.items],
            "last_completed": last,
        }


def _fields(record: Any) -> dict[str, Any]:
    """A status record as it is. They are flat: `asdict` would walk through every value and copy it."""
    return {name: getattr(record, name) for name in record.__slots__}


def _missing(unknown: list[dict[str, Any]], field: str, reason: str) -> None:
    unknown.append({"field": field, "reason": reason, "since": None})


def _known(store: LogStore, name: str, field: str, unknown: list[dict[str, Any]]) -> int | None:
    """What a store on a disk knows and one in memory does not."""
    value = getattr(store, name, None)
    if not isinstance(value, int):
        _missing(unknown, field, "this store does not tell")
        return None
    return value


def _disk(directory: str, unknown: list[dict[str, Any]]) -> dict[str, Any]:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        _missing(unknown, "disk", str(error))
        return {"total_bytes": None, "free_bytes": None, "used_ratio": None}
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return {"total_bytes": total, "free_bytes": free, "used_ratio": round(1 - free / total, 4) if total else None}
