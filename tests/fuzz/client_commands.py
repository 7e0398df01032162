"""Targets: RocketMQ's remoting protocol. Commands in both forms, streams of them, headers and bodies of requests."""

from __future__ import annotations

import json
from functools import cache

from node.rocketmq import headers
from node.rocketmq.bodies import ConsumerData, Heartbeat, Subscription, read_heartbeat, read_lock_request, read_topics
from node.rocketmq.command import Command, CommandError, decode, encode
from node.rocketmq.command_stream import CommandStream
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.java_json import BodyError, dump, load, object_in
from tests.conftest import VECTORS
from tests.fuzz.target import Target

JSON_BYTES_PER_BYTE = 400
FIELDS = {"queueId": "0", "topic": "T", "i": "KEYS\x01k\x02", "consumerGroup": "g"}
KINDS = [
    one for one in vars(headers).values() if isinstance(one, type) and one.__module__ == headers.__name__
]  # fmt: skip


@cache
def commands() -> list[bytes]:
    found = [encode(Command(code, code, 0, FIELDS, None, b"body", binary=one)) for code in (11, 310) for one in (0, 1)]
    if (VECTORS / "rocketmq" / "rpc").is_dir():
        for name in ("binary-header", "hand-made", "namesrv"):
            frames = json.loads((VECTORS / "rocketmq" / "rpc" / f"{name}.json").read_bytes())["frames"]
            found += [bytes.fromhex(one["hex"]) for one in frames]
    return found


def command(data: bytes) -> None:
    found = decode(data)
    assert decode(encode(found)) == found


def stream(data: bytes) -> None:
    """However the bytes are cut, the same commands come out."""
    found = []
    for step in (len(data) or 1, 7):
        cut, these = CommandStream(), []
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            while piece:
                room = cut.writable()
                taken = min(len(room), len(piece))
                room[:taken] = piece[:taken]
                these += cut.filled(taken)
                piece = piece[taken:]
        found.append((these, str(cut.broken)))
    assert found[0] == found[1]


def header(data: bytes) -> None:
    fields = decode(data).fields
    for kind in KINDS:
        try:
            said = read_header(kind, fields)
        except HeaderError:
            continue
        assert read_header(kind, write_header(said)) == said


def body(data: bytes) -> None:
    """Whatever is read is written as it was read, but for numbers and texts that Java has in one form only."""
    found = load(data)
    assert load(dump(found)).keys() == found.keys()


def topics(data: bytes) -> None:
    read_topics(object_in(load(data), "topicConfigTable"), 9)


def requests(data: bytes) -> None:
    for read in (read_heartbeat, read_lock_request, topics):
        try:
            read(data)
        except BodyError:
            continue


def request_seeds() -> list[bytes]:
    beat = Heartbeat("c", ("p",), (ConsumerData("g", (Subscription("T", "a || b", ("a", "b"), (97, 98), 5),)),))
    queues = dump({"clientId": "c", "consumerGroup": "g", "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}]})
    return [beat.encode(), queues, dump({"topicConfigTable": {"T": {"perm": 6, "topicName": "T"}}})]


def body_seeds() -> list[bytes]:
    name = (("brokerName", "b"), ("queueId", 0), ("topic", "T"))
    return [dump({"offsetTable": {"T@g": {0: 5, 1: 6}}}), dump({"offsetTable": {name: {"maxOffset": 1.5}}}), b"{}"]


REFUSED = (CommandError,)
TARGETS: tuple[Target, ...] = (
    Target("client_command", command, commands, REFUSED, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("client_stream", stream, commands, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("client_header", header, commands, REFUSED, bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("client_body", body, body_seeds, (BodyError,), bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("client_request_body", requests, request_seeds, bytes_per_byte=3 * JSON_BYTES_PER_BYTE),
)
