"""A copied snapshot of everything an observer may ask of a replica.

Nothing in here is shared with the live core, so that the driver may render it at leisure. Indexes are inclusive, -1 is
"known to be none", None is "unknown". `_at_ns` are CLOCK_BOOTTIME nanoseconds (the driver turns them into wall time,
against `as_of_ns`); ages are `_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from node.consensus.configuration import Configuration
from node.protocol.codes import DispatcherState, FlushMode, Role, VoterState


@dataclass(slots=True, frozen=True)
class LogStatus:
    """Where this member's own log stands."""

    begin_index: int
    end_index: int
    end_term: int
    durable_index: int
    committed_index: int
    applied_index: int | None  # None: the state machine has not said yet
    verified_index: int  # a follower's: matched the present leader up to here; a leader's: its end
    committed_chain: int | None
    log_epoch: int  # truncations and installs since this process started
    truncating_from_index: int | None


@dataclass(slots=True, frozen=True)
class AlarmStatus:
    """An alarm: a condition that an operator should look at, until it clears by itself or is settled."""

    code: str
    severity: str  # warning | critical
    peer_id: str | None
    text: str
    since_at_ns: int


@dataclass(slots=True, frozen=True)
class FaultStatus:
    """Damaged entries; both ends inclusive."""

    first_index: int
    last_index: int
    kind: str
    detail: str


@dataclass(slots=True, frozen=True)
class RepairStatus:
    """What is being fetched for which damaged entries (None: nothing now), and what was repaired since the start."""

    running: bool
    first_index: int | None
    last_index: int | None
    next_index: int | None
    peer_id: str | None
    repaired_faults: int
    repaired_entries: int
    hopeless: int  # faults that no member of the group can repair


@dataclass(slots=True, frozen=True)
class ApplierStatus:
    """The state machine beside this log: what it has applied (None: it has not said), and what is with it now."""

    applied_index: int | None
    life: int  # how often one said where it stands
    applying_from_index: int | None
    applying_to_index: int | None
    waiting: int  # committed requests that wait for their result
    failures: int  # tries at the next entry that failed
    last_error: str | None


@dataclass(slots=True, frozen=True)
class LinkStatus:
    """The two connections with a peer, as the driver last knew them."""

    in_since_ns: int | None
    out_since_ns: int | None
    heard_at_ns: int | None
    rtt_ns: float | None
    unanswered_since_ns: int | None = None  # the heartbeat that is timed now left then


@dataclass(slots=True, frozen=True)
class PeerStatus:
    """A member of the group as this one sees it (itself included)."""

    id: str
    address: str
    api_url: str | None
    connected: bool
    voter_state: VoterState | None
    store_id: str | None
    recorded_store_id: str | None
    is_voter: bool = True  # by the configuration; a learner is not
    link: LinkStatus | None = None  # None: of this member itself, or its driver keeps none


@dataclass(slots=True, frozen=True)
class WatermarkStatus:
    """How far one member is, as the leader knows it."""

    id: str
    counts: bool  # whether it has a share in the quorum now
    match_index: int
    write_index: int
    durable_index: int | None
    watermark_index: int
    lag_entries: int | None
    lag_bytes: int | None
    lag_ms: int | None
    last_ack_ms: int | None
    faulty_from_index: int | None = None  # its lowest damaged entry: nothing counts from there on


@dataclass(slots=True, frozen=True)
class TransitionStatus:
    """One step of a dispatcher."""

    at_ns: int
    from_state: DispatcherState
    to_state: DispatcherState
    reason: str


@dataclass(slots=True, frozen=True)
class SnapshotStatus:
    """A snapshot that a peer is sent: its last entry, and how much of it the peer has, by its own word."""

    index: int
    held_bytes: int
    total_bytes: int


@dataclass(slots=True, frozen=True)
class DispatcherStatus:
    """What the leader does for one peer, and why."""

    peer_id: str
    state: DispatcherState
    since_at_ns: int
    dispatch_epoch: int
    in_flight: int
    in_flight_bytes: int
    write_index: int
    match_index: int
    resends: int
    quota_bytes_per_s: int
    capacity_bytes_per_s: int
    last_error: str | None
    transitions: tuple[TransitionStatus, ...]
    snapshot: SnapshotStatus | None = None  # what it is sent now


@dataclass(slots=True, frozen=True)
class ClosureStatus:
    """One request that waits for its quorum."""

    first_index: int
    last_index: int
    term: int
    bytes: int
    age_ms: int
    waits_for: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class ClosureGroupStatus:
    """Neighbouring requests that wait for the same members: `needed` of `waits_for` must still answer."""

    waits_for: tuple[str, ...]
    needed: int
    count: int
    first_index: int
    last_index: int
    oldest_age_ms: int
    bytes: int
    times_out_in_ms: int  # the first of them


@dataclass(slots=True, frozen=True)
class ClosuresStatus:
    """All requests that wait; `items` holds the oldest 100."""

    pending: int
    limit: int
    pending_entries: int
    pending_bytes: int
    oldest_age_ms: int | None
    groups: tuple[ClosureGroupStatus, ...]
    items: tuple[ClosureStatus, ...]
    # The newest request that a quorum answered in this leadership, and how long it waited.
    last_completed_at_ns: int | None = None
    last_completed_took_ns: int | None = None


@dataclass(slots=True, frozen=True)
class TransferStatus:
    """A leadership transfer under way."""

    transferee_id: str
    phase: str  # catching_up | taking_over
    started_at_ns: int
    deadline_at_ns: int


@dataclass(slots=True, frozen=True)
class ReplicaStatus:
    """The whole snapshot: `state`, `watermarks`, `dispatchers` and `closures` of INTERFACES come from it."""

    as_of_ns: int
    group: str
    group_id: str | None
    self_id: str
    role: Role
    role_since_at_ns: int
    term: int
    leader_id: str | None
    voted_for: str | None
    voter_state: VoterState
    vote_floor: int
    flush: FlushMode
    lease_reads: bool
    store_id: str
    sealed_from: int
    disk_full: bool
    log: LogStatus
    peers: tuple[PeerStatus, ...]
    alarms: tuple[AlarmStatus, ...]
    transfer: TransferStatus | None
    # A leader's view; empty on the others.
    quorum_index: int | None
    quorum_needed: int
    watermarks: tuple[WatermarkStatus, ...]
    dispatchers: tuple[DispatcherStatus, ...]
    closures: ClosuresStatus
    reads_pending: int
    # Whether this leader can commit now: its own entry is committed and a quorum answered within an election time-out.
    leader_ready: bool
    quorum_contact_ms: int | None
    # Damage in this member's own log (SAFETY S6).
    faults: tuple[FaultStatus, ...]
    repair: RepairStatus
    applier: ApplierStatus | None = None  # None: a log alone
    configuration: Configuration = field(kw_only=True)
