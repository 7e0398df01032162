"""The blocking producer and consumer: as the others, from threads that have no loop; closed while somebody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node.message_client import (
    ClientError,
    Closed,
    MessageConsumerSync,
    MessageProducerSync,
    NotSent,
    OutgoingMessage,
    Sent,
    Unavailable,
)
from tests.ports import free_ports
from tests.unit.test_message_client import broker_at


def beside_a_broker(tmp_path: Path, story: Callable[[str], None]) -> None:
    async def both() -> None:
        async with broker_at(tmp_path) as address:
            await asyncio.to_thread(story, address)

    asyncio.run(both())


def test_messages_are_sent_received_and_done(tmp_path: Path) -> None:
    def story(address: str) -> None:
        with MessageProducerSync([address]) as producer:
            first = producer.send(OutgoingMessage("T", b"0", shard="s"))
            batch = producer.send_batch([OutgoingMessage("T", b"%d" % one, shard="s") for one in (1, 2)])
            assert [one.queue_offset for one in (first, *batch)] == [0, 1, 2]
            ends = producer.send_all([OutgoingMessage("T", b"3", shard="s"), OutgoingMessage("no topic", b"x")])
            assert isinstance(ends[0], Sent) and isinstance(ends[1], NotSent)
            with pytest.raises(ClientError, match="one topic"):
                producer.send_batch([])
        with MessageConsumerSync([address], "G", "T") as consumer:
            got = consumer.receive(60)
            assert got is not None and got.body == b"0"
            consumer.done(got)
            for message in consumer:
                if message.body == b"2":  # 0 and 1 are done
                    break
        with MessageConsumerSync([address], "G", "T") as consumer:
            assert [one.body for one in (consumer.receive(60), consumer.receive(60)) if one is not None] == [b"2", b"3"]
            assert consumer.receive(0.05) is None

    beside_a_broker(tmp_path, story)


def test_what_waits_ends_when_it_is_closed(tmp_path: Path) -> None:
    def story(address: str) -> None:
        consumer = MessageConsumerSync([address], "G", "T")
        seen: list[bytes] = []
        waiting = threading.Thread(target=lambda: seen.extend(one.body for one in consumer))
        waiting.start()
        consumer.close()
        waiting.join(60)
        assert not waiting.is_alive() and seen == []
        consumer.close()
        with pytest.raises(Unavailable, match="closed"):
            consumer.receive(1)
        producer = MessageProducerSync([address])
        producer.close()
        with pytest.raises(Unavailable, match="closed"):
            producer.send(OutgoingMessage("T", b"x"))

    beside_a_broker(tmp_path, story)


def test_nobody_there_is_said_within_the_deadline() -> None:
    (port,) = free_ports(1)
    with MessageProducerSync([f"127.0.0.1:{port}"], deadline_s=0.2) as producer, pytest.raises(Unavailable):
        producer.send(OutgoingMessage("T", b"x"))
    with pytest.raises(ClientError, match="no name server"):
        MessageProducerSync([])


def test_a_blocking_client_that_is_asked_in_its_own_callback_says_so() -> None:
    """It waited for itself, and so did whoever closed it."""
    found: list[str] = []
    made, called = threading.Event(), threading.Event()

    def give_up(_why: str) -> None:
        assert made.wait(20.0)  # its own thread may be quicker than whoever makes it
        for ask in (lambda: consumer.receive(0), consumer.close):
            try:
                ask()
            except Closed as error:
                found.append(str(error))
        called.set()

    consumer = MessageConsumerSync([f"127.0.0.1:{free_ports(1)[0]}"], "G", "T", report=lambda why: give_up(why))
    made.set()
    assert called.wait(20.0)
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(20.0)
    assert not closing.is_alive() and len(found) == 2 and "another thread" in found[0]
