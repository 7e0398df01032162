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
from node.message_store.record import PHYSICAL_OFFSET_AT
from node.protocol.group_kind import NO_PATCH, Channel
from tests.simulation.broker_records import record_of, wall_ms
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.driver.workload import Workload

CLOCKS_APART_MS = 12_000  # more than those of engines are


@dataclass(slots=True)
class UsedLane:
    """One that was opened, every body that was sent over it, in order, and what became of each call."""

    term: int
    number: int
    end_index: int
    last_time_ms: int = -1  # of what was sent over it, in a broker group
    bodies: list[bytes] = field(default_factory=list)
    outcomes: list[AppendResult | BaseException | None] = field(default_factory=list)  # None: not known yet


@dataclass(slots=True, frozen=True)
class Sent:
    """What goes over the lane for some bodies; `why_not`: what must not enter, if anything."""

    bodies: list[bytes]
    patch_at: int = NO_PATCH
    channel: Channel = Channel.MESSAGE
    why_not: str = ""


class LaneAppender:
    """One client machine that writes over lanes alone."""

    def __init__(self, work: Workload, name: str, rng: random.Random) -> None:
        self._work, self.name, self._rng = work, name, rng
        self._loop: SimulatedLoop = work.loop(name, random.Random(rng.getrandbits(64)))
        self._client: LedgerClient | None = None
        self._before: tuple[Lane, UsedLane] | None = None  # the lane that it had
        self._clock_ahead_ms = CLOCKS_APART_MS * (int(name[1:]) % 2)

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
        sent = self._records(lane, used, bodies) if work.world.config.broker else Sent(bodies)
        if lane.ended or not lane.has_room(len(bodies), sum(map(len, sent.bodies))):
            return
        connection = f"{self.name}/lane {used.term}.{used.number}"
        number = work.invoke(self.name, "append", bodies, connection=connection, ordered=True)
        used.bodies += bodies
        call = len(used.outcomes)
        used.outcomes.append(None)

        def ended(outcome: AppendResult | BaseException) -> None:
            used.outcomes[call] = outcome
            if sent.why_not and isinstance(outcome, AppendResult):
                text = f"{self.name} appended at {outcome.first_index} {sent.why_not}"
                work.world.violate(Violation("only_records_enter", text))
            work.appended(number, outcome)

        try:
            answer = lane.append(sent.bodies, patch_at=sent.patch_at, channel=sent.channel)
        except NotAppended as error:
            ended(error)
        else:
            answer.add_done_callback(lambda done: ended(done.exception() or done.result()))

    # --- a broker group's -----------------------------------------------------------------------------------------
    def _records(self, lane: Lane, used: UsedLane, words: list[bytes]) -> Sent:
        """As a broker makes them, by a clock that is not quite right; now and then something that must not enter."""
        rng = self._rng
        channel = rng.choice((*[Channel.MESSAGE] * 8, Channel.METADATA, Channel.SNAPSHOT_PART))
        now_ms = wall_ms(self._work.world.client_clock.now()) + self._clock_ahead_ms + rng.choice((0, 0, 0, -40, 40))
        before_ms = max(used.last_time_ms, lane.last_time_ms)
        time_ms = max(now_ms, before_ms)
        if rng.random() < 0.06:
            return self._intruder(words, before_ms, time_ms)
        used.last_time_ms = time_ms
        return Sent([record_of(one, time_ms, channel) for one in words], PHYSICAL_OFFSET_AT, channel)

    def _intruder(self, words: list[bytes], before_ms: int, time_ms: int) -> Sent:
        records = [record_of(one, time_ms) for one in words]
        at = PHYSICAL_OFFSET_AT
        return self._rng.choice((
            Sent(words, at, why_not="what is no record"),
            Sent([*records[:-1], records[-1][:-1]], at, why_not="a record that is cut off"),
            Sent(records, NO_PATCH, why_not="a record without its place"),
            Sent(records, at, Channel.SNAPSHOT_PART, "a message for a snapshot part"),
            Sent([record_of(one, time_ms, Channel.FIRST_OF_TERM) for one in words], at, Channel.FIRST_OF_TERM,
                 "the first entry of a term"),
            Sent([record_of(one, time_ms, Channel.CONFIG_CHANGE) for one in words], at, Channel.CONFIG_CHANGE,
                 "an entry about the group"),
            Sent([record_of(one, before_ms - 1) for one in words], at, why_not="a record of the past"),
        ))  # fmt: skip
