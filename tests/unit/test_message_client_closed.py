"""Our client of RocketMQ's protocol where it is closed, or used from a loop or process that is not its own: nothing is
sent, nobody waits for ever, and whose it is stays as it was."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.message_client import (
    Closed,
    Decision,
    MessageConsumer,
    MessageProducer,
    NotSent,
    OutgoingMessage,
    TransactionProducer,
    WrongLoop,
)
from tests.unit.test_message_client import broker_at

WITHIN_S = 20.0
ONE = OutgoingMessage("T", b"1")
Clients = tuple[MessageProducer, MessageConsumer, TransactionProducer]


async def never(_message: object) -> Decision:
    raise AssertionError("no transaction is checked here")


async def commit() -> Decision:
    return Decision.COMMIT


def calls_of(clients: Clients) -> list[Callable[[], Awaitable[Any]]]:
    """With those that close it last."""
    producer, consumer, transactions = clients
    return [
        lambda: producer.send(ONE),
        lambda: producer.send_batch([ONE]),
        lambda: producer.reach("T"),
        consumer.receive,
        lambda: transactions.send_transaction(ONE, commit),
        producer.close,
        lambda: consumer.__aexit__(None, None, None),
        lambda: transactions.__aexit__(None, None, None),
    ]


async def how_all_end(clients: Clients) -> list[str]:
    found: list[str] = []
    for call in calls_of(clients):
        try:
            await asyncio.wait_for(call(), WITHIN_S / 4)
            found.append("done")
        except BaseException as error:
            found.append(type(error).__name__)
    return found


def beside_a_broker(tmp_path: Path, story: Callable[[str, Clients], Awaitable[None]]) -> None:
    async def both() -> None:
        async with (
            broker_at(tmp_path) as address,
            MessageProducer([address]) as producer,
            MessageConsumer([address], "G", "T") as consumer,
            TransactionProducer([address], "P", never) as transactions,
        ):
            await producer.send(ONE)
            assert (await consumer.receive()).body == b"1"
            await story(address, (producer, consumer, transactions))

    asyncio.run(asyncio.wait_for(both(), 6 * WITHIN_S))


def test_another_threads_loop_is_refused_and_the_own_one_goes_on(tmp_path: Path) -> None:
    """A message was said to be unknown because "the producer was closed"."""

    async def story(_address: str, clients: Clients) -> None:
        ends = await asyncio.to_thread(asyncio.run, how_all_end(clients))
        assert set(ends) == {WrongLoop.__name__}
        again = await clients[0].send(ONE)
        assert (await clients[1].receive()).record.queue_offset == again.queue_offset

    beside_a_broker(tmp_path, story)


def test_a_forked_process_is_refused_also_in_the_loop_of_its_parent(tmp_path: Path) -> None:
    """It took the parent's answers, and the parent's next message had none in 10 s."""
    fork = multiprocessing.get_context("fork")

    async def begin(address: str) -> Clients:
        producer, consumer = MessageProducer([address]), MessageConsumer([address], "G", "T")
        await producer.send(ONE)
        await consumer.__aenter__()
        return producer, consumer, await TransactionProducer([address], "P", never).__aenter__()

    async def end(clients: Clients) -> None:
        await clients[0].send(ONE)
        for one in clients:
            await one.__aexit__(None, None, None)

    def story(address: str) -> None:
        loop = asyncio.new_event_loop()
        clients = loop.run_until_complete(begin(address))
        for run in (asyncio.run, loop.run_until_complete):
            said = fork.SimpleQueue()
            worker = fork.Process(target=lambda run=run, said=said: said.put(run(how_all_end(clients))))
            worker.start()
            worker.join(WITHIN_S)
            worker.kill()
            assert not said.empty() and set(said.get()) == {WrongLoop.__name__}
        loop.run_until_complete(asyncio.wait_for(end(clients), WITHIN_S))
        loop.close()

    async def both() -> None:
        async with broker_at(tmp_path) as address:
            await asyncio.to_thread(story, address)

    asyncio.run(both())


def test_a_closed_client_sends_nothing_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """A producer dialled again, and sent on; who waited for a consumer's next message waited for ever."""

    async def story(address: str, clients: Clients) -> None:
        producer, consumer, _ = clients
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await asyncio.sleep(0)
        await consumer.__aexit__(None, None, None)
        await producer.close()
        for one in (*waiting, consumer.receive(), producer.send(ONE), producer.send_batch([ONE]), producer.reach("T")):
            with pytest.raises(Closed) as found:
                await asyncio.wait_for(one, WITHIN_S)
            assert not found.value.sent
        assert not any(link.is_open for link in producer._routes._links.values())
        await producer.close()
        async with MessageProducer([address]) as other, MessageConsumer([address], "H", "T") as from_first:
            await other.send(OutgoingMessage("T", b"2"))
            assert {(await from_first.receive()).body for _ in range(2)} == {b"1", b"2"}

    beside_a_broker(tmp_path, story)


def test_what_no_message_can_be_is_no_unknown_outcome(tmp_path: Path) -> None:
    """It was never sent, and nobody had closed the producer."""

    async def story(_address: str, clients: Clients) -> None:
        for topic in (None, 5, b"T"):
            with pytest.raises((TypeError, AttributeError, NotSent)):
                await asyncio.wait_for(clients[0].send(OutgoingMessage(topic, b"x")), WITHIN_S)  # type: ignore[arg-type]
        await clients[0].send(ONE)

    beside_a_broker(tmp_path, story)
