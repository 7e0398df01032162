"""Appenders over lanes: each opens one, appends without waiting, leaves it in the middle or has it voided, and goes on.

An appender goes on trying the lane that it had when it has opened another: nothing of that may get in. What every lane
was told and what was sent over it is kept for `LaneOrder`, which judges the committed log by it.

Invariants: nothing is ever sent twice; every call is recorded before it is made and when its outcome is known.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from node.client import AppendResult, Lane, LedgerClient, LedgerError
from node.client.errors import NotAppended
from tests.simulation.driver.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.driver.workload import Workload


@dataclass(slots=True)
class UsedLane:
    """One that was opened, every body that was sent over it, in order, and what became of each call."""

    term: int
    number: int
    end_index: int
    bodies: list[bytes] = field(default_factory=list)
    outcomes: list[AppendResult | BaseException | None] = field(default_factory=list)  # None: not known yet


class LaneAppender:
    """One client machine that writes over lanes alone."""

    def __init__(self, work: Workload, name: str, rng: random.Random) -> None:
        self._work, self.name, self._rng = work, name, rng
        self._loop: SimulatedLoop = work.loop(name, random.Random(rng.getrandbits(64)))
        self._client: LedgerClient | None = None
        self._before: tuple[Lane, UsedLane] | None = None  # the lane that it had

    def start(self) -> None:
        self._loop.run_here(self._loop.create_task, self._produce())

    async def _produce(self) -> None:
        work, rng = self._work, self._rng
        self._client = LedgerClient(work.members, group="g", deadline_s=work.world.config.deadline_s)
        while work.running:
            try:
                lane = await self._client.open_lane()
            except LedgerError:
                await asyncio.sleep(rng.random() * 0.2)
                continue
            used = UsedLane(lane.term, lane.number, lane.end_index)
            work.lanes.append(used)
            work.count("lane opened")
            await self._over(lane, used)
            self._before = lane, used

    async def _over(self, lane: Lane, used: UsedLane) -> None:
        """Until it ends, or is left with all that is under way on it."""
        work, rng = self._work, self._rng
        patience = rng.choice((3, 10, 40, 1000))
        while work.running and not lane.ended and patience:
            patience -= 1
            self._send(lane, used)
            if self._before is not None and rng.random() < 0.3:
                self._send(*self._before)
            if rng.random() < 0.6:
                await asyncio.sleep(rng.expovariate(work.world.config.bursts))

    def _send(self, lane: Lane, used: UsedLane) -> None:
        work, rng = self._work, self._rng
        bodies = [work.body(self.name, rng) for _ in range(rng.randrange(1, 5))]
        if lane.ended or not lane.has_room(len(bodies), sum(map(len, bodies))):
            return
        connection = f"{self.name}/lane {used.term}.{used.number}"
        number = work.invoke(self.name, "append", bodies, connection=connection, ordered=True)
        used.bodies += bodies
        call = len(used.outcomes)
        used.outcomes.append(None)

        def ended(outcome: AppendResult | BaseException) -> None:
            used.outcomes[call] = outcome
            work.appended(number, outcome)

        try:
            answer = lane.append(bodies)
        except NotAppended as error:
            ended(error)
        else:
            answer.add_done_callback(lambda done: ended(done.exception() or done.result()))
