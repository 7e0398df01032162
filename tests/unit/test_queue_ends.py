"""Where a master's queues go on: asked until it is known, and of each master anew whether it says it at all."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from node.broker.classic.queue_ends import QueueEnds
from node.rocketmq.codes import Answer
from node.rocketmq.java_json import BodyError


class Slave:
    """A store whose log begins behind its first byte, and that knows no queue."""

    def __init__(self, ends: dict[tuple[str, int], int] | None = None) -> None:
        self.placed: dict[tuple[str, int], int] = {}
        self.log = SimpleNamespace(min_offset=4096, cuts=0)
        self.end_position, self.is_cutting, self.ends = 8192, False, ends or {}
        self.dispatcher: Any = SimpleNamespace(queue_end=lambda one: self.ends.get(one, 0), keep_place=self.keep_place)

    def keep_place(self, queue: tuple[str, int], end: int, _position: int) -> None:
        self.placed[queue] = end


class Master:
    def __init__(self, code: int, body: bytes = b"") -> None:
        self.answer, self.asked = SimpleNamespace(code=code, body=body), 0

    async def ask(self, *_: Any) -> Any:
        self.asked += 1
        return self.answer


def of_ours(end: int = 8192) -> Master:
    said = {"end": end, "queues": {"orders": {"0": 17, "1": 5}}}
    return Master(Answer.SUCCESS, json.dumps(said).encode())


def rounds(ends: QueueEnds, master: Any, count: int = 2) -> None:
    for _ in range(count):
        asyncio.run(ends.follow(master))


def test_queues_without_a_message_here_are_placed_once_the_log_is_there() -> None:
    slave, master = Slave({("orders", 1): 9}), of_ours(end=9000)
    ends = QueueEnds(slave)  # type: ignore[arg-type]
    rounds(ends, master)
    assert slave.placed == {} and master.asked == 1
    slave.end_position = 9000
    rounds(ends, master)
    assert slave.placed == {("orders", 0): 17} and master.asked == 1


def test_a_master_that_says_it_is_asked_where_the_one_before_it_did_not() -> None:
    """One of an earlier release, and RocketMQ's own, know no such request: the slave asked nobody any more."""
    slave, older, master = Slave(), Master(Answer.REQUEST_CODE_NOT_SUPPORTED), of_ours()
    ends = QueueEnds(slave)  # type: ignore[arg-type]
    rounds(ends, older)
    assert older.asked == 1
    ends.forget()
    rounds(ends, master)
    assert slave.placed == {("orders", 0): 17, ("orders", 1): 5} and master.asked == 1
    ends.forget()
    rounds(ends, master)
    assert master.asked == 1


@pytest.mark.parametrize("body", [b"", b"[]", b'{"end": 1}', b'{"end": -1, "queues": {}}', b'{"end": 1, "queues": 3}'])
def test_an_answer_that_cannot_be_read_places_nothing(body: bytes) -> None:
    slave = Slave()
    with pytest.raises(BodyError):
        rounds(QueueEnds(slave), Master(Answer.SUCCESS, body))  # type: ignore[arg-type]
    assert slave.placed == {}
