"""What an engine says no to: bad frames, bad bodies, strangers, and starts that an operator must settle."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
from typing import Any

import pytest

from node.protocol.codes import RequestCode, ResponseCode
from node.transport.remoting import FRAME_BYTES_MAX, Frame, decode_frame, encode_frame
from node.transport.slab_frames import READ_ANSWER, decode_append_answer
from tests.process.group import Group

pytestmark = pytest.mark.process
WITHIN_S = 60.0


class Wire:
    """A raw connection to one member."""

    def __init__(self, group: Group, member: str = "n0") -> None:
        host, _, port = group.peers[member].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=WITHIN_S)

    def ask(self, raw: bytes) -> Frame:
        self.socket.sendall(raw)
        return self.answer()

    def answer(self) -> Frame:
        prefix = self._exactly(4)
        return decode_frame(prefix + self._exactly(int.from_bytes(prefix, "big")))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the connection closed without an answer"
            data += piece
        return data

    def ended(self) -> bool:
        return self.socket.recv(1) == b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def request(code: int, body: Any = None, opaque: int = 7) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
    return encode_frame(Frame(code, opaque, raw))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (struct.pack(">iI", FRAME_BYTES_MAX, 0), "are allowed"),
        (struct.pack(">iI", -5, 0), "are allowed"),
        (struct.pack(">iI", 100, 5 << 24), "header type 5"),
        (struct.pack(">iI", 10, 0xFFFFFF), "header of"),
        (struct.pack(">iI", 8, 4) + b"nope", "not JSON"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "are allowed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
    ],
)
def test_what_is_no_frame_is_answered_and_ends_that_connection_only(running: Group, raw: bytes, said: str) -> None:
    with Wire(running) as good:
        with Wire(running) as bad:
            answer = bad.ask(raw)
            assert answer.is_response
            assert said in (answer.remark or "")
            assert bad.ended()
        assert good.ask(request(RequestCode.METADATA, {"group": "g"})).code == 200


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (RequestCode.APPEND, b"{", ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.APPEND, b"[" * 50_000, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.APPEND, {"group": "g", "body": 5}, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.APPEND, {"group": "g", "body": "not base64!"}, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.APPEND, {"group": "other", "body": ""}, ResponseCode.UNKNOWN_GROUP),
        (RequestCode.APPEND, {"group": "g", "remoteId": "n7", "body": ""}, ResponseCode.UNKNOWN_MEMBER),
        (RequestCode.METADATA, {"group": "other"}, ResponseCode.UNKNOWN_GROUP),
        (RequestCode.GET, {"group": "other", "beginIndex": 0}, ResponseCode.UNKNOWN_GROUP),
        (RequestCode.GET, {"group": "g", "beginIndex": "0"}, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.INTROSPECT, {"what": "weather"}, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.LEADERSHIP_TRANSFER, {"group": "other"}, ResponseCode.UNKNOWN_GROUP),
        (RequestCode.LEADERSHIP_TRANSFER, {"group": "g", "deadlineMs": -1}, ResponseCode.UNEXPECTED_ARGUMENT),
        (RequestCode.HELLO, {"group": "other", "node_id": "n1"}, ResponseCode.UNKNOWN_GROUP),
        (RequestCode.HELLO, {"group": "g", "node_id": "n9"}, ResponseCode.UNKNOWN_MEMBER),
        (RequestCode.HELLO, {"group": "g", "node_id": "n1", "flush": "maybe"}, ResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_a_bad_request_gets_its_code(running: Group, code: RequestCode, body: Any, expected: ResponseCode) -> None:
    with Wire(running) as wire:
        answer = wire.ask(request(code, body))
        assert (answer.code, answer.opaque) == (200, 7)
        assert json.loads(answer.body)["code"] == expected


@pytest.mark.parametrize(
    "code",
    [RequestCode.VOTE, RequestCode.PRE_VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH, RequestCode.SLAB_PUSH,
     RequestCode.READ_INDEX, RequestCode.INSTALL_SNAPSHOT],
)  # fmt: skip
def test_a_member_code_without_that_members_hello_is_402(running: Group, code: RequestCode) -> None:
    with Wire(running) as wire:
        body = {"group": "g", "leaderId": "n1", "localId": "n1", "term": 1_000_000}
        answer = wire.ask(request(code, body))
        assert json.loads(answer.body)["code"] == ResponseCode.UNEXPECTED_MEMBER
        state = json.loads(wire.ask(request(RequestCode.INTROSPECT, {"what": "state"})).body)
        assert state["term"] < 1_000_000


def test_broken_fast_bodies_get_their_code(running: Group) -> None:
    with Wire(running) as wire:
        lying = struct.pack(">iqI", 0, -1, 0xFFFFFFFF)
        answer = decode_append_answer(wire.ask(request(RequestCode.FAST_APPEND, lying)).body)
        assert (answer.code, answer.appended) == (ResponseCode.UNEXPECTED_ARGUMENT, 1)
        body = wire.ask(request(RequestCode.FAST_READ, b"short")).body
        assert READ_ANSWER.unpack_from(body)[0] == ResponseCode.UNEXPECTED_ARGUMENT


def test_an_unknown_code_is_answered_as_the_original_does(running: Group) -> None:
    with Wire(running) as wire:
        answer = wire.ask(request(50009))
        assert (answer.code, answer.remark) == (3, " request type 50009 not supported")


def test_requests_may_be_pipelined_and_answers_carry_their_opaque(running: Group) -> None:
    with Wire(running) as wire:
        wire.socket.sendall(b"".join(request(RequestCode.METADATA, {"group": "g"}, opaque) for opaque in range(200)))
        assert sorted(wire.answer().opaque for _ in range(200)) == list(range(200))


def ended(process: subprocess.Popen[str], within_s: float = 60.0) -> tuple[int, str]:
    """Exit code and the last line of stderr."""
    _, stderr = process.communicate(timeout=within_s)
    return process.returncode, stderr.strip().splitlines()[-1]


def test_a_second_engine_on_a_store_is_refused(running: Group) -> None:
    code, said = ended(running.spawn(running.arguments("n0")))
    assert code == 3
    assert said.startswith("node: ")
    assert "stop that process first" in said
    reason = json.loads((running.directory / "n0" / "engine-refused.json").read_text())["reason"]
    assert said == f"node: {reason}"


def test_a_port_in_use_is_said(running: Group, group: Group) -> None:
    group.peers = dict(running.peers)
    code, said = ended(group.spawn(group.arguments("n0")))
    assert code == 69
    assert running.peers["n0"] in said


@pytest.mark.parametrize("kind", ["directory", "FIFO"])
def test_what_is_no_data_file_is_refused_and_not_tried_again(group: Group, kind: str) -> None:
    path = group.directory / "n0" / "dledger-n0" / "data" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    code, said = ended(group.spawn(group.arguments("n0")))
    assert code == 3
    assert f"{path} is a {kind}, not a file of this store: move it away" in said


def test_the_store_of_another_node_is_refused(group: Group) -> None:
    group.start("n0")
    assert group.kill("n0", signal.SIGTERM) == 0
    data = group.directory / "n0"
    (data / "dledger-n0").rename(data / "dledger-n1")
    arguments = [word if word != str(group.directory / "n1") else str(data) for word in group.arguments("n1")]
    code, said = ended(group.spawn(arguments))
    assert code == 3
    assert "n0" in said


@pytest.mark.parametrize(
    "arguments", [[], ["--id", "n0"], ["--nonsense"], ["--id", "n0", "--peers", "n1-127.0.0.1:1", "--data", "d"]]
)
def test_a_wrong_command_line_is_one_line(group: Group, arguments: list[str]) -> None:
    process = group.spawn(arguments)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 64
    assert len(stderr.strip().splitlines()) == 1
