"""What the Java name server was asked by a Java broker, clients and tools, asked of ours: the same answers.

All recorded exchanges in their order, so that each finds what those before it left. Compared are code, remark, fields
and body; the order of names in Java's hash maps is not, and DIFFERENCES says what else is not the same, and why.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.rocketmq.bodies import DataVersion, TopicConfig, topics_answer
from node.rocketmq.command import Command, decode
from node.rocketmq.dispatch import Dispatcher
from node.rocketmq.java_json import dump, load
from tests.unit.client_wire import FakePeer

# case -> what ours answers instead, and why
DIFFERENCES: dict[str, tuple[tuple[int, str], str]] = {
    "raw-unknown-code-namesrv": (
        (3, " request type 9999 not supported"),
        "Java never answers, and its client waits for its time-out; a broker's answer says at once what is wrong",
    ),
}


# The broker's periodic registrations were left out of the recording: before which request (its number there) one must
# have come, and with what that the broker did not have at the last one recorded.
OMITTED: dict[int, list[TopicConfig]] = {
    315: [TopicConfig("%RETRY%vec_push_group", 1, 1)],
    756: [TopicConfig("%RETRY%vec_bcast_group", 1, 1), TopicConfig("%RETRY%vec_order_group", 1, 1)],
    1293: [TopicConfig("TBW102", 8, 8, 7)],  # whose permission the name server was ordered to change
    1340: [TopicConfig("%RETRY%vec_back_group", 1, 1)],
    1390: [TopicConfig("%DLQ%vec_back_group", 1, 1)],
    1457: [TopicConfig("VecOrder", 4, 4, 4), TopicConfig("TBW102", 8, 8, 4)],  # the broker was made read-only
    1493: [TopicConfig("VecOrder", 4, 4, 6), TopicConfig("TBW102", 8, 8, 7)],
    1599: [TopicConfig("%RETRY%vec_conn_group", 1, 1)],
    1949: [TopicConfig("%RETRY%vec5_group", 1, 1)],
    2102: [TopicConfig("%RETRY%vec5_hb2_group", 1, 1)],
}
# Answered with a count of topics, one of which came in such a registration: compared by name only.
COUNTS = {"wipeTopicCount", "addTopicCount"}


class Exchange(NamedTuple):
    case: str
    number: int
    conn: int
    request: Command
    answer: Command | None


def exchanges(folder: Path) -> list[Exchange]:
    """All with the name server, in the order of the requests."""
    frames: dict[int, tuple[float, Command]] = {}
    for path in folder.glob("*.json"):
        if path.name != "index.json":
            for one in json.loads(path.read_bytes())["frames"]:
                frames[one["seq"]] = (one["t"], decode(bytes.fromhex(one["hex"])))
    found: list[tuple[float, Exchange]] = []
    for one in json.loads((folder / "index.json").read_bytes())["exchanges"]:
        if one["server"] == "namesrv":
            number = one["request"]["seq"]
            at, request = frames[number]
            answer = frames[one["response"]["seq"]][1] if one["response"] else None
            found.append((at, Exchange(one["case"], number, one["conn"], request, answer)))
    return [each for _at, each in sorted(found, key=lambda each: each[0])]


def registration(number: int, topics: list[TopicConfig]) -> Command:
    """One that was left out."""
    fields = {
        "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "DefaultCluster", "brokerId": "0",
        "haServerAddr": "127.0.0.1:10912", "bodyCrc32": "0",
    }  # fmt: skip
    body = {"topicConfigSerializeWrapper": json.loads(topics_answer(DataVersion(-number), topics))}
    return Command(103, number, 0, fields, None, dump(body))


def plain(body: Any) -> Any:
    """A body without what its order says: lists of names are Java's sets."""
    found = load(body, 1 << 24) if len(body) else None
    if found is not None and "topicList" in found:
        found["topicList"] = sorted(found["topicList"])
    return found


@pytest.fixture(scope="module")
def recorded(vectors: Path) -> list[Exchange]:
    return exchanges(vectors / "rocketmq" / "rpc")


def shown(answer: Command) -> tuple[Any, ...]:
    """All that has to be the same."""
    fields = (
        {name: None if name in COUNTS else value for name, value in answer.fields.items()}
        if answer.fields
        else answer.fields
    )
    return answer.opaque, answer.flag, answer.binary, answer.code, answer.remark, fields, plain(answer.body)


def test_the_recorded_exchanges_are_answered_alike(recorded: list[Exchange]) -> None:
    service = NameService(Registry(), lambda: 0)
    dispatcher, peers = Dispatcher(service.handlers()), dict[int, FakePeer]()
    seen: Counter[int] = Counter()
    routes = 0
    for case, number, conn, request, expected in recorded:
        if number in OMITTED:
            known = peers[1].ask(dispatcher, registration(number, OMITTED[number]))
            assert known is not None and known.code == 0
        answer = peers.setdefault(conn, FakePeer()).ask(dispatcher, request)
        if case in DIFFERENCES:
            assert answer is not None
            assert expected is None
            assert (answer.code, answer.remark) == DIFFERENCES[case][0]
            continue
        if request.is_one_way:
            assert answer is None
            continue
        assert answer is not None and expected is not None
        assert shown(answer) == shown(expected), f"{case} ({number}) {request.fields}"
        if request.code == 105 and answer.code == 0:
            assert bytes(answer.body) == bytes(expected.body), "a route is the same to the byte"
            routes += 1
        seen[request.code] += 1
    assert set(seen) == {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 327}
    assert routes > 60
