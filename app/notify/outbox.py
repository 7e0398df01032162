"""The outbox: messages that wait to be delivered, in the order of each alert, one attempt at a time on each route.

A message that was not taken is tried again: the route waits 1, 2, 4 … up to 300 s between attempts, and a message is
given up after a day, or when too many wait. Invariants: messages of one alert leave a route in the order in which they
became due; a route that fails holds up no other; a message keeps its id however often it is tried, so that a receiver
knows a repeated one; what is in here is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from app.db.alerts import PENDING
from app.db.models import AlertMessage
from app.health.clock_steps import ClockStep
from app.notify.webhook import NotDelivered
from node.background import Background, reason_of

Json = dict[str, Any]
BACK_OFF_S_MAX: Final = 300.0
GIVE_UP_AFTER: Final = timedelta(days=1)
WAITING_MAX: Final = 500
# With those that have ended and could not be stored yet.
HELD_MAX: Final = 5000
# `failed`: of a test, which is tried once.
DELIVERED, GIVEN_UP, FAILED = "delivered", "given_up", "failed"

# Delivers one message on one route, and returns what was answered; raises NotDelivered.
Send = Callable[[int, Json], Awaitable[str]]
Now = Callable[[], datetime]


@dataclass(slots=True)
class Message:
    """One message on one route; `dirty`: not stored as it is now."""

    route_id: int
    route_name: str
    payload: Json
    created_at: datetime
    state: str = PENDING
    attempts: int = 0
    ended_at: datetime | None = None
    result: str | None = None
    dirty: bool = True

    @property
    def id(self) -> str:
        return str(self.payload["id"])

    def end(self, state: str, result: str, now: datetime) -> None:
        self.state, self.result, self.ended_at, self.dirty = state, result[:500], now, True

    def row(self) -> AlertMessage:
        return AlertMessage(
            id=self.id, route_id=self.route_id, route_name=self.route_name, kind=self.payload["kind"],
            payload=self.payload, state=self.state, attempts=self.attempts, created_at=self.created_at,
            ended_at=self.ended_at, result=self.result,
        )  # fmt: skip


def message_of(row: AlertMessage) -> Message:
    return Message(
        row.route_id, row.route_name, row.payload, row.created_at, row.state, row.attempts, row.ended_at, row.result,
        dirty=False,
    )  # fmt: skip


@dataclass(slots=True)
class Health:
    """How deliveries on a route go."""

    delivered_at: datetime | None = None
    failing_since: datetime | None = None
    failures: int = 0
    error: str | None = None
    next_at: datetime | None = None
    dirty: bool = False

    def delivered(self, now: datetime) -> None:
        self.delivered_at, self.failing_since, self.error = now, None, None
        self.failures, self.next_at, self.dirty = 0, None, True

    def failed(self, now: datetime, error: str) -> None:
        self.failures += 1
        self.failing_since = self.failing_since or now
        self.error, self.dirty = error[:500], True
        self.next_at = now + timedelta(seconds=min(BACK_OFF_S_MAX, 2.0 ** (self.failures - 1)))


class Outbox:
    """See the module's docstring. Used from one event loop."""

    def __init__(self, send: Send, now: Now) -> None:
        self.send = send
        self.now = now
        self.messages: dict[str, Message] = {}
        self.health: dict[int, Health] = {}
        self.busy: set[int] = set()
        self.background = Background()

    def add(self, message: Message) -> None:
        waiting = self.waiting(message.route_id)
        if len(waiting) >= WAITING_MAX:
            waiting[0].end(GIVEN_UP, f"more than {WAITING_MAX} messages wait on this route", self.now())
        self.messages[message.id] = message
        if len(self.messages) > HELD_MAX:
            ended = next((one.id for one in self.messages.values() if one.state != PENDING), None)
            self.messages.pop(ended or next(iter(self.messages)))

    def waiting(self, route_id: int) -> list[Message]:
        """Oldest first."""
        return [one for one in self.messages.values() if one.route_id == route_id and one.state == PENDING]

    def drop(self, route_id: int, why: str) -> None:
        for one in self.waiting(route_id):
            one.end(GIVEN_UP, why, self.now())

    def move(self, step: ClockStep) -> None:
        """The wall clock was set: nothing has waited, or fails, for as long as that."""
        for one in self.messages.values():
            if one.state == PENDING:
                one.created_at, one.dirty = step.moved_past(one.created_at), True
        for health in self.health.values():
            health.next_at = step.moved(health.next_at)
            if health.failing_since is not None:
                health.failing_since, health.dirty = step.moved_past(health.failing_since), True

    def forget(self, stored: list[Message]) -> None:
        """What has ended and is stored is history."""
        for one in stored:
            if one.state != PENDING and not one.dirty:
                self.messages.pop(one.id, None)

    def deliver(self, route_ids: list[int]) -> None:
        """Begins one attempt on each route where one is due."""
        now = self.now()
        for route_id in route_ids:
            health = self.health.setdefault(route_id, Health())
            if route_id in self.busy or (health.next_at is not None and now < health.next_at):
                continue
            message = self.next_of(route_id, now)
            if message is not None:
                self.busy.add(route_id)
                self.background.run(f"delivering {message.id}", self.attempt(message, health))

    def next_of(self, route_id: int, now: datetime) -> Message | None:
        """The oldest of each alert is ready; of those, the one that was tried least: one that no receiver takes must
        not hold up the others."""
        ready: dict[str, Message] = {}
        for one in self.waiting(route_id):
            if now - one.created_at >= GIVE_UP_AFTER:
                one.end(GIVEN_UP, f"not delivered within a day: {one.result or 'never tried'}", now)
            else:
                ready.setdefault(str(one.payload["thread"]), one)
        return min(ready.values(), key=lambda one: (one.attempts, one.created_at), default=None)

    async def attempt(self, message: Message, health: Health) -> None:
        try:
            message.attempts += 1
            message.dirty = True
            answer = await self.send(message.route_id, message.payload)
        except NotDelivered as error:
            self.failed(message, health, str(error))
        except Exception as error:
            self.failed(message, health, reason_of(error))
            raise  # not foreseen: into the log, with its traceback
        else:
            health.delivered(self.now())
            if message.state == PENDING:
                message.end(DELIVERED, answer, self.now())
        finally:
            self.busy.discard(message.route_id)

    def failed(self, message: Message, health: Health, error: str) -> None:
        message.result = error[:500]
        health.failed(self.now(), error)
