"""Our commands against the very bytes that a member of the Java original answered: each sentence holds of them.

A live group of the original cannot be had here. What stands for it answers each request with the recorded frame, in
which the request's number alone is put in; what we ask is held against what the original was asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from node.protocol.codes import RequestCode
from node.transport.connection import Connection
from node.transport.remoting import Frame, decode_frame
from tests.unit.fake_dledger import FakeDledger, running

Capture = pytest.CaptureFixture[str]
APPEND, GET, METADATA, TRANSFER = (
    RequestCode.APPEND, RequestCode.GET, RequestCode.METADATA, RequestCode.LEADERSHIP_TRANSFER,
)  # fmt: skip
UNKNOWN_CODE = "14_UNKNOWN_CODE_remoting3"


class Replayed(FakeDledger):
    """Three members of whom n2 leads, as recorded; `says`: which recording answers a request."""

    def __init__(self, recordings: Path) -> None:
        super().__init__()
        self.recordings = recordings
        self.says: dict[int, str] = {
            METADATA: "00_METADATA_200", APPEND: "03_APPEND_body_200", GET: "10_GET_200",
            TRANSFER: "61_LEADERSHIP_TRANSFER_client-to-leader_200",
        }  # fmt: skip

    def answer(self, member_id: str, connection: Connection, frame: Frame) -> None:
        known = frame.code in self.says
        self.received.append((member_id, frame.code, json.loads(bytes(frame.body)) if known else {}))
        recorded = (self.recordings / f"{self.says.get(frame.code, UNKNOWN_CODE)}.resp.bin").read_bytes()
        connection.send([numbered(recorded, frame.opaque)])

    def asked(self, code: RequestCode) -> list[dict[str, Any]]:
        return [body for _, asked, body in self.received if asked == code]

    def recorded_request(self, name: str) -> dict[str, Any]:
        body = decode_frame((self.recordings / f"{name}.req.bin").read_bytes()).body
        found: dict[str, Any] = json.loads(bytes(body))
        return found


def numbered(recorded: bytes, opaque: int) -> bytes:
    """The recorded frame as the answer to another request; everything else stays as it was written."""
    size = int.from_bytes(recorded[5:8])
    head, body = recorded[8 : 8 + size], recorded[8 + size :]
    was = decode_frame(recorded).opaque
    head = head.replace(b'"opaque":%d,' % was, b'"opaque":%d,' % opaque)
    return (4 + len(head) + len(body)).to_bytes(4) + recorded[4:5] + len(head).to_bytes(3) + head + body


@pytest.fixture
def group(vectors: Path) -> Iterator[Replayed]:
    with running(Replayed(vectors / "rpc")) as fake:
        yield fake  # type: ignore[misc]


def on(group: Replayed, *command: str) -> list[str]:
    return [*command, "--peers", group.peers, "--group", "g0"]


def append(group: Replayed, tmp_path: Path) -> int:
    (tmp_path / "in").write_bytes(b"hello\n")
    return run(on(group, "append", str(tmp_path / "in"), "--json"))


def test_status_knows_who_leads_and_says_that_it_knows_nothing_else(group: Replayed, capsys: Capture) -> None:
    assert run(on(group, "status")) == 2
    said = capsys.readouterr().out
    assert "n2 leads (term unknown); 3 of 3 members answer, whether a quorum stands is unknown" in said
    assert "plain DLedger: only METADATA is known" in said and "down" not in said and "NO QUORUM" not in said
    assert group.asked(METADATA)[0].keys() == group.recorded_request("00_METADATA_200").keys()


def test_append_is_asked_as_the_original_was_and_takes_its_index(
    group: Replayed, tmp_path: Path, capsys: Capture
) -> None:
    assert append(group, tmp_path) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["appended"], reported["unknown"], reported["ranges"]) == (1, 0, [[0, 0]])
    recorded = group.recorded_request("03_APPEND_body_200")
    assert group.asked(APPEND) == [recorded]


@pytest.mark.parametrize(
    ("recording", "exit_code", "unknown"),
    [
        (UNKNOWN_CODE, 1, 0), ("09_APPEND_nobody_remoting1", 75, 1), ("07_APPEND_body_502", 75, 1),
        ("06_APPEND_body_414", 75, 1), ("04_APPEND_body_400", 77, 0),
    ],
)  # fmt: skip
def test_of_an_append_that_failed_is_said_what_is_known(
    recording: str, exit_code: int, unknown: int, group: Replayed, tmp_path: Path, capsys: Capture
) -> None:
    group.says[APPEND] = recording
    assert append(group, tmp_path) == exit_code
    if exit_code != 77:
        assert json.loads(capsys.readouterr().out)["unknown"] == unknown
    assert len(group.asked(APPEND)) == 1


def test_get_shows_what_may_not_be_committed_and_says_so(group: Replayed, capsys: Capture) -> None:
    assert run(on(group, "get", "0", "--json")) == 0
    said = capsys.readouterr()
    (shown,) = [json.loads(line) for line in said.out.splitlines()]
    assert (shown["index"], shown["term"], shown["text"], shown["consistency"]) == (0, 1, "hello", "unverified")
    assert said.err.count("\n") == 1 and "consistency: unverified" in said.err
    assert group.asked(GET)[0] == group.recorded_request("10_GET_200")


@pytest.mark.parametrize(
    ("recording", "exit_code"), [("12_GET_410", 1), ("13_GET_419", 2), ("09_APPEND_nobody_remoting1", 2)]
)
def test_a_get_that_is_refused_for_good_is_asked_once(
    recording: str, exit_code: int, group: Replayed, capsys: Capture
) -> None:
    group.says[GET] = recording
    assert run(on(group, "get", "99")) == exit_code
    assert len(group.asked(GET)) == 1


@pytest.mark.parametrize(
    ("recording", "code"),
    [
        ("62_LEADERSHIP_TRANSFER_client-to-leader_401", 401),
        ("63_LEADERSHIP_TRANSFER_client-to-leader_407", 407),
    ],
)
def test_transfer_sends_term_and_transfer_id_and_only_once_the_loss_is_accepted(
    recording: str, code: int, group: Replayed, capsys: Capture
) -> None:
    group.says[TRANSFER] = recording
    command = on(group, "transfer", "n0", "--if-term", "1", "--json")
    assert run(command) == 1 and group.asked(TRANSFER) == []
    assert "wipes its followers" in capsys.readouterr().err
    assert run([*command, "--accept-data-loss", "n0"]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == code
    assert group.asked(TRANSFER) == [group.recorded_request("61_LEADERSHIP_TRANSFER_client-to-leader_200")]
