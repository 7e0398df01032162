"""Parts of the demo with brokers: what a flight is as a message, what a consumer counts, which ports are taken."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from app.command_line import run
from app.commands.demo import TRY_MESSAGES
from app.commands.endings import Exit
from app.demo.brokers import APART, DERIVED, DemoBrokers
from app.demo.consuming import Counter, write_report
from app.demo.message_feed import MessageFeed, flight_message
from app.demo.ports import Ports
from app.demo.processes import Processes
from node.client import NotAppended, OutcomeUnknown, Unreachable
from node.message_client import NotSent, OutgoingMessage, SendUnknown, Sent, Unavailable
from tests.ports import free_ports


def test_a_flight_is_a_message_of_its_origin() -> None:
    body = json.dumps({"origin": "JFK", "tailnum": "N1", "carrier": "AA"}).encode()
    assert flight_message(body) == OutgoingMessage("flights-JFK", body, keys=("N1",), tags="AA", shard="N1")
    unknown = json.dumps({"origin": "EWR", "tailnum": None, "carrier": "UA"}).encode()
    assert flight_message(unknown) == OutgoingMessage("flights-EWR", unknown, tags="UA")


def test_what_comes_of_a_send_is_what_comes_of_an_append() -> None:
    class Producer:
        def __init__(self) -> None:
            self.ends: list[Exception] = [SendUnknown("?"), Unavailable("away"), NotSent(13, "too long")]

        async def send(self, message: OutgoingMessage) -> Sent:
            if self.ends:
                raise self.ends.pop(0)
            assert (message.topic, message.body) == ("lines", b"x")
            return Sent("A", 0, 0)

    async def story() -> None:
        producer: Any = Producer()
        feed = MessageFeed(producer, flights=False)
        for error in (OutcomeUnknown, Unreachable, NotAppended):
            with pytest.raises(error):
                await feed.append(b"x")
        with pytest.raises(NotAppended, match="has a body"):
            await feed.append(b"")
        assert (await feed.append(b"x")).last_index == -1

    asyncio.run(story())


def test_a_consumer_tells_what_comes_again_and_what_is_left_out(tmp_path: Path) -> None:
    counter = Counter("boards", "*")
    for offset in (7, 8, 8, 7, 9, 12):
        counter.count("T", 0, offset)
    counter.count("T", 1, 0)
    said = counter.said
    assert (said.messages, said.again, said.left_out, said.queues, said.topics) == (5, 2, 2, 2, {"T": 5})
    write_report(tmp_path / "r.json", said)
    assert json.loads((tmp_path / "r.json").read_text())["again"] == 2


def test_brokers_are_apart_and_their_derived_ports_are_theirs(tmp_path: Path) -> None:
    (first,) = free_ports(1)
    first = min(first, 60_000)
    ports, others = Ports(), Ports()
    taken = socket.socket()
    try:
        found = ports.claim_apart(first, 2, APART, DERIVED)
        assert (found[1] - found[0]) % APART == 0 and found[0] >= first
        taken.bind(("127.0.0.1", 0))
        near = taken.getsockname()[1]
        if near < 60_000:
            assert near - 1 not in others.claim_apart(near - 1, 1, APART, DERIVED), "its HA port is in use"
        held = {one + around for one in found for around in DERIVED}
        assert not held & set(others.claim(found[0] - 2, 3))
    finally:
        taken.close()
        ports.release()
        others.release()


def test_a_member_is_started_with_all_name_servers(tmp_path: Path) -> None:
    ports = Ports()
    try:
        brokers = DemoBrokers(["n0", "n1"], ports, Processes(tmp_path), tmp_path, flights=True)
        said = brokers.arguments("n1")
        assert said[:2] == ["--broker", brokers.addresses["n1"]]
        assert f"broker.name_servers={brokers.name_servers}" in said
        assert [one["messages"] for one in brokers.consumed()] == [0, 0], "none has said anything yet"
    finally:
        ports.release()


def test_the_message_to_try_is_sent_and_no_file_is_looked_for() -> None:
    [tried] = [split(arguments) for arguments, _why in TRY_MESSAGES if arguments.startswith("produce ")]
    [port] = free_ports(1)
    assert run([*tried, "--name-server", f"127.0.0.1:{port}", "--deadline", "0.1"]) is Exit.UNREACHABLE
