"""What a lane promises: its entries in their sequence, none left out, none behind the next lane, and an end for good.

A lane counts as opened for good once the entry at its end index, of its own term, is committed: before that another
leader may never have heard of it, and its opener knows that it has to wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.client import AppendResult
from node.client.errors import NotAppended
from tests.simulation.invariants_log import Logs
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.driver.lane_workload import UsedLane
    from tests.simulation.world import World


class LaneOrder(Observer):
    """Judges at the end, by the one committed log. Comes after `Logs`."""

    def __init__(self, logs: Logs) -> None:
        self._committed = logs.committed

    def healed(self, world: World) -> None:
        lanes: list[UsedLane] = getattr(world.workload, "lanes", [])
        entries = self._committed.entries
        places = {held.body: index for index, held in enumerate(entries, entries.begin) if held.body is not None}
        found = {id(lane): [places.get(body, -1) for body in lane.bodies] for lane in lanes}
        for lane in lanes:
            self._in_sequence(lane, found[id(lane)])
            self._ends_for_good(lane)
        in_order = sorted(lanes, key=lambda lane: (lane.term, lane.number))
        highest, acknowledged, whose, acked = -1, -1, "", ""
        for lane in in_order:
            for_good = entries.begin <= lane.end_index < entries.end and entries[lane.end_index].term == lane.term
            if for_good and highest > lane.end_index:
                text = f"entry {highest} of {whose} lies behind {lane.end_index}, where {_name(lane)} began"
                raise Violation("lanes_fence", text)
            if for_good and world.config.flush_sync and acknowledged > lane.end_index:  # else a power cut may take it
                began = f"{lane.end_index} where {_name(lane)} began"
                text = f"entry {acknowledged} of {acked} was acknowledged, behind {began}"
                raise Violation("voided_lane_is_over", text)
            last = max(found[id(lane)], default=-1)
            if last > highest:
                highest, whose = last, _name(lane)
            last = max((one.last_index for one in lane.outcomes if isinstance(one, AppendResult)), default=-1)
            if last > acknowledged:
                acknowledged, acked = last, _name(lane)

    def _in_sequence(self, lane: UsedLane, found: list[int]) -> None:
        before, gone = lane.end_index, False
        for number, index in enumerate(found):
            if index < 0:
                gone = True
            elif gone:
                raise Violation("lane_has_no_gap", f"entry {number} of {_name(lane)} is there, one before it is not")
            elif index <= before:
                text = f"entry {number} of {_name(lane)} lies at {index}, behind it at {before} is what came before"
                raise Violation("lane_in_sequence", text)
            else:
                before = index

    def _ends_for_good(self, lane: UsedLane) -> None:
        """What is not taken whole ends its lane: nothing that was sent after it is acknowledged."""
        refused = -1
        for call, outcome in enumerate(lane.outcomes):
            if isinstance(outcome, NotAppended):
                refused = call
            elif isinstance(outcome, AppendResult) and refused >= 0:
                text = (
                    f"call {call} of {_name(lane)} is acknowledged at {outcome.first_index}, call {refused} was refused"
                )
                raise Violation("lane_ends_for_good", text)


def _name(lane: UsedLane) -> str:
    return f"lane {lane.number} of term {lane.term}"
