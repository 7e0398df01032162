"""Sends messages, each with an outcome that is known or said to be unknown.

    async with MessageProducer(["127.0.0.1:9876"]) as producer:
        sent = await producer.send(OutgoingMessage("Flights", b"...", keys=("N123",), tags="AA"))

Sends that are awaited together travel together. What a broker refused without storing it because it is busy or no
master (2, 14), or what never reached one, is sent again until the deadline; what may be stored is not (`SendUnknown`).

Invariant: a send ends with `Sent`, `NotSent`, `SendUnknown` or `Unavailable`, at its deadline at the latest.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from node.message_client.errors import ClientError, NotSent, SendUnknown, Unavailable
from node.message_client.routes import AUTO_CREATE, NEW_TOPIC_QUEUES, Queue, Routes
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.errors import MessageFormatError
from node.message_store.java_text import text_of
from node.message_store.properties import DELAY, KEYS, TAGS, UNIQ_KEY, join_properties
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import SendAnswer, SendRequestV2

AGAIN_S: Final = 0.05
STORED: Final = (Answer.SUCCESS, Answer.FLUSH_DISK_TIMEOUT, Answer.FLUSH_SLAVE_TIMEOUT, Answer.SLAVE_NOT_AVAILABLE)
SENT_AGAIN: Final = (Answer.SYSTEM_BUSY, Answer.SERVICE_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """`shard`: messages of one shard go to one queue, in order as long as its number of queues stays."""

    topic: str
    body: bytes
    keys: tuple[str, ...] = ()
    tags: str | None = None
    properties: tuple[tuple[str, str], ...] = ()
    shard: str | None = None
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """Stored. `message_id` is the broker's, by which it can be viewed."""

    message_id: str
    queue_id: int
    queue_offset: int


class MessageProducer:
    """See the module's docstring."""

    def __init__(self, name_servers: Sequence[str], group: str = "quorumscope", deadline_s: float = 10.0) -> None:
        self._routes = Routes(name_servers)
        self._group, self._deadline_s = group, deadline_s
        self._turn = 0

    async def __aenter__(self) -> MessageProducer:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._routes.close()

    async def send(self, message: OutgoingMessage) -> Sent:
        """Raises NotSent, SendUnknown, Unavailable."""
        properties = text_of(_properties(message))
        answer = await self._send(message, Request.SEND_MESSAGE_V2, message.body, properties)
        return _sent(answer)

    async def send_batch(self, messages: Sequence[OutgoingMessage]) -> list[Sent]:
        """All of one topic, into one queue: stored whole or not at all. Raises as `send`, ClientError for a mix."""
        if not messages or len({one.topic for one in messages}) != 1:
            raise ClientError("a batch is of at least one message, all of one topic")
        if any(one.delay_level for one in messages):
            raise ClientError("messages of a batch cannot wait for their time")
        try:
            body = encode_batch(BatchedMessage(0, one.body, _properties(one)) for one in messages)
        except MessageFormatError as error:
            raise ClientError(str(error)) from error
        answer = await self._send(messages[0], Request.SEND_BATCH_MESSAGE, body, "")
        first = _sent(answer)
        ids = first.message_id.split(",")
        return [Sent(one, first.queue_id, first.queue_offset + at) for at, one in enumerate(ids)]

    async def _send(self, message: OutgoingMessage, code: int, body: bytes, properties: str) -> Command:
        until = time.monotonic() + self._deadline_s
        last: ClientError = Unavailable("no time was left")
        while (left_s := until - time.monotonic()) > 0:
            try:
                queue = await self._queue(message)
                header = SendRequestV2(
                    self._group, message.topic, AUTO_CREATE, NEW_TOPIC_QUEUES, queue.queue_id, 0,
                    time.time_ns() // 1_000_000, 0, properties, 0, False, None, code == Request.SEND_BATCH_MESSAGE,
                )  # fmt: skip
                answer = await self._routes.link(queue.address).ask(code, write_header(header), body, left_s)
            except Unavailable as error:
                if error.sent:
                    raise SendUnknown(str(error)) from error
                last = error
            else:
                if answer.code in STORED:
                    return answer
                text = f"{queue.address}: {answer.remark}"
                if answer.code == Answer.SYSTEM_ERROR and "not known" in (answer.remark or ""):
                    raise SendUnknown(text)
                if answer.code not in SENT_AGAIN:
                    raise NotSent(answer.code, text)
                last = NotSent(answer.code, text)
            self._routes.forget(message.topic)
            await asyncio.sleep(min(AGAIN_S, max(0.0, until - time.monotonic())))
        raise last

    async def _queue(self, message: OutgoingMessage) -> Queue:
        queues = (await self._routes.of(message.topic, make=True)).write
        if message.shard is not None:
            return queues[crc32(message.shard.encode("utf-8", "surrogateescape")) % len(queues)]
        self._turn += 1
        return queues[self._turn % len(queues)]


def _properties(message: OutgoingMessage) -> bytes:
    """Raises ClientError for what no property can hold."""
    pairs = [(UNIQ_KEY, secrets.token_hex(16).upper()), *message.properties]
    if message.keys:
        pairs.append((KEYS, " ".join(message.keys)))
    if message.tags:
        pairs.append((TAGS, message.tags))
    if message.delay_level:
        pairs.append((DELAY, str(message.delay_level)))
    try:
        return join_properties(pairs)
    except MessageFormatError as error:
        raise ClientError(str(error)) from error


def _sent(answer: Command) -> Sent:
    try:
        said = read_header(SendAnswer, answer.fields)
    except HeaderError as error:
        raise SendUnknown(f"stored, but the answer cannot be read: {error}") from error
    return Sent(said.msg_id or "", said.queue_id or 0, said.queue_offset or 0)
