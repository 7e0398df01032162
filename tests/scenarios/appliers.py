"""The state machines of a scenario's members, moved by the script: they say where they stand, take orders, fail, end.

Invariant: whatever one is ordered to apply continues what it has applied, is committed at its member, and is read back
from that member's store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.protocol.entry import Entry, Magic
from tests.scenarios.cluster import Cluster

if TYPE_CHECKING:
    from tests.scenarios.runner import Command


def result_of(entry: Entry) -> bytes:
    """What applying an entry answers here."""
    return b"noop" if entry.magic == Magic.NOOP else entry.body.upper()


class Appliers:
    """Those of one group, and the commands that move them."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster, self._say = cluster, say
        self._at: dict[str, int] = {}  # member -> the last entry that its applier applied
        self._life: dict[str, int] = {}
        self.verbs: dict[str, Callable[[Command], None]] = {
            "applier": self._start, "apply": self._apply, "applier-ends": self._end,
        }  # fmt: skip

    def at(self, node_id: str) -> int:
        """The last entry that its state machine has applied."""
        return self._at[node_id]

    def _start(self, command: Command) -> None:
        self.stand(command.words[0], command.number("at", -1), command.number("term", -1))

    def stand(self, node_id: str, at: int, term: int) -> None:
        """That member's state machine says where it stands."""
        replica = self._cluster.nodes[node_id].replica
        self._at[node_id] = at
        self._life[node_id] = replica.applying.ready(at, None if term < 0 else term, self._cluster.now)
        self._cluster.carry_out(node_id)

    def _apply(self, command: Command) -> None:
        node_id, error = command.words[0], command.options.get("fail", "")
        node = self._cluster.nodes[node_id]
        order, node.apply = node.apply, None
        if order is None or order.life != self._life[node_id]:
            self._say("nothing is ordered")
            return
        last = command.number("upto", order.last_index)
        assert order.first_index == self._at[node_id] + 1, f"{order} comes after entry {self._at[node_id]}"
        assert order.last_index <= node.replica.committed_index, f"{order} is not committed"
        entries = [entry for index in range(order.first_index, last + 1) if (entry := node.store.get(index))]
        self._say(" ".join([f"{node_id} applies", *(f"{one.index}:{result_of(one).decode()}" for one in entries)]))
        self._at[node_id] = last
        results = [result_of(one) for one in entries]
        node.replica.applying.applied(order.life, last, results, self._cluster.now, error)
        self._cluster.carry_out(node_id)

    def _end(self, command: Command) -> None:
        node_id, *reason = command.words
        replica = self._cluster.nodes[node_id].replica
        replica.applying.lost(self._life[node_id], " ".join(reason), self._cluster.now)
        self._cluster.carry_out(node_id)
