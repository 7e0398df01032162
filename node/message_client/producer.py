"""Sends messages, each with an outcome that is known or said to be unknown.

    async with MessageProducer(["127.0.0.1:9876"]) as producer:
        sent = await producer.send(OutgoingMessage("Flights", b"...", keys=("N123",), tags="AA"))
        future = producer.submit(OutgoingMessage("Flights", b"..."))        # the same, without waiting for its turn

What is sent in one turn of the loop travels together. What a broker refused without storing it because it is busy or no
master (2, 14), or what never reached one, is sent again until the deadline; what may be stored is not (`SendUnknown`).
To a broker that has been silent for SILENT_S nothing more is sent until it speaks, or another one is the master: one
that is stopped or cut off ends no connection.

Invariant: a send ends with `Sent`, `NotSent`, `SendUnknown` or `Unavailable`, at its deadline at the latest; once it is
closed with `Closed`, in another loop or process than that of the first call with `WrongLoop`: then nothing was sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final
from zlib import crc32

from node.background import Background
from node.message_client.errors import ClientError, Closed, NotSent, SendUnknown, Unavailable
from node.message_client.link import Link
from node.message_client.outgoing import OutgoingMessage, properties_of, send_command
from node.message_client.routes import Queue, Routes
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.errors import MessageFormatError
from node.protocol.value_class import value_class
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.header_fields import HeaderError, read_header
from node.rocketmq.headers import SendAnswer

AGAIN_S: Final = 0.05
CLOSED: Final = "the producer is closed"
SILENT_S: Final = 1.0
SENT_AGAIN: Final = (Answer.SYSTEM_BUSY, Answer.SERVICE_NOT_AVAILABLE)
# How RocketMQ's and our brokers begin what they say of a put that may be stored: IN_SYNC_REPLICAS_NOT_ENOUGH.
MAY_BE_STORED: Final = "in-sync replicas not enough"


class SendStatus(StrEnum):
    """RocketMQ's, of what is stored. All but the first: a master of classic mode has it, and not yet what it promises,
    its disk or its slaves; a promotion of a slave may lose it."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STORED: Final[dict[int, SendStatus]] = {
    Answer.SUCCESS: SendStatus.SEND_OK, Answer.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    Answer.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    Answer.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}  # fmt: skip


@value_class(slots=True, frozen=True)
class Sent:
    """Stored. `message_id` is the broker's, by which it can be viewed; `broker_name` that of master and slaves;
    `status`: whether it is where the broker promises it to be."""

    message_id: str
    queue_id: int
    queue_offset: int
    broker_name: str = ""
    status: SendStatus = SendStatus.SEND_OK


@value_class(slots=True, frozen=True)
class _Send:
    """One request that is under way; `answer` is whose it is."""

    message: OutgoingMessage
    code: int
    properties: bytes
    body: bytes
    due_at: float  # by the loop's clock
    answer: asyncio.Future[Sent]

    def stored(self, answer: Command, broker_name: str) -> None:
        """It is, and the broker says where."""
        try:
            self.answer.set_result(_sent(answer, broker_name))
        except SendUnknown as error:
            self.answer.set_exception(error)


class MessageProducer:
    """See the module's docstring."""

    def __init__(self, name_servers: Sequence[str], group: str = "quorumscope", deadline_s: float = 10.0) -> None:
        self._routes = Routes(name_servers)
        self._group, self._deadline_s = group, deadline_s
        self._turn = 0
        self._closed = False
        self._background = Background()

    async def __aenter__(self) -> MessageProducer:
        self._routes.home.check()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """What is on its way may be stored; what comes later is refused. Again: nothing. Raises WrongLoop."""
        self._routes.home.check()
        self._closed = True
        await self._background.stop()
        await self._routes.close()

    async def reach(self, topic: str) -> None:
        """Whether there is a master that takes messages of it, now. Raises Unavailable (Closed, WrongLoop)."""
        self._routes.home.check()
        if self._closed:
            raise Closed(CLOSED)
        await self._routes.of(topic, make=True)

    # --- one message ----------------------------------------------------------------------------------------------
    async def send(self, message: OutgoingMessage) -> Sent:
        """Raises NotSent, SendUnknown, Unavailable (Closed, WrongLoop)."""
        return await self.submit(message)

    def submit(self, message: OutgoingMessage) -> asyncio.Future[Sent]:
        """Starts it; the future ends as `send` does. Raises ClientError for what no message can hold, WrongLoop."""
        return self._start(message, Request.SEND_MESSAGE_V2, message.body, properties_of(message))

    async def send_batch(self, messages: Sequence[OutgoingMessage]) -> list[Sent]:
        """All of one topic, into one queue: stored whole or not at all. Raises as `send`, ClientError for a mix."""
        if not messages or len({one.topic for one in messages}) != 1:
            raise ClientError("a batch is of at least one message, all of one topic")
        if any(one.delay_level for one in messages):
            raise ClientError("messages of a batch cannot wait for their time")
        try:
            body = encode_batch(BatchedMessage(0, one.body, properties_of(one)) for one in messages)
        except MessageFormatError as error:
            raise ClientError(str(error)) from error
        first = await self._start(messages[0], Request.SEND_BATCH_MESSAGE, body, b"")
        ids = first.message_id.split(",")
        return [
            Sent(one, first.queue_id, first.queue_offset + at, first.broker_name, first.status)
            for at, one in enumerate(ids)
        ]

    # --- a request ------------------------------------------------------------------------------------------------
    def _start(
        self, message: OutgoingMessage, code: int, body: bytes, properties: bytes
    ) -> asyncio.Future[Sent]:  # fmt: skip
        """At once where the way is known and open, else in a task."""
        loop = self._routes.home.check()
        send = _Send(message, code, properties, body, loop.time() + self._deadline_s, loop.create_future())
        queue = None if self._closed else self._known_queue(message)
        link = None if queue is None else self._routes.link(queue.address)
        if queue is not None and link is not None and link.is_open and link.silent_s < SILENT_S:
            self._go(send, queue, link, partial(self._answered, send, queue))
        else:
            why = Unavailable(f"no master of {message.topic} was reached in time")
            self._try_again(send, Closed(CLOSED) if self._closed else why, 0.0, queue)
        return send.answer

    def _go(self, send: _Send, queue: Queue, link: Link, done: Callable[[Command | Unavailable], None]) -> None:
        opaque = link.next_number()
        data = send_command(
            send.code, opaque, self._group, send.message.topic, queue.queue_id, time.time_ns() // 1_000_000,
            send.properties, send.body,
        )  # fmt: skip
        link.call(opaque, data, send.due_at, done)

    def _answered(self, send: _Send, queue: Queue, outcome: Command | Unavailable) -> None:
        if send.answer.done():  # nobody waits for it any more
            return
        if isinstance(outcome, Command) and outcome.code == Answer.SUCCESS:
            send.stored(outcome, queue.broker_name)
            return
        try:
            send.stored(_judged(queue.address, outcome), queue.broker_name)
        except (NotSent, Unavailable) as error:
            if isinstance(error, NotSent) and error.code not in SENT_AGAIN:
                send.answer.set_exception(error)
            else:
                self._routes.forget(send.message.topic)
                self._try_again(send, error, pause_s=AGAIN_S)
        except SendUnknown as error:
            self._routes.forget(send.message.topic)
            send.answer.set_exception(error)

    def _try_again(self, send: _Send, last: ClientError, pause_s: float, queue: Queue | None = None) -> None:
        """`queue`: whose turn it is."""
        if self._closed:
            send.answer.set_exception(last)
            return
        self._background.run("a send", self._kept_at(send, last, pause_s, queue))

    async def _kept_at(self, send: _Send, last: ClientError, pause_s: float, queue: Queue | None) -> None:
        """Whatever ends it, the send has an outcome."""
        try:
            found, broker_name = await self._again_until(send, last, pause_s, queue)
            if not send.answer.done():
                send.stored(found, broker_name)
        except Exception as error:
            if not send.answer.done():
                send.answer.set_exception(error)
        finally:
            if not send.answer.done():
                send.answer.set_exception(SendUnknown("the producer was closed"))

    async def _again_until(
        self, send: _Send, last: ClientError, pause_s: float, queue: Queue | None
    ) -> tuple[Command, str]:  # fmt: skip
        """The answer, and the broker's name. Raises ClientError."""
        loop = asyncio.get_running_loop()
        if pause_s:
            await asyncio.sleep(min(pause_s, max(0.0, send.due_at - loop.time())))
        while loop.time() < send.due_at:
            try:
                queue, link = await self._way(send, queue)
                answer: asyncio.Future[Command | Unavailable] = loop.create_future()
                self._go(send, queue, link, partial(_end, answer))
                return _judged(queue.address, await answer), queue.broker_name
            except TimeoutError:
                break
            except Unavailable as error:
                last = error
            except NotSent as error:
                if error.code not in SENT_AGAIN:
                    raise
                last = error
            except SendUnknown:
                self._routes.forget(send.message.topic)
                raise
            queue = None
            self._routes.forget(send.message.topic)
            await asyncio.sleep(min(AGAIN_S, max(0.0, send.due_at - loop.time())))
        raise last

    async def _way(self, send: _Send, queue: Queue | None) -> tuple[Queue, Link]:
        """An open link to a master that speaks. Raises Unavailable; TimeoutError at the send's deadline."""
        async with asyncio.timeout_at(send.due_at):
            if queue is None:
                route = await self._routes.of(send.message.topic, make=True)
                queue = self._chosen(send.message, route.write)
            link = self._routes.link(queue.address)
            await link.connect()
        if link.silent_s >= SILENT_S:
            raise Unavailable(f"{queue.address} has not answered for {link.silent_s:.1f} s")
        return queue, link

    # --- where it goes --------------------------------------------------------------------------------------------
    def _known_queue(self, message: OutgoingMessage) -> Queue | None:
        route = self._routes.known(message.topic)
        return None if route is None or not route.write else self._chosen(message, route.write)

    def _chosen(self, message: OutgoingMessage, queues: Sequence[Queue]) -> Queue:
        if message.shard is not None:
            return queues[crc32(message.shard.encode("utf-8", "surrogateescape")) % len(queues)]
        self._turn += 1
        return queues[self._turn % len(queues)]


def _end(answer: asyncio.Future[Command | Unavailable], outcome: Command | Unavailable) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _judged(address: str, outcome: Command | Unavailable) -> Command:
    """The answer of what is stored. Raises SendUnknown; Unavailable and NotSent where it is not stored."""
    if isinstance(outcome, Unavailable):
        if outcome.sent:
            raise SendUnknown(str(outcome)) from outcome
        raise outcome
    if outcome.code in STORED:
        return outcome
    text = f"{address}: {outcome.remark}"
    if outcome.code == Answer.SYSTEM_ERROR and (outcome.remark or "").startswith(MAY_BE_STORED):
        raise SendUnknown(text)
    raise NotSent(outcome.code, text)


def _sent(answer: Command, broker_name: str) -> Sent:
    """Raises SendUnknown."""
    try:
        said = read_header(SendAnswer, answer.fields)
    except HeaderError as error:
        raise SendUnknown(f"stored, but the answer cannot be read: {error}") from error
    return Sent(said.msg_id or "", said.queue_id or 0, said.queue_offset or 0, broker_name, STORED[answer.code])
