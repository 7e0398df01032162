"""The notifier's memory and the database: what changes while it is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.db.models import AlertRoute
from app.notify.notifier import Notifier
from app.notify.outbox import DELIVERED, Health, Message


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
