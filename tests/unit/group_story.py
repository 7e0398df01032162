"""A group that is looked at again and again, half a second apart, while a test changes what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from app.console.aggregate import ClusterInfo, group_view
from app.console.sample import Clock, NodeSample
from app.console.verdict import conclude
from app.health.classify import classify
from app.health.group_view import AuditView, GroupView, StartView
from app.health.recall import Recall
from node.views.closures import ClosuresView
from node.views.reading import read
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView
from tests.unit.fake_control import FakeGroup, FakeNode

T0 = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
Json = dict[str, Any]


@dataclass
class Story:
    """A group that is looked at again and again; `step` may change it before each look."""

    group: FakeGroup = field(default_factory=FakeGroup)
    recall: Recall = field(default_factory=Recall)
    looked: int = 0
    certificate_ends: dict[str, datetime] = field(default_factory=dict)
    audit: Json | None = None
    last: dict[str, tuple[StateView, datetime]] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    missed_at: dict[str, datetime] = field(default_factory=dict)
    views: list[GroupView] = field(default_factory=list)  # the newest one
    clocks_s: dict[str, float] = field(default_factory=dict)  # members' wall clocks less this machine's, where known
    unnamed: set[str] = field(default_factory=set)  # whose control planes are at an address that nobody may ask
    starts: dict[str, StartView] = field(default_factory=dict)  # what an earlier console kept of members
    why_silent: str = "connection refused"  # what the console has of a member whose control plane is gone

    @property
    def view(self) -> GroupView:
        return self.views[-1]

    def node(self, node_id: str) -> FakeNode:
        return self.group.nodes[node_id]

    def sample(self, node: FakeNode, now: datetime) -> NodeSample:
        if node.alive:
            self.last[node.id], self.missed[node.id] = (read(StateView, node.state()), now), 0
            self.missed_at.pop(node.id, None)
        else:
            self.missed[node.id] = self.missed.get(node.id, 0) + 1
            self.missed_at.setdefault(node.id, now)
        one = NodeSample(
            node.id,
            "127.0.0.1:1",
            None if node.id in self.unnamed else node.url,
            added_at=T0,
            misses=self.missed[node.id],
        )
        one.missed_at = self.missed_at.get(node.id)
        one.certificate_ends = self.certificate_ends.get(node.id)
        one.last_clock = Clock(self.clocks_s[node.id] * 1000, 500.0) if node.id in self.clocks_s else None
        if node.id in self.last:
            one.state, one.last_seen = self.last[node.id]
        if not node.alive:
            one.problem = self.why_silent
        one.start = self.starts.get(node.id)
        if one.leads:
            one.watermarks = read(WatermarksView, self.group.watermarks(node))
            one.dispatchers = read(DispatchersView, self.group.dispatchers(node))
            one.closures = read(ClosuresView, self.group.closures)
        return one

    def look(self, times: int = 1, step: Callable[[], None] = lambda: None) -> GroupView:
        """`times` samples, half a second apart."""
        for _ in range(times):
            step()
            now = T0 + timedelta(seconds=self.looked * 0.5)
            samples = [self.sample(one, now) for one in self.group.nodes.values()]
            view = group_view(ClusterInfo("demo", "demo", "demo"), samples, now)
            audit = None if self.audit is None else read(AuditView, self.audit)
            view = view.model_copy(update={"audit": audit})
            self.recall.observe(view, self.looked * 0.5, now)
            self.views = [conclude(classify(view, self.recall, now))]
            self.looked += 1
        return self.view

    def grow(self, **ends: int) -> Callable[[], None]:
        def step() -> None:
            for node_id, by in ends.items():
                self.node(node_id).end += by
            self.group.committed = sorted(one.end for one in self.group.nodes.values())[1]

        return step
