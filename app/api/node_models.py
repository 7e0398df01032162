"""What nodes answer through the console, as models for its OpenAPI document: their own answers, and whose they are."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, RootModel

from app.api.cluster_models import History
from node.views import answers
from node.views.base import UnknownView
from node.views.closures import ClosuresView
from node.views.ha import HaView
from node.views.members import MembersView
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView


class NodeState(StateView):
    """One member's state, asked just now."""

    node_id: str


class SampledState(BaseModel):
    """What a member said last; `reach`: ok, stale, never, or down (no engine runs there)."""

    id: str
    reach: str
    last_seen: str | None
    state: StateView | None
    unknown: list[UnknownView]


class SampledStates(BaseModel):
    items: list[SampledState]
    next: str | None
    as_of: str


class States(RootModel[NodeState | SampledStates]):
    """With `node` that member's state, otherwise all members' states."""


class NodeWatermarks(WatermarksView):
    node_id: str


class Watermarks(RootModel[NodeWatermarks | History]):
    """The leader's newest watermarks; with `since` the replicas' history."""


class NodeDispatchers(DispatchersView):
    node_id: str


class NodeMembers(MembersView):
    """Who belongs to the group, by that member's log."""

    node_id: str


class NodeClosures(ClosuresView):
    node_id: str


class NodeEntries(answers.Entries):
    node_id: str


class NodeAppended(answers.Appended):
    node_id: str


class ReplicaEntry(BaseModel):
    """`problem`: why there is no entry of this replica."""

    node_id: str
    entry: answers.OneEntry | None
    problem: str | None


class EntrySideBySide(BaseModel):
    """`agree`: whether all `compared` replicas hold the same; null with fewer than two."""

    index: int
    agree: bool | None
    compared: int
    replicas: list[ReplicaEntry]


class NodeTruncation(answers.Truncation):
    node_id: str


class NodeTruncations(BaseModel):
    """All replicas', the newest first; `unknown`: whose archive could not be read, and why."""

    items: list[NodeTruncation]
    next: str | None
    unknown: list[UnknownView]


class NodeTruncatedEntries(answers.TruncatedEntries):
    node_id: str


class NodeSegments(answers.Segments):
    node_id: str


class NodeSnapshots(answers.SnapshotList):
    node_id: str


class NodeDigests(answers.Digests):
    node_id: str


class PairBroker(BaseModel):
    """`ha`: what it said last, which is old where `reach` is not ok."""

    id: str
    reach: Literal["ok", "stale", "never", "down"]
    last_seen: str | None
    ha: HaView | None


class PairSentence(BaseModel):
    headline: str
    rest: str


class Pair(BaseModel):
    """A pair in classic master/slave mode. `master_id`: who takes messages; null where no broker does."""

    items: list[PairBroker]
    next: None
    as_of: str
    severity: Literal["critical", "attention", "unknown", "ok"]
    sentence: PairSentence
    master_id: str | None
    epoch: int | None
