"""The outbox with a clock and a network of its own: order, back-off, what is given up, and what stays bounded."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.notify import outbox as module
from app.notify.outbox import Message, Outbox
from app.notify.webhook import NotDelivered
from tests.unit.console_kit import run

T0 = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


class World:
    """`refuses`: routes, or ids of messages, that are not taken."""

    def __init__(self) -> None:
        self.now = T0
        self.refuses: set[int | str] = set()
        self.tried: list[str] = []
        self.outbox = Outbox(self.send, lambda: self.now)

    async def send(self, route_id: int, payload: dict[str, Any]) -> str:
        self.tried.append(payload["id"])
        if self.refuses & {route_id, payload["id"]}:
            raise NotDelivered("answered 503")
        return "answered 204"

    def add(self, name: str, thread: str = "t", route_id: int = 1) -> Message:
        message = Message(route_id, f"route {route_id}", {"id": name, "kind": "opened", "thread": thread}, self.now)
        self.outbox.add(message)
        return message

    async def pass_(self, seconds: float, *route_ids: int) -> None:
        """So much time, with a look each second."""
        for _ in range(max(1, round(seconds))):
            self.outbox.deliver(list(route_ids or (1,)))
            while self.outbox.busy:  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0)
            self.now += timedelta(seconds=1)


def test_messages_go_out_in_order_one_at_a_time() -> None:
    async def work() -> None:
        world = World()
        messages = [world.add(f"m{n}", thread=f"t{n % 2}") for n in range(4)]
        await world.pass_(4)
        assert world.tried == ["m0", "m1", "m2", "m3"]
        assert {one.state for one in messages} == {"delivered"} and messages[0].result == "answered 204"
        health = world.outbox.health[1]
        assert (health.delivered_at, health.failing_since) == (T0 + timedelta(seconds=3), None)

    run(work())


def test_a_route_backs_off_and_another_goes_on() -> None:
    async def work() -> None:
        world = World()
        world.refuses = {1}
        stuck, other = world.add("stuck"), world.add("other", route_id=2)
        await world.pass_(64, 1, 2)
        assert other.state == "delivered" and stuck.state == "pending" and stuck.result == "answered 503"
        assert world.tried.count("stuck") == 7, "at 0, 1, 3, 7, 15, 31 and 63 s"
        assert world.outbox.health[1].failing_since == T0
        await world.pass_(3600, 1)
        assert 17 <= world.tried.count("stuck") <= 20, "every 300 s in the end"
        world.refuses = set()
        await world.pass_(301, 1)
        assert stuck.state == "delivered" and world.outbox.health[1].failing_since is None

    run(work())


def test_the_order_of_one_alert_is_kept_when_its_first_message_was_refused() -> None:
    async def work() -> None:
        world = World()
        world.refuses = {1}
        world.add("opened")
        await world.pass_(5)
        world.add("over")
        world.refuses = set()
        await world.pass_(20)
        assert [one for one in world.tried if one == "over"] == ["over"] and world.tried[-1] == "over"

    run(work())


def test_a_message_that_no_receiver_takes_holds_up_no_other_alert() -> None:
    async def work() -> None:
        world = World()
        world.refuses = {"poison"}
        world.add("poison", thread="a")
        good = [world.add(f"g{n}", thread=f"b{n}") for n in range(5)]
        await world.pass_(20)
        assert {one.state for one in good} == {"delivered"}

    run(work())


def test_a_day_later_it_is_given_up_and_says_so() -> None:
    async def work() -> None:
        world = World()
        world.refuses = {1}
        message = world.add("old")
        await world.pass_(2)
        world.now += timedelta(days=1)
        await world.pass_(1)
        assert message.state == "given_up" and message.result == "not delivered within a day: answered 503"

    run(work())


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    monkeypatch.setattr(module, "HELD_MAX", 15)

    async def work() -> None:
        world = World()
        messages = [world.add(f"m{n}") for n in range(40)]
        assert [one.state for one in messages[-10:]] == ["pending"] * 10
        assert messages[0].state == "given_up" and "more than 10" in (messages[0].result or "")
        assert len(world.outbox.messages) <= 15
        world.outbox.drop(1, "the route was removed")
        assert world.outbox.waiting(1) == []

    run(work())


def test_an_error_that_nobody_foresaw_is_a_failed_attempt() -> None:
    async def work() -> None:
        world = World()

        async def broken(*_: Any) -> str:
            raise ZeroDivisionError("odd")

        world.outbox.send = broken
        message = world.add("m")
        await world.pass_(1)
        assert message.state == "pending" and message.result == "ZeroDivisionError: odd"
        assert world.outbox.health[1].failures == 1 and not world.outbox.busy

    run(work())
