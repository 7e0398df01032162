"""Targets: what comes through a socket. Frames in both header forms, JSON bodies of every code, binary bodies."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from node.protocol.codes import FlushMode, RequestCode, ResponseCode, VoteResult, VoterState
from node.protocol.entry import SLAB_BYTES_MAX, Slab, crc32
from node.protocol.group_kind import NO_PATCH
from node.protocol.messages import (
    FetchRequest,
    FetchResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    MemberMark,
    Message,
    PeerRecord,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    TransferRequest,
    TransferResponse,
    TransferTicket,
    VoteRequest,
    VoteResponse,
)
from node.protocol.slab_encode import encode_slab
from node.transport.awaited_frames import AwaitedRead, decode_awaited_read, encode_awaited_read
from node.transport.bodies import BodyError, decode_request, decode_response, dump, encode_message, load, request_code
from node.transport.fetch_frames import (
    FETCH_ANSWER,
    decode_fetch,
    decode_fetch_answer,
    encode_fetch,
    encode_fetch_answer,
)
from node.transport.lane_frames import (
    LANE_HEAD,
    LaneAnswer,
    LaneAppend,
    decode_lane_append,
    encode_lane_append,
    lane_answer,
    lane_fields,
)
from node.transport.remoting import Frame, FrameDecoder, FrameError, decode_frame, encode_frame
from node.transport.slab_frames import (
    PUSH_HEAD,
    AppendAnswer,
    AppendedByte,
    AppendRequest,
    PushEncoder,
    ReadAnswer,
    ReadMode,
    ReadRequest,
    decode_append,
    decode_append_answer,
    decode_push,
    decode_push_answer,
    decode_read,
    decode_read_answer,
    encode_append,
    encode_append_answer,
    encode_push_answer,
    encode_read,
    encode_read_answer,
)
from tests.conftest import VECTORS
from tests.fuzz.target import Target

TICKET = TransferTicket(4, "n2", "nonce")
REQUESTS: tuple[Message, ...] = (
    Hello(
        1, "g", "n1", "store-n1", VoterState.VOTER, 12, 0, "hash", 4096, 1024, FlushMode.SYNC, False,
        "http://127.0.0.1:1", "token", ("slab",), 1, 2, ResponseCode.SUCCESS, "detail", {"n0": "s0", "n2": "s2"}, False,
        7, "group-id", ("l1", "l2"), 500, 6, PeerRecord("s0", "l0", 8, 5), "nonce", "mac",
    ),
    VoteRequest(1, "n1", 5, 12, 4, ticket=TICKET),
    VoteRequest(1, "n1", 5, 12, 4, pre=True, reform=True),
    HeartBeatRequest(1, "n1", 5, 12, 0x8479A123, (MemberMark("n0", 8, 5),)),
    TransferRequest(1, 5, "n2", 12, TICKET),
    ReadIndexRequest(1, 5),
)  # fmt: skip
ANSWERS: tuple[tuple[RequestCode, Message], ...] = (
    (RequestCode.HELLO, replace(REQUESTS[0], answer=True)),
    (RequestCode.VOTE, VoteResponse(1, 5, VoteResult.ACCEPT)),
    (RequestCode.HEART_BEAT, HeartBeatResponse(1, 5, ResponseCode.SUCCESS, 12, VoterState.VOTER)),
    (RequestCode.LEADERSHIP_TRANSFER, TransferResponse(1, 5, ResponseCode.SUCCESS)),
    (RequestCode.READ_INDEX, ReadIndexResponse(1, 5, ResponseCode.SUCCESS, 12, 13)),
)
# What a first byte stands for where the target's input begins with a request code.
CODES: tuple[int, ...] = tuple(int(code) for code in RequestCode)


def coded(code: int, body: bytes) -> bytes:
    """An input of the targets that choose a decoder by the request code."""
    return bytes([CODES.index(code)]) + body


def uncoded(data: bytes) -> tuple[RequestCode, bytes]:
    return RequestCode(CODES[data[0] % len(CODES)] if data else CODES[0]), data[1:]


@cache
def recorded(kind: str) -> tuple[bytes, ...]:
    """Frames that real Java nodes exchanged, where they are at hand (they are not part of a clone)."""
    return tuple(path.read_bytes() for path in sorted((VECTORS / "rpc").glob(f"*.{kind}.bin")))


# --- frames -----------------------------------------------------------------------------------------------------------
def binary_frame(frame: Frame) -> bytes:
    """The frame with the binary ROCKETMQ header (FORMATS 1), written from the description alone."""
    ext = b"".join(
        struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()
        for key, value in (frame.ext_fields or {}).items()
    )
    remark = (frame.remark or "").encode()
    code = frame.code - 65536 if frame.code >= 32768 else frame.code
    header = struct.pack(">hbhiii", code, 3, frame.version, frame.opaque, frame.flag, len(remark)) + remark
    header += struct.pack(">i", len(ext)) + ext
    return struct.pack(">iI", 4 + len(header) + len(frame.body), 1 << 24 | len(header)) + header + frame.body


def frame_seeds() -> Sequence[bytes]:
    plain = Frame(50001, 7, b'{"group":"g"}')
    rich = Frame(50002, -1, b"body", 3, "a remark", {"key": "value", "k2": ""})
    return [encode_frame(plain), encode_frame(rich), binary_frame(plain), binary_frame(rich), *recorded("req")[:12]]


def frame(data: bytes) -> None:
    """What decodes encodes, and decodes to the same."""
    found = decode_frame(data)
    try:
        again = encode_frame(found)
    except UnicodeEncodeError as error:
        raise AssertionError("a frame that was read cannot be written") from error
    assert decode_frame(again) == found


def stream(data: bytes) -> None:
    """Cut into pieces of any size, a stream gives the frames that it gives in one piece."""
    step = data[0] + 1 if data else 1
    whole, whole_error = _frames(data[1:], len(data))
    cut, cut_error = _frames(data[1:], step)
    assert cut == whole
    assert cut_error == whole_error
    for one in whole:
        assert isinstance(one, Frame)


def _frames(data: bytes, step: int) -> tuple[list[Frame], bool]:
    decoder, found, at = FrameDecoder(), [], 0
    while at < len(data):
        room = decoder.writable()
        size = min(step, len(room), len(data) - at)
        assert size > 0
        room[:size] = data[at : at + size]
        at += size
        found += decoder.filled(size)
        if decoder.broken is not None:
            return found, True
        assert decoder.buffer_bytes <= 4 * max(len(data), 32 * 1024)
    return found, False


def stream_seeds() -> Sequence[bytes]:
    frames = frame_seeds()
    return [b"\x06" + b"".join(frames[:4]), b"\xff" + frames[0] * 3, *(b"\x30" + one for one in frames)]


# --- JSON bodies ------------------------------------------------------------------------------------------------------
def json_push() -> bytes:
    """An APPEND as DLedger writes it."""
    entry = {
        "body": "aGVsbG8=", "bodyCrc": 0, "chainCrc": 0, "channel": 0, "index": 3, "magic": 1, "pos": 0, "size": 53,
        "term": 1,
    }  # fmt: skip
    fields = {"entries": [entry, {**entry, "index": 4, "pos": 53}], "leaderId": "n1", "term": 1, "type": "APPEND"}
    return json.dumps({**fields, "group": "g", "commitIndex": 2, "preLogIndex": -1, "preLogTerm": -1}).encode()


def request_seeds() -> Sequence[bytes]:
    seeds = [coded(RequestCode.PUSH, json_push())]
    for message in REQUESTS:
        code = request_code(message)
        assert code is not None
        seeds.append(coded(code, encode_message(message, "g", "n1", "n0")))
    for raw in recorded("req"):
        found = decode_frame(raw)
        if found.code in CODES:
            seeds.append(coded(found.code, found.body))
    return seeds


def request(data: bytes) -> None:
    """A member's request; what our own encoder can write reads back as the same."""
    code, body = uncoded(data)
    message = decode_request(code, body, 7)
    if isinstance(message, PushRequest):
        if message.slab is not None:
            b"".join(PushEncoder().encode(message))
        return
    again = decode_request(code, encode_message(message, "g", "n1", "n0"), 7)
    assert again == message


def answer_seeds() -> Sequence[bytes]:
    seeds = [coded(code, encode_message(message, "g", "n1", "n0")) for code, message in ANSWERS]
    for raw_request, raw in zip(recorded("req"), recorded("resp"), strict=False):
        code = decode_frame(raw_request).code
        if code in CODES:
            seeds.append(coded(code, decode_frame(raw).body))
    return seeds


def answer(data: bytes) -> None:
    code, body = uncoded(data)
    message = decode_response(code, body, 7)
    if not isinstance(message, PushResponse):
        again = decode_response(code, encode_message(message, "g", "n1", "n0"), 7)
        assert again == message


# --- binary bodies ----------------------------------------------------------------------------------------------------
def slab_of_many(count: int) -> Slab:
    return encode_slab([b"body %d" % (number % 7) * (number % 3) for number in range(count)], 5, 3, 4096, 0xABCD)


@cache
def push_seeds() -> Sequence[bytes]:
    encoder = PushEncoder()
    seeds = []
    for slab in (slab_of_many(1), slab_of_many(3), slab_of_many(30)):
        append = PushRequest(7, PushKind.APPEND, "n1", 3, 1, 4, 4, 3, slab.prev_chain, slab.first_index, slab)
        seeds += [b"".join(encoder.encode(one)) for one in (append, replace(append, prev_chain=None))]
    for kind in (PushKind.COMMIT, PushKind.COMPARE, PushKind.TRUNCATE):
        seeds.append(b"".join(encoder.encode(PushRequest(7, kind, "n1", 3, 1, 4, 4, 3, 0xABCD, 5))))
    return seeds


def repair_push(data: bytes) -> bytes:
    """The slab's length and CRC say again what is there."""
    if len(data) < PUSH_HEAD.size:
        return data
    head = list(PUSH_HEAD.unpack_from(data))
    head[0] = 1
    units_end = PUSH_HEAD.size + head[9] * 32
    if head[1] == PushKind.APPEND and units_end <= len(data):
        head[11], head[14] = len(data) - units_end, crc32(data[units_end:])
    return PUSH_HEAD.pack(*head) + data[PUSH_HEAD.size :]


def push(data: bytes) -> None:
    """What decodes encodes to a body that decodes to the same."""
    found = decode_push(data, "n1", 7)
    assert decode_push(b"".join(PushEncoder().encode(found)), "n1", 7) == found


def push_answer(data: bytes) -> None:
    found = decode_push_answer(data, 7)
    if found.code is not ResponseCode.UNKNOWN:
        assert encode_push_answer(found) == data


def fetch(data: bytes) -> None:
    found = decode_fetch(data, 7)
    assert found.max_bytes <= SLAB_BYTES_MAX
    assert decode_fetch(encode_fetch(found), 7) == found


def fetch_answer(data: bytes) -> None:
    found = decode_fetch_answer(data, 7)
    assert decode_fetch_answer(b"".join(encode_fetch_answer(found)), 7) == found


def repair_fetch_answer(data: bytes) -> bytes:
    """Sizes and CRC say again what is there."""
    if len(data) < FETCH_ANSWER.size:
        return data
    head = list(FETCH_ANSWER.unpack_from(data))
    head[0] = 1
    units_end = FETCH_ANSWER.size + head[7] * 32
    if units_end <= len(data):
        head[9], head[11] = len(data) - units_end, crc32(data[units_end:])
    return FETCH_ANSWER.pack(*head) + data[FETCH_ANSWER.size :]


def append(data: bytes) -> None:
    found = decode_append(data)
    again = b"".join(encode_append(found))
    assert again[4:] == data[4:]  # the flags in front: only ours come back
    assert decode_append(again) == found


def lane_append(data: bytes) -> None:
    found = decode_lane_append(data)
    again = b"".join(encode_lane_append(found))
    head, flags = LANE_HEAD.size, slice(LANE_HEAD.size, LANE_HEAD.size + 4)
    assert (again[:head], again[flags.stop :]) == (data[:head], data[flags.stop :])
    assert decode_lane_append(again) == found


def open_lane_answer(data: bytes) -> None:
    found = lane_answer(load(data))
    assert lane_answer(load(dump(lane_fields(found)))) == found


def append_answer(data: bytes) -> None:
    found = decode_append_answer(data)
    assert decode_append_answer(encode_append_answer(found)) == found


def read(data: bytes) -> None:
    found = decode_read(data)
    again = encode_read(found)
    assert decode_read(again) == found


def awaited_read(data: bytes) -> None:
    assert encode_awaited_read(decode_awaited_read(data)) == data


def read_answer(data: bytes) -> None:
    assert b"".join(encode_read_answer(decode_read_answer(data))) == data


PUSH_ANSWERS = [encode_push_answer(PushResponse(7, ResponseCode.SUCCESS, 1, 3, 5, 5, 5))]
FETCHES = [encode_fetch(FetchRequest(7, 5, 90, 4096))]
FETCH_ANSWERS = [
    b"".join(encode_fetch_answer(FetchResponse(7, code, 90, slab)))
    for code, slab in (
        (ResponseCode.SUCCESS, slab_of_many(3)), (ResponseCode.SUCCESS, slab_of_many(30)),
        (ResponseCode.DISK_ERROR, None),
    )
]  # fmt: skip
APPENDS = [
    b"".join(encode_append(one))
    for one in (AppendRequest([b"one"]), AppendRequest([b"", b"two", b"x" * 300], 12, True), AppendRequest([b""] * 40))
]
LANE_APPENDS = [
    b"".join(encode_lane_append(LaneAppend(3, 2, 17, bodies, 0, patch_at)))
    for bodies, patch_at in (([b"one", b""], NO_PATCH), ([b"x" * 40] * 30, 28))
]
LANE_ANSWERS = [dump(lane_fields(LaneAnswer(ResponseCode.SUCCESS, 3, 2, 17, 100, 1000, -1, "n0", "127.0.0.1:1")))]
APPEND_ANSWERS = [
    encode_append_answer(AppendAnswer(200, 5, 6, 3, AppendedByte.YES)),
    encode_append_answer(AppendAnswer(404, -1, -1, -1, AppendedByte.NOT_APPENDED, "n1", "127.0.0.1:1", "not me")),
]
READS = [encode_read(ReadRequest(5, 4096, ReadMode.FOLLOWER))]
READ_ANSWERS = [b"".join(encode_read_answer(ReadAnswer(200, 9, 5, 12, 3, slab_of_many(3).data)))]

JSON_BYTES_PER_BYTE = 120  # what json.loads may make of "[{},{},…"
TARGETS: tuple[Target, ...] = (
    Target("frame", frame, frame_seeds, (FrameError,), bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("frame_stream", stream, stream_seeds, bytes_per_byte=JSON_BYTES_PER_BYTE, bytes_fixed=1024 * 1024),
    Target("member_request", request, request_seeds, (BodyError,), bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("member_answer", answer, answer_seeds, (BodyError,), bytes_per_byte=JSON_BYTES_PER_BYTE),
    Target("slab_push", push, push_seeds, (BodyError,), repair_push),
    Target("push_answer", push_answer, lambda: PUSH_ANSWERS, (BodyError,)),
    Target("fetch", fetch, lambda: FETCHES, (BodyError,)),
    Target("fetch_answer", fetch_answer, lambda: FETCH_ANSWERS, (BodyError,), repair_fetch_answer),
    Target("append", append, lambda: APPENDS, (BodyError,), bytes_per_byte=64),
    Target("lane_append", lane_append, lambda: LANE_APPENDS, (BodyError,), bytes_per_byte=64),
    Target(
        "open_lane_answer", open_lane_answer, lambda: LANE_ANSWERS, (BodyError,), bytes_per_byte=JSON_BYTES_PER_BYTE
    ),
    Target("append_answer", append_answer, lambda: APPEND_ANSWERS, (BodyError,)),
    Target("read", read, lambda: READS, (BodyError,)),
    Target(
        "awaited_read",
        awaited_read,
        lambda: [encode_awaited_read(AwaitedRead(7, 1 << 20, 1_000))],
        (BodyError,),
    ),
    Target("read_answer", read_answer, lambda: READ_ANSWERS, (BodyError,)),
)
