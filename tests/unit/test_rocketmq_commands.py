"""RocketMQ's remoting codec: what it takes and refuses, how streams are cut, headers and bodies by name and type."""

from __future__ import annotations

import json
import struct

import pytest

from node.rocketmq import headers
from node.rocketmq.bodies import (
    DataVersion,
    MessageQueue,
    TopicConfig,
    offsets_answer,
    read_heartbeat,
    read_lock_request,
    topics_answer,
)
from node.rocketmq.command import (
    COMMAND_BYTES_MAX,
    FIELDS_MAX,
    HEADER_BYTES_MAX,
    Command,
    CommandError,
    decode,
    encode,
    response,
)
from node.rocketmq.command_stream import CommandStream
from node.rocketmq.header_fields import HeaderError, read_header, write_header
from node.rocketmq.headers import PullRequest, SendRequest, SendRequestV2
from node.rocketmq.java_json import BodyError, dump, load, number_in

ONE = Command(310, 7, 0, {"b": "Topic", "i": "KEYS\x01k\x02"}, None, b"body")
BINARY = ONE._replace(binary=True)


def raw(header: bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), header_type << 24 | len(header)) + header + body


@pytest.mark.parametrize("command", [ONE, BINARY])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_commands_come_whole_and_in_order_however_they_were_cut(command: Command, step: int) -> None:
    data, stream, found = encode(command) * 3 + b"\xff" * 12, CommandStream(), []
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        stream.writable()[: len(piece)] = piece
        found += stream.filled(len(piece))
    assert found == [command] * 3
    assert stream.broken is not None
    assert stream.unfinished_bytes == 0


def test_a_claim_takes_no_memory() -> None:
    stream = CommandStream()
    claim = struct.pack(">iI", COMMAND_BYTES_MAX - 4, 16)
    stream.writable()[:8] = claim
    assert stream.filled(8) == []
    assert stream.memory_bytes <= 4096
    stream.end()
    assert stream.memory_bytes == 0


def test_a_long_command_comes_whole_and_its_memory_goes_again() -> None:
    command = ONE._replace(body=bytes(range(256)) * 12_000)
    data, stream, found, at = encode(command), CommandStream(), [], 0
    while at < len(data):
        room = stream.writable()
        taken = min(len(room), len(data) - at)
        room[:taken] = data[at : at + taken]
        found += stream.filled(taken)
        assert stream.memory_bytes <= max(4 * at, 8192), "no more than arrived, within a factor"
        at += taken
    assert found == [command]
    stream.spare_memory()
    assert len(stream.writable()) <= 64 * 1024


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (raw(b"[1]"), "no.* JSON object|not a JSON object"),
        (raw(b"{"), "not JSON"),
        (raw(b'{"code":"x"}'), "code is no int32"),
        (raw(b'{"code":99999999999}'), "code is no int32"),
        (raw(b'{"code":1,"remark":5}'), "remark"),
        (raw(b'{"code":1,"extFields":{"a":[]}}'), "field 'a'"),
        (raw(json.dumps({"code": 1, "extFields": {str(i): "" for i in range(FIELDS_MAX + 1)}}).encode()), "extFields"),
        (raw(b"", b"", 2), "header type"),
        (raw(b"\0" * 10, b"", 1), "broken"),
        (raw(struct.pack(">hbhiiii", 10, 0, 409, 1, 0, 0, 99), b"", 1), "claim 99"),
        (raw(struct.pack(">hbhiii", 10, 0, 409, 1, 0, -5) + b"\0" * 8, b"", 1), "-5 bytes"),
        (struct.pack(">iI", 40, 40), "header of 40"),
        (struct.pack(">iI", HEADER_BYTES_MAX + 9, HEADER_BYTES_MAX + 1), "allowed"),
        (struct.pack(">iI", -1, 0), "allowed"),
        (struct.pack(">iI", COMMAND_BYTES_MAX, 0), "allowed"),
        (b"GET / HTTP/1.1\r\n\r\n", "allowed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "allowed"),
    ],
)
def test_what_is_no_command_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(CommandError, match=why):
        decode(data)
    stream = CommandStream()
    stream.writable()[: len(data)] = data
    assert stream.filled(len(data)) == []


def test_texts_are_read_as_java_reads_them() -> None:
    """Numbers in extFields become texts, nulls vanish, and half a surrogate pair has no bytes."""
    said = b'{"code":11,"extFields":{"a":5,"b":true,"c":null,"d":"\\ud800x"},"language":"COBOL","version":409}'
    assert decode(raw(said)) == Command(11, 0, 0, {"a": "5", "b": "true", "d": "?x"}, None, b"", "OTHER", 409)


def test_an_answer_is_in_the_form_of_its_request() -> None:
    for request in (ONE, BINARY):
        answer = decode(encode(response(request, 17, {"MSG_REGION": "DefaultRegion"}, "no topic")))
        assert (answer.code, answer.opaque, answer.is_response, answer.binary) == (17, 7, True, request.binary)


def test_every_header_comes_back_from_its_fields() -> None:
    kinds = [one for one in vars(headers).values() if isinstance(one, type) and one.__module__ == headers.__name__]
    assert len(kinds) > 30
    one = {"int": 5, "str": "x", "bool": True}
    for kind in kinds:
        said = [str(text) for text in vars(kind)["__annotations__"].values()]
        values = [one[text.removesuffix(" | None")] for text in said if "ClassVar" not in text]
        assert read_header(kind, write_header(kind(*values))) == kind(*values)


def test_both_names_of_a_send_mean_the_same() -> None:
    values = ("g", "T", "TBW102", 4, 0, 0, 1700, 0, "K\x01v\x02", 0, False, None, False, "b")
    assert write_header(SendRequestV2(*values))["b"] == "T"
    assert write_header(SendRequest(*values))["producerGroup"] == "g"
    assert "l" not in write_header(SendRequestV2(*values)), "nulls are left out"


PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "0",
}  # fmt: skip


@pytest.mark.parametrize("value", ["", "x", " 1", "1_0", "٣", "9223372036854775808", "1" * 5000, "-", "1.0"])
def test_a_number_that_java_does_not_read_is_refused_in_its_words(value: str) -> None:
    with pytest.raises(HeaderError, match=r"java.lang.NumberFormatException: For input string: "):
        read_header(PullRequest, PULL | {"queueOffset": value})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(HeaderError, match="the custom field <queueId> is null"):
        read_header(PullRequest, {name: value for name, value in PULL.items() if name != "queueId"})
    assert read_header(PullRequest, PULL | {"queueOffset": "-9223372036854775808"}).queue_offset == -(1 << 63)


def test_names_that_are_numbers_or_objects_are_written_bare_and_read_back() -> None:
    queue = MessageQueue("T", "b", 0)
    table = {"offsetTable": {queue.as_name(): {"maxOffset": 4}}}
    assert dump(table) == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":4}}}'
    assert load(dump(table)) == table
    assert offsets_answer({"T@g": {0: 5, 1: 7}}) == b'{"offsetTable":{"T@g":{0:5,1:7}}}'
    assert load(b'{"offsetTable":{"T@g":{0 : 5 , 1:-7}} }') == {"offsetTable": {"T@g": {0: 5, 1: -7}}}


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{0:1", b"{0:1}x", b"{0 1}", b"{[]:1}", b"{{}:}", b'{{"a":[]}:1}', b'{0:"', b"{1.5:1}", b"{0:{",
     b"{0:" * 5000, b"[" * 50_000, b'{"a":' + b"," * 20_000 + b"}", b"{" + b" " * 70_000 + b"}", b"\xff{0:1}"],
)  # fmt: skip
def test_what_is_no_body_is_refused(data: bytes) -> None:
    with pytest.raises(BodyError):
        load(data)


def test_a_topic_is_written_as_java_writes_it_and_shows_itself() -> None:
    topic = TopicConfig("VecTopic", 4, 4)
    assert str(topic) == (
        "TopicConfig [topicName=VecTopic, readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG,"
        " topicSysFlag=0, order=false]"
    )
    assert topics_answer(DataVersion(2, 5), [topic]) == (
        b'{"dataVersion":{"counter":2,"timestamp":5},"topicConfigTable":{"VecTopic":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"VecTopic","topicSysFlag":0,"writeQueueNums":4}}}'
    )


def subscribed(to: dict[str, object]) -> dict[str, object]:
    return {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [to]}]}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"consumerDataSet": []}, "clientID"),
        ({"clientID": "c" * 256}, "clientID"),
        ({"clientID": "c", "producerDataSet": [{}]}, "groupName"),
        ({"clientID": "c", "producerDataSet": [{"groupName": "g"}] * 257}, "256"),
        ({"clientID": "c", "consumerDataSet": [5]}, "consumerDataSet"),
        (subscribed({}), "topic"),
        (subscribed({"codeSet": ["x"]}), "code"),
        (subscribed({"subString": "x" * 17_000}), "characters"),
    ],
)
def test_what_a_client_says_of_itself_is_bounded(said: dict[str, object], why: str) -> None:
    with pytest.raises(BodyError, match=why):
        read_heartbeat(dump(said))


def test_a_heartbeat_of_the_cpp_client_is_read_as_fastjson_reads_it() -> None:
    """Numbers as texts, enums as ordinals: what librocketmq sends. Refused, its groups had no consumers."""
    found = read_heartbeat(
        b'{"clientID":"20689-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"PyCG","messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1795391713349",'
        b'"topic":"%RETRY%PyCG"}],"unitMode":"false"}],"producerDataSet":[{"groupName":"PyPG"}]}\n'
    )
    [group] = found.consumers
    assert (group.consume_type, group.message_model, group.consume_from, group.unit_mode) == (
        "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", False,
    )  # fmt: skip
    assert group.subscriptions[0].version == 1795391713349 and found.producers == ("PyPG",)


@pytest.mark.parametrize("field", ['"messageModel":2', '"messageModel":-1', '"unitMode":"maybe"', '"unitMode":2'])
def test_what_fastjson_makes_nothing_of_is_refused(field: str) -> None:
    with pytest.raises(BodyError):
        read_heartbeat(b'{"clientID":"c","consumerDataSet":[{"groupName":"g",%s}]}' % field.encode())


@pytest.mark.parametrize(
    ("said", "value"), [("12", 12), ("-3", -3), (12, 12), ("", 7), ("null", 7), (None, 7), ("0" * 19, 0)]
)
def test_a_number_may_be_a_text(said: object, value: int) -> None:
    assert number_in({"n": said}, "n", 7) == value


@pytest.mark.parametrize("said", ["1.5", "x", " 1", "9" * 19, "\u0661", True, 1.0, [], {}])
def test_other_texts_and_values_are_no_numbers(said: object) -> None:
    with pytest.raises(BodyError, match="n is no int64"):
        number_in({"n": said}, "n", 7)


def test_queues_to_lock_are_bounded() -> None:
    one = {"brokerName": "b", "queueId": 0, "topic": "T"}
    assert read_lock_request(dump({"clientId": "c", "consumerGroup": "g", "mqSet": [one]})).queues == (
        MessageQueue("T", "b", 0),
    )
    with pytest.raises(BodyError, match="4096"):
        read_lock_request(dump({"clientId": "c", "consumerGroup": "g", "mqSet": [one] * 4097}))
