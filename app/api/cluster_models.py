"""What the API answers about groups, as models for its OpenAPI document; a GroupView describes itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from app.console.own_facts import OwnFacts
from app.console.preflight import Preflight
from app.health.group_view import ClusterView, Problem, QuorumView, SentenceView
from node.views.base import UnknownView


class About(BaseModel):
    kind: Literal["console"]
    version: str


class MemberSummary(BaseModel):
    id: str
    address: str
    control_url: str | None
    role: str | None
    reach: str


class ClusterSummary(ClusterView):
    """A group in a few words; `problems` counts those that are worth a look, `view` has the whole."""

    as_of: str
    severity: str
    sentence: SentenceView
    leader_id: str | None
    term: int | None
    flush: str | None
    quorum: QuorumView
    quorum_index: int | None
    leader_end_index: int | None
    problems: int
    members: list[MemberSummary]


class ClusterList(BaseModel):
    """`unknown`: configured addresses at which no group was found yet."""

    items: list[ClusterSummary]
    next: str | None
    unknown: list[UnknownView]


class GroupProblem(Problem):
    cluster_id: str


class GroupProblems(BaseModel):
    items: list[GroupProblem]
    next: str | None


class Problems(GroupProblems):
    """Of all groups; `console`: of the console itself."""

    console: list[Problem]


class ConsoleFacts(OwnFacts):
    """What the console knows of itself, and what is wrong with it."""

    problems: list[Problem]


class StoredEvent(BaseModel):
    id: str
    cluster_id: str
    node_id: str | None
    source_id: str | None
    at: str
    kind: str
    severity: str
    text: str
    detail: dict[str, Any] | None


class StoredEvents(BaseModel):
    """The newest first; `next` is the cursor of the rest."""

    items: list[StoredEvent]
    next: str | None


Column = list[int | None]


class ReplicaHistory(BaseModel):
    """One value for each moment of `t`; null: no sample, or unknown."""

    begin: Column
    applied: Column
    committed: Column
    durable: Column
    end: Column
    lag: Column
    lag_min: Column
    lag_max: Column
    role: list[str | None]
    term: Column
    lag_bytes: Column
    lag_ms: Column


class History(BaseModel):
    """`t`: seconds since 1970, one axis for all replicas; `note` says what a point stands for."""

    cluster_id: str
    since: str
    until: str
    step_s: int
    tier: int
    downsampled: bool
    note: str
    t: list[int]
    replicas: dict[str, ReplicaHistory]
    events: list[StoredEvent]


class WouldDo(BaseModel):
    """A dry run: what it would do; nothing was started."""

    dry_run: bool
    would: str


class TransferDryRun(Preflight):
    """What the transfer would mean; nothing was done."""

    dry_run: Literal[True]


class Broken(BaseModel):
    """What the demo did, and what to watch."""

    what: str
    node: str
    did: str
    watch: str
    index: int | None
    file: str | None
    mends_in_s: float | None


class DemoFacts(BaseModel):
    """What the demo runs; `feed`: what it has appended."""

    feed: dict[str, Any] | None
    leader_id: str | None
    members: list[dict[str, Any]]


class AuditReplica(BaseModel):
    """`java`, the indexes: null where the replica could not be read, and then `problem` says why. From `role` on: of a
    classic pair's broker, whose indexes are offsets."""

    id: str
    source: str
    kind: str
    java: bool | None
    begin_index: int | None
    end_index: int | None
    committed_index: int | None
    problem: str | None
    role: Literal["master", "slave"] | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    file_bytes: int | None = None
    pair: str | None = None
    epoch: int | None = None


class AuditRange(BaseModel):
    """Null: all of it."""

    replica: str
    from_index: int | None
    to_index: int | None
    reason: str | None = None


class AuditFence(BaseModel):
    """The range that was asked for, clipped to what a replica holds."""

    from_index: int
    to_index: int
    committed_index: int | None
    taken_at: str | None


class AuditResult(BaseModel):
    """`divergent`: a critical finding; `unauditable`: none, but not everything could be compared. `unit`: "offset" of a
    classic pair, whose places are bytes of the commit log; `same_bytes`: equal in two of its logs."""

    verdict: Literal["consistent", "divergent", "unauditable"]
    depth: str
    proves: str
    fence: AuditFence
    replicas: list[AuditReplica]
    first_divergence: int | None
    single_copy_ranges: list[AuditRange]
    unaudited: list[AuditRange]
    findings_truncated: bool
    findings_total: int
    rows: int
    seconds: float
    summary: str
    unit: Literal["offset"] | None = None
    same_bytes: int | None = None


class AuditStep(BaseModel):
    name: str
    state: str


class AuditProgress(BaseModel):
    event: Literal["progress"]
    at: str | None = None
    step: str | None
    steps: list[AuditStep]
    blocks_done: int
    blocks_total: int | None
    bytes_done: int
    bytes_total: int | None
    rows_done: int
    eta_s: float | None
    waits_for: str | None = None
    elapsed_s: float


class AuditProblem(BaseModel):
    code: str | None
    detail: str | None


class AuditFinding(BaseModel):
    cls: str = Field(alias="class")
    severity: Literal["critical", "warning", "info"]
    replicas: list[str]
    from_index: int
    to_index: int
    detail: str
    good: list[str] | None = None
    sides: list[Any] | None = None
    means: str | None = None
    records: int | None = None


class Audit(BaseModel):
    """`findings` are at `audits/{id}/findings`; some come along while the audit has just ended."""

    id: str
    cluster_id: str
    cluster_name: str
    depth: Literal["chain", "digest", "bytes"]
    from_index: int | None
    to_index: int | None
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    verdict: Literal["consistent", "divergent", "unauditable"] | None
    progress: AuditProgress | None
    result: AuditResult | None
    problem: AuditProblem | None
    requested_by: str
    created_at: str
    finished_at: str | None
    cancel_requested: bool | None = None
    findings: list[AuditFinding] | None = None
    findings_next: int | None = None


class AuditSource(BaseModel):
    id: str
    source: str


class AuditDryRun(BaseModel):
    """What would be read; nothing was started."""

    dry_run: Literal[True]
    cluster_id: str
    depth: str
    replicas: list[AuditSource]
