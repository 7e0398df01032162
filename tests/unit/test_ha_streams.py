"""The recorded streams of a real master and slave against both of our sides, to the byte."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from node.ha.client import HAClient, State
from node.ha.connection import HAConnection
from node.ha.frames import FrameReader, encode_header
from node.ha.lineage import Lineage
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.message_store.local_log import LocalCommitLog
from tests.conftest import VECTORS
from tests.unit.ha_kit import Clock, SlaveStore

HA = VECTORS / "rocketmq" / "ha"
FILE_BYTES = 16_384
pytestmark = pytest.mark.usefixtures("vectors")


def case_of(name: str) -> dict[str, Any]:
    index = json.loads((HA / "index.json").read_text())
    return next(one for one in index["cases"] if one["case"] == name and "connections" in one)


def frames_of(name: str) -> list[tuple[int, bytes]]:
    stream = (HA / f"{name}.c1.m2s.bin").read_bytes()
    found = []
    for at, offset, size in case_of(name)["connections"][0]["frames_streamPos_offset_size"]:
        assert struct.unpack_from(">qi", stream, at) == (offset, size)
        found.append((offset, stream[at + 12 : at + 12 + size]))
    return found


def reports_of(name: str) -> list[int]:
    stream = (HA / f"{name}.c1.s2m.bin").read_bytes()
    found = [one for (one,) in struct.iter_unpack(">q", stream)]
    assert found == case_of(name)["connections"][0]["reports"]
    return found


def quiet(_kind: str, _severity: str, _text: str) -> None: ...


def log_with(root: Path, data: bytes, begin: int) -> LocalCommitLog:
    log = LocalCommitLog(root, FILE_BYTES)
    while data:
        place = log.max_offset if log.starts else begin
        taken = log.append_data(place, data[: FILE_BYTES - place % FILE_BYTES])
        assert taken
        data = data[taken:]
    return log


def master_of(log: LocalCommitLog) -> HAConnection:
    service = HAService(log, HaSettings(), BrokerRole.SYNC_MASTER, Lineage().begun("p", 0), quiet)
    connection = service.accept("10.0.0.9:4000", 0)
    assert connection is not None
    return connection


@pytest.mark.parametrize("piece", [1, 7, 8, 4096])
@pytest.mark.parametrize("name", ["fresh", "resume", "sync"])
def test_our_master_answers_a_recorded_slave_with_the_recorded_bytes(name: str, piece: int, tmp_path: Path) -> None:
    """The log grows as it did there; heartbeats come when the clock says so. In `fresh` that master sent its last file
    only: here its log begins there, for ours sends everything (oddity 8)."""
    frames = frames_of(name)
    reports = (HA / f"{name}.c1.s2m.bin").read_bytes()
    files = b"".join(one.read_bytes() for one in sorted((HA / "files").glob("master.*")))
    begin = {"fresh": 16_384, "resume": 16_384, "sync": 0}[name]
    before = files[: 33_300 - 16_384] if name == "resume" else b""
    log = log_with(tmp_path, before, begin)
    expected = (HA / f"{name}.c1.m2s.bin").read_bytes()
    sent, now, connection = b"", 0, None
    for offset, body in frames:
        if body:
            log.append_data(offset, body)
        else:
            now += 5001
        if connection is None:  # what the slave asked for is there
            connection = master_of(log)
            for at in range(0, 8, piece):
                connection.receive(reports[at : min(8, at + piece)], now)
        sent += connection.next_bytes(now)
        assert connection.next_bytes(now) == b""
    assert sent == expected
    for at in range(8, len(reports), piece):
        assert connection is not None
        connection.receive(reports[at : at + piece], now)
    assert connection is not None and not connection.closed_by
    assert connection.slave_ack_offset == log.max_offset


@pytest.mark.parametrize("piece", [1, 13, 5000, 1 << 20])
@pytest.mark.parametrize("name", ["fresh", "resume", "sync"])
def test_our_slave_takes_a_recorded_masters_bytes_and_reports_what_the_recorded_slave_did(
    name: str, piece: int, tmp_path: Path
) -> None:
    frames = frames_of(name)
    first = frames[0][0]
    files = b"".join(one.read_bytes() for one in sorted((HA / "files").glob("master.*")))
    begin = 0 if name == "sync" else 16_384
    log = log_with(tmp_path, files[: first - begin] if name == "resume" else b"", begin)
    clock = Clock()
    client = HAClient(SlaveStore(log), HaSettings(), "s1", "r1", Lineage(), lambda _, then: then(""), quiet)
    client.connected(clock.ms)
    assert client.next_bytes(clock.ms) == struct.pack(">q", -1), "which that master takes for no request"
    clock.ms += 500
    sent = client.next_bytes(clock.ms)
    for offset, body in frames:
        if not body:
            clock.ms += 5001
        data = struct.pack(">qi", offset, len(body)) + body
        for at in range(0, len(data), piece):
            client.receive(data[at : at + piece], clock.ms)
        found = client.next_bytes(clock.ms)
        sent += found
    reported = [one for (one,) in struct.iter_unpack(">q", sent)]
    assert reported[0] == reports_of(name)[0] and set(reports_of(name)) <= set(reported)
    assert client.state is State.TRANSFER and not client.closed_by
    whole = frames[-1][0] + len(frames[-1][1])
    assert log.max_offset == whole
    for start in log.starts:
        ours = log.read(start, FILE_BYTES)
        if name != "sync" and start < 16_384 + len(files):
            assert ours == files[start - 16_384 :][: len(ours)]


def test_a_frame_at_another_place_than_the_slaves_end_closes_and_writes_nothing(tmp_path: Path) -> None:
    """`wrongoffset`: the recorded slave closes within a millisecond."""
    files = (HA / "files/master.00000000000000016384").read_bytes()
    log = log_with(tmp_path, files, 16_384)
    client = HAClient(SlaveStore(log), HaSettings(), "s1", "r1", Lineage(), lambda _, then: then(""), quiet)
    client.connected(0)
    client.next_bytes(500)
    client.receive(struct.pack(">qi", log.max_offset + 100, 0), 500)
    assert client.state is State.CLOSED and "goes on at" in client.closed_by
    assert log.max_offset == 32_768


def test_oddity_7_a_recorded_slave_that_is_ahead_is_refused_with_a_reason(tmp_path: Path) -> None:
    """There it stays connected silently, and its log ends in bytes that nobody can read."""
    files = b"".join(one.read_bytes() for one in sorted((HA / "files").glob("master.*")))
    log = log_with(tmp_path / "m", files[: 42_839 - 16_384], 16_384)
    connection = master_of(log)
    connection.receive(struct.pack(">q", reports_of("ahead")[0]), 0)
    assert "ends at 44137, this master at 42839" in connection.closed_by and connection.next_bytes(6000) == b""


def test_oddity_7_our_slave_never_writes_from_the_middle_of_a_record(tmp_path: Path) -> None:
    """The same as a slave: the recorded master sends from 44137 on, where its own record does not begin."""
    last = (HA / "files/slave-ahead.00000000000000032768").read_bytes()[: 44_137 - 32_768]
    first = (HA / "files/master.00000000000000016384").read_bytes()
    log = log_with(tmp_path, first + last, 16_384)
    assert log.max_offset == 44_137
    client = HAClient(SlaveStore(log), HaSettings(), "s1", "r1", Lineage(), lambda _, then: then(""), quiet)
    client.connected(0)
    client.next_bytes(500)
    for offset, body in frames_of("ahead"):
        client.receive(struct.pack(">qi", offset, len(body)) + body, 500)
    assert client.state is State.CLOSED and client.trouble
    assert log.max_offset == 44_137


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_the_same_wherever_the_socket_writes_them(seed: int) -> None:
    rng = random.Random(seed)
    frames = [(rng.randrange(1 << 40), rng.randbytes(rng.choice([0, 1, 11, 300, 70_000, 200_000]))) for _ in range(12)]
    sent = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    reader, found, at = FrameReader(), [], 0
    while at < len(sent):
        room = reader.room
        size = min(len(room), len(sent) - at, rng.choice([1, 12, 13, 5000, 1 << 20]))
        room[:size] = sent[at : at + size]
        found += reader.fill(size)
        at += size
    assert [(one.offset, bytes(one.body)) for one in found] == frames
    assert [(one.offset, bytes(one.body)) for one in FrameReader().feed(sent)] == frames
