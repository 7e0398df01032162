"""`GET state`: what a member is, what its log holds, whom it hears, and what is wrong with it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from node.views.base import (
    AnswerView,
    Bounded,
    FirstAlarms,
    FirstFaults,
    Flag,
    Number,
    OfMembers,
    Text,
    Unknowns,
    View,
    Whole,
)


class LogView(View):
    """Where the log stands; -1: known to be empty."""

    begin_index: Whole | None = None
    end_index: Whole | None = None
    end_term: Whole | None = None
    durable_index: Whole | None = None
    committed_index: Whole | None = None
    applied_index: Whole | None = None
    verified_index: Whole | None = None
    size_bytes: Whole | None = None
    committed_chain_crc: Whole | None = None
    log_epoch: Whole | None = None
    truncating_from_index: Whole | None = None


class PeerView(View):
    """A member of the group as this one knows it, itself included."""

    id: Text
    address: Text | None = None
    control_url: Text | None = None
    connected: Flag | None = None
    voter_state: Text | None = None
    store_id: Text | None = None
    # Whether it votes by the configuration in effect; False: it learns.
    is_voter: Flag | None = None


class LinkView(View):
    """The two connections with a peer: since when they stand, and when it was last heard. `unanswered_ms`: for how long
    the leader's newest timed heartbeat has been on its way; None: it was answered."""

    peer_id: Text
    in_since: Text | None = None
    out_since: Text | None = None
    last_heard_ms: Number | None = None
    rtt_ms: Number | None = None
    unanswered_ms: Number | None = None


class ConnectionsView(View):
    """Who is connected to the member port, and how many connections were ended there, by reason (SAFETY C10)."""

    members: Whole | None = None
    clients: Whole | None = None
    unproven: Whole | None = None
    limit: Whole | None = None
    accepted: Whole | None = None
    accept_errors: Whole | None = None
    ended: dict[Text, Whole] | None = None
    refused: dict[Text, Whole] | None = None


class CertificateView(View):
    """A certificate of the member port, and when it ends. `what`: member_port, authority (the last one that is
    trusted), or client, with its name: one that has connected and ends within 30 days."""

    what: Text
    name: Text | None = None
    ends_at: Text


class TimingView(View):
    """The member's own times (docs/configuration.md, [timing])."""

    heart_beat_time_interval_ms: Whole | None = None
    election_timeout_min_ms: Whole | None = None
    election_timeout_max_ms: Whole | None = None
    min_vote_interval_ms: Whole | None = None
    max_vote_interval_ms: Whole | None = None
    max_push_time_out_ms: Whole | None = None
    max_wait_ack_time_ms: Whole | None = None
    leadership_transfer_wait_timeout_ms: Whole | None = None


class DiskView(View):
    """The file system that holds the log."""

    total_bytes: Whole | None = None
    free_bytes: Whole | None = None
    used_ratio: Number | None = None
    full: Flag | None = None


class FaultView(View):
    """Damaged entries; both ends inclusive."""

    first_index: Whole
    last_index: Whole
    kind: Text | None = None
    detail: Text | None = None

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1


class RepairView(View):
    """What is being fetched for which damaged entries, and what was repaired since the start."""

    running: Flag | None = None
    first_index: Whole | None = None
    last_index: Whole | None = None
    next_index: Whole | None = None
    peer_id: Text | None = None
    repaired_faults: Whole | None = None
    repaired_entries: Whole | None = None
    hopeless: Whole | None = None


class ScrubPassView(View):
    """One reading of the whole log, and of a state machine's snapshots (null where there is none)."""

    number: Whole | None = None
    reason: Text | None = None
    bytes_per_s: Whole | None = None
    from_index: Whole | None = None
    next_index: Whole | None = None
    last_index: Whole | None = None
    read_bytes: Whole | None = None
    faults: Whole | None = None
    snapshots: Whole | None = None
    damaged_snapshots: Whole | None = None
    began_at: Text | None = None
    ended_at: Text | None = None


class ScrubView(View):
    """The scrub's settings, the pass that runs, and the last one that ended."""

    bytes_per_s: Whole | None = None
    pause_s: Whole | None = None
    running: ScrubPassView | None = None
    last: ScrubPassView | None = None


class NeedView(View):
    """Who keeps entries from being removed, from which one on, and why."""

    owner: Text
    from_index: Whole
    why: Text | None = None


class PinView(View):
    """Who pinned entries, and for how much longer."""

    owner: Text
    from_index: Whole
    expires_in_s: Whole | None = None


class RetentionView(View):
    """What retention removed since the start, what it may not remove, and who pins what."""

    enabled: Flag | None = None
    removing: Flag | None = None
    removed_files: Whole | None = None
    removed_bytes: Whole | None = None
    last_removed_at: Text | None = None
    last_removed: Text | None = None
    kept_by: Annotated[tuple[NeedView, ...], Bounded] | None = None
    pins: Annotated[tuple[PinView, ...], Bounded] | None = None


class RefusedSettingView(View):
    """A key that SIGHUP could not change, and why."""

    key: Text
    reason: Text


class SettingsView(View):
    """What is not in force as the configuration file has it since the last SIGHUP."""

    restart_needed: Annotated[tuple[Text, ...], Bounded] | None = None
    refused: Annotated[tuple[RefusedSettingView, ...], Bounded] | None = None


class ApplierView(View):
    """The state machine beside the log: what it has applied, and what is with it now."""

    applied_index: Whole | None = None
    life: Whole | None = None
    applying_from_index: Whole | None = None
    applying_to_index: Whole | None = None
    waiting: Whole | None = None
    failures: Whole | None = None
    last_error: Text | None = None


def _alarm_text(value: Any) -> Any:
    """Other servers give details as an object."""
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else value


class AlarmView(View):
    """An alarm: a condition that an operator should look at.

    Other servers call the fields otherwise, or give a name alone.
    """

    code: Text | None = Field(default=None, validation_alias=AliasChoices("code", "kind", "name"))
    severity: Text | None = None
    peer_id: Text | None = None
    text: Annotated[Text | None, BeforeValidator(_alarm_text)] = Field(
        default=None, validation_alias=AliasChoices("text", "detail", "message")
    )
    since: Text | None = Field(default=None, validation_alias=AliasChoices("since", "at"))


def _named_alarm(value: Any) -> Any:
    return {"code": value} if isinstance(value, str) else value


Alarm = Annotated[AlarmView, BeforeValidator(_named_alarm, json_schema_input_type=AlarmView | str)]


class StateView(AnswerView):
    """The whole state. `engine` and `self_id` are what makes an answer a state."""

    engine: Text
    group: Text | None = None
    group_id: Text | None = None
    self_id: Text
    is_java: Flag | None = None
    role: Text | None = None
    role_since: Text | None = None
    term: Whole | None = None
    leader_id: Text | None = None
    voted_for: Text | None = None
    vote_floor: Whole | None = None
    transferee: Text | None = None
    flush: Text | None = None
    lease_reads: Flag | None = None
    voter_state: Text | None = None
    store_id: Text | None = None
    sealed_from: Whole | None = None
    data_dir: Text | None = None
    durable_position: Whole | None = None
    truncation_count: Whole | None = None
    files_made_late: Whole | None = None
    leader_ready: Flag | None = None
    quorum_contact_ms: Number | None = None
    reads_pending: Whole | None = None
    tick_gap_max_ms: Number | None = None
    loop_late_ms: Number | None = None  # at most, within the last 3 s: its machine is busy, or it was stopped
    timing: TimingView | None = None
    settings: SettingsView | None = None
    log: LogView | None = None
    peers: Annotated[tuple[PeerView, ...], OfMembers] | None = None
    links: Annotated[tuple[LinkView, ...], OfMembers] | None = None
    connections: ConnectionsView | None = None
    certificates: Annotated[tuple[CertificateView, ...], Bounded] | None = None
    disk: DiskView | None = None
    faults: Annotated[tuple[FaultView, ...], FirstFaults] | None = None
    repair: RepairView | None = None
    scrub: ScrubView | None = None
    retention: RetentionView | None = None
    applier: ApplierView | None = None
    alarms: Annotated[tuple[Alarm, ...], FirstAlarms] | None = None
    version: Text | None = None
    unknown: Unknowns | None = None
    # The command that starts this node again, as its control plane knows it.
    started_with: Text | None = None
    # Where this member's broker listens for RocketMQ's clients; absent where the group is none of brokers.
    broker: Text | None = None

    @property
    def marks(self) -> LogView:
        """The log's marks, all unknown where the member reported none."""
        return self.log if self.log is not None else LogView()

    def link_to(self, peer_id: str) -> LinkView | None:
        """What this member says of its connections to a peer; None where it tells none."""
        return next((one for one in self.links or () if one.peer_id == peer_id), None)

    def peer(self, peer_id: str | None) -> PeerView | None:
        return next((one for one in self.peers or () if one.id == peer_id), None)
