"""Renders the core's snapshot into the views that the control plane gives on, to the letter of INTERFACES.

Invariants: nothing unknown reads 0: it is null and listed in `unknown`. Nothing here touches the log's bytes. What
people wrote, or other members, is cut to what a view may hold, so that no text makes an answer fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from node.config import Settings
from node.consensus.status import ApplierStatus, LogStatus, PeerStatus, ReplicaStatus
from node.control_url import control_url
from node.engine.clock import wall_text, wall_writer
from node.engine.events import EventRing
from node.engine.link_health import LateNs, in_time, link_view
from node.engine.members_view import members_view
from node.engine.replication_view import dispatcher, shown, unknown_of, unknown_of_peer, watermark
from node.lateness import RECENT_NS
from node.protocol.codes import Role
from node.rereading import Rereading
from node.store.log_store import LogStore
from node.views.base import ITEMS_MAX, AnswerView, UnknownView
from node.views.closures import ClosureGroupView, ClosuresView, ClosureView, CompletedView
from node.views.members import MembersView
from node.views.replication import (
    DispatchersView,
    WatermarksView,
)
from node.views.state import (
    AlarmView,
    ApplierView,
    CertificateView,
    ConnectionsView,
    DiskView,
    FaultView,
    LogView,
    PeerView,
    RepairView,
    RetentionView,
    ScrubView,
    SettingsView,
    StateView,
    TimingView,
)

VERSION: Final = "0.1.0"
NOT_SAID: Final = "the state machine has not said yet what it has applied"
ONLY_THE_LEADER: Final = "only the leader knows how far each member is"
Unknown = list[UnknownView]


class Introspection:
    """One per engine."""

    def __init__(self, settings: Settings, store: LogStore, events: EventRing, boot_id: str) -> None:
        self._settings, self._store, self._events, self._boot_id = settings, store, events, boot_id
        self.scrub: Callable[[], ScrubView | None] = lambda: None
        self.retention: Callable[[], RetentionView | None] = lambda: None
        self.connections: Callable[[], ConnectionsView | None] = lambda: None
        self.certificates: Callable[[], tuple[CertificateView, ...] | None] = lambda: None
        self.files: Rereading | None = None
        self.tick_gap_max_ns: Callable[[], int] = lambda: 0
        self.late_ns: LateNs = in_time
        self.settings_view: Callable[[], SettingsView | None] = lambda: None
        self.settings_alarms: Callable[[], tuple[AlarmView, ...]] = tuple
        self.address_alarms: Callable[[], tuple[AlarmView, ...]] = tuple
        self.settings_changed(settings)
        self._views: Mapping[str, Callable[[ReplicaStatus], AnswerView]] = {
            "state": self._state,
            "watermarks": self._watermarks,
            "dispatchers": self._dispatchers,
            "closures": self._closures,
            "members": self._members,
        }

    def settings_changed(self, settings: Settings) -> None:
        self._settings, self._timing = settings, TimingView.model_validate(settings.timing.model_dump())

    def knows(self, what: str) -> bool:
        return what == "events" or what in self._views

    def view(self, what: str, since: str | None, status: Callable[[], ReplicaStatus]) -> AnswerView:
        """The answer of the REST call of that name."""
        return self._events.since(since) if what == "events" else self._views[what](status())

    def _members(self, status: ReplicaStatus) -> MembersView:
        size_bytes = getattr(self._store, "size_bytes", None)
        return members_view(
            status, self._boot_id, size_bytes=size_bytes if isinstance(size_bytes, int) else None,
            bytes_per_s=self._settings.node.peer_push_quota_bytes_per_s,
        )  # fmt: skip

    def _state(self, status: ReplicaStatus) -> StateView:
        settings, store, wall = self._settings, self._store, wall_writer()
        unknown: Unknown = []
        disk = _disk(str(settings.store_directory), status.disk_full, unknown)
        size_bytes = _known(store, "size_bytes", "log.size_bytes", unknown)
        durable_position = _known(store, "durable_position", "durable_position", unknown)
        truncations = _known(store, "truncation_count", "truncation_count", unknown)
        made_late = _known(store, "files_made_late", "files_made_late", unknown)
        if status.log.applied_index is None:
            _missing(unknown, "log.applied_index", NOT_SAID)
        if status.log.committed_chain is None:
            _missing(unknown, "log.committed_chain_crc", "no chain is known at the committed index")
        for one in status.peers:
            unknown.extend(unknown_of_peer(one, own=one.id == status.self_id, leads=status.role is Role.LEADER))
        return StateView(
            as_of=wall_text(),
            engine="ok",
            boot_id=self._boot_id,
            group=status.group,
            group_id=status.group_id,
            self_id=status.self_id,
            role=status.role.value,
            role_since=wall(status.role_since_at_ns),
            term=status.term,
            leader_id=status.leader_id,
            voted_for=status.voted_for,
            vote_floor=status.vote_floor,
            transferee=None if status.transfer is None else status.transfer.transferee_id,
            flush=status.flush.value,
            lease_reads=status.lease_reads,
            voter_state=status.voter_state.value,
            store_id=status.store_id,
            sealed_from=status.sealed_from,
            data_dir=shown(str(settings.store_directory)),
            durable_position=durable_position,
            truncation_count=truncations,
            files_made_late=made_late,
            leader_ready=status.leader_ready,
            quorum_contact_ms=status.quorum_contact_ms,
            reads_pending=status.reads_pending,
            tick_gap_max_ms=round(self.tick_gap_max_ns() / 1e6, 1),
            loop_late_ms=round(self.late_ns(status.as_of_ns - RECENT_NS, status.as_of_ns) / 1e6, 1),
            timing=self._timing,
            settings=self.settings_view(),
            log=_log(status.log, size_bytes),
            peers=tuple(_peer(one, self.own_url if one.id == status.self_id else one.api_url) for one in status.peers),
            links=tuple(link_view(one.id, one.link, status.as_of_ns) for one in status.peers if one.link is not None),
            connections=self.connections(),
            certificates=self.certificates(),
            disk=disk,
            faults=tuple(
                FaultView(
                    first_index=one.first_index, last_index=one.last_index, kind=one.kind, detail=shown(one.detail)
                )
                for one in status.faults[:ITEMS_MAX]
            ),
            repair=_repair(status),
            scrub=self.scrub(),
            retention=self.retention(),
            applier=_applier(status.applier),
            alarms=tuple(
                AlarmView(
                    code=one.code,
                    severity=one.severity,
                    peer_id=one.peer_id,
                    text=shown(one.text),
                    since=wall(one.since_at_ns),
                )
                for one in status.alarms[: ITEMS_MAX - 1]
            )
            + _unread(self.files)
            + self.settings_alarms()
            + self.address_alarms(),
            version=VERSION,
            unknown=tuple(unknown),
        )

    @property
    def own_url(self) -> str:
        """Where this member's control plane is reached."""
        return control_url(self._settings)

    def _leader_url(self, status: ReplicaStatus) -> str | None:
        return next((peer.api_url for peer in status.peers if peer.id == status.leader_id), None)

    def _watermarks(self, status: ReplicaStatus) -> WatermarksView:
        leads = status.role is Role.LEADER
        unknown: Unknown = []
        if leads and status.log.applied_index is None:
            _missing(unknown, "applied_index", NOT_SAID)
        for mark in status.watermarks:
            unknown.extend(unknown_of(mark))
        if not leads:
            for field in ("peers", "quorum_index", "end_index", "committed_index", "applied_index"):
                _missing(unknown, field, ONLY_THE_LEADER)
        answer = WatermarksView(
            as_of=wall_text(),
            engine="ok",
            boot_id=self._boot_id,
            term=status.term,
            leader_id=status.leader_id,
            quorum_index=status.quorum_index,
            needed=status.quorum_needed,
            # The leader's own marks at the very instant of its peers' ones.
            end_index=status.log.end_index if leads else None,
            committed_index=status.log.committed_index if leads else None,
            applied_index=status.log.applied_index if leads else None,
            peers=tuple(map(watermark, status.watermarks)),
            unknown=tuple(unknown),
        )
        if leads:
            return answer
        return answer.model_copy(update={"reason": ONLY_THE_LEADER, "leader_control_url": self._leader_url(status)})

    def _dispatchers(self, status: ReplicaStatus) -> DispatchersView:
        wall = wall_writer()
        answer = DispatchersView(
            as_of=wall_text(),
            engine="ok",
            boot_id=self._boot_id,
            term=status.term,
            leader_id=status.leader_id,
            items=tuple(dispatcher(one, wall) for one in status.dispatchers),
            next=None,
            unknown=(),
        )
        if status.role is Role.LEADER:
            return answer
        reason = "only a leader dispatches"
        return answer.model_copy(update={"reason": reason, "leader_control_url": self._leader_url(status)})

    def _closures(self, status: ReplicaStatus) -> ClosuresView:
        closures = status.closures
        at_ns, took_ns = closures.last_completed_at_ns, closures.last_completed_took_ns
        last = None
        if at_ns is not None and took_ns is not None:
            last = CompletedView(at=wall_text(at_ns), took_ms=round(took_ns / 1e6, 3))
        return ClosuresView(
            as_of=wall_text(),
            engine="ok",
            boot_id=self._boot_id,
            term=status.term,
            leader_id=status.leader_id,
            pending=closures.pending,
            limit=closures.limit,
            pending_entries=closures.pending_entries,
            pending_bytes=closures.pending_bytes,
            oldest_age_ms=closures.oldest_age_ms,
            groups=tuple(
                ClosureGroupView(
                    waits_for=one.waits_for, needed=one.needed, count=one.count, first_index=one.first_index,
                    last_index=one.last_index, oldest_age_ms=one.oldest_age_ms, bytes=one.bytes,
                    times_out_in_ms=one.times_out_in_ms,
                )
                for one in closures.groups[:ITEMS_MAX]
            ),
            items=tuple(
                ClosureView(
                    first_index=one.first_index, last_index=one.last_index, term=one.term, bytes=one.bytes,
                    age_ms=one.age_ms, waits_for=one.waits_for,
                )
                for one in closures.items
            ),
            last_completed=last,
            unknown=(),
        )  # fmt: skip


def _log(log: LogStatus, size_bytes: int | None) -> LogView:
    return LogView(
        begin_index=log.begin_index,
        end_index=log.end_index,
        end_term=log.end_term,
        durable_index=log.durable_index,
        committed_index=log.committed_index,
        applied_index=log.applied_index,
        verified_index=log.verified_index,
        size_bytes=size_bytes,
        committed_chain_crc=log.committed_chain,
        log_epoch=log.log_epoch,
        truncating_from_index=log.truncating_from_index,
    )


def _peer(peer: PeerStatus, control_url: str | None) -> PeerView:
    return PeerView(
        id=peer.id,
        address=peer.address,
        control_url=control_url,
        connected=peer.connected,
        voter_state=None if peer.voter_state is None else peer.voter_state.value,
        store_id=peer.store_id,
        is_voter=peer.is_voter,
    )


def _unread(files: Rereading | None) -> tuple[AlarmView, ...]:
    """The alarm about files that could not be read again."""
    text = None if files is None else files.text
    if files is None or text is None:
        return ()
    alarm = AlarmView(
        code="file_not_reread", severity="warning", peer_id=None, text=shown(text), since=files.since_text
    )
    return (alarm,)


def _repair(status: ReplicaStatus) -> RepairView:
    one = status.repair
    return RepairView(
        running=one.running,
        first_index=one.first_index,
        last_index=one.last_index,
        next_index=one.next_index,
        peer_id=one.peer_id,
        repaired_faults=one.repaired_faults,
        repaired_entries=one.repaired_entries,
        hopeless=one.hopeless,
    )


def _applier(one: ApplierStatus | None) -> ApplierView | None:
    if one is None:
        return None
    return ApplierView(
        applied_index=one.applied_index,
        life=one.life,
        applying_from_index=one.applying_from_index,
        applying_to_index=one.applying_to_index,
        waiting=one.waiting,
        failures=one.failures,
        last_error=None if one.last_error is None else shown(one.last_error),
    )


def _missing(unknown: Unknown, field: str, reason: str) -> None:
    unknown.append(UnknownView(field=field, reason=reason, since=None))


def _known(store: LogStore, name: str, field: str, unknown: Unknown) -> int | None:
    """What a store on a disk knows and one in memory does not."""
    value = getattr(store, name, None)
    if not isinstance(value, int):
        _missing(unknown, field, "this store does not tell")
        return None
    return value


def _disk(directory: str, full: bool, unknown: Unknown) -> DiskView:
    try:
        found = os.statvfs(directory)
    except OSError as error:
        _missing(unknown, "disk", shown(str(error)))
        return DiskView(total_bytes=None, free_bytes=None, used_ratio=None, full=full)
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    used = round(1 - free / total, 4) if total else None
    return DiskView(total_bytes=total, free_bytes=free, used_ratio=used, full=full)
