"""How a broker group's clients append: over the lane that a member opened last for them, opened anew once it ended.

Records carry the time of a clock that is a little off, never before that of the one before them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.consensus.api import Appended, LaneTicket, Outcome, Proposal
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.protocol.codes import ResponseCode
from node.protocol.group_kind import Channel
from tests.simulation.broker_records import record_of, wall_ms
from tests.simulation.process import Origin, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

LEFT = 0.03  # share of appends before which a lane is left with all that is under way on it


@dataclass(slots=True)
class OpenLane:
    """One that was opened at a process."""

    process: Process
    origin: Origin
    term: int
    number: int
    last_time_ms: int
    next_sequence: int = 0
    ended: bool = False


class BrokerAppends:
    """Of one world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._lanes: dict[str, OpenLane] = {}  # by member

    def append(self, process: Process, words: Sequence[bytes], done: Callable[[Outcome], None]) -> None:
        """Now, at that process."""
        lane = self._lanes.get(process.id)
        if lane is None or lane.ended or lane.process is not process or self._rng.random() < LEFT:
            origin = Origin()
            opened = process.open_lane(origin)
            if opened.code is not ResponseCode.SUCCESS:
                code, detail = opened.code, opened.detail
                done(Outcome(code, -1, -1, -1, Appended.NOT_APPENDED, opened.leader_id, detail))
                return
            lane = OpenLane(process, origin, opened.term, opened.lane, opened.last_time_ms)
            self._lanes[process.id] = lane
        now_ms = wall_ms(self._world.now) + self._rng.choice((0, 0, -30, 30))
        lane.last_time_ms = max(now_ms, lane.last_time_ms)
        channel = self._rng.choice((*[Channel.MESSAGE] * 8, Channel.METADATA, Channel.SNAPSHOT_PART))
        bodies = [record_of(one, lane.last_time_ms, channel) for one in words]
        ticket = LaneTicket(lane.term, lane.number, lane.next_sequence, channel, PHYSICAL_OFFSET_AT)
        lane.next_sequence += len(bodies)
        used = lane

        def ended(outcome: Outcome) -> None:
            used.ended |= outcome.appended is not Appended.YES
            done(outcome)

        process.propose_over_lane(lane.origin, Proposal(bodies, ended, lane=ticket))
