"""Our client of RocketMQ's protocol where a broker hangs, a name server is late, and an application acknowledges out of
order: what ends when, and what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from node.message_client import (
    MessageConsumer,
    MessageProducer,
    OutgoingMessage,
    SendStatus,
    SendUnknown,
    TransactionProducer,
)
from node.message_client import consumer as consumer_module
from node.message_client import link as link_module
from node.message_client import producer as producer_module
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_client.routes import Queue, Routes
from node.message_client.taking import Received, Taking
from node.message_client.transactions import Decision
from node.message_store.record import MessageRecord
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Call, Dispatcher, Handler, Reply
from node.rocketmq.java_json import dump
from node.rocketmq.server import RemotingServer
from tests.unit.engine_kit import until

STORED = Reply(0, {"msgId": "A", "queueId": "0", "queueOffset": "3"})


@asynccontextmanager
async def serving(handlers: Mapping[int, Handler]) -> AsyncGenerator[str, None]:
    """Its address."""
    server = RemotingServer(Dispatcher(handlers))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.close()


def route_to(*masters: Callable[[], str]) -> Handler:
    """A name server's: of brokers b0, b1, ... with one queue each."""

    def route(_call: Call) -> Reply:
        brokers = [
            {"brokerAddrs": {"0": master()}, "brokerName": f"b{at}", "cluster": "c"}
            for at, master in enumerate(masters)
        ]
        queues = [
            {"brokerName": f"b{at}", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
            for at in range(len(masters))
        ]
        return Reply(body=dump({"brokerDatas": brokers, "queueDatas": queues}))

    return route


async def hangs(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A process that is stopped: the kernel accepts, and nobody reads."""
    try:
        await asyncio.Event().wait()
    finally:
        writer.close()


# --- a link -----------------------------------------------------------------------------------------------------------
def test_a_request_that_is_due_earlier_than_those_before_it_ends_at_its_time() -> None:
    """It ended when the one in front of it did."""

    async def story() -> None:
        async with serving({Request.HEART_BEAT: lambda _call: None}) as address:
            link, ended = Link(address), []
            await link.connect()
            now = asyncio.get_running_loop().time()
            for name, due_s in (("late", 60.0), ("early", 0.05), ("later", 61.0)):
                number = link.next_number()
                data = link._encoded(_heartbeat(number))
                link.call(number, data, now + due_s, lambda outcome, name=name: ended.append((name, outcome)))
            await until(lambda: bool(ended))
            assert [name for name, _ in ended] == ["early"]
            assert isinstance(ended[0][1], Unavailable) and ended[0][1].sent
            await link.close()
            assert [name for name, _ in ended] == ["early", "late", "later"]

    asyncio.run(story())


def _heartbeat(number: int) -> Command:
    return Command(Request.HEART_BEAT, number, 0, {}, None, b"", binary=True)


def test_a_connection_from_which_nothing_comes_any_more_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dropped it (a firewall, a machine that is gone) ends no stream: every later request went the same way."""

    async def story() -> None:
        silent = True
        peers = set()

        def answer(call: Call) -> Reply | None:
            peers.add(call.peer)
            return None if silent else Reply()

        async with serving({Request.HEART_BEAT: answer}) as address:
            link = Link(address)
            monkeypatch.setattr(link_module, "DROPPED_AFTER_S", 3600.0)
            for _ in range(2):
                with pytest.raises(Unavailable) as unanswered:
                    await link.ask(Request.HEART_BEAT, {}, b"", 0.05)
                assert unanswered.value.sent and link.is_open and link.silent_s > 0 and len(peers) == 1
            monkeypatch.setattr(link_module, "DROPPED_AFTER_S", 0.0)
            with pytest.raises(Unavailable):
                await link.ask(Request.HEART_BEAT, {}, b"", 0.05)
            assert not link.is_open and len(peers) == 2
            silent = False
            assert (await link.ask(Request.HEART_BEAT, {}, b"", 5.0)).code == 0
            assert link.silent_s == 0.0 and len(peers) == 3
            await link.close()

    asyncio.run(story())


# --- a producer -------------------------------------------------------------------------------------------------------
def test_a_send_ends_at_its_deadline_also_where_nobody_can_be_reached() -> None:
    """Each name server and each connection took 3 s of its own."""

    async def story() -> None:
        server = await asyncio.start_server(hangs, "127.0.0.1", 0)
        silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        loop = asyncio.get_running_loop()
        try:
            async with MessageProducer([silent] * 3, deadline_s=0.3) as producer:
                began_s = loop.time()
                waiting = producer.submit(OutgoingMessage("T", b"x"))
                ended: list[float] = []
                waiting.add_done_callback(lambda _: ended.append(loop.time() - began_s))
                with pytest.raises(Unavailable, match="reached in time") as late:
                    await waiting
                assert not late.value.sent and ended[0] < producer_module.SILENT_S + 1  # 18 s
        finally:
            server.close()

    asyncio.run(story())


def test_what_follows_a_silent_master_goes_to_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that is stopped or cut off ends no connection: sends went to it for as long as its route was kept."""
    monkeypatch.setattr(producer_module, "SILENT_S", 0.1)

    async def story() -> None:
        async with serving({Request.SEND_MESSAGE_V2: lambda _call: STORED}) as new:
            answers = [STORED]
            old_server = {Request.SEND_MESSAGE_V2: lambda _call: answers.pop() if answers else None}
            async with serving(old_server) as old:
                master = old
                async with (
                    serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: master)}) as names,
                    MessageProducer([names], deadline_s=20.0) as producer,
                ):
                    await producer.send(OutgoingMessage("T", b"first"))
                    lost = producer.submit(OutgoingMessage("T", b"lost"))
                    link = producer._routes.link(old)
                    await until(lambda: link.silent_s >= producer_module.SILENT_S)
                    held = [producer.submit(OutgoingMessage("T", b"held")) for _ in range(50)]
                    await asyncio.sleep(0.1)
                    assert not any(one.done() for one in (lost, *held))  # the name server knows no other master yet
                    master = new
                    await asyncio.gather(*held)
                    assert not lost.done()
                with pytest.raises(SendUnknown):
                    await lost

    asyncio.run(story())


def test_an_outcome_that_is_unknown_has_the_route_asked_for_anew() -> None:
    async def story() -> None:
        asked = 0

        def route(call: Call) -> Reply | None:
            nonlocal asked
            asked += 1
            return route_to(lambda: master)(call)

        async with (
            serving({Request.SEND_MESSAGE_V2: lambda _call: None}) as master,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route}) as names,
            MessageProducer([names], deadline_s=0.1) as producer,
        ):
            for _ in range(2):
                with pytest.raises(SendUnknown):
                    await producer.send(OutgoingMessage("T", b"x"))
            assert asked == 2

    asyncio.run(story())


def test_those_who_wait_for_one_route_ask_for_it_once() -> None:
    async def story() -> None:
        asked = 0

        def route(call: Call) -> Reply | None:
            nonlocal asked
            asked += 1
            return route_to(lambda: "127.0.0.1:9")(call)

        async with serving({Request.GET_ROUTEINFO_BY_TOPIC: route}) as names:
            routes = Routes([names])
            found = await asyncio.gather(*(routes.of("T") for _ in range(100)))
            assert asked == 1 and len({id(one) for one in found}) == 1
            routes.forget("T")
            ended = asyncio.create_task(routes.of("T"))
            await asyncio.sleep(0)
            ended.cancel()  # one who gives up takes nothing from the others
            assert (await routes.of("T")).read == found[0].read and asked == 2
            await routes.close()

    asyncio.run(story())


def test_a_name_server_that_is_silent_is_asked_last() -> None:
    async def story() -> None:
        server = await asyncio.start_server(hangs, "127.0.0.1", 0)
        silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            async with serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: "127.0.0.1:9")}) as names:
                routes = Routes([silent, names])
                await routes.of("T")
                assert routes.link(silent).silent_s > 0
                ask = Link.ask
                asked: list[str] = []

                async def noted(link: Link, *given: Any) -> Any:
                    asked.append(link.address)
                    return await ask(link, *given)

                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(Link, "ask", noted)
                    for _ in range(4):
                        routes.forget("T")
                        await routes.of("T")
                assert asked == [names] * 4
                await routes.close()
        finally:
            server.close()

    asyncio.run(story())


def test_a_transaction_is_ended_at_the_broker_that_has_its_half() -> None:
    """With several brokers it was ended at the first one of the route, whichever had it."""

    async def story() -> None:
        got: list[tuple[str, int]] = []

        def broker(name: str) -> Mapping[int, Handler]:
            def send(_call: Call) -> Reply:
                got.append((name, Request.SEND_MESSAGE_V2))
                return Reply(0, {"msgId": "7F00000100002A9F0000000000000010", "queueId": "0", "queueOffset": "3"})

            def end(_call: Call) -> Reply:
                got.append((name, Request.END_TRANSACTION))
                return Reply()

            return {Request.SEND_MESSAGE_V2: send, Request.END_TRANSACTION: end, Request.HEART_BEAT: lambda _: Reply()}

        async def commit() -> Decision:
            return Decision.COMMIT

        async def unknown(_record: MessageRecord) -> Decision:
            return Decision.UNKNOWN

        async with (
            serving(broker("b0")) as one,
            serving(broker("b1")) as two,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: one, lambda: two)}) as names,
            TransactionProducer([names], "P", unknown) as producer,
        ):
            for _ in range(4):
                ended = await producer.send_transaction(OutgoingMessage("T", b"x"), commit)
                assert ended.is_ended
        halves = [name for name, code in got if code == Request.SEND_MESSAGE_V2]
        assert sorted(set(halves)) == ["b0", "b1"]
        assert [name for name, code in got if code == Request.END_TRANSACTION] == halves

    asyncio.run(story())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Answer.SUCCESS, SendStatus.SEND_OK),
        (Answer.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (Answer.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
        (Answer.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_what_is_stored_at_too_few_brokers_says_so_and_begins_no_transaction(code: int, status: SendStatus) -> None:
    """A SYNC_MASTER without its slave: whoever sends could not know that there is one copy, and a promotion lost the
    half of a transaction whose work was done."""

    async def story() -> None:
        worked, decisions = list[str](), list[str]()

        def end(call: Call) -> Reply:
            decisions.append((call.request.fields or {})["commitOrRollback"])
            return Reply()

        async def work() -> Decision:
            worked.append("done")
            return Decision.COMMIT

        async def unknown(_record: MessageRecord) -> Decision:
            return Decision.UNKNOWN

        said = {"msgId": "7F00000100002A9F0000000000000010", "queueId": "0", "queueOffset": "3"}
        handlers: dict[int, Handler] = {
            Request.SEND_MESSAGE_V2: lambda _: Reply(code, said),
            Request.SEND_BATCH_MESSAGE: lambda _: Reply(code, said | {"msgId": "A,B"}),
            Request.END_TRANSACTION: end,
            Request.HEART_BEAT: lambda _: Reply(),
        }
        async with (
            serving(handlers) as broker,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: broker)}) as names,
            MessageProducer([names]) as producer,
            TransactionProducer([names], "P", unknown) as transactions,
        ):
            one = OutgoingMessage("T", b"x")
            sent = [await producer.send(one), *await producer.send_batch([one, one])]
            assert [each.status for each in sent] == [status] * 3
            ended = await transactions.send_transaction(one, work)
            assert ended.half.status == status and ended.is_ended
            is_begun = status is SendStatus.SEND_OK
            assert ended.decision is (Decision.COMMIT if is_begun else Decision.ROLLBACK)
            assert worked == ["done"] * is_begun and decisions == [str(int(ended.decision))]

    asyncio.run(story())


def test_a_transaction_is_ended_where_the_master_is_now_and_slaves_know_its_producer() -> None:
    """The old master, alive and a slave now, was asked for as long as the route was kept; the new one gave transactions
    up whose producer it had not heard of."""

    async def story() -> None:
        got: list[tuple[str, int]] = []
        master = "one"

        def broker(name: str) -> Mapping[int, Handler]:
            def send(_call: Call) -> Reply:
                return Reply(0, {"msgId": "7F00000100002A9F0000000000000010", "queueId": "0", "queueOffset": "3"})

            def end(_call: Call) -> Reply:
                got.append((name, Request.END_TRANSACTION))
                return Reply(0 if name == master else 11, None, "Message store is slave mode")

            def beat(_call: Call) -> Reply:
                got.append((name, Request.HEART_BEAT))
                return Reply()

            return {Request.SEND_MESSAGE_V2: send, Request.END_TRANSACTION: end, Request.HEART_BEAT: beat}

        async def commit() -> Decision:
            nonlocal master
            master = "two"
            return Decision.COMMIT

        async def unknown(_record: MessageRecord) -> Decision:
            return Decision.UNKNOWN

        async with serving(broker("one")) as one, serving(broker("two")) as two:

            def route(_call: Call) -> Reply:
                at = {"0": one, "1": two} if master == "one" else {"0": two, "1": one}
                queue = {"brokerName": "b", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 1}
                broker = {"brokerAddrs": at, "brokerName": "b", "cluster": "c"}
                return Reply(body=dump({"brokerDatas": [broker], "queueDatas": [queue]}))

            async with (
                serving({Request.GET_ROUTEINFO_BY_TOPIC: route}) as names,
                TransactionProducer([names], "P", unknown) as producer,
            ):
                producer.watch("T")
                await until(lambda: {("one", Request.HEART_BEAT), ("two", Request.HEART_BEAT)} <= set(got))
                ended = await producer.send_transaction(OutgoingMessage("T", b"x"), commit)
                assert ended.is_ended
        ends = [name for name, code in got if code == Request.END_TRANSACTION]
        assert ends[-1] == "two" and set(ends[:-1]) <= {"one"}

    asyncio.run(story())


# --- a consumer -------------------------------------------------------------------------------------------------------
def record_at(offset: int) -> Any:
    """All that a consumer looks at."""

    class Record:
        queue_offset = offset
        body = b"%d" % offset

    return Record()


def hand(taking: Taking, record: Any) -> Received:
    message = taking.received(record)
    taking.handed(message)
    return message


def test_only_what_is_done_is_committed_in_whichever_order_it_is() -> None:
    """Two workers of one consumer: the one that was faster had both messages committed."""
    taking = Taking(Queue("b", "a:1", 0), 10)
    first, second, third = (hand(taking, record_at(offset)) for offset in (12, 13, 17))  # others have other tags
    assert (taking.done_to, taking.handed_to) == (10, 18)
    taking.done(third)
    taking.done(second)
    assert taking.done_to == 10
    taking.skip_to(25)  # nothing new, and not all done
    assert taking.done_to == 10 and taking.next_offset == 25
    taking.done(first)
    taking.done(first)
    assert taking.done_to == 18
    taking.skip_to(25)
    assert taking.done_to == 25
    last = hand(taking, record_at(25))
    taking.done(last)
    assert taking.done_to == 26


def test_a_message_of_an_earlier_turn_at_a_queue_commits_nothing() -> None:
    async def story() -> None:
        consumer = MessageConsumer(["127.0.0.1:1"], "G", "T")
        queue = Queue("b", "a:1", 0, "T")
        before = Taking(queue, 10)
        consumer._takings[queue.key] = before
        old = hand(before, record_at(10))
        waits = hand(before, record_at(11))
        consumer._takings[queue.key] = now = Taking(queue, 5)  # another client had it meanwhile, or it was set back
        consumer.done(old)
        assert (before.done_to, now.done_to) == (10, 5)
        consumer._waiting.put_nowait(waits)
        consumer._waiting.put_nowait(hand(now, record_at(5)))
        assert (await consumer.receive()).record.queue_offset == 5

    asyncio.run(story())


def test_a_message_that_had_no_room_when_its_pull_ended_is_pulled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker was the master by then: it counted as handed on, and did not come for as long as this consumer had
    its queue."""

    async def story() -> None:
        monkeypatch.setattr(consumer_module, "WAITING_MAX", 1)
        monkeypatch.setattr(consumer_module, "records_of", lambda body: [record_at(one) for one in bytes(body)])
        asked: list[int] = []

        def pull(call: Call) -> Reply | None:
            offset = int((call.request.fields or {})["queueOffset"])
            asked.append(offset)
            said = {"nextBeginOffset": "9", "minOffset": "0", "maxOffset": "9", "suggestWhichBrokerId": "0"}
            return Reply(0, said, None, bytes(range(offset, 9)))

        async with serving({Request.PULL_MESSAGE: pull}) as master:
            consumer = MessageConsumer(["127.0.0.1:1"], "G", "T")
            queue = Queue("b", master, 0, "T")
            taking = consumer._takings[queue.key] = Taking(queue, 7)
            pulling = asyncio.create_task(consumer._pull_once(taking))
            await until(lambda: consumer._waiting.full())
            await asyncio.sleep(0)
            pulling.cancel()
            await asyncio.wait([pulling])
            assert (await consumer.receive()).record.queue_offset == 7
            await consumer._pull_once(taking)
            assert (await consumer.receive()).record.queue_offset == 8 and asked == [7, 8]
            await consumer._routes.close()

    asyncio.run(story())


def consumers_broker(offsets: dict[str, str], ids: Callable[[], Reply], pull: Handler) -> dict[int, Handler]:
    def commit(call: Call) -> Reply:
        offsets.update(call.request.fields or {})
        return Reply()

    return {
        Request.HEART_BEAT: lambda _: Reply(), Request.GET_CONSUMER_LIST_BY_GROUP: lambda _: ids(),
        Request.QUERY_CONSUMER_OFFSET: lambda _: Reply(0, {"offset": "7"}), Request.PULL_MESSAGE: pull,
        Request.UPDATE_CONSUMER_OFFSET: commit, Request.UNREGISTER_CLIENT: lambda _: Reply(),
    }  # fmt: skip


def test_a_broker_that_does_not_say_who_consumes_leaves_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that was not told of the others took all queues."""
    monkeypatch.setattr(consumer_module, "SHARE_OUT_EVERY_S", 0.02)

    async def story() -> None:
        said: list[str] = []
        answers = 0

        def ids() -> Reply:
            nonlocal answers
            answers += 1
            return Reply(2, None, "busy") if answers > 1 else Reply(body=dump({"consumerIdList": ["0", "1"]}))

        handlers = consumers_broker({}, ids, lambda _: None)
        async with (
            serving(handlers) as master,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: master, lambda: master)}) as names,
        ):
            consumer = MessageConsumer([names], "G", "T", report=said.append)
            consumer.client_id = "1"
            async with consumer:
                await until(lambda: answers > 4)
                assert [one.broker_name for one in consumer.queues] == ["b1"]
                assert said == [f"{master}: busy (code 2)"]

    asyncio.run(story())


def test_one_broker_of_several_that_is_gone_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "SHARE_OUT_EVERY_S", 0.02)

    async def story() -> None:
        gone = "127.0.0.1:1"
        handlers = consumers_broker({}, lambda: Reply(body=dump({"consumerIdList": ["0"]})), lambda _: None)
        async with (
            serving(handlers) as master,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: gone, lambda: master)}) as names,
            MessageConsumer([names], "G", "T") as consumer,
        ):
            await until(lambda: len(consumer.queues) == 1)  # of two, between it and client 0

    asyncio.run(story())


def test_a_pull_that_ends_in_a_way_that_nobody_thought_of_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "SHARE_OUT_EVERY_S", 0.02)

    async def story() -> None:
        pulls = 0

        def pull(_call: Call) -> Reply | None:
            nonlocal pulls
            pulls += 1
            return Reply(19, {"nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}) if pulls == 1 else None

        handlers = consumers_broker({}, lambda: Reply(body=dump({"consumerIdList": []})), pull)
        async with (
            serving(handlers) as master,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: master)}) as names,
        ):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Taking, "skip_to", lambda *_: 1 // 0)
                async with MessageConsumer([names], "G", "T"):
                    await until(lambda: pulls == 2)

    asyncio.run(story())


def test_a_broker_that_hangs_holds_up_the_end_once_and_not_for_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "ANSWER_WITHIN_S", 0.2)

    async def story() -> None:
        server = await asyncio.start_server(hangs, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            consumer = MessageConsumer(["127.0.0.1:1"], "G", "T")
            asked = 0

            class Counted(Link):
                async def ask(self, *given: Any) -> Any:
                    nonlocal asked
                    asked += given[0] == Request.UPDATE_CONSUMER_OFFSET
                    return await super().ask(*given)

            consumer._routes._links[address] = Counted(address)
            for number in range(40):
                taking = Taking(replace_id(address, number), 0)
                taking.done(hand(taking, record_at(0)))
                consumer._takings[taking.queue.key] = taking
            async with asyncio.timeout(30):
                task = asyncio.create_task(consumer._commit(list(consumer._takings.values())))
                await until(lambda: asked == 40)  # together
                await task
            await consumer._routes.close()
        finally:
            server.close()

    asyncio.run(story())


def replace_id(address: str, number: int) -> Queue:
    return replace(Queue("b", address, 0, "T"), queue_id=number)


def test_a_consumer_ends_also_where_that_comes_with_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's `wait_for` loses a cancellation that comes with what it waits for: the end waited for ever."""
    monkeypatch.setattr(consumer_module, "SHARE_OUT_EVERY_S", 3600.0)

    async def story() -> None:
        handlers = consumers_broker({}, lambda: Reply(body=dump({"consumerIdList": []})), lambda _: None)
        async with (
            serving(handlers) as master,
            serving({Request.GET_ROUTEINFO_BY_TOPIC: route_to(lambda: master)}) as names,
        ):
            async with MessageConsumer([names], "G", "T") as consumer:
                await until(lambda: bool(consumer._takings))
                consumer._changed.set()
                await asyncio.sleep(0)  # who waits is awake, and has not run on
            assert not consumer._background.tasks

    asyncio.run(story())
