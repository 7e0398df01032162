"""Answers that only the master may give: by its lease, or once a read has confirmed it; and whom name servers know."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from node.broker import registration
from node.broker.registration import OwnRegistration, Registrar
from node.broker.requests.context import Context, Identity
from node.name_service import registry
from node.name_service.__main__ import name_server
from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.rocketmq.bodies import TopicConfig
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import PREFIX_BYTES, decode, encode, read_prefix, response
from node.rocketmq.dispatch import Call, Dispatcher, Reply
from node.rocketmq.header_fields import write_header
from node.rocketmq.headers import RegisterBrokerAnswer
from node.rocketmq.server import RemotingServer
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, client_of, engine_of, pull_fields, settings_of
from tests.unit.client_wire import FakePeer
from tests.unit.engine_kit import until
from tests.unit.memory_messages import MemoryMessages
from tests.unit.test_client_requests import Broker

QUEUE = {"topic": "TopicTest", "queueId": "0"}
LOCK = b'{"clientId":"c","consumerGroup":"G","mqSet":[{"brokerName":"b","queueId":0,"topic":"TopicTest"}]}'
NEW_TOPIC = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
NEW_TOPIC |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
GROUP = {"consumerGroup": "G", **QUEUE}
MASTERS_ONLY = {
    Request.QUERY_CONSUMER_OFFSET: (GROUP, b""),
    Request.UPDATE_CONSUMER_OFFSET: (GROUP | {"commitOffset": "1"}, b""),
    Request.GET_MAX_OFFSET: (QUEUE, b""),
    Request.GET_MIN_OFFSET: (QUEUE, b""),
    Request.SEARCH_OFFSET_BY_TIMESTAMP: (QUEUE | {"timestamp": "1"}, b""),
    Request.GET_EARLIEST_MSG_STORETIME: (QUEUE, b""),
    Request.LOCK_BATCH_MQ: ({}, LOCK),
    Request.UNLOCK_BATCH_MQ: ({}, LOCK),
    Request.UPDATE_AND_CREATE_TOPIC: (NEW_TOPIC, b""),
    Request.PULL_MESSAGE: (pull_fields(9), b""),  # a correction: the consumer is to begin elsewhere
}


@pytest.mark.parametrize("code", MASTERS_ONLY)
def test_without_a_lease_an_answer_waits_until_the_master_is_confirmed(code: Request) -> None:
    async def story() -> None:
        broker, peer = Broker(), FakePeer()
        broker.send()
        fields, body = MASTERS_ONLY[code]
        at_once = broker.answered(FakePeer(), code, fields, body)
        assert at_once.code in (0, 21)
        broker.store.has_lease = False
        for is_master, wanted in ((True, at_once.code), (False, 14)):
            assert broker.ask(peer, code, fields, body) is None
            await asyncio.sleep(0)
            assert not peer.sent and peer.open == 1
            broker.store.confirming.pop().set_result(is_master)
            await until(lambda: bool(peer.sent))
            answer = peer.sent.pop()
            assert (answer.code, peer.open) == (wanted, 0)
            assert bytes(answer.body) == (bytes(at_once.body) if is_master else b"")

    asyncio.run(story())


def test_what_is_asked_wrongly_is_answered_so_once_the_master_is_confirmed() -> None:
    async def story() -> None:
        broker, peer = Broker(), FakePeer()
        broker.store.has_lease = False
        assert broker.ask(peer, Request.GET_MAX_OFFSET, {"topic": "T", "queueId": "x"}) is None
        broker.store.confirming.pop().set_result(True)
        await until(lambda: bool(peer.sent))
        assert peer.sent[0].code == 1 and "NumberFormatException" in (peer.sent[0].remark or "")

    asyncio.run(story())


def test_pulls_of_what_is_there_need_no_lease_and_offsets_of_a_slave_a_read() -> None:
    async def story() -> None:
        broker, peer = Broker(), FakePeer()
        broker.send()
        broker.store.has_lease = False
        assert broker.answered(FakePeer(), Request.PULL_MESSAGE, pull_fields(0)).code == 0
        broker.store.is_master = False
        assert broker.answered(FakePeer(), Request.PULL_MESSAGE, pull_fields(9)).code == 21
        assert not broker.store.confirming
        assert broker.ask(peer, Request.GET_MAX_OFFSET, QUEUE) is None  # who asks may take it for the master it was
        broker.store.confirming.pop().set_result(True)
        await until(lambda: bool(peer.sent))
        assert peer.sent[0].fields == {"offset": "1"}

    asyncio.run(story())


def rides(offset: int) -> dict[str, str]:
    """A pull that commits this offset."""
    return pull_fields(0) | {"sysFlag": "5", "commitOffset": str(offset)}


def test_an_offset_that_rides_on_a_pull_counts_once_the_master_is_confirmed_and_not_where_it_is_not() -> None:
    async def story() -> None:
        broker = Broker()
        for _one in range(5):
            broker.send()

        def stands() -> int | None:
            return broker.context.offsets.get("G", "TopicTest", 0)

        broker.store.has_lease = False
        for is_master, remains_master, wanted in ((False, False, None), (True, False, None), (True, True, 3)):
            answer = broker.answered(FakePeer(), Request.PULL_MESSAGE, rides(3))
            assert answer.code == 0 and stands() is None, "the messages wait for nothing"
            broker.store.confirming.pop().set_result(is_master)
            broker.store.is_master = remains_master
            await asyncio.sleep(0)
            assert stands() == wanted
            broker.store.is_master = True
        broker.store.is_master = False
        assert broker.answered(FakePeer(), Request.PULL_MESSAGE, rides(4)).code == 0
        assert stands() == 3 and not broker.store.confirming, "a slave takes none"

    asyncio.run(story())


def test_an_offset_that_rides_on_a_pull_goes_on_and_never_back_and_a_commit_of_its_own_resets() -> None:
    async def story() -> None:
        broker = Broker()
        for _one in range(5):
            broker.send()
        for offset, wanted in ((-1, None), (2, 2), (4, 4), (3, 4), (6, 4), (1 << 40, 4), (-5, 4), (5, 5)):
            assert broker.answered(FakePeer(), Request.PULL_MESSAGE, rides(offset)).code == 0
            assert broker.context.offsets.get("G", "TopicTest", 0) == wanted
        fields = GROUP | {"commitOffset": "1"}
        assert broker.answered(FakePeer(), Request.UPDATE_CONSUMER_OFFSET, fields).code == 0
        assert broker.context.offsets.get("G", "TopicTest", 0) == 1

    asyncio.run(story())


# --- name servers ----------------------------------------------------------------------------------------------------
class Role:
    def __init__(self) -> None:
        self.broker_id, self.term = -1, -1


def test_name_servers_hear_of_a_role_and_of_none_before_the_first_though_one_of_them_hangs() -> None:
    async def story() -> None:
        registries = [Registry(), Registry()]
        servers = [name_server(NameService(one, lambda: 0)) for one in registries]
        ports = [await one.listen("127.0.0.1", 0) for one in servers]
        taken = asyncio.Event()
        hanging = await asyncio.start_server(lambda _reader, _writer: taken.set(), "127.0.0.1", 0)  # it reads nothing
        ports.insert(1, hanging.sockets[0].getsockname()[1])
        context, role = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000), Role()
        context.topics.put(TopicConfig("T" * 100, 4, 4))
        own = Registry()
        addresses = [f"127.0.0.1:{port}" for port in ports]
        registrar = Registrar(OwnRegistration(context, role), own, addresses)
        try:
            await taken.wait()
            registrar.soon()
            registrar.look()
            assert not own.brokers
            for role.broker_id, role.term in ((2, 1), (0, 2), (2, 3)):
                registrar.soon()
                wanted = {role.broker_id: "127.0.0.1:1"}
                assert own.brokers["b"].addresses == wanted
                for one in registries:
                    await until(
                        lambda one=one, wanted=wanted: "b" in one.brokers and one.brokers["b"].addresses == wanted
                    )
                    assert one._live["127.0.0.1:1"].version.state_version == role.term
            await until(lambda: all(registrar.registered_ms[addresses[at]] for at in (0, 2)))
            assert registrar.registered_ms[addresses[1]] is None
        finally:
            registrar.close()
            hanging.close()
            for server in servers:
                server.close()

    asyncio.run(story())


def test_a_broker_that_a_name_server_refuses_is_not_registered_there() -> None:
    async def story() -> None:
        asked = 0

        def refuses(_call: Call) -> Reply:
            nonlocal asked
            asked += 1
            return Reply(Answer.SYSTEM_ERROR, None, "no room")

        server = RemotingServer(Dispatcher({Request.REGISTER_BROKER: refuses}))
        at = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        context, role = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000), Role()
        role.broker_id, role.term = 0, 1
        registrar = Registrar(OwnRegistration(context, role), Registry(), [at])
        try:
            await until(lambda: asked >= 2)
            assert registrar.registered_ms == {at: None}
        finally:
            registrar.close()
            server.close()

    asyncio.run(story())


@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_slave_alone_learns_from_a_name_server_where_the_master_is(broker_id: int) -> None:
    """A master follows nobody, whatever is said to it."""

    async def story() -> None:
        learned: list[tuple[str, str]] = []

        async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readexactly(PREFIX_BYTES)
            asked = decode(head + await reader.readexactly(read_prefix(head)[0] - PREFIX_BYTES))
            fields = write_header(RegisterBrokerAnswer("10.0.0.9:10912", "10.0.0.9:10911"))
            writer.write(encode(response(asked, Answer.SUCCESS, fields)))

        server = await asyncio.start_server(answers, "127.0.0.1", 0)
        context, role = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000), Role()
        role.broker_id, role.term = broker_id, 1
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wanted: Any = SimpleNamespace(is_lost=False, learned=lambda *said: learned.append(said))
        registrar = Registrar(OwnRegistration(context, role), Registry(), [at], wanted)
        try:
            await until(lambda: registrar.registered_ms[at] is not None)
        finally:
            registrar.close()
            server.close()
        assert learned == ([(at, "10.0.0.9:10912")] if broker_id else [])

    asyncio.run(story())


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_name_server_that_resets_its_connections_is_registered_at_again(
    loop_of: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    """A stream that ends with an error has no end: nothing was sent to it any more, or an error came of it."""

    async def story() -> None:
        dialled: list[asyncio.StreamWriter] = []

        async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialled.append(writer)
            await reader.read(1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        server = await asyncio.start_server(resets, "127.0.0.1", 0)
        context, role = Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000), Role()
        role.broker_id, role.term = 0, 1
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        registrar = Registrar(OwnRegistration(context, role), Registry(), [at])
        try:
            await until(lambda: len(dialled) >= 3)
        finally:
            registrar.close()
            server.close()
        assert not caplog.records

    with asyncio.Runner(loop_factory=loop_of) as runner:
        runner.run(story())


def test_topics_that_strangers_make_cost_what_they_are_and_not_what_all_of_them_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each change of a topic had all of them registered anew, 15,000 of them each time."""

    async def story() -> None:
        now_s = 100.0
        clock = SimpleNamespace(monotonic=lambda: now_s, time_ns=lambda: int(now_s * 1e9))
        monkeypatch.setattr(registration, "time", clock)
        context, role, own = (
            Context(Identity("C", "b", "127.0.0.1", 1), MemoryMessages(), lambda: 1000),
            Role(),
            Registry(),
        )
        for number in range(500):
            context.topics.put(TopicConfig(f"T{number}", 1, 1))
        registrar = Registrar(OwnRegistration(context, role), own, [])
        context.topics.on_change.append(registrar.changed)
        puts: list[str] = []
        put = own._put
        monkeypatch.setattr(own, "_put", lambda name, topic: (puts.append(topic.name), put(name, topic))[1])
        context.topics.put(TopicConfig("before", 1, 1))
        assert not own.topics, "nothing is said before the first role"
        role.broker_id = role.term = 0
        registrar.soon()
        assert len(own.topics) > 500
        puts.clear()
        for number in range(1000):
            context.topics.put(TopicConfig(f"T{number}", 2, 2))
            assert own.topics[f"T{number}"]["b"].read_queues == 2, "routes are asked for at once"
        assert len(puts) == 1000
        version = own._live["127.0.0.1:1"].version
        now_s += 1
        registrar.look()
        assert own._live["127.0.0.1:1"].version.counter == version.counter + 1000, "and so are all, once"
        assert len(puts) == 1000 + len(context.topics.topics)
        puts.clear()
        now_s += 1
        context.topics.put(TopicConfig("alone", 1, 1))
        assert own._live["127.0.0.1:1"].version == replace(context.topics.version, state_version=0), "nothing waits"
        own.unregister("b", "127.0.0.1:1", 0)  # by a stranger
        context.topics.put(TopicConfig("hidden", 1, 1))
        assert not own.topics
        now_s += 11
        registrar.look()
        assert "hidden" in own.topics and "T999" in own.topics
        monkeypatch.setattr(registry, "TOPICS_MAX", len(own.topics))
        context.topics.put(TopicConfig("no room", 1, 1))
        assert "no room" not in own.topics
        registrar.close()

    asyncio.run(story())


# --- over a real engine -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lease_reads", [True, False])
def test_a_master_has_a_lease_where_its_group_has_and_is_confirmed_where_not(tmp_path: Path, lease_reads: bool) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, free_ports(1), **{"node.lease_reads": str(lease_reads).lower()})
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            if lease_reads:
                await until(broker.may_answer)
            else:
                assert not broker.may_answer() and await broker.confirm()
            await client.send(b"x")
            [answer] = await client.ask((Request.GET_MAX_OFFSET, QUEUE, b""))
            assert answer.fields == {"offset": "1"}
            assert [one.outcome for one in broker.roles.timeline] == ["done"]

    asyncio.run(story())
