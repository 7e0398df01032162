"""Offsets that are set for some queues of a topic and not for others: what is said of the whole call."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control.message_changes import Reset, reset
from node.control.problems import Problem
from node.message_client.errors import Unavailable
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.views.state import StateView

REFUSED = Command(Answer.SERVICE_NOT_AVAILABLE, 1, 1, {}, "it is no master any more", b"", "JAVA")
TAKEN = REFUSED._replace(code=Answer.SUCCESS, remark=None)


class Broker:
    """A master of one topic with three queues; `answers` are those to the questions to set an offset."""

    def __init__(self, answers: list[Command | Unavailable]) -> None:
        self.answers = answers

    async def json(self, what: str, **_: object) -> dict[str, Any]:
        if what == "group":
            return {"members": [], "subscriptions": [], "queues": []}
        return {"items": [{"queue_id": at, "min_offset": 0, "max_offset": 9, "at": 4} for at in range(3)]}

    async def broker(self) -> Any:
        return SimpleNamespace(role="MASTER")

    async def command(self, code: int, _fields: object, _body: bytes = b"") -> Command:
        assert code == Request.UPDATE_CONSUMER_OFFSET
        answer = self.answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "status", "outcome"),
    [
        ([REFUSED] * 3, 421, "not_appended"),
        ([TAKEN, REFUSED, REFUSED], 504, "unknown"),
        ([TAKEN, TAKEN, REFUSED], 504, "unknown"),
        ([REFUSED, REFUSED, Unavailable("it closed", sent=True)], 504, "unknown"),
        ([TAKEN] * 3, 200, None),
    ],
)
def test_that_nothing_was_changed_is_said_where_nothing_was(
    answers: list[Command | Unavailable], status: int, outcome: str | None
) -> None:
    taken = answers.count(TAKEN)

    async def state(*_: object) -> StateView:
        return StateView(engine="ok", self_id="n0", term=3, leader_id="n1", peers=(), alarms=())

    async def work() -> None:
        parts: Any = SimpleNamespace(broker=Broker(list(answers)), snapshots=SimpleNamespace(get=state, get_late=state))
        body = Reset(topic="T", to="latest")
        if outcome is None:
            assert [one["after"] for one in (await reset(parts, "G", body))["items"]] == [9, 9, 9]
            return
        with pytest.raises(Problem) as refused:
            await reset(parts, "G", body)
        assert (refused.value.status, refused.value.extra["outcome"]) == (status, outcome)
        assert (f"{taken} of 3 queues are set" in refused.value.detail) is (status == 504)

    asyncio.run(work())
