"""A broker's handlers for RocketMQ's clients, over a store in memory and a clock that stands until it is moved."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.broker import introspection
from node.broker.group_lag import GroupLag, averagely
from node.broker.introspection import INTROSPECT, Introspection
from node.broker.requests import clients, groups, held_pulls, key_queries, locks, pulls, topics
from node.broker.requests.config_files import ConfigFiles
from node.broker.requests.context import Context, Identity
from node.broker.requests.sends import CODES
from node.broker.requests.table import BrokerRequests
from node.message_client.consumer import share_of
from node.message_client.routes import Queue
from node.message_store.broker_tables import CONSUMER_OFFSETS, GROUPS, TOPICS, table_in
from node.message_store.put_result import PutStatus
from node.message_store.record import decode_record
from node.rocketmq.bodies import (
    ConsumerData,
    GroupConfig,
    Heartbeat,
    MessageQueue,
    Subscription,
    TopicConfig,
    read_offsets,
)
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.rocketmq.dispatch import Call, Dispatcher, Refusal
from node.rocketmq.java_json import dump, load
from tests.unit.broker_kit import pull_fields, send_fields
from tests.unit.client_wire import FakePeer
from tests.unit.memory_messages import MemoryMessages


class Broker:
    """What a test asks."""

    def __init__(self) -> None:
        self.now_ms, self.set_by_ms = 1_000_000, 0  # the wall clock is set, and time goes on
        self.store = MemoryMessages(now_ms=lambda: self.now_ms)
        self.context = Context(
            Identity("C", "b", "127.0.0.1", 10911), self.store, lambda: self.now_ms + self.set_by_ms,
            elapsed_ms=lambda: self.now_ms,
        )  # fmt: skip
        self.requests = BrokerRequests(self.context)
        self.store.on_dispatched.append(self.requests.arrived)
        self.dispatcher = Dispatcher(self.requests.handlers())
        self._opaque = 0

    def ask(self, peer: FakePeer, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command | None:
        self._opaque += 1
        return peer.ask(self.dispatcher, Command(code, self._opaque, 0, fields, None, body))

    def answered(self, peer: FakePeer, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        answer = self.ask(peer, code, fields, body)
        assert answer is not None
        return answer

    def send(self, body: bytes = b"x", **changes: str) -> Command:
        return self.answered(FakePeer(), Request.SEND_MESSAGE_V2, send_fields(**changes), body)

    def pull(self, peer: FakePeer, offset: int, **changes: str) -> Command | None:
        return self.ask(peer, Request.PULL_MESSAGE, pull_fields(offset) | {"sysFlag": "6"} | changes)

    def later(self, ms: int) -> None:
        self.now_ms += ms
        self.requests.look()

    def beats(
        self, peer: FakePeer, client: str, *wanted: Subscription, group: str = "G", model: str = "CLUSTERING"
    ) -> None:
        said = Heartbeat(client, (), (ConsumerData(group, wanted, message_model=model),))
        assert self.answered(peer, Request.HEART_BEAT, None, said.encode()).code == 0


def story(work: Callable[[Broker], None]) -> None:
    async def run() -> None:
        work(Broker())

    asyncio.run(run())


# --- held pulls -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_ends_no_clients_and_keeps_none(set_by_ms: int) -> None:
    """Forward, all clients were gone at once; back, one that died without a word kept its queues for an hour, pulls
    were held for it, and nobody heard of who came."""

    async def story() -> None:
        broker, peers = Broker(), {name: FakePeer() for name in ("dies", "lives", "pulls")}
        broker.send()
        for name, peer in peers.items():
            broker.beats(peer, name, Subscription("TopicTest"))
        assert broker.pull(peers["pulls"], 1, suspendTimeoutMillis="4000") is None
        broker.set_by_ms = set_by_ms
        broker.later(1000)
        assert list(broker.context.clients.consumers["G"].clients) == list(peers.values())
        broker.later(3001)
        assert peers["pulls"].sent[-1].code == Answer.PULL_NOT_FOUND
        broker.later(100_000)
        before = len(peers["lives"].sent)
        for name in ("lives", "pulls", "comes"):
            broker.beats(peers.setdefault(name, FakePeer()), name, Subscription("TopicTest"))
        notes = [one.code for one in peers["lives"].sent[before:]]
        assert Request.NOTIFY_CONSUMER_IDS_CHANGED in notes
        broker.later(20_000)
        assert peers["dies"] not in broker.context.clients.consumers["G"].clients

    asyncio.run(story())


def test_a_held_pull_is_woken_by_a_message_that_it_wants_and_by_no_other() -> None:
    def work(broker: Broker) -> None:
        broker.send()
        all_of_it, tagged = FakePeer(), FakePeer()
        assert broker.pull(all_of_it, 1) is None
        assert broker.pull(tagged, 1, subscription="A || B") is None
        assert broker.requests.pulls.held == 2
        assert (all_of_it.open, tagged.open) == (0, 0), "waiting is no work under way"
        broker.send(b"other", i="TAGS\x01C")
        assert [decode_record(one.body).body for one in all_of_it.sent] == [b"other"]
        assert tagged.sent == []
        broker.send(b"mine", i="TAGS\x01B")
        (answer,) = tagged.sent
        assert (answer.code, answer.fields and answer.fields["nextBeginOffset"]) == (0, "3")
        assert decode_record(answer.body).body == b"mine"
        assert broker.requests.pulls.held == 0

    story(work)


def test_a_read_that_fails_is_one_pulls_answer_and_no_others_nor_the_dispatchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was raised into the dispatch of the message that came, which ended the broker; raised in a later turn, it left
    every held pull without an answer from then on."""
    monkeypatch.setattr(pulls, "LOOKS_A_TURN", 1)

    async def story() -> None:
        broker = Broker()
        broker.send()
        broken, tagged, whole = FakePeer(), FakePeer(), FakePeer()
        for peer, tag in ((broken, "*"), (tagged, "A"), (whole, "*")):
            assert broker.pull(peer, 1, subscription=tag) is None
        get, units, left = broker.store.get, broker.store.units, [OSError(5, "Input/output error")] * 2

        def failing(read: Callable[..., Any]) -> Callable[..., Any]:
            def first_fails(*args: Any, **named: Any) -> Any:
                if left:
                    raise left.pop()
                return read(*args, **named)

            return first_fails

        broker.store.get, broker.store.units = failing(get), failing(units)  # type: ignore[method-assign]
        broker.send()
        for _ in range(8):
            await asyncio.sleep(0)
        codes = [peer.sent[-1].code for peer in (broken, tagged, whole)]
        assert codes == [Answer.SYSTEM_ERROR, Answer.PULL_RETRY_IMMEDIATELY, Answer.SUCCESS] and not left
        assert broker.pull(broken, 2) is None
        broker.send()
        await asyncio.sleep(0)
        assert broken.sent[-1].code == Answer.SUCCESS and broker.requests.pulls.held == 0

    asyncio.run(story())


def test_a_question_that_meets_a_disk_error_is_answered() -> None:
    """Unanswered, it was taken for a broker that hangs, which is ended and started again."""

    async def story() -> None:
        def state() -> dict[str, Any]:
            raise OSError(5, "Input/output error")

        peer = FakePeer()
        asking = Introspection(Broker().context, state, lambda _topic: None)
        call = Call(peer, Command(INTROSPECT, 1, 0, {}, None, b'{"ask": "broker"}'))
        assert asking.handle(call) is None
        for _ in range(4):
            await asyncio.sleep(0)
        assert [(one.code, one.remark) for one in peer.sent] == [
            (Answer.SYSTEM_ERROR, "OSError: [Errno 5] Input/output error")
        ]
        assert peer.open == 0

    asyncio.run(story())


def test_topics_are_listed_though_one_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspection, "LET_IN_EVERY", 1)

    async def story() -> None:
        broker = Broker()
        listing = asyncio.ensure_future(Introspection(broker.context, dict, lambda _topic: None)._topics({"system": 1}))
        await asyncio.sleep(0)
        first, *_others, last = sorted(broker.context.topics.topics)
        del broker.context.topics.topics[last]
        names = [one["topic"] for one in json.loads(bytes((await listing).body))["items"]]
        assert first in names and last not in names

    asyncio.run(story())


def test_a_held_pull_is_answered_when_its_time_is_over_or_when_others_tags_came() -> None:
    def work(broker: Broker) -> None:
        broker.send()
        over, moved = FakePeer(), FakePeer()
        assert broker.pull(over, 1, suspendTimeoutMillis="4000") is None
        assert broker.pull(moved, 1, subscription="A") is None
        broker.send(b"other", i="TAGS\x01C")
        assert [one.code for one in over.sent] == [0]
        broker.later(4000)
        assert moved.sent == []
        broker.later(1000)
        assert [(one.code, one.remark) for one in moved.sent] == [(20, "NO_MATCHED_MESSAGE")]
        last = FakePeer()
        assert broker.pull(last, 2, suspendTimeoutMillis="4000") is None
        broker.later(3999)
        assert last.sent == []
        broker.later(1)
        assert [(one.code, one.remark) for one in last.sent] == [(19, "OFFSET_OVERFLOW_ONE")]

    story(work)


def test_held_pulls_are_bounded_in_number_and_time_and_end_with_their_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_pulls, "HELD_MAX", 2)

    def work(broker: Broker) -> None:
        broker.send()
        one, two = FakePeer(), FakePeer()
        assert broker.pull(one, 1, suspendTimeoutMillis="9223372036854775807") is None
        assert broker.pull(two, 1) is None
        third = broker.pull(FakePeer(), 1)
        assert third is not None and third.code == 19
        two.closed = True
        broker.requests.gone(two)
        assert broker.requests.pulls.held == 1
        broker.later(pulls.HOLD_MS_MAX)
        assert [each.code for each in one.sent] == [19]
        broker.send()
        assert two.sent == []

    story(work)


def test_whoever_has_most_pulls_waiting_makes_room_for_who_has_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_pulls, "HELD_MAX", 6)

    def work(broker: Broker) -> None:
        broker.send()
        crowd, one = FakePeer(), FakePeer()
        for _ in range(6):
            assert broker.pull(crowd, 1) is None
        for had in range(3):  # they share the room alike, and the longest waiting ones go
            assert broker.pull(one, 1) is None
            assert [answer.opaque for answer in crowd.sent] == list(range(2, 3 + had))
        refused = broker.pull(one, 1)
        assert refused is not None and refused.code == 19
        assert broker.pull(FakePeer(), 1) is None
        assert broker.requests.pulls.held == 6
        assert one.open == crowd.open == 0

    story(work)


def test_pulls_that_wait_take_bounded_memory_whatever_came_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = " || ".join(f"tag-{number}" for number in range(1000))
    room = 4 * (held_pulls.PULL_BYTES + held_pulls.CHARACTER_BYTES * (len(tags) + 1))
    monkeypatch.setattr(held_pulls, "HELD_BYTES_MAX", room)

    def work(broker: Broker) -> None:
        broker.send()
        one = FakePeer()
        fields = pull_fields(1) | {"sysFlag": "6", "subscription": tags, "more": "m" * 30_000}
        answers = [broker.ask(one, Request.PULL_MESSAGE, fields, bytes(100_000)) for _ in range(5)]
        assert [answer and answer.code for answer in answers] == [None] * 4 + [19]
        held = broker.requests.pulls._held.of_peer(one)
        assert [(each.call.request.body, each.call.request.fields) for each in held] == [(b"", None)] * 4
        broker.requests.gone(one)
        assert (one.open, one.open_bytes) == (0, 0)
        assert broker.pull(one, 1, subscription=tags) is None

    story(work)


@pytest.mark.parametrize("expression", ["||".join(map(str, range(1025))), "t" * 16_385])
def test_a_pull_has_no_more_tags_than_a_heartbeat_may(expression: str) -> None:
    def work(broker: Broker) -> None:
        broker.send()
        answer = broker.pull(FakePeer(), 1, subscription=expression)
        assert answer is not None
        assert (answer.code, answer.remark) == (
            23, "parse the consumer's subscription failed: 1024 tags and 16384 characters at most",
        )  # fmt: skip

    story(work)


@pytest.mark.parametrize("why", ["a message", "their time"])
def test_a_crowd_that_waits_is_answered_some_in_each_turn(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(pulls, "LOOKS_A_TURN", 10)

    async def run() -> None:
        broker = Broker()
        broker.send()
        crowd, tagged, other = FakePeer(), FakePeer(), FakePeer()
        for _ in range(25):
            assert broker.pull(crowd, 1) is None
        assert broker.pull(tagged, 1, subscription="A") is None
        assert broker.pull(other, 1, subscription="B") is None
        if why == "a message":
            broker.send(i="TAGS\x01A")
        else:
            broker.later(pulls.HOLD_MS_MAX)
        counts = [len(crowd.sent)]
        for _ in range(3):
            await asyncio.sleep(0)
            counts.append(len(crowd.sent))
        assert counts == [10, 20, 25, 25]
        assert len(tagged.sent) == 1
        assert len(other.sent) == (why == "their time")
        broker.send(i="TAGS\x01B")
        assert len(other.sent) == 1

    asyncio.run(run())


def test_answers_to_a_crowd_are_bounded_in_a_turn_by_their_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "WOKEN_BYTES_A_TURN", 2500)

    async def run() -> None:
        broker = Broker()
        broker.send()
        crowd = FakePeer()
        for _ in range(5):
            assert broker.pull(crowd, 1) is None
        broker.send(bytes(1000))
        counts = [len(crowd.sent)]
        for _ in range(2):
            await asyncio.sleep(0)
            counts.append(len(crowd.sent))
        assert counts == [3, 5, 5]

    asyncio.run(run())


def test_a_held_pull_of_a_group_that_is_gone_says_so() -> None:
    def work(broker: Broker) -> None:
        peer = FakePeer()
        broker.beats(peer, "c1", Subscription("TopicTest", version=5))
        broker.send()
        assert broker.pull(peer, 1, sysFlag="2", subVersion="5") is None
        broker.answered(peer, Request.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "G"})
        broker.later(15_000)
        assert peer.sent[-1].code == 24

    story(work)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"topic": "None"}, 17, "topic[None] not exist"),
        ({"queueId": "4"}, 1, "queueId[4] is illegal"),
        ({"queueId": "-1"}, 1, "queueId[-1] is illegal"),
        ({"expressionType": "SQL92"}, 1, "The broker does not support consumer to filter message by SQL92"),
        ({"subscription": "||"}, 23, "parse the consumer's subscription failed"),
        ({"sysFlag": "0"}, 24, "the consumer's group info not exist"),
        ({"sysFlag": "x"}, 1, "java.lang.NumberFormatException"),
        ({"consumerGroup": "g" * 256}, 1, "no room for another group"),
    ],
)
def test_what_may_not_be_pulled(changes: dict[str, str], code: int, text: str) -> None:
    def work(broker: Broker) -> None:
        broker.send()
        answer = broker.pull(FakePeer(), 0, **changes)
        assert answer is not None and answer.code == code
        assert (answer.remark or "").startswith(text)

    story(work)


def test_a_subscription_that_is_older_or_of_another_topic_is_refused() -> None:
    def work(broker: Broker) -> None:
        peer = FakePeer()
        broker.send()
        broker.beats(peer, "c1", Subscription("TopicTest", version=5))
        answers = [broker.pull(peer, 0, sysFlag="0", subVersion=one) for one in ("5", "6")]
        assert [one and one.code for one in answers] == [0, 25]
        broker.beats(peer, "c1", Subscription("Other", version=5))
        gone = broker.pull(peer, 0, sysFlag="0", subVersion="5")
        assert gone is not None and (gone.code, (gone.remark or "")[:35]) == (24, "the consumer's subscription not exi")

    story(work)


# --- clients ----------------------------------------------------------------------------------------------------------
def notes(peer: FakePeer) -> int:
    return sum(one.code == Request.NOTIFY_CONSUMER_IDS_CHANGED and not one.is_response for one in peer.sent)


# --- by key -----------------------------------------------------------------------------------------------------------
def by_key(key: str, end_ms: int = 1 << 60) -> dict[str, str]:
    return {"topic": "TopicTest", "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(end_ms)}


def test_a_long_question_by_key_takes_turns_with_those_of_others() -> None:
    async def run() -> None:
        broker = Broker()
        broker.store.step = 4
        for number in range(40):  # each question takes 10 steps
            broker.send(b"%d" % number, i=f"KEYS\x01k{number}")
        crowd, one, gone = FakePeer(), FakePeer(), FakePeer()
        for number in range(30):
            assert broker.ask(crowd, Request.QUERY_MESSAGE, by_key(f"k{number}")) is None
        assert broker.ask(one, Request.QUERY_MESSAGE, by_key("k7")) is None
        assert broker.ask(gone, Request.QUERY_MESSAGE, by_key("k7")) is None
        broker.requests.gone(gone)
        assert (one.open, crowd.open, gone.open) == (1, 30, 0)
        turns = 0
        while not one.sent:
            await asyncio.sleep(0)
            turns += 1
        assert turns <= 2 * 11, "two connections ask"
        assert [decode_record(answer.body).body for answer in one.sent] == [b"7"]
        assert len(crowd.sent) <= 1
        for _ in range(30 * 11):
            await asyncio.sleep(0)
        bodies = [decode_record(answer.body).body for answer in crowd.sent]
        assert bodies == [b"%d" % number for number in range(30)], "each connection's in their order"
        assert (one.open, crowd.open, gone.sent) == (0, 0, [])

    asyncio.run(run())


def test_one_answer_by_key_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_queries, "READ_BYTES_MAX", 3500)

    def work(broker: Broker) -> None:
        for number in range(3):
            broker.send(bytes([number]) * 2000, i="KEYS\x01same")
        answer = broker.answered(FakePeer(), Request.QUERY_MESSAGE, by_key("same"))
        assert len(answer.body) < 2 * 2500, "two of them"
        nothing = broker.answered(FakePeer(), Request.QUERY_MESSAGE, by_key("other"))
        assert (nothing.code, nothing.remark) == (22, "can not find message, maybe time range not correct")

    story(work)


def test_all_of_a_group_hear_who_comes_and_goes() -> None:
    def work(broker: Broker) -> None:
        one, two = FakePeer(), FakePeer()
        wanted = Subscription("TopicTest", version=1)
        broker.beats(one, "c1", wanted)
        broker.beats(one, "c1", wanted)
        assert notes(one) == 1, "again the same: nothing is new"
        broker.beats(two, "c2", wanted)
        assert (notes(one), notes(two)) == (2, 1)
        listed = broker.answered(one, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert load(listed.body) == {"consumerIdList": ["c1", "c2"]}
        broker.beats(two, "c2", wanted, Subscription("More", version=1))
        assert (notes(one), notes(two)) == (3, 2)
        broker.requests.gone(two)
        assert (notes(one), notes(two)) == (4, 2)
        assert broker.context.topics.get("%RETRY%G") is not None
        broker.later(clients.EXPIRES_AFTER_MS + 1)
        none = broker.answered(one, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert (none.code, none.remark) == (1, "no consumer for this group, G")

    story(work)


def test_a_client_that_dialled_anew_is_listed_once_until_its_old_connection_ends() -> None:
    """Consumers that count each line of the list leave queues to nobody, for as long as a half-open one stays."""

    def work(broker: Broker) -> None:
        old, new, other = FakePeer(), FakePeer(), FakePeer()
        wanted = Subscription("TopicTest", version=1)
        for peer, client_id in ((old, "c1"), (other, "c2"), (new, "c1")):
            broker.beats(peer, client_id, wanted)
        listed = broker.answered(other, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert load(listed.body) == {"consumerIdList": ["c1", "c2"]}
        broker.requests.gone(old)
        listed = broker.answered(other, Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
        assert sorted(load(listed.body)["consumerIdList"]) == ["c1", "c2"]

    story(work)


def test_a_group_that_changes_over_and_over_hears_of_it_now_and_then_and_of_the_last_change() -> None:
    def work(broker: Broker) -> None:
        crowd = [FakePeer() for _ in range(100)]
        for number, peer in enumerate(crowd):
            broker.beats(peer, f"c{number}", Subscription("TopicTest", version=1))
        broker.later(1000)
        broker.later(1000)
        heard = notes(crowd[0])
        for version in range(2, 200):
            topics_ = [Subscription(f"T{one}", version=version) for one in range(1 + version % 2)]
            broker.beats(crowd[1], "c1", *topics_)
        assert notes(crowd[0]) == heard + 1
        broker.later(1000)
        assert notes(crowd[0]) == heard + 2, "of the last change it hears all the same"
        broker.later(1000)
        assert notes(crowd[0]) == heard + 2

    story(work)


def test_what_clients_want_takes_bounded_memory_and_who_takes_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = Subscription("TopicTest", "e" * 1000, tags=("t" * 100_000,), codes=(1,), version=1)
    each = clients.CLIENT_BYTES + clients._bytes_of(wish)
    monkeypatch.setattr(clients, "CLIENTS_BYTES_MAX", 4 * each + 100)

    def work(broker: Broker) -> None:
        known = broker.context.clients
        crowd, one = FakePeer(), FakePeer()

        def beat(peer: FakePeer, group: str) -> int:
            said = Heartbeat("c", (), (ConsumerData(group, (wish,)),))
            return broker.answered(peer, Request.HEART_BEAT, None, said.encode()).code

        assert [beat(crowd, f"g{number}") for number in range(5)] == [0, 0, 0, 0, 1]
        assert [beat(crowd, "g0") for _ in range(3)] == [0] * 3, "what is there already needs no more room"
        kept = known.consumers["g0"].subscriptions["TopicTest"]
        assert (kept.expression, kept.tags, kept.codes) == ("e" * 1000, (), ())
        assert [beat(one, f"h{number}") for number in range(3)] == [0, 0, 1]
        assert set(known.consumers) == {"g2", "g3", "h0", "h1"}
        assert beat(one, "g2") == 1, "as many as anybody"
        broker.requests.gone(crowd)
        assert beat(one, "g2") == 0
        broker.requests.gone(one)
        assert (known.consumers, known._count, known._size_bytes, known._shares) == ({}, 0, 0, {})

    story(work)


def test_what_a_group_wants_is_charged_to_who_said_it_last_and_then_to_who_is_left() -> None:
    def work(broker: Broker) -> None:
        known, one, two = broker.context.clients, FakePeer(), FakePeer()
        broker.beats(one, "c1", Subscription("TopicTest", "e" * 1000, version=1))
        broker.beats(two, "c2", Subscription("TopicTest", "f" * 3000, version=2))
        large = clients._bytes_of(known.consumers["G"].subscriptions["TopicTest"])
        assert [known._shares[peer].size_bytes for peer in (one, two)] == [
            clients.CLIENT_BYTES, clients.CLIENT_BYTES + large,
        ]  # fmt: skip
        broker.requests.gone(two)
        assert known._shares[one].size_bytes == known._size_bytes == clients.CLIENT_BYTES + large

    story(work)


def test_clients_groups_offsets_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 3)
    monkeypatch.setattr(groups, "GROUPS_MAX", 16)
    monkeypatch.setattr(groups, "ASKED_GROUPS_MAX", 12)
    monkeypatch.setattr(groups, "OFFSETS_MAX", 2)
    monkeypatch.setattr(topics, "TOPICS_MAX", 22)
    monkeypatch.setattr(topics, "GROUPS_TOPICS_MAX", 21)
    monkeypatch.setattr(topics, "SENT_TOPICS_MAX", 20)

    def work(broker: Broker) -> None:
        codes = []
        for number in range(10):
            said = Heartbeat(f"c{number}", (f"p{number}",), ())
            codes.append(broker.answered(FakePeer(), Request.HEART_BEAT, None, said.encode()).code)
        assert codes == [0] * 3 + [1] * 7
        offset = {"consumerGroup": "G", "topic": "T", "commitOffset": "1"}
        codes = [broker.answered(FakePeer(), 15, offset | {"queueId": str(one)}).code for one in (0, 1, 2, 0)]
        assert codes == [0, 0, 1, 0]
        codes = [broker.send(b=f"T{one}").code for one in range(20)]
        assert codes.count(0) == 12 and set(codes[12:]) == {1}
        found = [broker.pull(FakePeer(), 0, consumerGroup=f"g{one}") for one in range(10)]
        assert [one and one.remark for one in found][-1] == (
            "no room for another group: 12 are kept, with names of 255 characters and of 3145728 bytes together,"
            " and more by hand"
        )
        # What strangers may make leaves room for what is made by hand, and for what the broker needs itself.
        table, asked = broker.context.topics, broker.context.groups
        assert len(table.topics) == 20 and len(asked.groups) == 12
        table.create_own("%RETRY%g", 1)
        for make in (lambda: table.create_own("%DLQ%g", 1), lambda: table.create_for_send("T99", "TBW102", 4)):
            with pytest.raises(Refusal, match=r"from 2[01] on they are made by hand only"):
                make()
        table.create_own(topics.OP_TOPIC, 1)
        with pytest.raises(Refusal, match=r"no room for another topic: 22 are there$"):
            table.create_by_hand(TopicConfig("T99", 1, 1))
        for number in range(4):
            asked.put(GroupConfig(f"by-hand-{number}"))
        with pytest.raises(Refusal, match="no room for another group: 16 are kept"):
            asked.put(GroupConfig("by-hand-4"))

    story(work)


def test_a_queue_is_locked_by_one_client_until_it_stops_renewing() -> None:
    def ask(broker: Broker, client: str, code: int = Request.LOCK_BATCH_MQ, queue_id: Any = 0) -> list[Any]:
        said = {
            "clientId": client,
            "consumerGroup": "G",
            "mqSet": [{"brokerName": "b", "queueId": queue_id, "topic": "T"}],
        }
        answer = broker.answered(FakePeer(), code, None, dump(said))
        return load(answer.body)["lockOKMQSet"] if answer.body else [answer.code]

    def work(broker: Broker) -> None:
        queue = {"brokerName": "b", "queueId": 0, "topic": "T"}
        assert (ask(broker, "c1"), ask(broker, "c2")) == ([queue], [])
        broker.later(locks.LOCK_MS)
        assert ask(broker, "c2") == []
        broker.later(1)
        assert (ask(broker, "c2"), ask(broker, "c1")) == ([queue], [])
        ask(broker, "c1", Request.UNLOCK_BATCH_MQ)
        assert ask(broker, "c1") == []
        ask(broker, "c2", Request.UNLOCK_BATCH_MQ)
        assert ask(broker, "c1") == [queue]
        assert ask(broker, "c1", queue_id="x") == [1]
        broker.store.is_master = False
        assert ask(broker, "c1") == [14]

    story(work)


def test_a_look_at_locks_costs_what_is_over_and_frees_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "FREED_AT_ONCE", 3)
    now, looked_at, written = 0, list[locks.QueueLock](), list[list[str]]()
    table = locks.QueueLocks(lambda: now)
    holder = table._holder
    table.write = lambda change: written.append([name.key for name in change])
    monkeypatch.setattr(table, "_holder", lambda name, at: (looked_at.append(name), holder(name, at))[1])

    def queues(*numbers: int) -> list[MessageQueue]:
        return [MessageQueue("T", "b", number) for number in numbers]

    for number in range(8):
        table.take(locks.QueueLock("T", number, "G"), "c")  # of the log: its time begins with the first look
    table.look()
    now += locks.LOCK_MS
    assert len(table.lock("G", "c", queues(0, 1, 2))) == 3, "renewed"
    now += 1
    looked_at.clear()
    freed = []
    for _ in range(3):
        written.clear()
        table.look()
        freed.append([key for change in written for key in change])
    assert freed == [["T@3@G", "T@4@G", "T@5@G"], ["T@6@G", "T@7@G"], []]
    assert len(looked_at) <= 5 + 2, "those that are over, and the first one that is not"
    assert table.lock("G", "d", queues(3)) == queues(3) and table.lock("G", "d", queues(0)) == []


def lock_share(table: locks.QueueLocks, connection: object, count: int, group: str = "G") -> int:
    asked = [MessageQueue("T", "b", number) for number in range(count)]
    return len(table.lock(group, f"of {connection}", asked, connection))


def test_one_connection_gets_a_part_of_the_locks_and_leaves_some_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's lock can be taken back, so one client that asks for all of them must not get them."""
    monkeypatch.setattr(locks, "LOCKS_MAX", 8000)
    now = 0
    table = locks.QueueLocks(lambda: now)
    assert lock_share(table, "a", 9000, "G0") == 1000 and lock_share(table, "a", 9000, "G1") == 0
    assert [lock_share(table, f"c{n}", 9000, f"of c{n}") for n in range(3)] == [875, 766, 670]
    assert lock_share(table, "a", 1000, "G0") == 1000, "renewed, however full it is"
    assert table.lock("G0", "of a", [MessageQueue("T", "b", 0)], "e") and lock_share(table, "a", 9000, "G2") == 0
    table.unlock("G0", "of a", [MessageQueue("T", "b", number) for number in range(500)])
    assert lock_share(table, "a", 9000, "G3") == 212, "by what the others leave now"
    table.gone("a")
    assert lock_share(table, "b", 712, "G0") == 500, "they are their client's still, and the rest is free"
    now += locks.LOCK_MS + 1
    while table._held:
        table.look()
    assert not table._renewed_by and not table._by_connection
    assert lock_share(table, "b", 9000) == 1000


@pytest.mark.parametrize("seed", range(5))
def test_whose_locks_are_whose_is_told_apart_whatever_happens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 200)
    rng, now = random.Random(seed), 0
    table = locks.QueueLocks(lambda: now)
    for _ in range(400):
        client, connection = rng.choice("abc"), rng.choice(["1", "2", "3", None])
        queues = [MessageQueue("T", "b", rng.randrange(60)) for _ in range(rng.randrange(20))]
        name = locks.QueueLock("T", rng.randrange(60), "G")
        match rng.randrange(6):
            case 0:
                table.unlock("G", client, queues)
            case 1:
                table.gone(rng.choice("123"))
            case 2:
                table.take(name, rng.choice([client, None]))
            case 3:
                now += rng.choice([1000, locks.LOCK_MS + 1])
                table.look()
            case _:
                table.lock("G", client, queues, connection)
        by = {name: one for one, names in table._by_connection.items() for name in names}
        assert by == table._renewed_by and by.keys() <= table._held.keys() and all(table._by_connection.values())


# --- sends ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", list(PutStatus))
def test_every_status_of_a_put_has_its_code(status: PutStatus) -> None:
    def work(broker: Broker) -> None:
        broker.store.answers_with = status
        answer = broker.send()
        assert answer.fields is not None and answer.fields["MSG_REGION"] == "DefaultRegion"
        if status.is_stored:
            assert answer.code == CODES[status][0]
        else:
            assert answer.code in (1, 2, 13, 14)
            assert (answer.remark or "").endswith("as the test says")

    story(work)


def test_an_answer_comes_when_the_put_is_committed_and_not_before() -> None:
    async def run() -> None:
        broker, peer = Broker(), FakePeer()
        broker.store.waiting = []
        assert broker.ask(peer, Request.SEND_MESSAGE_V2, send_fields(), b"x") is None
        assert peer.open == 1
        broker.store.commit()
        await asyncio.sleep(0)
        (answer,) = peer.sent
        assert (answer.code, answer.fields and answer.fields["queueOffset"], peer.open) == (0, "0", 0)

    asyncio.run(run())


def test_a_message_that_cannot_be_consumed_comes_again_and_then_lies_with_the_dead_letters() -> None:
    def work(broker: Broker) -> None:
        sent = broker.send(b"hard", i="KEYS\x01k\x02TAGS\x01A")
        place = int((sent.fields or {})["msgId"][16:], 16)
        fields = {"offset": str(place), "group": "G", "delayLevel": "0", "maxReconsumeTimes": "1"}
        assert broker.answered(FakePeer(), Request.CONSUMER_SEND_MSG_BACK, fields).code == 0
        waits = decode_record(broker.store.queues["SCHEDULE_TOPIC_XXXX", 2][0])
        assert waits.properties["REAL_TOPIC"] == "%RETRY%G"
        assert (waits.properties["RETRY_TOPIC"], waits.reconsume_times, waits.body) == ("TopicTest", 1, b"hard")
        assert waits.properties["ORIGIN_MESSAGE_ID"] == (sent.fields or {})["msgId"]
        again = broker.send(b"hard", b="%RETRY%G", e="0", j="1", l="1", i="RETRY_TOPIC\x01TopicTest")
        assert again.code == 0
        dead = decode_record(broker.store.queues["%DLQ%G", 0][0])
        assert (dead.topic, dead.reconsume_times) == ("%DLQ%G", 1)
        lost = broker.answered(FakePeer(), Request.CONSUMER_SEND_MSG_BACK, fields | {"offset": "99"})
        assert (lost.code, lost.remark) == (1, "look message by offset failed, 99")
        straight = broker.answered(FakePeer(), Request.CONSUMER_SEND_MSG_BACK, fields | {"delayLevel": "-1"})
        assert straight.code == 0 and len(broker.store.queues["%DLQ%G", 0]) == 2

    story(work)


def test_what_only_the_master_may_answer() -> None:
    def work(broker: Broker) -> None:
        broker.send()
        broker.store.is_master = False
        offset = {"consumerGroup": "G", "topic": "TopicTest", "queueId": "0", "commitOffset": "1"}
        create = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        back = {"offset": "0", "group": "G", "delayLevel": "0"}
        for code, fields in ((15, offset), (17, create), (36, back), (310, send_fields(b="New"))):
            assert broker.answered(FakePeer(), code, fields, b"x").code == 14, code
        assert broker.context.topics.get("New") is None
        found = broker.pull(FakePeer(), 0)
        assert found is not None and found.code == 0

    story(work)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"topic": "Bad Topic"}, "The specified topic contains illegal characters"),
        ({"topic": " "}, "The specified topic is blank."),
        ({"topic": "t" * 128}, "The specified topic is longer"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic."),
        ({"topic": "C"}, "The topic[C] is conflict with system topic."),
        ({"readQueueNums": "-1"}, "-1 queues"),
        ({"writeQueueNums": "2147483647"}, "2147483647 queues"),
        ({"perm": "8"}, "perm 8"),
    ],
)
def test_a_topic_that_cannot_be_made(changes: dict[str, str], text: str) -> None:
    def work(broker: Broker) -> None:
        create = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        before = dict(broker.context.topics.topics)
        answer = broker.answered(FakePeer(), Request.UPDATE_AND_CREATE_TOPIC, create | changes)
        assert answer.code == 1 and (answer.remark or "").startswith(text)
        assert broker.context.topics.topics == before

    story(work)


def test_topics_of_the_log_are_known_though_nobody_made_them_here() -> None:
    def work(broker: Broker) -> None:
        broker.requests.learn([("Older", 2), ("Older", 0), ("%RETRY%G", 0)])
        found = broker.context.topics.get("Older")
        assert found is not None and (found.read_queues, found.write_queues, found.perm) == (3, 3, 6)
        version = broker.context.topics.version
        broker.requests.learn([("Older", 1)])
        assert broker.context.topics.version == version

    story(work)


def test_tables_are_written_as_a_slave_reads_them() -> None:
    def work(broker: Broker) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "3", "commitOffset": "9"}
        broker.answered(FakePeer(), Request.UPDATE_CONSUMER_OFFSET, fields)
        said = broker.answered(FakePeer(), Request.GET_ALL_CONSUMER_OFFSET)
        assert bytes(said.body) == b'{"offsetTable":{"T@G":{3:9}}}'
        made = json.loads(broker.answered(FakePeer(), Request.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
        assert made["TBW102"]["perm"] == 7
        known = json.loads(broker.answered(FakePeer(), Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
        assert known["subscriptionGroupTable"]["SELF_TEST_C_GROUP"]["retryMaxTimes"] == 16
        assert broker.answered(FakePeer(), 9999).code == Answer.REQUEST_CODE_NOT_SUPPORTED

    story(work)


@pytest.mark.parametrize("offset", [-1, -(1 << 63)])
def test_an_offset_below_zero_is_not_kept(offset: int) -> None:
    """A slave, and the next start, would read none of the offsets of all groups."""

    def work(broker: Broker) -> None:
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "3", "commitOffset": str(offset)}
        answer = broker.answered(FakePeer(), Request.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == Answer.SYSTEM_ERROR and "no offset" in (answer.remark or "")
        said = broker.answered(FakePeer(), Request.GET_ALL_CONSUMER_OFFSET)
        assert bytes(said.body) == b'{"offsetTable":{}}'

    story(work)


@pytest.mark.parametrize("said", [b"-1", b"-9223372036854775808"])
def test_one_offset_below_zero_hides_no_other(said: bytes) -> None:
    table = load(b'{"offsetTable":{"T@G":{3:' + said + b',4:7},"U@G":{0:5}}}')
    assert read_offsets(table) == {("T", "G"): {4: 7}, ("U", "G"): {0: 5}}


# --- files for RocketMQ's tools ---------------------------------------------------------------------------------------
def test_topics_groups_and_offsets_are_in_rocketmqs_files(tmp_path: Path) -> None:
    def work(broker: Broker) -> None:
        files = ConfigFiles(tmp_path, broker.context)
        broker.send(b"Made", d="2")
        broker.pull(FakePeer(), 0, consumerGroup="Mine")
        fields = {"consumerGroup": "Mine", "topic": "Made", "queueId": "1", "commitOffset": "7"}
        broker.answered(FakePeer(), Request.UPDATE_CONSUMER_OFFSET, fields)
        assert set(files.due()) == {
            "topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json",
        }  # fmt: skip
        files.save_now()
        assert files.due() == {}
        folder = tmp_path / "config"
        topics = table_in(TOPICS, (folder / "topics.json").read_bytes())
        assert topics["TopicTest"]["writeQueueNums"] == 2
        assert "Mine" in table_in(GROUPS, (folder / "subscriptionGroup.json").read_bytes())
        broker.answered(FakePeer(), Request.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": "8"})
        files.save_now()
        offsets = [
            table_in(CONSUMER_OFFSETS, (folder / name).read_bytes())
            for name in ("consumerOffset.json", "consumerOffset.json.bak")
        ]
        assert [one["Made@Mine"] for one in offsets] == [{"1": 8}, {"1": 7}]

    story(work)


# --- whose a queue is -------------------------------------------------------------------------------------------------
def test_clients_are_shown_the_queues_that_they_compute_or_have_locked() -> None:
    for queues in range(9):
        for names in (["a"], ["b", "a"], ["c", "a", "b"], [f"c{n}" for n in range(11)]):
            have = [Queue("T", "b", queue_id, "") for queue_id in range(queues)]
            wanted = {one.queue_id: client for client in names for one in share_of(have, sorted(names), client)}
            assert dict(enumerate(averagely(queues, names))) == wanted
    assert averagely(4, []) == []

    async def shown(broker: Broker) -> dict[int, tuple[str | None, str | None]]:
        said = await GroupLag(broker.context).described("G", ["TopicTest"], 100)
        return {one["queue_id"]: (one["client_id"], one["assigned_by"]) for one in said["queues"]}

    async def run() -> None:
        broker, peers = Broker(), [FakePeer(), FakePeer()]
        for queue_id in range(4):
            broker.send(e=str(queue_id))
        assert set((await shown(broker)).values()) == {(None, None)}
        for client, peer in zip(("c2", "c1"), peers, strict=True):
            broker.beats(peer, client, Subscription("TopicTest", "*"))
        halves = {0: ("c1", "average"), 1: ("c1", "average"), 2: ("c2", "average"), 3: ("c2", "average")}
        assert await shown(broker) == halves
        broker.context.locks.lock("G", "c2", [MessageQueue("TopicTest", "b", 1)])
        assert await shown(broker) == halves | {1: ("c2", "lock")}
        broker.context.locks.unlock("G", "c2", [MessageQueue("TopicTest", "b", 1)])
        for client, peer in zip(("c2", "c1"), peers, strict=True):
            broker.beats(peer, client, Subscription("TopicTest", "*"), model="BROADCASTING")
        assert set((await shown(broker)).values()) == {(None, None)}, "each has all"

    asyncio.run(run())


def test_a_members_last_heartbeat_is_said_by_the_wall_clock() -> None:
    async def run() -> None:
        broker = Broker()
        broker.set_by_ms = 3_600_000  # the two clocks begin anywhere
        broker.beats(FakePeer(), "c", Subscription("TopicTest", "*"))
        heard_ms = broker.context.now_ms()
        broker.now_ms += 5_000
        said = await GroupLag(broker.context).described("G", ["TopicTest"], 100)
        assert [one["heard_ms"] for one in said["members"]] == [heard_ms]

    asyncio.run(run())
