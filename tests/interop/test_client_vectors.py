"""What Java clients asked a Java broker, asked of our handlers: the same answers.

All recorded requests to the master, in their order, over one connection each, with a store in memory. Compared are
code, remark, fields and body; not compared are addresses, times, ids and versions, and DIFFERENCES lists everything
else that is not the same, with its reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from node.broker.requests.context import Context, Identity
from node.broker.requests.table import BrokerRequests
from node.broker.requests.topics import HALF_TOPIC, OP_TOPIC
from node.broker.schedule import delivered
from node.broker.transaction_records import op_message
from node.broker.transactions import TransactionTimes
from node.message_store.new_message import NewMessage, PutLimits
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import Host, decode_record
from node.rocketmq.bodies import GroupConfig
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode
from node.rocketmq.dispatch import Dispatcher
from node.rocketmq.java_json import load
from tests.unit.client_wire import FakePeer
from tests.unit.memory_messages import MemoryMessages, without_place


class Exchange(NamedTuple):
    case: str
    number: int
    at_ms: float
    conn: int
    request: Command
    answer: Command | None


def exchanges(folder: Path) -> list[Exchange]:
    """All that clients asked the master, in order."""
    frames: dict[int, tuple[float, Command]] = {}
    for path in folder.glob("*.json"):
        if path.name != "index.json":
            for one in json.loads(path.read_bytes())["frames"]:
                frames[one["seq"]] = (one["t"], decode(bytes.fromhex(one["hex"])))
    found: list[Exchange] = []
    for one in json.loads((folder / "index.json").read_bytes())["exchanges"]:
        if one["server"] in ("broker-a", "broker-a-vip") and one["initiator"] == "client":
            number = one["request"]["seq"]
            at_ms, request = frames[number]
            answer = frames[one["response"]["seq"]][1] if one["response"] else None
            found.append(Exchange(one["case"], number, at_ms, one["conn"], request, answer))
    births = [
        int(each.request.fields["g"]) - each.at_ms for each in found if each.request.code == 310 and each.request.fields
    ]
    begin_ms = sorted(births)[len(births) // 2]  # of the recording, by the clock of those who sent
    return [each._replace(at_ms=each.at_ms + begin_ms) for each in sorted(found, key=lambda each: each.at_ms)]


def questions(folder: Path) -> dict[int, Command]:
    """What the broker asked of producers (39), by number."""
    frames = json.loads((folder / "transaction.json").read_bytes())["frames"]
    found = {one["seq"]: decode(bytes.fromhex(one["hex"])) for one in frames}
    return {number: one for number, one in found.items() if one.code == Request.CHECK_TRANSACTION_STATE}


# Of tools and of the broker's configuration: not in the closed list yet, answered 3.
NOT_SERVED = {25, 28, 200, 202, 203, 204, 207, 208, 222, 223, 300, 303, 305, 315, 321, 9999}
SERVED = {
    10, 11, 12, 14, 15, 17, 21, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 41, 42, 43, 45, 46, 201, 215, 310, 320,
}  # fmt: skip
# Answers' fields that are times, ids or places.
VARYING = {"msgId", "timestamp", "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
LEVELS_MS = (1000, 5000, 10_000)
# request's number -> (code of ours, and why it is not the recorded one)
DIFFERENCES: dict[int, tuple[int, str]] = {
    **dict.fromkeys((546, 547, 548, 549, 749), (0, "a heartbeat is in effect at once, not when a later thread runs")),
    227: (0, "a pull looks at other tags 5 s after it began; Java's looks are at the same moment for all pulls"),
    1437: (1, "names the missing field; the recorded text is that of a NullPointerException inside the broker"),
    1567: (1, "what lies there is no half message; the recorded text is that of a NullPointerException"),
    1921: (1, "a message with a time (TIMER_DELAY_SEC) is refused: 4.9.8 delivers it at once, as if it had none"),
}


class Replay:
    """Handlers over a store in memory, with the recorded time as their clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.store = MemoryMessages(PutLimits(body_bytes_max=65536), lambda: self.now_ms)
        identity = Identity("DefaultCluster", "broker-a", "127.0.0.1", 10911)
        self.context = Context(identity, self.store, lambda: self.now_ms, 65536)
        self.requests = BrokerRequests(self.context, TransactionTimes(3_000, 1 << 30, 15))
        self.requests.transactions.start()
        self.store.on_dispatched += [self.requests.arrived, self.scheduled]
        self.dispatcher = Dispatcher(self.requests.handlers())
        self.peers: dict[int, FakePeer] = {}
        self.held: dict[tuple[int, int], Exchange] = {}
        self.places: dict[int, int] = {}  # recorded place of a message -> ours
        self.due: list[tuple[int, NewMessage]] = []
        self.seen: Counter[int] = Counter()
        self.wrong: list[str] = []

    def scheduled(self, queues: Iterable[tuple[str, int]]) -> None:
        """The schedule service is not a handler's: here it is as simple as can be."""
        for topic, queue_id in queues:
            if topic == SCHEDULE_TOPIC and queue_id < len(LEVELS_MS):
                one = decode_record(self.store.queues[topic, queue_id][-1])
                again = delivered(one)
                assert again is not None
                self.due.append((self.now_ms + LEVELS_MS[queue_id], again))

    def advance(self, to_ms: float) -> None:
        self.now_ms = self.now_ms or int(to_ms)
        while self.now_ms < int(to_ms):
            self.now_ms = min(self.now_ms + 1000, int(to_ms))
            for one in [one for one in self.due if one[0] <= self.now_ms]:
                self.due.remove(one)
                self.store.put_own(one[1])
            self.requests.look()

    def pose(self, one: Exchange) -> None:
        """What is not in the closed list, but changes what comes behind; and what happened between the recordings."""
        topics, groups, body = self.context.topics, self.context.groups, bytes(one.request.body)
        if one.request.code == 25:
            said = dict(line.split("=") for line in body.decode().split())
            self.context.perm = int(said.get("brokerPermission", self.context.perm))
            topics.auto_create = said.get("autoCreateTopicEnable", str(topics.auto_create)).lower() == "true"
            groups.auto_create = said.get("autoCreateSubscriptionGroup", str(groups.auto_create)).lower() == "true"
            self.store.on_disk = said.get("accessMessageInMemoryMaxRatio") == "0"
        elif one.request.code == 200:
            made = load(body)
            groups.put(GroupConfig(made["groupName"], retry_max_times=made["retryMaxTimes"]))
        if one.number == 1298:  # four transactions that were over
            for number in range(4):
                self.store.put_own(NewMessage(HALF_TOPIC, 0, b"unrecorded", V4, V4))
                self.store.put_own(op_message(number, V4, self.now_ms))
        for topic, queue_id, count in UNRECORDED.get(one.number, ()):
            for _ in range(count):
                self.store.put(NewMessage(topic, queue_id, b"unrecorded", V4, V4))

    def ask(self, one: Exchange) -> None:
        self.advance(one.at_ms)
        self.pose(one)
        request = one.request
        for name in ("offset", "commitLogOffset"):
            offset = int((request.fields or {}).get(name, -1))
            if offset in self.places:
                request = request._replace(fields={**(request.fields or {}), name: str(self.places[offset])})
        answer = self.peers.setdefault(one.conn, FakePeer()).ask(self.dispatcher, request)
        self.take_held()
        if one.request.is_one_way:
            assert answer is None
        elif answer is None:
            assert request.code in (Request.PULL_MESSAGE, Request.END_TRANSACTION), "nothing else waits"
            self.held[one.conn, request.opaque] = one
        else:
            self.compare(one, answer)

    def take_held(self) -> None:
        for conn, peer in self.peers.items():
            for answer in [each for each in peer.sent if (conn, each.opaque) in self.held and each.is_response]:
                one = self.held.pop((conn, answer.opaque))
                if one.answer is not None:
                    self.compare(one, answer)

    async def checked(self, before: Exchange, recorded: Command) -> None:
        """Producers are asked as the recorded broker asked them."""
        self.advance(before.at_ms)
        peer = self.peers[before.conn]
        seen = len(peer.sent)
        await self.requests.transactions.check()
        [asked] = peer.sent[seen:]
        assert (asked.code, asked.flag) == (recorded.code, recorded.flag) == (39, 2)
        places = {"commitLogOffset", "offsetMsgId"}
        assert asked.fields is not None and recorded.fields is not None
        ours, theirs = ({k: v for k, v in one.fields.items() if k not in places} for one in (asked, recorded))
        assert ours == theirs
        self.places[int(recorded.fields["commitLogOffset"])] = int(asked.fields["commitLogOffset"])
        (record, known), (wanted, theirs) = without_place(bytes(asked.body)), without_place(bytes(recorded.body))
        assert record == wanted
        assert known == theirs | {"__transactionId__": known["UNIQ_KEY"]}, "which 5.x stores, and 4.9 does not"

    def compare(self, one: Exchange, answer: Command) -> None:
        code, expected = one.request.code, one.answer
        if code in NOT_SERVED:
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
            return
        self.seen[code] += 1
        if one.number in DIFFERENCES:
            assert answer.code == DIFFERENCES[one.number][0], one.case
            return
        if expected is None or one.case in BEGUN_BEFORE:  # its answer was not recorded, or what it follows from
            return
        if self.shown(answer) != self.shown(expected):
            text = "\n".join(
                f"   {a}\n   {b}" for a, b in zip(self.shown(answer), self.shown(expected), strict=True) if a != b
            )
            self.wrong.append(f"{one.case} {one.number} code {code} {one.request.fields}\n  {text}")
        self.learn(answer, expected)
        for ours, theirs in of_common_names(answer, expected):
            assert ours == theirs, one.case

    def shown(self, answer: Command) -> tuple[Any, ...]:
        fields = answer.fields
        if fields:
            fields = {name: "" if name in VARYING else value for name, value in fields.items()}
        remark = None if answer.remark == "not set any response code" else answer.remark
        remark = remark and ADDRESS.sub("ADDRESS", remark)
        if remark and remark.startswith("the message is illegal"):
            remark = remark.partition("32KB.")[0]  # behind it we say what is wrong
        return answer.flag, answer.binary, answer.code, remark, fields, plain(bytes(answer.body))

    def learn(self, answer: Command, expected: Command) -> None:
        """Where a message lies here that lay elsewhere there."""
        if answer.fields and expected.fields and "msgId" in answer.fields:
            pairs = zip(expected.fields["msgId"].split(","), answer.fields["msgId"].split(","), strict=True)
            self.places |= {int(there[16:], 16): int(here[16:], 16) for there, here in pairs}
        if is_records(bytes(answer.body)) and is_records(bytes(expected.body)):
            there, here = records(bytes(expected.body)), records(bytes(answer.body))
            self.places |= {
                decode_record(a).physical_offset: decode_record(b).physical_offset
                for a, b in zip(there, here, strict=False)
            }


# Messages that were sent while nothing was recorded: before which request, to which queue, how many.
UNRECORDED: dict[int, list[tuple[str, int, int]]] = {
    1198: [("VecPull", 0, 1)], 1478: [("VecTopic", 0, 2)], 1502: [("VecReadOnly", 0, 1)],
    1907: [("VecTopic", 2, 1)],
}  # fmt: skip
# Began before the recording, with messages and offsets that are in none: only what is answered at once and alike is
# compared. tests/unit/test_client_requests.py goes through retries and dead letters.
BEGUN_BEFORE = {"back-prepare", "back-consumer-start", "back-dlq-consumer"}
V4 = Host(bytes(4), 0)


# Of which no two brokers have all names: topics and groups that tools made, or that came in between.
TABLES = ("topicConfigTable", "subscriptionGroupTable", "offsetTable")


def of_common_names(answer: Command, expected: Command) -> Iterable[tuple[Any, Any]]:
    """What both have of the same name, but for the offsets, which are where the clients were then."""
    for name in TABLES[:2]:
        if name.encode() in bytes(answer.body):
            ours, theirs = load(answer.body, 1 << 20)[name], load(expected.body, 1 << 20)[name]
            common = ours.keys() & theirs.keys()
            assert len(common) > 5
            yield from ((ours[one], theirs[one]) for one in common)


def is_records(body: bytes) -> bool:
    return body[4:8] == b"\xda\xa3\x20\xa7"


def records(body: bytes) -> list[bytes]:
    found: list[bytes] = []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(body[:size])
        body = body[size:]
    return found


def plain(body: bytes) -> Any:
    """A body without what is of one broker only, and without an order that Java's hash maps make."""
    if is_records(body):
        return [without_place(one) for one in records(body)]
    found = load(body) if body else None
    for name in TABLES:
        if found is not None and name in found:
            return name  # compared by `of_common_names`
    for name in ("lockOKMQSet", "consumerIdList"):
        if found is not None and name in found:
            found[name] = sorted(found[name], key=str)
    return found


def test_clients_are_answered_alike(vectors: Path) -> None:
    async def run() -> Replay:
        replay = Replay()
        await asyncio.sleep(0)
        asked = questions(vectors / "rocketmq" / "rpc")
        for one in exchanges(vectors / "rocketmq" / "rpc"):
            if one.number - 1 in asked:
                await replay.checked(one, asked.pop(one.number - 1))
            replay.ask(one)
            await asyncio.sleep(0)
        assert not asked
        replay.advance(replay.now_ms + 60_000)
        replay.take_held()
        return replay

    replay = asyncio.run(run())
    assert "\n".join(replay.wrong) == ""
    assert not replay.held
    ended = [decode_record(one) for one in replay.store.queues[OP_TOPIC, 0][4:]]
    assert [one.body for one in ended] == [b"4", b"5", b"8"]
    committed = [decode_record(one) for one in replay.store.queues["VecTrans", 0]]
    assert [(one.body, one.sys_flag & 8) for one in committed] == [(b"commit me", 8), (b"check me", 8)]
    assert set(replay.seen) == SERVED
    assert sum(replay.seen.values()) > 400
