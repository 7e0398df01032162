"""Verbs of a script about lanes.

open-lane n0 a              connection `a` opens a lane at n0
over n0 a lane=1 from=0 x y [term=1] [patch=8]
                            appends x and y over that lane, as its entries 0 and 1
lane-lost n0 a              n0 hears that connection `a` closed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from node.consensus.api import LaneTicket, Outcome, Proposal
from node.protocol.codes import ResponseCode
from node.protocol.group_kind import NO_PATCH
from tests.scenarios.cluster import Cluster

if TYPE_CHECKING:
    from tests.scenarios.runner import Command


class LaneVerbs:
    """Carries them out. `say`: a line of the script's output."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster, self._say = cluster, say
        self.verbs: Mapping[str, Callable[[Command], None]] = {
            "open-lane": self._open, "over": self._over, "lane-lost": self._lost,
        }  # fmt: skip

    def _open(self, command: Command) -> None:
        node_id, origin = command.words
        opened = self._cluster.nodes[node_id].replica.open_lane(origin, self._cluster.now)
        if opened.code is ResponseCode.SUCCESS:
            self._say(f"lane {opened.lane} of term {opened.term} for {origin}, behind entry {opened.end_index}")
        else:
            self._say(f"no lane for {origin}: {opened.code.name}: {opened.detail}")
        self._cluster.carry_out(node_id)

    def _over(self, command: Command) -> None:
        self.over(command, [word.encode() for word in command.words[2:]], command.number("patch", NO_PATCH))

    def over(self, command: Command, bodies: list[bytes], patch_at: int) -> None:
        """Appends these."""
        node_id, origin = command.words[:2]
        replica = self._cluster.nodes[node_id].replica
        lane, sequence = command.number("lane", 1), command.number("from", 0)
        term = command.number("term", replica.term)

        def done(outcome: Outcome) -> None:
            where = f" {outcome.first_index}..{outcome.last_index} term {outcome.term}" if outcome.term >= 0 else ""
            detail = f": {outcome.detail}" if outcome.detail else ""
            name = f"lane {lane} of {origin}, from entry {sequence} on"
            self._say(f"{name}: {outcome.code.name} ({outcome.appended}){where}{detail}")

        ticket = LaneTicket(term, lane, sequence, command.number("channel", 0), patch_at)
        proposal = Proposal(bodies, done, origin=origin, lane=ticket)
        replica.lanes.watch(proposal)
        replica.propose_many([proposal], self._cluster.now)
        self._cluster.carry_out(node_id)

    def _lost(self, command: Command) -> None:
        node_id, origin = command.words
        self._cluster.nodes[node_id].replica.lanes.lost(origin)
