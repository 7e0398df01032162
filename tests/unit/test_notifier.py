"""The notifier's memory and the database: what changes while it is stored."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from app.db.models import AlertRoute
from app.health.clock_steps import ClockStep
from app.notify.notifier import Notifier
from app.notify.outbox import DELIVERED, Health, Message
from app.times import utc_now


class Kept:
    """A database that takes its time: `meanwhile` happens while it stores."""

    def __init__(self) -> None:
        self.notifier: Notifier | None = None
        self.saved: list[list[Any]] = []
        self.fails: list[BaseException] = []

    async def save(self, _alerts: list[Any], _gone: list[Any], messages: list[Any], routes: Any) -> None:
        await asyncio.sleep(0)
        assert self.notifier is not None
        self.saved.append([[one.id for one in messages], [route_id for route_id, _ in routes]])
        if self.fails:
            raise self.fails.pop()
        self.notifier.routes.pop(1)


def route(route_id: int) -> AlertRoute:
    return AlertRoute(id=route_id, name=f"r{route_id}", delivered_at=None, failing_since=None, error=None)


@pytest.mark.parametrize("fails", [None, OSError("locked"), asyncio.CancelledError()])
def test_a_route_that_is_removed_while_its_state_is_stored_holds_up_nothing(fails: BaseException | None) -> None:
    """It was an error of the acknowledgement that was being stored, and what had ended stayed in the memory. What could
    not be stored is stored with the next look, all of it."""

    async def work() -> None:
        kept: Any = Kept()
        notifier = Notifier(None, kept, "http://c")  # type: ignore[arg-type]
        kept.notifier = notifier
        notifier.routes = {1: route(1), 2: route(2)}
        now = notifier.started_at
        for route_id in (1, 2):
            notifier.outbox.health[route_id] = health = Health()
            health.delivered(now)
        message = Message(2, "r2", {"id": "m", "kind": "test", "thread": "t"}, now)
        message.end(DELIVERED, "answered 200", now)
        notifier.outbox.messages["m"] = message
        if fails is not None:
            kept.fails.append(fails)
            with pytest.raises(type(fails)):
                await notifier.store()
        await notifier.store()
        assert kept.saved == [[["m"], [1, 2]]] * (1 if fails is None else 2)
        assert notifier.routes[2].delivered_at == now and not notifier.outbox.messages

    asyncio.run(work())


@pytest.mark.parametrize("days", [1, 30, -30])
def test_what_waits_to_be_sent_is_not_given_up_because_the_clock_was_set(days: int) -> None:
    """With the clock a day ahead all of it had waited for a day, and nobody heard of what had just begun; with one that
    was set back the route that failed a moment ago failed in the future."""

    async def work() -> None:
        console: Any = SimpleNamespace(settings=SimpleNamespace(sample_interval_ms=500))
        notifier, now = Notifier(console, Kept(), "http://c"), utc_now()  # type: ignore[arg-type]
        notifier.outbox.now = lambda: now + timedelta(days=days)
        message = Message(1, "r1", {"id": "m", "kind": "opened", "thread": "t"}, now)
        notifier.outbox.messages["m"] = message
        notifier.outbox.health[1] = health = Health()
        health.failed(now, "answered 503")
        notifier.clock_set(ClockStep(timedelta(days=days), now + timedelta(days=days), now + timedelta(days=days)))
        assert notifier.outbox.next_of(1, notifier.outbox.now()) is message
        assert message.created_at == health.failing_since == notifier.outbox.now() and message.dirty and health.dirty

    asyncio.run(work())
