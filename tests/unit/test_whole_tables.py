"""Answers that are a whole table: a long one is made beside the loop, once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from node.broker.requests import config_files, table
from node.broker.requests.config_files import OFFSETS, ConfigFiles
from node.broker.requests.context import Context, Identity
from node.broker.requests.table import BrokerRequests
from node.name_service import requests as name_requests
from node.name_service.registry import Registration, Registry
from node.rocketmq.bodies import DataVersion, GroupConfig, TopicConfig
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Call, Dispatcher
from node.rocketmq.whole_tables import AT_ONCE_ROWS_MAX, WholeTable
from tests.unit.client_wire import FakePeer
from tests.unit.memory_messages import MemoryMessages

LONG = AT_ONCE_ROWS_MAX + 1
WITHIN_S = 30.0


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110 (a thread brings it about)
            await asyncio.sleep(0.001)


def long_context() -> Context:
    context = Context(Identity("C", "b", "127.0.0.1", 10911), MemoryMessages(), lambda: 1_000_000)
    for number in range(LONG):
        context.offsets.put(f"G{number}", "T", 0, number)
        context.topics.take(f"T{number}", TopicConfig(f"T{number}"))
        context.groups.take(f"G{number}", GroupConfig(f"G{number}"))
    return context


@pytest.mark.parametrize(
    ("code", "made_by", "named"),
    [
        (Request.GET_ALL_CONSUMER_OFFSET, "offsets_of", "offsetTable"),
        (Request.GET_ALL_TOPIC_CONFIG, "topics_answer", "topicConfigTable"),
        (Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "groups_answer", "subscriptionGroupTable"),
    ],
)
def test_a_brokers_long_table_is_made_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, code: int, made_by: str, named: str
) -> None:
    made_in: list[int] = []
    make = getattr(table, made_by)

    def watched(*said: object) -> bytes:
        made_in.append(threading.get_ident())
        return bytes(make(*said))

    monkeypatch.setattr(table, made_by, watched)

    async def story() -> None:
        dispatcher = Dispatcher(BrokerRequests(long_context()).handlers())
        peer = FakePeer()
        assert peer.ask(dispatcher, Command(code, 7)) is None
        await until(lambda: peer.sent)
        assert len(json.loads(bytes(peer.sent[0].body).replace(b"{0:", b'{"0":'))[named]) >= LONG
        assert len(made_in) == 1 and made_in[0] != threading.get_ident()

    asyncio.run(story())


def test_a_name_servers_list_of_all_topics_is_made_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made_in: list[int] = []
    make = name_requests._topics_answer

    def watched(topics: list[str]) -> bytes:
        made_in.append(threading.get_ident())
        return make(topics)

    monkeypatch.setattr(name_requests, "_topics_answer", watched)

    async def story() -> None:
        names = [f"T{number}" for number in range(LONG)]
        said = Registration("C", "b", "a:1", 0, "", DataVersion(1, 0), {name: TopicConfig(name) for name in names})
        registry, peer = Registry(), FakePeer()
        registry.register(said, 0, peer)
        dispatcher = Dispatcher(name_requests.NameService(registry, lambda: 0).handlers())
        assert peer.ask(dispatcher, Command(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 7)) is None
        await until(lambda: peer.sent)
        assert json.loads(peer.sent[0].body)["topicList"] == names == registry.topics_of_cluster("C")
        assert registry.topics_of_cluster("D") == []
        assert len(made_in) == 1 and made_in[0] != threading.get_ident()

    asyncio.run(story())


def test_files_of_long_tables_are_made_in_a_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are made every few seconds, whether anything changed or not."""
    made_in: list[int] = []
    make = config_files.offsets_of

    def watched(items: object) -> bytes:
        made_in.append(threading.get_ident())
        return make(items)  # type: ignore[arg-type]

    monkeypatch.setattr(config_files, "offsets_of", watched)

    async def story() -> None:
        context = long_context()
        files = ConfigFiles(tmp_path, context)
        await files.save()
        assert len(made_in) == 1 and made_in[0] != threading.get_ident()
        assert not files.due()
        context.offsets.put("G1", "T", 0, 99)
        assert set(files.due()) == {OFFSETS}

    asyncio.run(story())


class Rows:
    """A table whose answer is made when the test says so."""

    def __init__(self) -> None:
        self.value = 0
        self.taken: list[int] = []
        self.go_on = threading.Semaphore(0)

    def take(self) -> Callable[[], bytes]:
        value = self.value
        self.taken.append(value)

        def make() -> bytes:
            assert self.go_on.acquire(timeout=WITHIN_S)
            if value < 0:
                raise ValueError("no table")
            return b"%d" % value

        return make


def ask(made: WholeTable, peer: FakePeer) -> None:
    call = Call(peer, Command(43, 1))
    reply = made.handle(call)
    if reply is not None:
        call.answer(reply)


def test_who_asks_while_it_is_made_shares_one_that_is_newer() -> None:
    async def story() -> None:
        rows = Rows()
        made = WholeTable(lambda: LONG, rows.take)
        first, others = FakePeer(), [FakePeer() for _ in range(5)]
        ask(made, first)
        await until(lambda: rows.taken)
        rows.value = 1  # it was answered to somebody before these ask
        for one in others:
            ask(made, one)
        rows.go_on.release()
        await until(lambda: first.sent)
        rows.go_on.release()
        await until(lambda: all(one.sent for one in others))
        assert bytes(first.sent[0].body) == b"0"
        assert {bytes(one.sent[0].body) for one in others} == {b"1"}
        assert rows.taken == [0, 1]

    asyncio.run(story())


def test_a_connection_gets_one_copy_at_a_time() -> None:
    async def story() -> None:
        rows = Rows()
        made, peer = WholeTable(lambda: LONG, rows.take), FakePeer()
        for _ in range(5):
            ask(made, peer)
        for number in range(1, 6):
            rows.go_on.release()
            await until(lambda number=number: len(peer.sent) == number and len(rows.taken) == min(number + 1, 5))
        assert {one.code for one in peer.sent} == {Answer.SUCCESS} and peer.open == 0

    asyncio.run(story())


def test_nothing_more_is_made_for_a_connection_that_ended() -> None:
    async def story() -> None:
        rows = Rows()
        made, peer, other = WholeTable(lambda: LONG, rows.take), FakePeer(), FakePeer()
        for _ in range(50):
            ask(made, peer)
        await until(lambda: rows.taken)
        peer.closed = True
        for _ in range(2):
            rows.go_on.release()
        ask(made, other)
        await until(lambda: other.sent)
        assert not peer.sent and len(rows.taken) <= 3

    asyncio.run(story())


def test_a_table_that_cannot_be_made_is_answered() -> None:
    async def story() -> None:
        rows = Rows()
        rows.value = -1
        made, peer = WholeTable(lambda: LONG, rows.take), FakePeer()
        ask(made, peer)
        rows.go_on.release()
        await until(lambda: peer.sent)
        assert peer.sent[0].code == Answer.SYSTEM_ERROR and "no table" in (peer.sent[0].remark or "")

    asyncio.run(story())
