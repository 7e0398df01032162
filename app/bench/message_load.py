"""Ways to send messages to brokers, for the benches: our producer, single and in batches, and requests in JSON.

Invariant: each is an `Appender`, and so is measured as appends to the log are; bodies are the load's, keys are unique.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Final

from node.message_client import MessageProducer, OutgoingMessage
from node.message_client.link import Link
from node.message_client.outgoing import properties_of
from node.message_client.routes import Queue
from node.message_store.java_text import text_of
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command, encode
from node.rocketmq.header_fields import write_header
from node.rocketmq.headers import SendRequestV2

TOPIC: Final = "Bench"
GROUP: Final = "bench"
TAGS: Final = ("AA", "UA", "DL", "WN")
ANSWER_WITHIN_S: Final = 30.0


class Sends:
    """Our producer: each message with a key of its own and one of four tags."""

    def __init__(self, producer: MessageProducer, topic: str = TOPIC) -> None:
        self._producer, self._topic = producer, topic
        self._number = itertools.count()

    def _message(self, body: bytes) -> OutgoingMessage:
        number = next(self._number)
        return OutgoingMessage(self._topic, body, (f"K{number}",), TAGS[number % 4])

    def submit(self, body: bytes) -> asyncio.Future[Any]:
        return self._producer.submit(self._message(body))

    async def append(self, body: bytes) -> object:
        return await self._producer.submit(self._message(body))

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        return await self._producer.send_batch([self._message(body) for body in bodies])


class JsonSends:
    """SEND_MESSAGE_V2 with JSON headers, as RocketMQ's clients send by default, or with binary ones."""

    def __init__(self, link: Link, queues: Sequence[Queue], topic: str = TOPIC, *, binary: bool = False) -> None:
        self._link, self._queues, self._topic, self._binary = link, queues, topic, binary
        self._number = itertools.count()

    def submit(self, body: bytes) -> asyncio.Future[Any]:
        loop, number = asyncio.get_running_loop(), next(self._number)
        done: asyncio.Future[Any] = loop.create_future()
        message = OutgoingMessage(self._topic, body, (f"K{number}",), TAGS[number % 4])
        queue = self._queues[number % len(self._queues)]
        header = SendRequestV2(
            GROUP, self._topic, "TBW102", 4, queue.queue_id, 0, 1_795_000_000_000 + number, 0,
            text_of(properties_of(message)), 0, False, None, False,
        )  # fmt: skip
        opaque = self._link.next_number()
        data = encode(
            Command(Request.SEND_MESSAGE_V2, opaque, 0, write_header(header), None, body, binary=self._binary)
        )

        def answered(outcome: Command | Exception) -> None:
            if done.done():  # nobody waits any more: the bench was interrupted
                return
            if isinstance(outcome, Command) and outcome.code == Answer.SUCCESS:
                done.set_result(outcome)
            else:
                done.set_exception(RuntimeError(f"a send was answered {outcome}"))

        self._link.call(opaque, data, loop.time() + ANSWER_WITHIN_S, answered)
        return done

    async def append(self, body: bytes) -> object:
        return await self.submit(body)

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        return await asyncio.gather(*(self.submit(body) for body in bodies))
