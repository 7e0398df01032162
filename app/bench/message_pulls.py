"""Pulls of a topic's queues from their beginning, for the benches: as bytes, and as the messages that they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from node.message_client.consumer import records_of
from node.message_client.link import Link
from node.message_client.routes import Queue
from node.message_store.record import SIZE_AND_MAGIC
from node.protocol.entry import BytesLike
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import PullAnswer, PullRequest

GROUP: Final = "bench"
PULLED_MAX: Final = 1024
SUBSCRIBE: Final = 4
AHEAD: Final = 8  # pulls of a queue that are under way: each asks 32 further than the one before
PER_PULL: Final = 32
ANSWER_WITHIN_S: Final = 30.0


def counted(body: BytesLike) -> int:
    """How many records it holds, each looked at by its length only."""
    at = count = 0
    while at < len(body):
        at += SIZE_AND_MAGIC.unpack_from(body, at)[0]
        count += 1
    return count


def as_objects(body: BytesLike) -> int:
    return len(records_of(body))


async def pulled(
    link: Link, queues: Sequence[Queue], topic: str, seconds: float, take: Callable[[BytesLike], int]
) -> int:
    """How many messages come in that time; a queue that is at its end begins anew. Raises RuntimeError."""
    stop_at = time.perf_counter() + seconds
    found = 0

    async def one(queue: Queue, number: int) -> None:
        nonlocal found
        offset = number * PER_PULL
        while time.perf_counter() < stop_at:
            said = PullRequest(GROUP, topic, queue.queue_id, offset, PER_PULL, SUBSCRIBE, 0, 0, 0, "*", "TAG")
            answer = await link.ask(Request.PULL_MESSAGE, write_header(said), b"", ANSWER_WITHIN_S)
            count = take(answer.body) if answer.code == Answer.SUCCESS else 0
            found += count
            offset = _next(answer, offset) if count else number * PER_PULL

    await asyncio.gather(*(one(queue, number) for queue in queues for number in range(AHEAD)))
    if not found:
        raise RuntimeError("no message could be pulled")
    return found


def _next(answer: Command, offset: int) -> int:
    """Behind what the others of this queue have under way."""
    return read_header(PullAnswer, answer.fields).next_begin_offset + (AHEAD - 1) * PER_PULL


async def end_of(link: Link, queue: Queue, topic: str) -> int:
    """Behind the last message of a queue, as that broker has it; slaves answer pulls, too."""
    said = PullRequest(GROUP, topic, queue.queue_id, 0, 1, SUBSCRIBE, 0, 0, 0, "*", "TAG")
    answer = await link.ask(Request.PULL_MESSAGE, write_header(said), b"", ANSWER_WITHIN_S)
    if answer.fields is None or "maxOffset" not in answer.fields:
        return 0  # it does not know the topic yet
    return read_header(PullAnswer, answer.fields).max_offset
