"""Our producer's transactions, against a broker of ours with a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.message_client import ClientError, Decision, OutgoingMessage, TransactionProducer
from node.message_store.record import MessageRecord, decode_record
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, settings_of
from tests.unit.engine_kit import until


class Story:
    """A broker, a producer of it, and what the producer was asked."""

    def __init__(self, broker: Broker, port: ClientPort, address: str) -> None:
        self.broker, self.transactions, self.asked = broker, port.requests.transactions, list[bytes]()
        self.decides = Decision.COMMIT
        self.producer = TransactionProducer([address], "G", self.check)

    async def check(self, message: MessageRecord) -> Decision:
        self.asked.append(message.body)
        return self.decides

    async def send(self, body: bytes, decision: Decision) -> bool:
        async def work() -> Decision:
            return decision

        return (await self.producer.send_transaction(OutgoingMessage("Flights", body, keys=("k",)), work)).is_ended

    @property
    def delivered(self) -> list[bytes]:
        queues = [self.broker.reads.get("Flights", at, 0).records for at in range(4)]
        return [decode_record(one).body for records in queues for one in records]


@asynccontextmanager
async def story_at(data: Path, timeout_ms: int) -> AsyncGenerator[Story, None]:
    (port,) = free_ports(1)
    values = {"broker.address": f"127.0.0.1:{port}", "broker.transaction_timeout_ms": str(timeout_ms)}
    settings = settings_of(data, free_ports(1), **values, **{"broker.transaction_check_interval_ms": "100"})
    async with engine_of(settings), broker_of(settings) as broker:
        clients = ClientPort(broker)
        await clients.open("127.0.0.1", port)
        story = Story(broker, clients, f"127.0.0.1:{port}")
        try:
            async with story.producer:
                yield story
        finally:
            clients.close()


def tell(data: Path, story_of: Callable[[Story], Awaitable[None]], *, timeout_ms: int) -> None:
    async def whole() -> None:
        async with story_at(data, timeout_ms) as story:
            await story_of(story)

    asyncio.run(whole())


def test_a_transaction_is_delivered_or_not_as_its_producer_decides(tmp_path: Path) -> None:
    async def story_of(story: Story) -> None:
        assert await story.send(b"booked", Decision.COMMIT)
        assert await story.send(b"not booked", Decision.ROLLBACK)
        assert story.delivered == [b"booked"] and story.transactions.open_count == 0

        async def fails() -> Decision:
            raise KeyError("no seat")

        with pytest.raises(KeyError):
            await story.producer.send_transaction(OutgoingMessage("Flights", b"failed"), fails)
        with pytest.raises(ClientError):
            await story.producer.send_transaction(OutgoingMessage("Flights", b"x", delay_level=1), fails)
        await until(lambda: story.transactions.open_count == 0)
        assert story.delivered == [b"booked"] and story.asked == []

    tell(tmp_path, story_of, timeout_ms=3_600_000)


def test_who_does_not_know_yet_is_asked_until_it_does(tmp_path: Path) -> None:
    async def story_of(story: Story) -> None:
        story.decides = Decision.UNKNOWN
        assert not await story.send(b"late", Decision.UNKNOWN)
        await until(lambda: story.asked[:2] == [b"late", b"late"])
        assert story.delivered == []
        story.decides = Decision.COMMIT
        await until(lambda: story.delivered == [b"late"])
        await until(lambda: story.transactions.open_count == 0)

    tell(tmp_path, story_of, timeout_ms=1)
