"""Verbs of scripts about logs that begin later: trimming by force, and orders to begin behind a base.

- `trim n0 n1 THROUGH`: whole files go from the fronts of these logs, whoever needs them.
- `begin-behind n2 from=n0 term=1 base=8/1`: an order of that leader arrives, to begin behind entry 8 of term 1;
  `chain=` for another one than that leader's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from node.protocol.messages import InstallRequest
from tests.scenarios.cluster import Cluster

if TYPE_CHECKING:
    from tests.scenarios.runner import Command


class BaseVerbs:
    """Of one script."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster, self._say = cluster, say
        self.verbs: dict[str, Callable[[Command], None]] = {"trim": self.trim, "begin-behind": self.begin_behind}

    def trim(self, command: Command) -> None:
        *nodes, through = command.words
        for node_id in nodes:
            store = self._cluster.nodes[node_id].store
            store.remove_prefix(int(through), forced=True)
            self._say(f"{node_id} begins at {store.begin_index}")

    def begin_behind(self, command: Command) -> None:
        leader_id, (index, term) = command.options["from"], map(int, command.options["base"].split("/"))
        base = self._cluster.nodes[leader_id].store.base_on_record
        chain = int(command.options["chain"], 16) if "chain" in command.options else base.meta.chain
        order = InstallRequest(
            9000, leader_id, command.number("term", 0), 1 << 40, -1, index, term, chain, base.pos, base.group_id
        )
        self._cluster.post(leader_id, command.words[0], order)
