"""Our client of RocketMQ's protocol: against a broker of ours with a real engine, and against answers that go wrong."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.cli import run
from node.broker.client_port import ClientPort
from node.message_client import ClientError, MessageConsumer, MessageProducer, NotSent, OutgoingMessage, SendUnknown
from node.message_client import consumer as consumer_module
from node.message_client.consumer import AGAIN_S, share_of
from node.message_client.errors import Unavailable
from node.message_client.outgoing import properties_of
from node.message_client.routes import Queue
from node.message_client.taking import Taking
from node.rocketmq.codes import Request
from node.rocketmq.dispatch import Call, Dispatcher, Reply
from node.rocketmq.java_json import dump
from node.rocketmq.server import RemotingServer
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, settings_of
from tests.unit.engine_kit import until


@asynccontextmanager
async def broker_at(data: Path) -> AsyncGenerator[str, None]:
    """Its address, where clients find a name server as well."""
    (port,) = free_ports(1)
    settings = settings_of(data, free_ports(1), **{"broker.address": f"127.0.0.1:{port}"})
    async with engine_of(settings), broker_of(settings) as broker:
        clients = ClientPort(broker)
        await clients.open("127.0.0.1", port)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            clients.close()


async def taken(consumer: MessageConsumer, count: int) -> list[bytes]:
    """So many, all of them done but the last."""
    found: list[bytes] = []
    async for message in consumer:
        found.append(message.body)
        if len(found) == count:
            return found
    raise AssertionError("it goes on for ever")


def test_what_is_produced_is_consumed_once_per_group_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_at(tmp_path) as address, MessageProducer([address]) as producer:
            bodies = [b"%d" % number for number in range(20)]
            sent = await asyncio.gather(*(producer.send(OutgoingMessage("Flights", one, tags="AA")) for one in bodies))
            assert len({(one.queue_id, one.queue_offset) for one in sent}) == 20
            batch = await producer.send_batch([OutgoingMessage("Flights", b"b%d" % one, tags="UA") for one in range(3)])
            assert [one.queue_offset - batch[0].queue_offset for one in batch] == [0, 1, 2]
            assert len({one.queue_id for one in batch}) == 1
            sharded = [await producer.send(OutgoingMessage("Flights", b"s", shard="N1")) for _ in range(3)]
            assert len({one.queue_id for one in sharded}) == 1
            async with MessageConsumer([address], "AAs", "Flights", tags="AA") as consumer:
                assert sorted(await asyncio.wait_for(taken(consumer, 20), 60)) == sorted(bodies)
            await producer.send(OutgoingMessage("Flights", b"later", tags="AA"))
            async with MessageConsumer([address], "AAs", "Flights", tags="AA") as consumer:
                # the one that was the last before was not said to be done
                assert (await asyncio.wait_for(taken(consumer, 2), 60))[-1] in (b"later", *bodies)
            async with MessageConsumer([address], "all", "Flights") as consumer:
                assert len(await asyncio.wait_for(taken(consumer, 27), 60)) == 27

    asyncio.run(story())


def test_a_consumer_of_tags_gets_none_whose_hash_is_the_same(tmp_path: Path) -> None:
    """Java's hashes of "Aa" and "BB" are one number, and a broker compares no more: clients compare the texts."""

    async def story() -> None:
        async with broker_at(tmp_path) as address, MessageProducer([address]) as producer:
            for tags in ("BB", "Aa", "BB", "CC", "Aa", "BB"):
                await producer.send(OutgoingMessage("Flights", tags.encode(), tags=tags, shard="one queue"))
            await producer.send(OutgoingMessage("Flights", b"the last", tags="CC", shard="one queue"))
            async with MessageConsumer([address], "G", "Flights", tags="Aa || CC") as consumer:
                assert await asyncio.wait_for(taken(consumer, 4), 60) == [b"Aa", b"CC", b"Aa", b"the last"]

    asyncio.run(story())


def test_two_consumers_of_a_group_share_its_queues(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_at(tmp_path) as address, MessageProducer([address]) as producer:
            await asyncio.gather(*(producer.send(OutgoingMessage("Flights", b"%d" % one)) for one in range(8)))
            async with MessageConsumer([address], "G", "Flights") as one:
                await until(lambda: len(one.queues) == 4)
                async with MessageConsumer([address], "G", "Flights") as two:
                    await until(lambda: len(one.queues) == len(two.queues) == 2)
                    assert not set(one.queues) & set(two.queues)
                await until(lambda: len(one.queues) == 4)

    asyncio.run(story())


def test_what_waits_at_a_consumer_is_not_done_however_often_its_queue_has_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that finds nothing says where the queue ends: behind messages that this client holds and has not done."""
    monkeypatch.setattr(consumer_module, "HOLD_MS", 20)

    async def story() -> None:
        async with broker_at(tmp_path) as address, MessageProducer([address]) as producer:
            bodies = [b"%d" % one for one in range(3)]
            for body in bodies:
                await producer.send(OutgoingMessage("Flights", body, shard="N1"))
            async with MessageConsumer([address], "G", "Flights") as consumer:
                first = await asyncio.wait_for(consumer.receive(), 60)
                pull_once, empty = consumer._pull_once, 0

                async def counted(taking: Taking) -> int:
                    nonlocal empty
                    offset, following = taking.next_offset, await pull_once(taking)
                    empty += taking.queue.key == first.queue.key and following == offset == len(bodies)
                    return following

                consumer._pull_once = counted  # type: ignore[method-assign]
                await until(lambda: empty >= 2)
            async with MessageConsumer([address], "G", "Flights") as consumer:
                assert [(await asyncio.wait_for(consumer.receive(), 60)).body for _ in bodies] == bodies

    asyncio.run(story())


@pytest.mark.parametrize("count", range(1, 7))
def test_queues_are_shared_out_evenly_and_whole(count: int) -> None:
    queues = [Queue("b", "a:1", number) for number in range(4)]
    clients = [f"c{number}" for number in range(count)]
    shares = [share_of(queues, clients, one) for one in clients]
    assert [one for share in shares for one in share] == queues
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# --- answers that go wrong --------------------------------------------------------------------------------------------
async def against(send: Callable[[Call], Reply | None], deadline_s: float = 5.0, sends: int = 1) -> Exception | None:
    """How a send ends where the broker answers so; `sends`: or the first of so many that fails."""
    address = ""

    def route(_call: Call) -> Reply:
        broker = {"brokerAddrs": {"0": address}, "brokerName": "b", "cluster": "c"}
        queue = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
        return Reply(body=dump({"brokerDatas": [broker], "queueDatas": [queue]}))

    server = RemotingServer(Dispatcher({Request.GET_ROUTEINFO_BY_TOPIC: route, Request.SEND_MESSAGE_V2: send}))
    address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    try:
        async with MessageProducer([address], deadline_s=deadline_s) as producer:
            for _ in range(sends):
                await producer.send(OutgoingMessage("T", b"x"))
    except ClientError as error:
        return error
    finally:
        server.close()
    return None


def test_a_refusal_is_known_and_a_time_out_is_not() -> None:
    async def story() -> None:
        refused = await against(lambda _call: Reply(13, {}, "too long"))
        assert isinstance(refused, NotSent) and refused.code == 13
        said = "in-sync replicas not enough"  # RocketMQ's of a put without its quorum in time, and how ours begins
        assert isinstance(await against(lambda _call: Reply(1, {}, said)), SendUnknown)
        assert isinstance(await against(lambda _call: Reply(1, {}, "create mapped file failed")), NotSent)
        assert isinstance(await against(lambda _call: None, 0.2), SendUnknown)
        assert isinstance(await against(lambda call: call.peer.close()), SendUnknown)  # type: ignore[attr-defined]
        busy = await against(lambda _call: Reply(2, {}, "busy"), 0.3)
        assert isinstance(busy, NotSent) and busy.code == 2
        (port,) = free_ports(1)
        with pytest.raises(Unavailable):
            async with MessageProducer([f"127.0.0.1:{port}"], deadline_s=0.2) as producer:
                await producer.send(OutgoingMessage("T", b"x"))

    asyncio.run(story())


def test_a_new_topic_waits_for_a_master() -> None:
    """Slaves alone are registered, as for a moment after a master died: no queue to choose, and nothing is sent."""

    async def story() -> None:
        def route(call: Call) -> Reply:
            if (call.request.fields or {}).get("topic") != "TBW102":
                return Reply(17, None, "No topic route info in name server for the topic: T")
            broker = {"brokerAddrs": {"1": "127.0.0.1:9"}, "brokerName": "b", "cluster": "c"}
            queue = {"brokerName": "b", "perm": 7, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}
            return Reply(body=dump({"brokerDatas": [broker], "queueDatas": [queue]}))

        server = RemotingServer(Dispatcher({Request.GET_ROUTEINFO_BY_TOPIC: route}))
        address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        try:
            async with MessageProducer([address], deadline_s=0.3) as producer:
                with pytest.raises(Unavailable, match="has no master now"):
                    await producer.send(OutgoingMessage("T", b"x"))
        finally:
            server.close()

    asyncio.run(story())


def test_a_broker_that_is_busy_or_no_master_is_tried_again() -> None:
    async def story() -> None:
        answers = [
            Reply(2, {}, "busy"),
            Reply(14, {}, "away"),
            Reply(0, {"msgId": "A", "queueId": "0", "queueOffset": "3"}),
        ]
        assert await against(lambda _call: answers.pop(0)) is None
        assert answers == []

    asyncio.run(story())


def test_an_answer_of_success_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    """On a way that is known and open, and on the first one."""

    async def story() -> None:
        first = await against(lambda _call: Reply(0, {"queueId": "none"}))
        assert isinstance(first, SendUnknown) and "stored, but the answer" in str(first)
        answers = [Reply(0, {"msgId": "A", "queueId": "0", "queueOffset": "3"}), Reply(0, {"queueId": "none"})]
        second = await against(lambda _call: answers.pop(0), sends=2)
        assert isinstance(second, SendUnknown) and "stored, but the answer" in str(second) and not answers

    asyncio.run(story())


def test_what_cannot_be_sent_is_said_before_anything_is() -> None:
    async def story() -> None:
        async with MessageProducer(["127.0.0.1:1"]) as producer:
            with pytest.raises(ClientError, match="0x01 and 0x02"):
                await producer.send(OutgoingMessage("T", b"x", properties=(("a", "b\x02"),)))
            for wrong, text in (
                (OutgoingMessage("T", b"x", properties=(("TRAN_MSG", "true"),)), "RocketMQ's own"),
                (OutgoingMessage("T", b"x", tags="\ud800"), "half a character"),
                (OutgoingMessage("T", b"x", delay_level=-1), "begin at 1"),
            ):
                with pytest.raises(ClientError, match=text):
                    await producer.send(wrong)
            with pytest.raises(ClientError, match="one topic"):
                await producer.send_batch([OutgoingMessage("T", b"x"), OutgoingMessage("U", b"x")])
            with pytest.raises(ClientError, match="wait for their time"):
                await producer.send_batch([OutgoingMessage("T", b"x", delay_level=1)])

    asyncio.run(story())


# --- commands ---------------------------------------------------------------------------------------------------------
def test_produce_and_consume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        async with broker_at(tmp_path) as address:
            to = ["--name-server", address]
            sent = [
                "produce",
                "Flights",
                "--body",
                "one",
                "--body",
                "two",
                "--tag",
                "AA",
                "--shard",
                "N1",
                "--key",
                "k",
                *to,
            ]
            assert await asyncio.to_thread(run, sent) == 0
            lines = capsys.readouterr().out.splitlines()
            assert [line.split()[2] for line in lines] == ["0", "1"]
            peek = ["consume", "Flights", "--group", "P", "-n", "1", "--no-ack", *to]
            for _ in range(2):
                assert await asyncio.to_thread(run, peek) == 0
                assert capsys.readouterr().out.split()[1:] == ["0", "one"], "it was not done"
            assert await asyncio.to_thread(run, ["produce", "Later", "--body", "x", "--delay", "2h", *to]) == 0
            assert capsys.readouterr().out
            assert await asyncio.to_thread(run, ["produce", "Later", "--body", "x", "--delay", "7s", *to]) == 64
            assert "1s 5s 10s" in capsys.readouterr().err
            got = ["consume", "Flights", "--group", "G", "-n", "1", *to]
            assert await asyncio.to_thread(run, got) == 0
            assert capsys.readouterr().out.split()[1:] == ["0", "one"]
            assert await asyncio.to_thread(run, [*got, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["body"], found["queue_offset"], found["tags"], found["keys"]) == ("two", 1, "AA", "k")
            assert await asyncio.to_thread(run, ["produce", "Bad Topic", "--body", "x", *to]) == 1
            assert "illegal characters" in capsys.readouterr().err

    asyncio.run(story())


def test_a_consumer_that_finds_no_queues_says_why_once() -> None:
    async def work() -> None:
        said: list[str] = []
        nowhere = f"127.0.0.1:{free_ports(1)[0]}"
        async with MessageConsumer([nowhere], "G", "Flights", report=said.append) as consumer:
            await until(lambda: bool(said))
            await asyncio.sleep(3 * AGAIN_S)  # it tries again, and has nothing new to say
            assert consumer.queues == []
        assert len(said) == 1 and nowhere in said[0]

    asyncio.run(work())


def test_what_cannot_be_reached_or_understood(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    nowhere = ["--name-server", f"127.0.0.1:{port}"]
    assert run(["produce", "T", "--body", "x", "--deadline", "0.2", *nowhere]) == 69
    assert run(["produce", "T", "--body", "x", "--name-server", "nonsense"]) == 64
    assert run(["consume", "T"]) == 64
    assert capsys.readouterr().out == ""


def test_a_forked_process_gives_its_messages_other_keys() -> None:
    """Both went on with the same ones: of two transactions of one key a broker knows the later alone."""
    reader, writer = os.pipe()
    one = OutgoingMessage("T", b"x")
    child = os.fork()
    if not child:
        os.write(writer, properties_of(one))
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert said.read() != properties_of(one)
