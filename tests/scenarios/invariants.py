"""What must hold after every step of a group, whatever happened to it: Raft's safety properties and our own."""

from __future__ import annotations

from node.consensus.api import Appended, Outcome
from node.consensus.effects import Event
from node.protocol.codes import FlushMode, Role
from tests.scenarios.cluster import Cluster


class Invariants:
    """Watches one cluster; `check` raises AssertionError with what broke."""

    def __init__(self, cluster: Cluster, *, alarms_allowed: bool = False) -> None:
        self._cluster = cluster
        self._alarms_allowed = alarms_allowed  # scripts that forge messages expect to see them refused
        self._leaders: dict[int, str] = {}  # term -> who led it
        self.committed: dict[int, tuple[int, int]] = {}  # index -> (term, chain), as first seen committed anywhere
        self.committed_index = cluster.base.index
        self._seen: dict[str, int] = dict.fromkeys(cluster.ids, cluster.base.index)  # how far each replica was checked
        self._replicas: dict[str, object] = {}
        self.acknowledged = -1
        self.outcomes: dict[int, Outcome] = {}
        self.proposed = 0
        self.reads = 0

    def proposal(self, number: int, outcome: Outcome) -> None:
        """Closures complete exactly once; what is acknowledged is committed."""
        assert number not in self.outcomes, f"proposal {number} completed twice"
        self.outcomes[number] = outcome
        if outcome.appended is Appended.YES:
            self.acknowledged = max(self.acknowledged, outcome.last_index)

    def event(self, node_id: str, event: Event) -> None:
        """Elections as they happen, also those that end before the next check."""
        if event.kind == "role" and event.detail["role"] == "LEADER":
            term = event.detail["term"]
            assert self._leaders.setdefault(term, node_id) == node_id, f"two leaders in term {term}"
        bad = event.detail.get("code") in ("fork", "two_leaders", "order_refused")
        assert self._alarms_allowed or not bad, event

    def check(self) -> None:
        for node_id, node in self._cluster.nodes.items():
            if node.up:
                self._check_node(node_id)

    def _check_node(self, node_id: str) -> None:
        node = self._cluster.nodes[node_id]
        replica, store = node.replica, node.store
        if self._replicas.get(node_id) is not replica:
            self._replicas[node_id] = replica
            self._seen[node_id] = store.begin_index - 1
        committed = replica.committed_index
        assert committed <= store.end_index, f"{node_id}: committed {committed} > end {store.end_index}"
        assert replica.member.durable_index <= store.end_index
        applied = replica.applied_index
        assert applied is None or applied <= committed, f"{node_id}: applied {applied} > committed {committed}"
        for index in range(max(self._seen[node_id] + 1, store.base.index, 0), committed + 1):
            meta = store.written(index)
            assert meta.chain is not None
            entry = (meta.term, meta.chain)
            assert self.committed.setdefault(index, entry) == entry, f"{node_id}: committed entry {index} differs"
        self._seen[node_id] = max(self._seen[node_id], committed)
        if committed > self.committed_index:
            self.committed_index = committed
        if replica.role is Role.LEADER:
            self._check_leader(node_id)

    def _check_leader(self, node_id: str) -> None:
        """Leader completeness, and watermarks that promise no more than the peers hold."""
        cluster = self._cluster
        node = cluster.nodes[node_id]
        newest = node.replica.term == max(self._leaders)  # a deposed leader may not know yet, and need not hold them
        if newest and self.committed_index > cluster.base.index:
            known = node.store.meta(self.committed_index)
            assert known is not None, f"{node_id} leads without committed entry {self.committed_index}"
            assert (known.term, known.chain) == self.committed[self.committed_index]
        assert node.replica.leadership is not None
        assert not node.store.faults, f"{node_id} leads with a damaged log"
        for peer_id, known in node.replica.peers.of.items():
            mark = known.watermark_index
            peer = cluster.nodes[peer_id]
            in_touch = peer.up and peer_id in node.connected and peer.replica.term == node.replica.term
            if mark > cluster.base.index and in_touch:
                if cluster.flush is FlushMode.SYNC:
                    assert peer.store.durable_index >= mark, f"{node_id} counts {peer_id} up to {mark}"
                assert peer.store.written(mark) == node.store.written(mark), (
                    f"{peer_id} differs at its watermark {mark}"
                )

    def finish(self) -> None:
        """Nothing acknowledged is lost, every proposal has its one outcome."""
        assert self.acknowledged <= self.committed_index
        assert len(self.outcomes) == self.proposed, "a closure never completed"
        for outcome in self.outcomes.values():
            if outcome.appended is Appended.YES:
                assert self.committed[outcome.last_index][0] == outcome.term
