"""Runs the changes of a broker's role, one after the other in the order of their events, and keeps what each took.

    changes = RoleChangeHandler(0, {Step.OPEN_LANE: ..., ...}, note)
    changes.heard(position.term, position.leader_id, leads=position.leads)
    await changes.run()                    # for ever

Invariants: one change runs at a time; a change to MASTER is given up as soon as another event has come, so it never
waits for what a lost leadership cannot bring; a step that fails ends a change to MASTER and is passed over in a change
to SLAVE, which must not fail; the timeline is bounded.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from node.background import reason_of
from node.broker.roles import STEPS, TRANSITIONS, BrokerRole, Change, RaftEvent, RaftState, Step, broker_id_of, events

CHANGES_KEPT: Final = 64
AGAIN_S: Final = 0.1
DONE: Final = "done"
GIVEN_UP: Final = "given up"
FAILED: Final = "failed"
RUNNING: Final = "running"
Action = Callable[[], Awaitable[None] | None]
Note = Callable[[str, str, dict[str, Any]], None]


@dataclass(slots=True)
class StepTaken:
    """One step of a change."""

    step: Step
    began_s: float = field(default_factory=time.monotonic)
    took_ms: float | None = None  # None: it goes on
    error: str = ""


@dataclass(slots=True)
class RoleChange:
    """One change of the timeline."""

    began_at_ms: int
    event: RaftEvent
    change: Change
    outcome: str = RUNNING
    began_s: float = field(default_factory=time.monotonic)
    took_ms: float | None = None  # None: it goes on
    steps: list[StepTaken] = field(default_factory=list)

    def as_said(self) -> dict[str, Any]:
        """For logs and views; `took_ms` of what goes on is how long it has by now."""
        return {
            "began_at_ms": self.began_at_ms, "state": self.event.state.value, "term": self.event.term,
            "change": self.change.value, "outcome": self.outcome, "took_ms": ms_of(self),
            "steps": [
                {"step": one.step.value, "took_ms": ms_of(one), "error": one.error} for one in self.steps
            ],
        }  # fmt: skip


def ms_of(one: RoleChange | StepTaken) -> float:
    """How long it took, or has gone on until now."""
    return round((time.monotonic() - one.began_s) * 1000 if one.took_ms is None else one.took_ms, 3)


class RoleChangeHandler:
    """See the module's docstring. `actions`: what a step does beside the role and the id, which are kept here."""

    def __init__(self, member_id: str, actions: Mapping[Step, Action], note: Note) -> None:
        self._slave_id = broker_id_of(member_id)
        self._actions, self._note = actions, note
        self.role: BrokerRole | None = None
        self.broker_id = -1  # as RocketMQ's before the first election
        self.term = -1  # of the event by which the role is what it is
        self.timeline: deque[RoleChange] = deque(maxlen=CHANGES_KEPT)
        self._last: RaftEvent | None = None
        self._term_heard = -1
        self._events: deque[RaftEvent] = deque()
        self._came = asyncio.Event()

    def heard(self, term: int, leader_id: str | None, *, leads: bool) -> None:
        """What the engine says of itself now."""
        for event in events(self._last, self._term_heard, term, leader_id, leads=leads):
            self._last = event
            self._events.append(event)
            self._came.set()
        self._term_heard = term

    def engine_away(self) -> None:
        """Nothing is known of it: who cannot ask cannot lead."""
        if self._last is not None and self._last.state is RaftState.LEADER:
            self.heard(self._last.term, None, leads=False)

    async def run(self) -> None:
        """For ever."""
        while True:
            while not self._events:
                self._came.clear()
                await self._came.wait()
            event = self._events.popleft()
            change = TRANSITIONS[event.state, self.role]
            if change is Change.NOTHING:
                self.term = event.term
            elif change is Change.TO_SLAVE:
                await self._to_slave(event)
            elif not self._events:  # else it leads no more
                await self._to_master(event)

    async def _to_slave(self, event: RaftEvent) -> None:
        await self._steps(self._begun(event, Change.TO_SLAVE))

    async def _to_master(self, event: RaftEvent) -> None:
        """Until it is done, or something else has happened."""
        while not self._events:
            change = self._begun(event, Change.TO_MASTER)
            self._came.clear()
            working = asyncio.ensure_future(self._steps(change))
            other = asyncio.ensure_future(self._came.wait())
            try:
                await asyncio.wait([working, other], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (working, other):
                    task.cancel()
                await asyncio.wait([working, other])
            if change.outcome != FAILED:
                return
            await asyncio.sleep(AGAIN_S)

    def _begun(self, event: RaftEvent, change: Change) -> RoleChange:
        begun = RoleChange(time.time_ns() // 1_000_000, event, change)
        self.timeline.append(begun)
        return begun

    async def _steps(self, change: RoleChange) -> None:
        try:
            for step in STEPS[change.change]:
                if not await self._taken(step, change) and change.change is Change.TO_MASTER:
                    change.outcome = FAILED
                    return
            change.outcome = DONE
        except asyncio.CancelledError:
            change.outcome = GIVEN_UP
            raise
        finally:
            change.took_ms = (time.monotonic() - change.began_s) * 1000
            self._note("role_changed", "info" if change.outcome != FAILED else "error", change.as_said())

    async def _taken(self, step: Step, change: RoleChange) -> bool:
        """Whether it went well."""
        taken = StepTaken(step)
        change.steps.append(taken)
        try:
            self._set(step, change.event.term)
            action = self._actions.get(step)
            waiting = None if action is None else action()
            if inspect.isawaitable(waiting):
                await waiting
        except Exception as error:  # as RocketMQ: the change goes on, or begins again
            taken.error = reason_of(error)
        finally:
            taken.took_ms = (time.monotonic() - taken.began_s) * 1000
        return not taken.error

    def _set(self, step: Step, term: int) -> None:
        if step in (Step.SLAVE_ID, Step.MASTER_ID):
            self.broker_id = self._slave_id if step is Step.SLAVE_ID else 0
        elif step in (Step.SLAVE_ROLE, Step.MASTER_ROLE):
            self.role = BrokerRole.SLAVE if step is Step.SLAVE_ROLE else BrokerRole.MASTER
            self.term = term
