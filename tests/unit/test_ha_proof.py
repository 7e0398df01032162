"""Who may be an end of an HA connection: the pair's secret, addresses, and strangers that keep no place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from node.ha.frames import ASK, FrameReader, encode_report, slave_says
from node.ha.handshake import hello_of
from node.ha.lineage import PROMOTION
from node.ha.proof import MASTER, SLAVE, Proof
from node.ha.service import CONNECTIONS_MAX
from node.ha.settings import HaSettings
from tests.unit.ha_kit import Pair, put

OLD, NEW = b"o" * 32, b"n" * 32
NOBODY = dataclasses.replace(HaSettings(), admits=lambda _ip: False)


def with_secrets(*secrets: bytes) -> HaSettings:
    return dataclasses.replace(NOBODY, proof=Proof(secrets))


@pytest.mark.parametrize("theirs", [(NEW,), (OLD, NEW), (NEW, OLD)])
def test_ends_with_a_common_secret_are_served(tmp_path: Path, theirs: tuple[bytes, ...]) -> None:
    pair = Pair(tmp_path, with_secrets(NEW, OLD))
    end = put(pair.log, 1, 2)
    slave = pair.slave(settings=with_secrets(*theirs)).connect()
    slave.carry()
    assert slave.client.trouble == "" and slave.log.max_offset == end


@pytest.mark.parametrize(
    ("master", "slave", "words"),
    [
        (with_secrets(NEW), with_secrets(OLD), "secret_file"),
        (with_secrets(NEW), NOBODY, ""),
        (NOBODY, with_secrets(NEW), "proves no secret"),
        (NOBODY, NOBODY, ""),
    ],
)
def test_ends_without_one_are_not(tmp_path: Path, master: HaSettings, slave: HaSettings, words: str) -> None:
    pair = Pair(tmp_path, master)
    put(pair.log, 1, 2)
    other = pair.slave(settings=slave).connect()
    other.carry()
    assert other.log.max_offset == 0 and not pair.service.acks()
    assert words in other.client.trouble + "".join(pair.service.troubles.values())
    assert other.connection is not None and (other.connection.is_closed or other.client.is_closed)


def test_a_stranger_fences_nobody(tmp_path: Path) -> None:
    pair = Pair(tmp_path, with_secrets(NEW))
    later = pair.service.lineage.begun("", 0, is_promoted=True)
    connection = pair.service.accept("10.0.0.9:1", pair.clock())
    assert connection is not None
    connection.receive(encode_report(ASK), pair.clock())
    said = hello_of(pair.log, later, "stranger", "r").to_json()
    for more in ({}, {"nonce": "0" * 64, "mac": "0" * 64}, {"nonce": 7, "mac": []}):
        connection.receive(slave_says(said | more), pair.clock())
    assert connection.is_closed and not pair.fenced and later.epoch == PROMOTION


def test_what_was_said_before_proves_nothing(tmp_path: Path) -> None:
    """A recorded handshake, sent again; and a proof of one end, sent back as the other's."""
    pair = Pair(tmp_path, with_secrets(NEW))
    slave = pair.slave(settings=with_secrets(NEW)).connect()
    recorded = slave.client.next_bytes(pair.clock())
    assert slave.connection is not None
    slave.connection.receive(recorded, pair.clock())
    slave.client.receive(slave.connection.next_bytes(pair.clock()), pair.clock())
    recorded += slave.client.next_bytes(pair.clock())
    again = pair.service.accept("10.0.0.9:1", pair.clock())
    assert again is not None
    again.receive(recorded, pair.clock())
    assert again.is_closed and "secret" in again.closed_by
    proof, one, two = Proof([NEW]), {"nonce": "1"}, {"nonce": "2"}
    mac = proof.mac(SLAVE, one, two)
    assert proof.is_proved(SLAVE, mac, one, two)
    assert not proof.is_proved(MASTER, mac, one, two)
    assert not proof.is_proved(SLAVE, mac, two, one)
    assert not proof.is_proved(SLAVE, mac, one, two | {"more": 1})


@pytest.mark.parametrize("admits", [True, False])
def test_slaves_of_rocketmq_come_from_the_list_only(tmp_path: Path, admits: bool) -> None:
    asked: list[str] = []

    def listed(ip: str) -> bool:
        asked.append(ip)
        return admits

    pair = Pair(tmp_path, dataclasses.replace(with_secrets(NEW), admits=listed))
    put(pair.log, 1)
    connection = pair.service.accept("10.0.0.9:1", pair.clock())
    assert connection is not None
    connection.receive(encode_report(0), pair.clock())
    assert connection.is_closed is not admits and asked == ["10.0.0.9"]


def test_strangers_keep_no_slave_out_and_go_when_they_say_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, 1)
    for number in range(CONNECTIONS_MAX):
        assert pair.service.accept(f"10.0.0.9:{number}", pair.clock()) is not None
    slave = pair.slave().connect()
    slave.carry()
    assert slave.log.max_offset == pair.log.max_offset
    assert len(pair.service.connections) == CONNECTIONS_MAX
    pair.clock.ms += 5001
    for one in list(pair.service.connections):
        one.next_bytes(pair.clock())
    assert [one.slave for one in pair.service.connections if not one.is_closed] == ["s1"]


def test_those_who_only_ask_keep_no_slave_out(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, 1)
    own = hello_of(pair.log, pair.service.lineage).to_json()
    for number in range(CONNECTIONS_MAX):
        asking = pair.service.accept(f"10.0.0.9:{number}", pair.clock())
        assert asking is not None
        asking.receive(encode_report(ASK), pair.clock())
        asking.receive(slave_says(own), pair.clock())
        assert asking.is_known and not asking.is_closed
    slave = pair.slave().connect()
    slave.carry()
    assert slave.log.max_offset == pair.log.max_offset
    assert len(pair.service.connections) == CONNECTIONS_MAX


def test_a_question_waits_until_the_answer_to_the_one_before_is_taken(tmp_path: Path) -> None:
    """Each reads up to 64 MiB of the log: thousands of them in one piece held the loop for minutes."""
    pair = Pair(tmp_path)
    end = put(pair.log, 1)
    connection = pair.service.accept("10.0.0.9:1", pair.clock())
    assert connection is not None
    connection.receive(encode_report(ASK), pair.clock())
    connection.receive(slave_says(hello_of(pair.log, pair.service.lineage).to_json()), pair.clock())
    question = slave_says({"ranges": [[0, end]]})
    for _ in range(3):
        while connection.next_bytes(pair.clock()):
            pass
        connection.receive(question, pair.clock())
        assert not connection.is_closed
    connection.receive(question * 1000, pair.clock())
    assert connection.is_closed and "before the answer" in connection.closed_by


def test_a_broker_that_only_asks_leaves_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path, with_secrets(NEW))
    connection = pair.service.accept("10.0.0.9:1", pair.clock())
    assert connection is not None
    connection.receive(encode_report(ASK), pair.clock())
    [frame] = FrameReader().feed(connection.next_bytes(pair.clock()))
    theirs: dict[str, Any] = frame.said or {}
    own = hello_of(pair.log, pair.service.lineage).to_json() | {"nonce": Proof([NEW]).nonce()}
    own["mac"] = Proof([NEW]).mac(SLAVE, theirs, own)
    connection.receive(slave_says(own), pair.clock())
    [frame] = FrameReader().feed(connection.next_bytes(pair.clock()))
    assert frame.said is not None
    assert Proof([NEW]).is_proved(MASTER, frame.said["mac"], theirs, own, frame.said)
    assert pair.service.troubles == {} and pair.notes == []
