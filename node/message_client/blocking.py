"""The same producer and consumer for code that blocks: each with a loop in a thread of its own.

    with MessageProducerSync(["127.0.0.1:9876"]) as producer:
        sent = producer.send(OutgoingMessage("Flights", b"..."))
    with MessageConsumerSync(["127.0.0.1:9876"], "Departures", "Flights") as consumer:
        for message in consumer:              # asking for the next one says that this one is done
            ...

Several threads may use one producer. What a closed one is asked ends with Closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from node.loop_thread import LoopThread
from node.message_client.consumer import MessageConsumer
from node.message_client.errors import Closed
from node.message_client.outgoing import OutgoingMessage
from node.message_client.producer import MessageProducer, Sent
from node.message_client.routes import Queue
from node.message_client.taking import Received


class MessageProducerSync:
    """See the module's docstring; options as `MessageProducer`'s."""

    def __init__(self, name_servers: Sequence[str], group: str = "quorumscope", deadline_s: float = 10.0) -> None:
        self._thread = LoopThread("message-producer", Closed)

        async def make() -> MessageProducer:
            return MessageProducer(name_servers, group, deadline_s)

        try:
            self._producer = self._thread.wait(make())
        except BaseException:
            self._thread.stop()
            raise

    def send(self, message: OutgoingMessage) -> Sent:
        """Raises NotSent, SendUnknown, Unavailable."""
        return self._thread.wait(self._producer.send(message))

    def send_all(self, messages: Sequence[OutgoingMessage]) -> list[Sent | Exception]:
        """Together; how each ended."""

        async def all_of_them() -> list[Sent | BaseException]:
            return await asyncio.gather(*(self._producer.send(one) for one in messages), return_exceptions=True)

        found = self._thread.wait(all_of_them())
        return [one if isinstance(one, Sent | Exception) else Closed(str(one)) for one in found]

    def send_batch(self, messages: Sequence[OutgoingMessage]) -> list[Sent]:
        """All of one topic, whole or not at all. Raises as `send`, ClientError for a mix."""
        return self._thread.wait(self._producer.send_batch(messages))

    def close(self) -> None:
        """What is on its way may be stored. Again: nothing."""
        with suppress(Closed):
            self._thread.wait(self._producer.close())
        self._thread.stop()

    def __enter__(self) -> MessageProducerSync:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MessageConsumerSync:
    """See the module's docstring; options as `MessageConsumer`'s. It consumes from its making on."""

    def __init__(self, name_servers: Sequence[str], group: str, topic: str | Sequence[str], **options: Any) -> None:
        self._thread = LoopThread("message-consumer", Closed)

        async def make() -> MessageConsumer:
            return await MessageConsumer(name_servers, group, topic, **options).__aenter__()

        try:
            self._consumer = self._thread.wait(make())
        except BaseException:
            self._thread.stop()
            raise

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """The next message, which counts as done once `done` was called with it; None: none came in time.

        Raises Closed.
        """

        async def next_one() -> Received | None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await self._consumer.receive()
            return None

        return self._thread.wait(next_one())

    def done(self, message: Received) -> None:
        """It will not come again to this group."""

        async def note() -> None:
            self._consumer.done(message)

        self._thread.wait(note())

    def __iter__(self) -> Iterator[Received]:
        """Until it is closed."""
        while True:
            try:
                message = self.receive()
            except Closed:
                return
            if message is not None:
                yield message
                with suppress(Closed):  # then it comes again
                    self.done(message)

    @property
    def queues(self) -> list[Queue]:
        """What this client pulls from now."""
        return self._consumer.queues

    def close(self) -> None:
        """Commits what is done, and leaves the group. Again: nothing."""
        with suppress(Closed):
            self._thread.wait(self._consumer.__aexit__(None, None, None))
        self._thread.stop()

    def __enter__(self) -> MessageConsumerSync:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
