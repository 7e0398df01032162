"""Whatever no log may hold or no client may ask, over a socket: the code and text that clients expect, and nothing
stored. Behind each refusal the same connection takes a sound message.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from node.broker.broker import Broker
from node.broker.client_port import ClientPort
from node.message_store.batch import BatchedMessage, encode_batch
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.record import decode_record
from node.rocketmq.bodies import TopicConfig
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, encode
from tests.ports import free_ports
from tests.unit.broker_kit import Client, broker_of, engine_of, pull_fields, send_fields, settings_of

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
NAME = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
LONG = "The specified topic is longer than topic max length."
TOO_LARGE = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, msg"
    " properties length limit 32KB."
)
SEND, BATCH, OLD_SEND, PULL = 310, 320, 10, 11
LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
}  # fmt: skip


def batch(*properties: str) -> bytes:
    return encode_batch(BatchedMessage(0, b"b", one.encode()) for one in properties)


# What is sent, what it says in its body, the code, and how the remark begins.
SENDS: list[tuple[int, dict[str, str], bytes, int, str]] = [
    (SEND, {}, bytes(4 << 20 | 1), 13, TOO_LARGE),
    (SEND, {}, bytes(65536), 13, TOO_LARGE),  # no data file holds it: our own reason is behind the text
    (SEND, {"i": "p" * 32768}, b"", 13, TOO_LARGE),
    (SEND, {"b": ""}, b"", 1, "The specified topic is blank."),
    (SEND, {"b": "no spaces"}, b"", 1, NAME),
    (SEND, {"b": "t" * 128}, b"", 1, LONG),
    (SEND, {"b": "%RETRY%" + "g" * 249}, b"", 1, LONG),
    (SEND, {"b": "rmq_sys_quorumscope_term"}, b"", 13, "the message is illegal"),
    (SEND, {"b": SCHEDULE_TOPIC}, b"", 16, f"Sending message to topic[{SCHEDULE_TOPIC}] is forbidden."),
    (SEND, {"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"", 16, "Sending message to topic[RMQ_SYS_TRANS_HALF_TOPIC] is"),
    (SEND, {"b": "Unknown", "c": "NoSuchTopic"}, b"", 17, f"topic[Unknown] not exist, apply first please!{FAQ}"),
    (SEND, {"b": "Unknown", "c": "Known"}, b"", 17, f"topic[Unknown] not exist, apply first please!{FAQ}"),
    (SEND, {"b": "Known", "e": "99"}, b"", 1, "request queueId[99] is illegal, TopicConfig ["),
    (SEND, {"b": "%RETRY%NoGroup-but-made"}, b"", 0, ""),  # a group that is not known is made, as in RocketMQ
    (SEND, {"i": "DELAY\x01soon"}, b"", 1, "UNKNOWN_ERROR"),
    (SEND, {"i": "TIMER_DELIVER_MS\x011"}, b"", 1, "accurate timer message is not enabled"),
    (SEND, {"f": "4"}, b"", 16, "sending transaction message is forbidden"),
    (SEND, {"e": "x"}, b"", 1, 'java.lang.NumberFormatException: For input string: "x"'),
    (BATCH, {"m": "true"}, b"\0\0\0\x17broken", 13, TOO_LARGE),
    (BATCH, {"m": "true"}, b"", 13, TOO_LARGE),
    (BATCH, {"m": "true"}, batch("", "DELAY\x013"), 13, TOO_LARGE),
    (BATCH, {"m": "true", "i": "DELAY\x013"}, batch("", ""), 13, TOO_LARGE),
    (BATCH, {"m": "true", "f": "4"}, batch(""), 16, "sending transaction message is forbidden"),
    (BATCH, {"m": "true", "i": "TRAN_MSG\x01true"}, batch(""), 16, "sending transaction message is forbidden"),
    (BATCH, {"m": "true", "b": "%RETRY%G"}, batch(""), 13, "batch request does not support retry group %RETRY%G"),
    (BATCH, {"m": "true"}, batch("", "p" * 32767), 13, TOO_LARGE),
]  # fmt: skip


@asynccontextmanager
async def port_of(data: Path) -> AsyncGenerator[tuple[Broker, ClientPort, int], None]:
    settings = settings_of(data, free_ports(1))
    async with engine_of(settings), broker_of(settings) as broker:
        port = ClientPort(broker)
        number = await port.open("127.0.0.1", 0)
        port.context.topics.put(TopicConfig("Known", 1, 1))
        try:
            yield broker, port, number
        finally:
            port.close()


async def connected(number: int) -> tuple[Client, asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    return Client(reader, writer), reader, writer


def told(data: Path, story: Callable[[Broker, ClientPort, int, Client], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with port_of(data) as (broker, port, number):
            client, _reader, writer = await connected(number)
            try:
                await story(broker, port, number, client)
            finally:
                writer.close()

    asyncio.run(whole())


def test_every_limit_has_its_code_and_text_and_nothing_is_stored(tmp_path: Path) -> None:
    async def story(broker: Broker, _port: ClientPort, _number: int, client: Client) -> None:
        for stored, (code, changes, body, expected, text) in enumerate(SENDS):
            offsets = dict(broker.log.next_offsets)
            [answer] = await client.ask((code, send_fields(**changes), body))
            assert (answer.code, (answer.remark or "")[: len(text)]) == (expected, text), (changes, answer.remark)
            if "e" not in changes or changes["e"] != "x":  # a header that cannot be read has no region either
                assert answer.fields is not None and "MSG_REGION" in answer.fields
            if expected:
                assert dict(broker.log.next_offsets) == offsets, f"stored by {changes}"
            [sound] = await client.ask((SEND, send_fields(b="Known"), b"sound"))
            assert sound.code == 0 and sound.fields is not None and sound.fields["queueOffset"] == str(stored)

    told(tmp_path, story)


def test_the_old_send_is_judged_in_the_same_way(tmp_path: Path) -> None:
    async def story(broker: Broker, _port: ClientPort, _number: int, client: Client) -> None:
        for code, changes, body, expected, text in SENDS:
            if code == SEND and expected and changes.get("e") != "x":
                fields = {LONG_NAMES[name]: value for name, value in send_fields(**changes).items() if name != "m"}
                [answer] = await client.ask((OLD_SEND, fields, body))
                assert (answer.code, (answer.remark or "")[: len(text)]) == (expected, text), changes
        assert broker.log.next_offsets == {}

    told(tmp_path, story)


@pytest.mark.parametrize(("level", "queue_id"), [("19", 17), ("18", 17), ("1", 0), ("0", None), ("-1", None)])
def test_a_delay_level_beyond_the_last_is_the_last_and_none_is_none(
    tmp_path: Path, level: str, queue_id: int | None
) -> None:
    async def story(broker: Broker, _port: ClientPort, _number: int, client: Client) -> None:
        [answer] = await client.ask((SEND, send_fields(b="Known", i=f"DELAY\x01{level}"), b""))
        assert answer.code == 0, "an empty body is one"
        stored = {("Known", 0): 1} if queue_id is None else {(SCHEDULE_TOPIC, queue_id): 1}
        assert {name: count for name, count in broker.log.next_offsets.items() if count} == stored

    told(tmp_path, story)


def test_what_is_not_permitted_is_refused_by_who_forbids_it(tmp_path: Path) -> None:
    async def story(broker: Broker, port: ClientPort, _number: int, client: Client) -> None:
        topics, context, ip = port.context.topics, port.context, "127.0.0.1"
        topics.put(TopicConfig("Ordered", 1, 1, order=True))
        topics.put(TopicConfig("WriteOnly", 1, 1, perm=2))
        assert (await client.ask((SEND, send_fields(b="Known"), b"first")))[0].code == 0
        context.perm = 4
        [answer] = await client.ask((SEND, send_fields(b="Ordered"), b""))
        assert (answer.code, answer.remark) == (16, f"the broker[{ip}] sending message is forbidden")
        context.perm = 2
        [answer] = await client.ask((PULL, pull_fields(0, topic="Known"), b""))
        assert (answer.code, answer.remark) == (16, f"the broker[{ip}] pulling message is forbidden")
        context.perm = 6
        for changes, code, text in [
            ({"topic": "WriteOnly"}, 16, "the topic[WriteOnly] pulling message is forbidden"),
            ({"topic": "Unknown"}, 17, "topic[Unknown] not exist, apply first please!"),
            ({"queueId": "7"}, 1, "queueId[7] is illegal, topic:[Known] topicConfig.readQueueNums:[1] consumer:[/"),
            ({"expressionType": "SQL92", "subscription": "a > 1"}, 1,
             "The broker does not support consumer to filter message by SQL92"),
            ({"sysFlag": "0"}, 24, "the consumer's group info not exist"),
            ({"subscription": " || "}, 23, "parse the consumer's subscription failed"),
        ]:  # fmt: skip
            [answer] = await client.ask((PULL, pull_fields(0, topic="Known") | changes, b""))
            assert (answer.code, (answer.remark or "")[: len(text)]) == (code, text), changes
        group = port.context.groups.find("G")
        assert group is not None
        port.context.groups.put(replace(group, consume_enable=False))
        [answer] = await client.ask((PULL, pull_fields(0, topic="Known"), b""))
        assert (answer.code, answer.remark) == (16, "subscription group no permission, G")
        port.context.groups.auto_create = False
        [answer] = await client.ask((PULL, pull_fields(0, topic="Known") | {"consumerGroup": "Nobody"}, b""))
        assert (answer.code, (answer.remark or "")[:42]) == (26, "subscription group [Nobody] does not exist")
        assert broker.log.next_offsets["Known", 0] == 1

    told(tmp_path, story)


def corrupt_frames() -> list[bytes]:
    sound = encode(Command(Request.SEND_MESSAGE_V2, 1, 0, send_fields(), None, b"body", "JAVA"))
    return [
        struct.pack(">i", (16 << 20) + 1) + b"\0" * 64,  # more than a command may have
        struct.pack(">i", -1) + b"\0" * 64,
        struct.pack(">iI", 8, 100) + b"\0" * 64,  # a header behind the frame's end
        sound[:4] + b"\x07" + sound[5:],  # a header of a form that there is not
        sound[:8] + b"{not json" + sound[17:],
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    ]


@pytest.mark.parametrize("number", range(6))
def test_a_corrupt_frame_ends_its_connection_and_no_other(tmp_path: Path, number: int) -> None:
    async def story(broker: Broker, _port: ClientPort, port: int, client: Client) -> None:
        _other, reader, writer = await connected(port)
        writer.write(corrupt_frames()[number])
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        writer.close()
        assert broker.log.next_offsets == {}
        [sound] = await client.ask((SEND, send_fields(b="Known"), b"sound"))
        assert sound.code == 0 and decode_record(broker.reads.get("Known", 0, 0).records[0]).body == b"sound"

    told(tmp_path, story)


def test_an_unknown_request_and_a_missing_field_are_named(tmp_path: Path) -> None:
    async def story(broker: Broker, _port: ClientPort, _number: int, client: Client) -> None:
        [unknown, missing] = await client.ask(
            (9999, {}, b""), (SEND, {name: value for name, value in send_fields().items() if name != "e"}, b"")
        )
        assert (unknown.code, unknown.remark) == (3, " request type 9999 not supported")
        assert missing.code == 1 and "the custom field <e> is null" in (missing.remark or "")
        assert broker.log.next_offsets == {}

    told(tmp_path, story)
