"""Sends of the usual form: read, stored and answered as any request is, to the byte; all others take the long way."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator

import pytest

from node.broker.open_puts import OpenPut
from node.broker.requests.context import Context, Identity
from node.broker.requests.quick_sends import QuickSends, binary_answer, json_answer
from node.broker.requests.sends import Sends
from node.message_client.outgoing import OutgoingMessage, properties_of, send_command
from node.message_store.new_message import NewMessage, PutLimits
from node.message_store.put_result import PutResult, PutStatus, refused
from node.message_store.record_building import QueueOffsets
from node.rocketmq.bodies import TopicConfig
from node.rocketmq.codes import Request
from node.rocketmq.command import PREFIX_BYTES, Command, CommandError, decode, decode_parts, encode, read_prefix
from node.rocketmq.dispatch import Call
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import SendRequestV2
from node.rocketmq.send_frames import SendFrame, SendReader
from tests.conftest import VECTORS
from tests.fuzz.mutate import mutate
from tests.unit.client_wire import FakePeer
from tests.unit.memory_messages import MemoryMessages

JAVA = {
    "a": "please", "b": "Flights", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1795000000000", "h": "0",
    "i": "UNIQ_KEY\x017F0000010001\x02WAIT\x01true\x02TAGS\x01AA", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def sends() -> Iterator[bytes]:
    for binary in (False, True):
        for number in range(3):
            fields = JAVA | {"e": str(number), "n": "broker"} if number else JAVA
            yield encode(Command(310, 100 + number, 0, fields, None, b"body", "JAVA", binary=binary))
    properties = properties_of(OutgoingMessage("Flights", b"", ("k",), "AA"))
    yield send_command(Request.SEND_MESSAGE_V2, 7, "g", "Flights", 1, 1_795_000_000_000, properties, b"body")
    recorded = VECTORS / "rocketmq" / "rpc"
    for name in ("binary-header", "hand-made") if recorded.is_dir() else ():
        for one in json.loads((recorded / f"{name}.json").read_bytes())["frames"]:
            yield bytes.fromhex(one["hex"])


def parts(data: bytes) -> tuple[bytes, bytes, bool]:
    _size, header_bytes, binary = read_prefix(data)
    return data[PREFIX_BYTES : PREFIX_BYTES + header_bytes], data[PREFIX_BYTES + header_bytes :], binary


def check(reader: SendReader, header: bytes, body: bytes, binary: bool) -> bool:
    """Whether it was read the quick way; and it is what any reader makes of it."""
    try:
        due = decode_parts(header, body, binary=binary)
    except CommandError:
        with pytest.raises(CommandError):
            reader.read(header, body, binary)
        return False
    found = reader.read(header, body, binary)
    if not isinstance(found, SendFrame):
        assert found == due
        return False
    said, front = read_header(SendRequestV2, due.fields), found.front.said
    assert found.command() == due and (due.code, due.flag) == (310, 0)
    assert (found.opaque, found.binary) == (due.opaque, due.binary)
    assert (found.born_ms, found.flag) == (said.born_timestamp, said.flag)
    assert found.properties == (said.properties or "").encode() and found.reconsume_times == (said.reconsume_times or 0)
    assert not said.batch
    assert (front.producer_group, front.topic, front.queue_id) == (said.producer_group, said.topic, said.queue_id)
    assert (front.sys_flag, front.default_topic) == (said.sys_flag, said.default_topic)
    return True


def test_what_clients_send_is_read_the_quick_way_and_means_the_same() -> None:
    reader = SendReader()
    quick = [check(reader, *parts(data)) for data in sends()]
    assert all(quick[:7])
    again = [check(reader, *parts(data)) for data in sends()]
    assert again == quick


def test_whatever_the_bytes_it_is_read_as_any_command_is() -> None:
    rng, reader = random.Random(20261123), SendReader()
    seeds = [parts(data) for data in sends()]
    quick = 0
    for number in range(8000):
        header, body, binary = seeds[number % len(seeds)] if number % 3 else seeds[number % 7]
        others = [one for one, _body, in_binary in seeds if in_binary == binary]
        quick += check(reader, mutate([header, *others[:3]], rng, None), body, binary)
    assert quick > 50  # some mutants are still sends


@pytest.mark.parametrize(
    ("changes", "is_quick"),
    [
        ({}, True),
        ({"i": ""}, True),
        ({"i": "KEYS\x01k\x02CLUSTER\x01other\x02WAIT\x01false\x02"}, True),
        ({"i": "WAIT\x01true"}, True),
        ({"h": "7", "j": "3", "f": "1"}, True),
        ({"g": "17"}, False),  # read the long way
        ({"m": "true"}, False),
        ({"j": "x"}, False),
        ({"b": "None"}, False),
        ({"b": "%RETRY%g"}, False),
        ({"b": "bad/name"}, False),
        ({"e": "4"}, False),
        ({"e": "-1"}, False),
        ({"f": "4"}, False),
        ({"i": "DELAY\x013\x02"}, False),
        ({"i": "TIMER_DELAY_SEC\x013\x02"}, False),
        ({"i": "__CRC32#\x013\x02"}, False),
        ({"i": "TRAN_MSG\x01true\x02"}, False),
        ({"i": "KEYS\x01\u00e4\x02"}, False),
        ({"i": "KEYS\x01" + "k" * 33_000 + "\x02"}, False),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_the_quick_way_stores_and_answers_the_same_bytes(changes: dict[str, str], is_quick: bool, binary: bool) -> None:
    async def story() -> None:
        store = MemoryMessages()
        context = Context(Identity("C", "b", "127.0.0.1", 10911), store, lambda: 1000)
        for name in ("Flights", "%RETRY%g"):
            context.topics.put(TopicConfig(name, 4, 4))
        limits, peer, taken = PutLimits(), FakePeer(), list[OpenPut]()

        def take(topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]) -> bool:
            assert (topic, queue_id) == ("Flights", 2)
            taken.append(record_of(9, 2000, 1.0))
            assert size_bytes == len(taken[-1].records[0])
            return True

        quick = QuickSends(context, Sends(context), limits, take)
        request = Command(310, 5, 0, JAVA | changes, None, b"body", "JAVA", binary=binary)
        frame = SendReader().read(*parts(encode(request)))
        assert (isinstance(frame, SendFrame) and quick.send(peer, frame)) is is_quick
        assert len(taken) == peer.open == is_quick
        if not is_quick:
            return
        stored: list[NewMessage] = []

        def put(message: NewMessage) -> asyncio.Future[PutResult]:
            stored.append(message)
            return asyncio.get_running_loop().create_future()

        store.put = put  # type: ignore[method-assign]
        assert Sends(context).send(Call(FakePeer(), request)) is None
        offsets = QueueOffsets(lambda *_queue: 9)
        assert list(taken[0].records) == offsets.build([limits.judged(stored[0])], 2000).records
        taken[0].placed((4711,))
        taken[0].end(refused(PutStatus.OS_PAGE_CACHE_BUSY, ""))  # it is over
        result = PutResult(
            PutStatus.PUT_OK, "", "Flights", 2, 9, (4711,), 2000, context.identity.host
        )  # fmt: skip
        reply = Sends(context).reply_to(result, 2)
        assert peer.sent == [Command(0, 5, 1, reply.fields, None, b"", binary=binary)]
        assert peer.open == 0 and taken[0].is_over()

    asyncio.run(story())


def test_a_refusal_is_answered_as_any_is_and_nobody_is_answered_who_left() -> None:
    context = Context(Identity("C", "b", "127.0.0.1", 10911), MemoryMessages(), lambda: 1000)
    context.topics.put(TopicConfig("Flights", 4, 4))
    peer, taken = FakePeer(), list[OpenPut]()

    def take(_topic: str, _queue: int, _size: int, record_of: Callable[[int, int, float], OpenPut]) -> bool:
        taken.append(record_of(0, 0, 0.0))
        return True

    quick = QuickSends(context, Sends(context), PutLimits(), take)
    frame = SendReader().read(*parts(encode(Command(310, 5, 0, JAVA, None, b"body", "JAVA"))))
    assert isinstance(frame, SendFrame)
    assert quick.send(peer, frame) and quick.send(peer, frame)
    taken[0].end(refused(PutStatus.OS_PAGE_CACHE_BUSY, "why"))
    assert [(one.code, one.opaque) for one in peer.sent] == [(2, 5)]
    assert "why" in (peer.sent[0].remark or "")
    peer.closed = True
    taken[1].placed((1,))
    assert len(peer.sent) == 1 and peer.open == 0
    context.topics.put(TopicConfig("Flights", 1, 1))  # what was found out about this header holds no more
    assert not quick.send(peer, frame)


@pytest.mark.parametrize("message_id", ["", "7F00000100002A9F0000000000001267"])
def test_answers_are_those_of_the_codec(message_id: str) -> None:
    said = {"msgId": message_id, "queueId": "3", "queueOffset": "12", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    answer = Command(0, 77, 1, said, None, b"")
    assert json_answer(77, message_id, 3, 12) == encode(answer)
    assert binary_answer(77, message_id, 3, 12) == encode(answer._replace(binary=True))


def test_our_producer_writes_what_any_reader_reads() -> None:
    data = send_command(Request.SEND_BATCH_MESSAGE, 9, "g", "Flights", 3, 1_795_000_000_000, b"KEYS\x01k\x02", b"body")
    command = decode(data)
    assert encode(command) == data
    assert read_header(SendRequestV2, command.fields) == SendRequestV2(
        "g", "Flights", "TBW102", 4, 3, 0, 1_795_000_000_000, 0, "KEYS\x01k\x02", 0, False, None, True
    )
