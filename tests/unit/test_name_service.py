"""The name service: who is registered and who is not any more, what a stranger can make it keep, and its port."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from app.cli import run
from node.name_service import registry as rules
from node.name_service import requests
from node.name_service.__main__ import main, name_server
from node.name_service.registry import EXPIRES_AFTER_MS, Registered, Registration, Registry, RegistryFull
from node.name_service.requests import (
    BESIDE_BYTES,
    ORDER_TOPIC_CONFIG,
    VALUE_CHARS_MAX,
    VALUES_BYTES_MAX,
    NameService,
)
from node.protocol.entry import crc32
from node.rocketmq.bodies import DataVersion, TopicConfig, topics_answer
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, encode
from node.rocketmq.connection import WRITE_BUFFER_HIGH_BYTES
from node.rocketmq.dispatch import Dispatcher
from node.rocketmq.java_json import dump, load
from node.rocketmq.server import RemotingServer
from tests.ports import free_ports
from tests.unit.client_wire import FakePeer, Wire

TOPIC = TopicConfig("T", 4, 4)


def said(
    address: str = "a:1",
    broker_id: int = 0,
    *,
    name: str = "b",
    counter: int = 1,
    term: int = 0,
    topics: tuple[TopicConfig, ...] = (TOPIC,),
) -> Registration:
    version = DataVersion(counter, 0, term)
    return Registration("C", name, address, broker_id, f"ha-{address}", version, {one.name: one for one in topics})


def addresses(registry: Registry, topic: str = "T") -> dict[int, str]:
    found = registry.route(topic)
    return {} if found is None else found[1][0].addresses


# --- the registry -----------------------------------------------------------------------------------------------------
def test_a_slave_learns_its_master_and_brings_no_topics() -> None:
    registry = Registry()
    assert registry.register(said("s:1", 1), 0, "s") == Registered()
    assert registry.route("T") is None
    registry.register(said(), 0, "m")
    assert registry.register(said("s:1", 1), 0, "s") == Registered("a:1", "ha-a:1")
    assert addresses(registry) == {1: "s:1", 0: "a:1"}


def test_topics_are_taken_over_where_the_version_changed_and_stay_where_they_are_not_named() -> None:
    registry = Registry()
    registry.register(said(), 0, "m")
    registry.register(said(topics=(TopicConfig("T", 9, 9),)), 0, "m")
    assert registry.topics["T"]["b"].read_queues == 4, "the same version"
    registry.register(said(counter=2, topics=(TopicConfig("U", 1, 1),)), 0, "m")
    assert set(registry.topics) == {"T", "U"}


def test_an_address_has_one_id() -> None:
    """A slave that became master, and a master that became slave."""
    registry = Registry()
    registry.register(said("a:1"), 0, "a")
    registry.register(said("b:1", 1), 0, "b")
    registry.register(said("b:1", 0, term=2), 0, "b")
    assert addresses(registry) == {0: "b:1"}
    registry.register(said("a:1", 1, term=2), 0, "a")
    assert addresses(registry) == {0: "b:1", 1: "a:1"}


def test_a_resumed_old_master_does_not_replace_the_new_one() -> None:
    registry = Registry()
    registry.register(said("a:1", term=3), 0, "a")
    registry.register(said("b:1", term=4), 0, "b")
    assert registry.register(said("a:1", term=3, counter=9, topics=(TopicConfig("T", 1, 1),)), 0, "a") == Registered()
    assert addresses(registry) == {0: "b:1"}
    assert registry.topics["T"]["b"].read_queues == 4
    registry.register(said("a:1", term=5, counter=10), 0, "a")
    assert addresses(registry) == {0: "a:1"}


def test_who_is_not_heard_of_is_gone_and_its_queues_with_the_last_address() -> None:
    registry = Registry()
    registry.register(said("a:1"), 0, "a")
    registry.register(said("b:1", 1), 60_000, "b")
    registry.register(said("c:1", name="c"), 0, "c")
    assert registry.expire(EXPIRES_AFTER_MS) == []
    assert set(registry.expire(EXPIRES_AFTER_MS + 1)) == {"a", "c"}
    assert addresses(registry) == {1: "b:1"}
    assert registry.clusters == {"C": {"b": None}}
    registry.owner_gone("b")
    assert (registry.topics, registry.brokers, registry.clusters) == ({}, {}, {})


def test_a_broker_that_stops_takes_only_its_own_address_along() -> None:
    registry = Registry()
    registry.register(said("a:1"), 0, "a")
    registry.unregister("b", "other:1", 0)
    assert addresses(registry) == {0: "a:1"}
    registry.unregister("b", "a:1", 0)
    assert registry.route("T") is None
    registry.owner_gone("a")
    registry.unregister("never", "a:1", 0)


def test_permissions_and_topics_by_hand() -> None:
    registry = Registry()
    registry.register(said(topics=(TOPIC, TopicConfig("U", 1, 1, 4))), 0, "a")
    assert registry.set_permission("b", keep=~2, add=0) == 2
    assert [one["b"].perm for one in registry.topics.values()] == [4, 4]
    assert registry.set_permission("b", keep=0, add=6) == 2
    registry.delete_topic("T", "another cluster")
    registry.delete_topic("U", None)
    assert registry.topics_of_cluster("C") == ["T"]


def test_what_has_no_room_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "BROKERS_MAX", 2)
    monkeypatch.setattr(rules, "TOPICS_MAX", 3)
    registry = Registry()
    registry.register(said("a:1"), 0, "a")
    with pytest.raises(RegistryFull, match="3 topics"):
        registry.register(said("b:1", name="x", topics=tuple(TopicConfig(str(one)) for one in range(3))), 0, "x")
    assert set(registry.brokers) == {"b"} and set(registry.topics) == {"T"}
    registry.register(said("b:1", 1), 0, "b")
    with pytest.raises(RegistryFull, match="2 brokers"):
        registry.register(said("c:1", 2), 0, "c")
    registry.register(said("a:1", counter=2), 0, "a")


def test_neither_names_nor_clusters_of_one_address_are_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "BROKERS_MAX", 3)
    registry = Registry()
    for cluster in "ABC":
        registry.register(dataclasses.replace(said(), cluster=cluster), 0, "a")
    assert registry.clusters == {"C": {"b": None}}
    registry.register(said(name="b2"), 0, "a")
    registry.register(said(name="b2", broker_id=1), 0, "a")  # the address has another id there now
    registry.register(said(name="b3"), 0, "a")
    with pytest.raises(RegistryFull, match="3 brokers"):
        registry.register(said(name="b4"), 0, "a")
    registry.register(said(name="b3", counter=2), 0, "a")
    registry.owner_gone("a")
    assert not (registry.brokers or registry.clusters or registry.topics)


# --- requests ---------------------------------------------------------------------------------------------------------
FIELDS = {"brokerName": "b", "brokerAddr": "a:1", "clusterName": "C", "brokerId": "0", "haServerAddr": "a:2"}
BODY = dump({"topicConfigSerializeWrapper": json.loads(topics_answer(DataVersion(1, 2), [TOPIC]))})


def packed(topics: list[str], count: int | None = None, tail: bytes = b"") -> bytes:
    pieces = [b'{"counter":1,"timestamp":2}', *(one.encode() for one in topics)]
    data = struct.pack(">i", len(pieces[0])) + pieces[0] + struct.pack(">i", len(topics) if count is None else count)
    data += b"".join(struct.pack(">i", len(one)) + one for one in pieces[1:])
    return zlib.compress(data + struct.pack(">i", 2) + b"[]" + tail)


def service() -> tuple[Registry, Dispatcher]:
    registry = Registry()
    return registry, Dispatcher(NameService(registry, lambda: 0).handlers())


def test_a_compressed_registration_says_the_same() -> None:
    for body, compressed in ((BODY, "false"), (packed(["T 4 4 6 SINGLE_TAG"]), "true")):
        registry, dispatcher = service()
        crc = str(crc32(body) & 0x7FFFFFFF)
        answer = FakePeer().ask(
            dispatcher, Command(103, 1, 0, FIELDS | {"compressed": compressed, "bodyCrc32": crc}, None, body)
        )
        assert answer is not None and (answer.code, answer.fields, bytes(answer.body)) == (0, {}, b"")
        assert registry.topics["T"]["b"].write_queues == 4


@pytest.mark.parametrize(
    ("fields", "body", "why"),
    [
        ({"bodyCrc32": "5"}, BODY, "crc32 not match"),
        ({"brokerId": "-1"}, BODY, "brokerId -1"),
        ({"brokerName": "x" * 256}, BODY, "256 characters"),
        ({}, b"{", "not JSON"),
        ({}, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":99999999999}}}}', "perm is no int32"),
        ({"compressed": "true"}, BODY, "not compressed"),
        ({"compressed": "true"}, packed(["T"]), "is no topic"),
        ({"compressed": "true"}, packed(["T 4 x 6 SINGLE_TAG"]), "is no number"),
        ({"compressed": "true"}, packed([], 60_000), "60000 topics"),
        ({"compressed": "true"}, packed([], 5), "is no topic|field"),
        ({"compressed": "true"}, packed([])[:-3], "does not end"),
        ({"compressed": "true"}, zlib.compress(b"\0" * (17 << 20)), "more than"),
    ],
)  # fmt: skip
def test_a_registration_that_is_none_changes_nothing(fields: dict[str, str], body: bytes, why: str) -> None:
    registry, dispatcher = service()
    answer = FakePeer().ask(dispatcher, Command(103, 1, 0, FIELDS | fields, None, body))
    assert answer is not None and answer.code == 1
    assert re.search(why, answer.remark or "")
    assert (registry.brokers, registry.topics) == ({}, {})


def test_who_is_behind_as_master_does_not_stay_as_the_slave_that_it_was() -> None:
    registry = Registry()
    registry.register(said("a:1", term=3), 0, "a")
    registry.register(said("b:1", 2, term=3), 0, "b")
    assert addresses(registry) == {0: "a:1", 2: "b:1"}
    registry.register(said("b:1", term=2), 0, "b")
    assert addresses(registry) == {0: "a:1"}


def test_older_clients_get_ids_as_bare_numbers() -> None:
    _registry, dispatcher = service()
    peer = FakePeer()
    peer.ask(dispatcher, Command(103, 1, 0, FIELDS, None, BODY))
    for version, fields, form in (
        (400, {}, b"{0:"),
        (401, {}, b'{"0":'),
        (300, {"acceptStandardJsonOnly": "true"}, b'{"0":'),
    ):
        answer = peer.ask(dispatcher, Command(105, 2, 0, {"topic": "T", **fields}, version=version))
        assert answer is not None and form in bytes(answer.body)


def test_keys_and_values_are_bounded() -> None:
    _registry, dispatcher = service()
    peer = FakePeer()
    one = {"namespace": "n", "key": "k", "value": "v" * 17_000}
    answer = peer.ask(dispatcher, Command(Request.PUT_KV_CONFIG, 1, 0, one))
    assert answer is not None and answer.code == 1
    found = peer.ask(dispatcher, Command(Request.GET_KVLIST_BY_NAMESPACE, 2, 0, {"namespace": "n"}))
    assert found is not None and (found.code, found.remark) == (22, "No config item, Namespace: n")


def test_keys_and_values_are_bounded_in_their_sum_and_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 values of 16 KiB fitted, and with an order table of 64 MiB no broker got an answer to its registration."""
    _registry, dispatcher = service()
    peer, named = FakePeer(), {"namespace": ORDER_TOPIC_CONFIG}

    def put(key: str, value: str, **more: str) -> tuple[int, str | None]:
        answer = peer.ask(dispatcher, Command(Request.PUT_KV_CONFIG, 1, 0, {"key": key, "value": value} | named | more))
        assert answer is not None
        return answer.code, answer.remark

    full = 0
    while put(f"k{full}", "ä" * VALUE_CHARS_MAX)[0] == 0:
        full += 1
    assert full == VALUES_BYTES_MAX // (2 * VALUE_CHARS_MAX + 3) and full > 10
    code, why = put("one more", "ä" * VALUE_CHARS_MAX)
    assert code == 1 and str(VALUES_BYTES_MAX) in (why or "") and "delete keys" in (why or "")
    answer = peer.ask(dispatcher, Command(Request.REGISTER_BROKER, 3, 0, FIELDS))
    assert answer is not None and answer.code == 0 and b"one more" not in answer.body
    assert put("k0", "short")[0] == 0  # what is there may become shorter
    assert put("one more", "ä" * (VALUE_CHARS_MAX - 20))[0] == 0  # and makes room
    for key in [*(f"k{number}" for number in range(full)), "one more", "one more"]:
        peer.ask(dispatcher, Command(Request.DELETE_KV_CONFIG, 2, 0, {"key": key} | named))
    assert [put(f"k{number}", "ä" * VALUE_CHARS_MAX)[0] for number in range(full)] == [0] * full

    monkeypatch.setattr(requests, "KEYS_MAX", full + 3)
    assert put("k", "v", namespace="another")[0] == 0
    code, why = put("k", "v", namespace="a third")
    assert code == 1 and str(full + 3) in (why or "")
    assert put("k", "w", namespace="another")[0] == 0  # a key that is there is no new one


# --- the port ---------------------------------------------------------------------------------------------------------
def on_a_server(work: Callable[[int, Registry], None]) -> None:
    """`work` runs in a thread beside the server's loop."""

    async def run() -> None:
        async with a_server() as (port, registry, _server):
            await asyncio.to_thread(work, port, registry)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def a_server() -> AsyncIterator[tuple[int, Registry, RemotingServer]]:
    registry = Registry()
    server = name_server(NameService(registry, lambda: 0))
    try:
        yield await server.listen("127.0.0.1", 0), registry, server
    finally:
        server.close()


def until(said_so: Callable[[], bool]) -> None:
    """Within a minute."""
    for _ in range(6000):
        if said_so():
            return
        time.sleep(0.01)
    raise AssertionError("not within a minute")


def test_many_requests_in_one_piece_and_in_bytes_are_answered_in_order() -> None:
    def work(port: int, registry: Registry) -> None:
        wire = Wire(port)
        assert wire.ask(103, FIELDS, BODY).code == 0
        data = b"".join(encode(Command(105, one, 0, {"topic": "T"}, binary=bool(one % 2))) for one in range(200))
        wire.socket.sendall(data)
        answers = [wire.receive() for _ in range(200)]
        assert [one.opaque for one in answers] == list(range(200))
        assert [one.binary for one in answers[:4]] == [False, True, False, True]
        for at in range(300):
            wire.socket.sendall(data[at : at + 1])
        assert wire.receive().opaque == 0
        wire.close()
        until(lambda: not registry.brokers)  # its connection ended

    on_a_server(work)


def test_brokers_come_and_go_in_order_where_a_long_registration_is_read_beside_the_loop() -> None:
    def work(port: int, registry: Registry) -> None:
        wire, other = Wire(port), Wire(port)
        body = packed([f"topic-{number}-{'y' * 90} 8 8 6 SINGLE_TAG" for number in range(20_000)])
        long = zlib.compress(zlib.decompress(body), 0)
        assert len(long) > BESIDE_BYTES
        wire.send(103, FIELDS | {"compressed": "true"}, long)
        wire.send(104, FIELDS)
        assert [wire.receive().code, wire.receive().code] == [0, 0] and not registry.brokers
        wire.send(103, FIELDS | {"compressed": "true"}, long[:-1])
        wire.send(103, FIELDS, BODY)
        assert [wire.receive().code, wire.receive().code] == [1, 0] and set(registry.topics) == {"T"}
        wire.send(103, FIELDS | {"compressed": "true"}, long)
        wire.close()  # before it is read
        assert other.ask(106).code == 0
        until(lambda: not registry.brokers)
        other.close()

    on_a_server(work)


def test_short_requests_with_long_answers_wait_until_the_answers_before_them_are_taken() -> None:
    """Else a read of 64 KiB would make as many answers as it has requests: gigabytes."""

    def work(port: int, server: RemotingServer) -> None:
        wire = Wire(port)
        assert wire.ask(106).code == 0  # who has asked for nothing that is served may go soon
        for _ in range(4):  # so that much is read at once from now on
            wire.socket.sendall(b"".join(encode(Command(9999, 0)) for _ in range(800)))
            assert {wire.receive().code for _ in range(800)} == {3}
        wire.socket.sendall(b"".join(encode(Command(206, one)) for one in range(100)))
        (connection,) = server.connections
        most = 0
        for number in range(100):
            answer = wire.receive()
            assert (answer.opaque, answer.code) == (number, 0) and len(answer.body) > 1_000_000
            most = max(most, connection.backlog_bytes)
        assert most <= WRITE_BUFFER_HIGH_BYTES + 2_000_000  # and an answer more
        assert wire.ask(9999).code == 3  # it is read from again
        wire.close()

    async def run() -> None:
        async with a_server() as (port, registry, server):
            for part in range(2):
                names = [f"topic-{part}-{number}-{'y' * 110}" for number in range(5000)]
                registry.register(said(name=f"b{part}", topics=tuple(TopicConfig(one) for one in names)), 0, "x")
            await asyncio.to_thread(work, port, server)

    asyncio.run(run())


@pytest.mark.parametrize(
    "data", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", struct.pack(">iI", 18, 14) + b"not a header x"]
)
def test_what_is_no_command_ends_the_connection_and_nothing_else(data: bytes) -> None:
    def work(port: int, _registry: Registry) -> None:
        wire, other = Wire(port), Wire(port)
        wire.socket.sendall(data)
        assert wire.is_closed()
        assert other.ask(106).code == 0
        assert other.ask(9999).code == 3
        wire.close()
        other.close()

    on_a_server(work)


def test_a_flood_of_connections_leaves_the_one_that_works() -> None:
    def work(port: int, _registry: Registry) -> None:
        wire = Wire(port)
        assert wire.ask(106).code == 0
        flood = [Wire(port) for _ in range(400)]
        for one in flood[::2]:
            one.socket.sendall(struct.pack(">iI", 16 << 20, 10)[:6])
        for _ in range(50):
            assert wire.ask(106).code == 0
        for one in [wire, *flood]:
            one.close()

    on_a_server(work)


def test_a_wrong_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--listen", "127.0.0.1"]) == 64
    assert main(["--nonsense"]) == 64
    assert run(["nameserver", "--listen", "127.0.0.1:0"]) == 64
    assert run(["nameserver", "--log-level", "loud"]) == 64
    assert "127.0.0.1" in capsys.readouterr().err


@pytest.mark.process
def test_the_process_serves_until_it_is_asked_to_stop() -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "nameserver", "--listen", address], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "listening on" in process.stderr.readline()
        wire = Wire(port)
        assert wire.ask(103, FIELDS, BODY).code == 0
        assert load(wire.ask(106).body)["clusterAddrTable"] == {"C": ["b"]}
        second = [sys.executable, "-m", "node.name_service", "--listen", address]
        done = subprocess.run(second, capture_output=True, text=True, timeout=60)
        assert (done.returncode, "choose another port" in done.stderr) == (69, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert wire.is_closed()
    finally:
        process.kill()
        process.wait(60)
