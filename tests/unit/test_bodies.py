"""JSON bodies: round trips of every message, fastjson's forms, and refusal of everything else."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node.protocol.codes import FlushMode, RequestCode, ResponseCode, VoteResult, VoterState
from node.protocol.entry import Entry
from node.protocol.group_settings import GroupSettings, SaidSettings
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    MemberMark,
    Message,
    PeerRecord,
    ReadIndexRequest,
    ReadIndexResponse,
    TransferRequest,
    TransferResponse,
    TransferTicket,
    VoteRequest,
    VoteResponse,
)
from node.transport.bodies import (
    BodyError,
    Fields,
    decode_request,
    decode_response,
    dump,
    encode_message,
    entry_fields,
    entry_of,
    load,
    request_code,
)

HELLO = Hello(
    3, "g", "n1", "s1", VoterState.VOTER, 10, 0, "ab", 1024, 320, FlushMode.ASYNC, True, "http://127.0.0.1:1", None,
    ("a",), 1, 2, ResponseCode.UNEXPECTED_ARGUMENT, "flush differs", {"n0": "s0"}, False,
    7, "group-id", ("l1", "l2"), 500, 6, PeerRecord("s2", "l9", 8, 5, 7), "nonce", "mac",
    settings=SaidSettings(100, 500, "l2.1", "l9.0", GroupSettings(FlushMode.SYNC, False, 700)),
)  # fmt: skip
TICKET = TransferTicket(4, "n2", "nonce")
REQUESTS: list[Message] = [
    HELLO,
    VoteRequest(3, "n1", 5, 10, 4),
    VoteRequest(3, "n1", 5, 10, 4, True, None, True),
    VoteRequest(3, "n1", 5, 10, 4, False, TICKET),
    HeartBeatRequest(3, "n1", 5, 9, 0xFFFFFFFE),
    HeartBeatRequest(3, "n1", 5),
    HeartBeatRequest(3, "n1", 5, marks=(MemberMark("n0", 8, 5), MemberMark("n2", -1, -1))),
    TransferRequest(3, 5, "n2", 10, TICKET),
    ReadIndexRequest(3, 5),
]
ANSWERS: list[tuple[RequestCode, Message]] = [
    (RequestCode.VOTE, VoteResponse(3, 5, VoteResult.REJECT_ALREADY_VOTED)),
    (RequestCode.PRE_VOTE, VoteResponse(3, 5, VoteResult.ACCEPT, True)),
    (RequestCode.HEART_BEAT, HeartBeatResponse(3, 5, ResponseCode.TERM_NOT_READY, 7, VoterState.REJOINING)),
    (RequestCode.HEART_BEAT, HeartBeatResponse(3, 5, ResponseCode.SUCCESS, 7, VoterState.VOTER, 0)),
    (RequestCode.LEADERSHIP_TRANSFER, TransferResponse(3, 5, ResponseCode.INCONSISTENT_TERM)),
    (RequestCode.READ_INDEX, ReadIndexResponse(3, 5, ResponseCode.SUCCESS, 8, 9)),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_every_request_comes_back(message: Message) -> None:
    code = request_code(message)
    assert code is not None
    assert decode_request(code, encode_message(message, "g", "n1", "n2"), 3) == message


@pytest.mark.parametrize(("code", "message"), ANSWERS, ids=lambda value: str(value)[:24])
def test_every_answer_comes_back(code: RequestCode, message: Message) -> None:
    assert request_code(message) is None
    assert decode_response(code, encode_message(message, "g", "n1", "n2"), 3) == message


def test_a_hello_answer_is_marked_as_one() -> None:
    found = decode_response(RequestCode.HELLO, encode_message(HELLO, "g", "n1", "n2"), 3)
    assert isinstance(found, Hello)
    assert found.answer
    assert found.recorded == HELLO.recorded


def test_keys_are_alphabetical_and_nulls_are_left_out() -> None:
    assert dump({"b": 1, "a": None, "A": ""}) == b'{"A":"","b":1}'


def test_crcs_are_signed_on_the_wire() -> None:
    entry = Entry(1, 5, 2, 100, b"hello", 0, 0xFFFFFFFF, 0x7FFFFFFF)
    fields = entry_fields(entry)
    assert (fields["bodyCrc"], fields["chainCrc"]) == (-1, 0x7FFFFFFF)
    assert entry_of(Fields(fields)) == entry
    assert json.loads(encode_message(REQUESTS[4], "g", "n1", "n2"))["commitChain"] == -2


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assume(not isinstance(json.loads(data), dict))  # an object may be a request that needs no field
    for code in RequestCode:
        with pytest.raises(BodyError):
            decode_request(code, data, 1)
        with pytest.raises(BodyError):
            decode_response(code, data, 1)


@given(st.sampled_from(REQUESTS), st.data())
def test_a_field_of_another_type_is_refused_or_read(message: Message, data: st.DataObject) -> None:
    code = request_code(message)
    assert code is not None
    fields: dict[str, Any] = json.loads(encode_message(message, "g", "n1", "n2"))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(json_values)
    with contextlib.suppress(BodyError):
        assert type(decode_request(code, json.dumps(fields).encode(), 3)) is type(message)


@given(st.dictionaries(st.sampled_from(["type", "entries", "term", "preLogIndex", "commitIndex"]), json_values))
def test_a_json_push_of_any_shape_is_refused_or_read(fields: dict[str, Any]) -> None:
    entry = {"index": fields.get("term"), "term": 1, "body": "eA==", "magic": 1}
    for body in (fields, fields | {"type": "APPEND", "entries": [entry, fields.get("entries")]}):
        with contextlib.suppress(BodyError):
            assert decode_request(RequestCode.PUSH, json.dumps(body).encode(), 3) is not None


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(BodyError):
        load(b"[" * 100_000)
    with pytest.raises(BodyError):
        load(b'{"a":' + b"[" * 100_000)


def test_what_a_hello_and_a_heartbeat_say_is_bounded() -> None:
    long = Hello(**{name: getattr(HELLO, name) for name in HELLO.__slots__} | {"life_ids": tuple("abcdefghij" * 10)})
    found = decode_request(RequestCode.HELLO, encode_message(long, "g", "n1", "n2"), 3)
    assert isinstance(found, Hello) and len(found.life_ids) == 64 and found.life_ids[-1] == "j"
    beat = HeartBeatRequest(3, "n1", 5, marks=tuple(MemberMark(f"m{number}", 1, 1) for number in range(100)))
    read = decode_request(RequestCode.HEART_BEAT, encode_message(beat, "g", "n1", "n2"), 3)
    assert isinstance(read, HeartBeatRequest) and len(read.marks) == 64
    for name in ("group_id", "nonce", "mac"):
        with pytest.raises(BodyError, match=name):
            decode_request(RequestCode.HELLO, json.dumps({name: "x" * 129}).encode(), 1)
    for name in ("store_id", "peers_hash"):  # the first is even made durable
        with pytest.raises(BodyError, match=name):
            decode_request(RequestCode.HELLO, json.dumps({name: "x" * 129}).encode(), 1)
    with pytest.raises(BodyError, match="store_id"):
        decode_request(RequestCode.HELLO, json.dumps({"record": {"store_id": "x" * 129}}).encode(), 1)
    with pytest.raises(BodyError, match="life"):
        decode_request(RequestCode.HELLO, json.dumps({"life_ids": ["x" * 129]}).encode(), 1)
    with pytest.raises(BodyError, match="HELLO of"):
        decode_request(RequestCode.HELLO, json.dumps({"recorded": {"n1": "x" * 70_000}}).encode(), 1)
    with pytest.raises(BodyError, match="HELLO of"):
        decode_response(RequestCode.HELLO, json.dumps({"api_url": "x" * 70_000}).encode(), 1)
    with pytest.raises(BodyError, match="id has"):
        decode_request(RequestCode.HEART_BEAT, json.dumps({"term": 1, "marks": [{"id": "x" * 129}]}).encode(), 1)


def test_whether_a_peer_is_proven_is_never_read_from_its_own_words() -> None:
    found = decode_request(RequestCode.HELLO, b'{"proven":true}', 1)
    assert isinstance(found, Hello) and not found.proven
