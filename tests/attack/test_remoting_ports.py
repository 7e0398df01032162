"""Attacks on ports of RocketMQ's remoting (SAFETY C10), drawn from a seed (ATTACK_SEED has others drawn).

On a name server's process, and on a broker's two ports, main and VIP, drawn for each connection. Each attack leaves all
as it was: the broker that registered is routed to, byte for byte, messages are taken and given, memory grew by a bound,
and connections get in.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from node.broker.client_port import VIP_BELOW
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import COMMAND_BYTES_MAX, HEADER_BYTES_MAX, Command, encode
from tests.attack.memory import Memory
from tests.attack.remoting_kit import WITHIN_S, Attacked, AttackedBroker, Caller, drawn
from tests.unit.broker_kit import pull_fields, send_fields

pytestmark = pytest.mark.process
MEMORY_MIB: Final = 96  # 64 MiB are the bound of what is unfinished; the rest is what answering takes
UNTAKEN_MIB: Final = 64  # 32 MiB are the bound; the allocator keeps some of what was freed
BROKERS_MAX: Final = 1024


@pytest.fixture(scope="module", params=[Attacked, AttackedBroker], ids=["name-server", "broker"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    one = request.param(tmp_path_factory.mktemp("remoting"))
    try:
        yield one
    finally:
        one.close()


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def _lying_length(rng: random.Random) -> bytes:
    return struct.pack(
        ">iI", rng.choice([-1, 0, 3, 2**31 - 1, COMMAND_BYTES_MAX]), rng.randrange(2**32)
    ) + rng.randbytes(64)


def _long_header(rng: random.Random) -> bytes:
    return framed(b" " * (HEADER_BYTES_MAX + rng.randrange(1, 4 * 2**20)))


def _deep_header(rng: random.Random) -> bytes:
    return framed(b'{"extFields":' + b"[" * rng.randrange(10_000, HEADER_BYTES_MAX - 20))


def _many_fields(rng: random.Random) -> bytes:
    fields = {f"k{number}": "v" for number in range(rng.randrange(65, 10_000))}
    return framed(json.dumps({"code": Request.GET_ROUTEINFO_BY_TOPIC, "extFields": fields}).encode())


def _lying_binary(rng: random.Random) -> bytes:
    head = struct.pack(">hBhiii", Request.GET_ROUTEINFO_BY_TOPIC, 0, 1, 1, 0, rng.choice([-1, 2**31 - 1, 1000]))
    return framed(head + struct.pack(">i", rng.choice([-1, 2**31 - 1, 7])) + rng.randbytes(rng.randrange(40)), kind=1)


def _noise(rng: random.Random) -> bytes:
    return framed(rng.randbytes(rng.randrange(1, 4096)), rng.randbytes(rng.randrange(4096)), rng.choice([0, 1, 2, 255]))


BROKEN: Final[list[Callable[[random.Random], bytes]]] = [
    _lying_length, _long_header, _deep_header, _many_fields, _lying_binary, _noise,
]  # fmt: skip


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__.strip("_"))
def test_bytes_that_are_no_command_end_their_own_connection(
    attacked: Attacked, make: Callable[[random.Random], bytes]
) -> None:
    rng = drawn(make.__name__)
    with Memory(attacked.process.pid) as memory:
        for _ in range(20):
            with Caller(attacked.port) as stranger:
                try:
                    stranger.socket.sendall(make(rng))
                    stranger.socket.shutdown(socket.SHUT_WR)
                    while True:
                        assert stranger.answer().code != Answer.SUCCESS
                except (EOFError, OSError):
                    pass
    assert memory.most_mib < MEMORY_MIB
    attacked.unharmed()


def test_idle_connections_take_no_place_from_others(attacked: Attacked) -> None:
    rng = drawn("idle")
    with ExitStack() as held:
        for number in range(rng.randrange(400, 700)):  # 256 places are for those who have shown nothing
            one = socket.create_connection(("127.0.0.1", attacked.port), timeout=WITHIN_S)
            held.callback(one.close)
            if rng.random() < 0.5:
                one.send(struct.pack(">iI", 2000, 1000)[: rng.randrange(1, 8)])
            if number % 100 == 0:
                attacked.unharmed()
        attacked.unharmed()
    attacked.unharmed()


class FewDescriptors(AttackedBroker):
    descriptors = 300

    def command(self, folder: Path) -> list[str]:
        """With short files, so that its log opens another one now and then."""
        return [*super().command(folder), "--set", "store.mapped_file_size_for_entry_data_bytes=65536"]


def test_more_connections_than_descriptors_at_three_ports_leave_a_broker_its_files(tmp_path: Path) -> None:
    rng, attacked = drawn("descriptors"), FewDescriptors(tmp_path)
    try:
        with ExitStack() as held, Caller(attacked.main) as client:
            for number in range(rng.randrange(500, 700)):
                port = rng.choice([attacked.main, attacked.main - VIP_BELOW, attacked.ha])
                held.callback(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S).close)
                if number % 50 == 0:
                    attacked.unharmed()  # for who comes now ...
                    sent = client.ask(Request.SEND_MESSAGE_V2, bytes(30_000), **send_fields(b="Filling"))
                    assert sent.code == Answer.SUCCESS, sent.remark  # ... and who was there before
        attacked.unharmed()
    finally:
        attacked.close()


def test_unfinished_commands_take_bounded_memory(attacked: Attacked) -> None:
    rng = drawn("unfinished")
    with ExitStack() as held, Memory(attacked.process.pid) as memory:
        for _ in range(30):
            one = socket.create_connection(("127.0.0.1", attacked.port), timeout=WITHIN_S)
            held.callback(one.close)
            bytes_ = rng.randrange(8 * 2**20, COMMAND_BYTES_MAX - 16)
            try:
                one.sendall(struct.pack(">iI", bytes_, 100) + bytes(bytes_ - rng.randrange(5, 1000)))
            except OSError:
                continue  # it was closed while it sent
        attacked.unharmed()
    assert memory.most_mib < MEMORY_MIB
    attacked.unharmed()


def test_what_is_packed_is_not_unpacked_beyond_a_bound(attacked: Attacked) -> None:
    rng = drawn("packed")
    with Memory(attacked.process.pid) as memory, Caller(attacked.port) as stranger:
        for _ in range(5):
            bomb = zlib.compress(bytes(rng.randrange(17, 200) * 2**20), 9)
            answer = stranger.register("bomb", "10.0.0.1:1", bomb, compressed="true")
            assert answer.code == Answer.SYSTEM_ERROR
            assert "16777216 bytes" in (answer.remark or "")
    assert memory.most_mib < MEMORY_MIB
    attacked.unharmed()


def test_brokers_that_are_none_are_refused_with_the_reason_and_leave_nothing(attacked: Attacked) -> None:
    rng = drawn("registrations")
    with Memory(attacked.process.pid) as memory, Caller(attacked.port) as stranger:
        refused = []
        for number in range(BROKERS_MAX + rng.randrange(20, 200)):
            answer = stranger.register(f"b{number}", f"10.0.{number >> 8}.{number & 255}:10911")
            refused += [answer] if answer.code != Answer.SUCCESS else []
        assert refused
        assert all("no room for another one" in (one.remark or "") for one in refused)
        attacked.unharmed()
    assert memory.most_mib < MEMORY_MIB
    with Caller(attacked.port) as one:
        while b'"b0"' in bytes(one.ask(Request.GET_BROKER_CLUSTER_INFO).body):  # its connection's end is seen soon
            pass
    attacked.unharmed()


def test_answers_that_nobody_takes_are_bounded_in_their_sum(attacked: Attacked) -> None:
    rng = drawn("unread")
    with Caller(attacked.port) as one:
        assert one.ask(Request.PUT_KV_CONFIG, namespace="n", key="k", value="v" * 16_000).code == Answer.SUCCESS
    ask = encode(Command(Request.GET_KV_CONFIG, 1, fields={"namespace": "n", "key": "k"}))
    with ExitStack() as held, Memory(attacked.process.pid) as memory:
        for _ in range(rng.randrange(30, 120)):
            one_more = socket.socket()
            held.callback(one_more.close)
            one_more.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rng.choice([2048, 4096, 65536]))
            one_more.connect(("127.0.0.1", attacked.port))
            one_more.settimeout(0.2)
            with suppress(OSError):  # it is not read from any more, or it was closed
                one_more.sendall(ask * rng.randrange(200, 3000))
        attacked.unharmed()
    assert memory.most_mib < UNTAKEN_MIB
    attacked.unharmed()


def test_pulls_that_wait_and_are_never_read_hold_up_nobody(attacked: Attacked) -> None:
    """Each held pull is an object and an answer of 60,000 bytes that is to come; a message wakes all of them."""
    if not isinstance(attacked, AttackedBroker):
        return  # a name server has none
    rng = drawn("pulls")
    with ExitStack() as held, Memory(attacked.process.pid) as memory:
        pulls = b"".join(
            encode(Command(Request.PULL_MESSAGE, n, fields=pull_fields(0, 3, "Pulled"))) for n in range(500)
        )
        with Caller(attacked.port) as one:
            sent = one.ask(Request.SEND_MESSAGE_V2, b"first", **send_fields(b="Pulled", e="3"))
            assert sent.code == Answer.SUCCESS, sent.remark
        for _ in range(rng.randrange(40, 80)):
            one_more = socket.create_connection(("127.0.0.1", attacked.port), timeout=0.5)
            held.callback(one_more.close)
            with suppress(OSError):
                one_more.sendall(pulls)
        with Caller(attacked.port) as one:
            for _ in range(rng.randrange(10, 20)):
                answer = one.ask(Request.SEND_MESSAGE_V2, bytes(60_000), **send_fields(b="Pulled", e="3"))
                assert answer.code == Answer.SUCCESS
        attacked.unharmed()
    assert memory.most_mib < MEMORY_MIB
    attacked.unharmed()


def test_an_order_table_has_room_in_the_answer_to_a_registration(attacked: Attacked) -> None:
    rng, named = drawn("order table"), {"namespace": "ORDER_TOPIC_CONFIG"}
    keys: list[str] = []
    with Memory(attacked.process.pid) as memory, Caller(attacked.port) as stranger:
        while True:
            keys.append(f"k{len(keys)}")
            value = "\x01" * rng.randrange(8_000, 16_000)  # six characters each in JSON
            answer = stranger.ask(Request.PUT_KV_CONFIG, key=keys[-1], value=value, **named)
            if answer.code != Answer.SUCCESS:
                break
        assert "delete keys" in (answer.remark or "")
        assert stranger.register("x", "10.0.0.1:1").code == Answer.SUCCESS
        attacked.unharmed()
        for key in keys:
            assert stranger.ask(Request.DELETE_KV_CONFIG, key=key, **named).code == Answer.SUCCESS
    assert memory.most_mib < UNTAKEN_MIB
    attacked.unharmed()


def test_a_strangers_words_reach_no_log_as_they_are(attacked: Attacked) -> None:
    rng = drawn("words")
    with Caller(attacked.port) as stranger:
        for _ in range(50):
            words = "".join(rng.choice(["\x1b[2J", "\n2026 ERROR", "\x00", "\u202e", "a", "\r"]) for _ in range(9))
            stranger.register(words, words, haServerAddr=words)
            stranger.ask(rng.randrange(30_000), topic=words)
            stranger.ask(Request.UNREGISTER_BROKER, brokerName=words, brokerAddr=words, clusterName="c", brokerId="0")
    attacked.unharmed()
    said = attacked.log.read_bytes()
    assert b"\x1b" not in said
    assert b"\n2026 ERROR" not in said
