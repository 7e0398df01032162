"""Attacks by requests that a broker serves to everybody, drawn from a seed (ATTACK_SEED has others drawn).

Each is within what any client may ask: pulls that wait, heartbeats, questions by key. While they are there and after
them others are served: their pulls wait too, their heartbeats are taken, their messages are stored and given.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import pytest

from app.console.nodes import ANSWER_BYTES_MAX
from node.broker.introspection import INTROSPECT
from node.broker.requests.clients import CLIENTS_BYTES_MAX
from node.broker.requests.held_pulls import HELD_BYTES_MAX, HELD_MAX
from node.broker.requests.locks import LOCKS_MAX, SHARE
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command, encode
from tests.attack.memory import Memory
from tests.attack.remoting_kit import TOPIC, WITHIN_S, AttackedBroker, Caller, drawn
from tests.unit.broker_kit import pull_fields, send_fields

pytestmark = pytest.mark.process
MIB: Final = 2**20
SPARE_MIB: Final = 64  # what reading and answering take beside what is kept
AT_ONCE_S: Final = 0.3


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedBroker]:
    one = AttackedBroker(tmp_path_factory.mktemp("requests"))
    try:
        one.unharmed()
        yield one
    finally:
        one.close()


class Stranger:
    """A connection that sends, and takes what is answered only when it is asked to."""

    def __init__(self, port: int, held: ExitStack) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        held.callback(self.socket.close)

    def send(self, *requests: Command) -> None:
        for one in requests:
            self.socket.sendall(encode(one))

    def has_answer(self, within_s: float) -> bool:
        self.socket.settimeout(within_s)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False


def waiting_pull(opaque: int, body: bytes = b"", **changes: str) -> Command:
    fields = pull_fields(0, 2, "Awaited") | {"sysFlag": "6", "suspendTimeoutMillis": "60000"} | changes
    return Command(Request.PULL_MESSAGE, opaque, fields=fields, body=body)


def make_topic(attacked: AttackedBroker) -> None:
    with Caller(attacked.port) as one:
        answer = one.ask(Request.SEND_MESSAGE_V2, b"first", **send_fields(b="Awaited", e="3"))
        assert answer.code == Answer.SUCCESS, answer.remark


def test_locks_that_one_client_hoards_leave_others_some(attacked: AttackedBroker) -> None:
    """Each is kept for a minute, and nobody's can be taken back."""
    rng = drawn("locks")

    def lock(caller: Caller, group: str, client: str, count: int) -> int:
        queues = [{"brokerName": "b", "topic": TOPIC, "queueId": number} for number in range(count)]
        said = {"clientId": client, "consumerGroup": group, "mqSet": queues}
        answer = caller.ask(Request.LOCK_BATCH_MQ, json.dumps(said).encode())
        return len(json.loads(answer.body)["lockOKMQSet"])

    with Caller(attacked.port) as hoarder, Caller(attacked.port) as other:
        assert lock(other, "honest", "h", 4) == 4
        got = sum(lock(hoarder, f"g{number}", f"c{rng.random()}", 4096) for number in range(LOCKS_MAX // 4096 + 1))
        assert 0 < got <= LOCKS_MAX // SHARE
        with Caller(attacked.port) as newcomer:
            assert lock(newcomer, "newcomer", "n", 1024) == 1024
        assert lock(other, "honest", "h", 4) == 4 and lock(other, "honest too", "h", 16) == 16
    attacked.unharmed()


def _large_body(rng: random.Random, opaque: int) -> Command:
    return waiting_pull(opaque, bytes(rng.randrange(1, 7 * MIB)))


def _large_header(rng: random.Random, opaque: int) -> Command:
    return waiting_pull(opaque, x="x" * rng.randrange(50_000, 200_000))


def _many_tags(rng: random.Random, opaque: int) -> Command:
    return waiting_pull(opaque, subscription=" || ".join(f"{rng.randrange(1 << 36):09x}" for _ in range(1000)))


@pytest.mark.parametrize(("make", "count"), [(_large_body, 100), (_large_header, 1500), (_many_tags, 600)])
def test_pulls_that_wait_keep_nothing_but_what_they_wait_for(attacked: AttackedBroker, make: Any, count: int) -> None:
    rng = drawn(make.__name__)
    make_topic(attacked)
    with ExitStack() as held, Memory(attacked.process.pid) as memory:
        strangers = [Stranger(attacked.port, held) for _ in range(rng.randrange(1, 8))]
        for opaque in range(count):
            with suppress(OSError):
                rng.choice(strangers).send(make(rng, opaque))
        attacked.unharmed()
    assert memory.most_mib < HELD_BYTES_MAX / MIB + SPARE_MIB
    attacked.unharmed()


def test_pulls_of_one_connection_keep_nobody_else_from_waiting(attacked: AttackedBroker) -> None:
    rng = drawn("hoard")
    make_topic(attacked)
    with ExitStack() as held:
        hoard = Stranger(attacked.port, held)
        hoard.send(*(waiting_pull(opaque) for opaque in range(HELD_MAX + rng.randrange(100, 1000))))
        assert hoard.has_answer(WITHIN_S), "it has more than there is room for"
        one = Stranger(attacked.port, held)
        one.send(waiting_pull(1))
        attacked.unharmed()
        assert not one.has_answer(AT_ONCE_S)
        with Caller(attacked.port) as sender:
            answer = sender.ask(Request.SEND_MESSAGE_V2, b"awaited", **send_fields(b="Awaited", e="2"))
            assert answer.code == Answer.SUCCESS, answer.remark
        assert one.has_answer(WITHIN_S)
    attacked.unharmed()


def heartbeat(client: str, group: str, text_bytes: int, rng: random.Random, wants: str = "x" * 16_000) -> bytes:
    wanted = [
        {"topic": f"T{number}", "subString": wants, "tagsSet": ["y" * rng.randrange(1000)], "codeSet": [1]}
        for number in range(text_bytes // 16_500)
    ]
    return json.dumps(
        {"clientID": client, "consumerDataSet": [{"groupName": group, "subscriptionDataSet": wanted}]}
    ).encode()


def beats(caller: Caller, said: bytes) -> int:
    """What is answered, past what the broker says by itself of changes of the group."""
    answer = caller.ask(Request.HEART_BEAT, said)
    while not answer.is_response:
        answer = caller.answer()
    return answer.code


def test_what_clients_say_they_want_takes_bounded_memory_and_keeps_nobody_out(attacked: AttackedBroker) -> None:
    rng = drawn("heartbeats")
    with ExitStack() as held, Memory(attacked.process.pid) as memory:
        strangers = [held.enter_context(Caller(attacked.port)) for _ in range(rng.randrange(1, 5))]
        refused = 0
        for number in range(150):
            said = heartbeat(f"c{number}", f"g{number}", rng.randrange(900_000, 1_000_000), rng)
            refused += beats(rng.choice(strangers), said) != Answer.SUCCESS
        assert refused, "they have more than there is room for"
        with Caller(attacked.port) as one:
            assert beats(one, heartbeat("honest", "honest", 16_500, rng)) == Answer.SUCCESS
        attacked.unharmed()
    assert memory.most_mib < CLIENTS_BYTES_MAX / MIB + SPARE_MIB
    attacked.unharmed()


def asked(one: Caller, **question: Any) -> dict[str, Any]:
    """As the broker's own control plane asks."""
    answer = one.ask(INTROSPECT, json.dumps(question).encode())
    assert answer.code == Answer.SUCCESS, answer.remark
    assert len(answer.body) < ANSWER_BYTES_MAX // 2
    said: dict[str, Any] = json.loads(bytes(answer.body))
    return said


def test_what_clients_say_they_want_leaves_the_lists_of_groups_readable(attacked: AttackedBroker) -> None:
    """30 heartbeats, and no list was answered any more: it was longer than a command may be."""
    rng = drawn("lists of groups")
    with ExitStack() as held:
        stranger = held.enter_context(Caller(attacked.port))
        names = [f"wants-{number:03}" for number in range(rng.randrange(24, 30))]
        for name in names:
            said = heartbeat(name, name, rng.randrange(900_000, 980_000), rng, wants='"' * 8_000)
            assert beats(stranger, said) == Answer.SUCCESS
        with Caller(attacked.port) as one:
            found, cursor, pages = [], None, 0
            while pages == 0 or cursor is not None:
                page = asked(one, ask="groups", limit=1000, contains="wants-", **({"cursor": cursor} if cursor else {}))
                found += [each["group"] for each in page["items"]]
                assert all(each["subscriptions"] and each["members"] for each in page["items"])
                cursor, pages = page["next"], pages + 1
            assert found == names and pages > 1
            brief = asked(one, ask="groups", limit=1000, contains="wants-", brief=True)
            assert [(each["group"], each["members"]) for each in brief["items"]] == [(name, 1) for name in names]
            assert brief["next"] is None
            assert asked(one, ask="group", group=names[0])["subscriptions"]
    attacked.unharmed()


def test_questions_by_a_key_that_everything_has_hold_up_nobody(attacked: AttackedBroker) -> None:
    """Each passes over all messages that have the key, to find none that was stored so early."""
    rng = drawn("keys")
    keys = " ".join("k" for _ in range(rng.randrange(8_000, 15_000)))
    with ExitStack() as held, Caller(attacked.port) as one:
        first = one.ask(Request.SEND_MESSAGE_V2, b"first", **send_fields(b="Keyed", i="KEYS\x01first"))
        assert first.code == Answer.SUCCESS, first.remark
        until_ms = int(time.time() * 1000)
        time.sleep(2)  # times in an index are whole seconds
        for _ in range(10):
            assert one.ask(Request.SEND_MESSAGE_V2, b"x", **send_fields(b="Keyed", i=f"KEYS\x01{keys}")).code == 0
        said = {"topic": "Keyed", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(until_ms)}
        crowd, count = Stranger(attacked.port, held), rng.randrange(100, 200)
        crowd.send(*(Command(Request.QUERY_MESSAGE, n, fields=said | {"key": "k"}) for n in range(count)))
        assert crowd.has_answer(WITHIN_S), "they are being answered"
        attacked.unharmed()
        assert one.ask(Request.QUERY_MESSAGE, key="first", **said).code == Answer.SUCCESS
        crowd.socket.setblocking(False)
        assert crowd.socket.recv(1 << 20).count(b"can not find message") < count, "long before the last of them"
    attacked.unharmed()
