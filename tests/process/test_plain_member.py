"""A plain or foreign process where a member should be (SAFETY C8).

A forming group with a plain voter refuses to elect, and says so; an established one serves on, under an alarm that ends
when that process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.client import LedgerClient
from node.protocol.codes import RemotingCode
from node.transport.remoting import FLAG_RESPONSE, Frame, encode_frame
from tests.ports import free_ports
from tests.process.group import START_WITHIN_S, Group, all_hold, all_vote, append_surely

pytestmark = pytest.mark.process
UNSUPPORTED_TEXT = "request type 52000 not supported"


def answer_like_dledger(connection: socket.socket) -> None:
    """REQUEST_CODE_NOT_SUPPORTED, as the Java node does with a HELLO."""
    length = int.from_bytes(connection.recv(4), "big")
    received = b""
    while len(received) < length and (part := connection.recv(length - len(received))):
        received += part
    header_bytes = int.from_bytes(received[1:4], "big")
    opaque = json.loads(received[4 : 4 + header_bytes])["opaque"]
    refused = Frame(RemotingCode.REQUEST_CODE_NOT_SUPPORTED, opaque, b"", FLAG_RESPONSE, UNSUPPORTED_TEXT)
    connection.sendall(encode_frame(refused))
    connection.recv(1)


def answer_like_a_web_server(connection: socket.socket) -> None:
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.recv(1 << 16)


def serve(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Answers the first frame of every connection, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(5)
            answer(connection)


@contextlib.contextmanager
def process_at(address: str, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something listens there that is no member."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as listener:
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # ends the wait in accept()


async def alarms_about(client: LedgerClient, member: str, peer: str) -> list[str]:
    state = await client.state(member)
    return [alarm["code"] for alarm in state["alarms"] if alarm["peer_id"] == peer]


async def until_alarms(client: LedgerClient, members: tuple[str, ...], peer: str, expected: list[str]) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    for member in members:
        while (found := await alarms_about(client, member, peer)) != expected:
            assert time.monotonic() < deadline, f"{member} says {found} about {peer}"
            await asyncio.sleep(0.05)


def test_an_established_group_serves_on_beside_what_is_no_member(group: Group) -> None:
    group.start_all()

    async def work() -> None:
        client = group.client()
        try:
            first = await append_surely(client, b"before")
            await all_vote(client, group.peers)
            await all_hold(client, ("n0", "n1"), first)
            group.kill("n2")
            for answer, alarm in ((answer_like_dledger, "plain_member"), (answer_like_a_web_server, "foreign_process")):
                with process_at(group.peers["n2"], answer):
                    await until_alarms(client, ("n0", "n1"), "n2", [alarm])
                    index = await append_surely(client, b"beside it")
                    assert [entry.body for entry in await client.read(index, 1)] == [b"beside it"]
                    assert [group.processes[one].poll() for one in ("n0", "n1")] == [None, None]
                await until_alarms(client, ("n0", "n1"), "n2", [])
            group.start("n2")
            await all_vote(client, group.peers)
        finally:
            await client.close()

    asyncio.run(work())


def test_a_group_with_a_plain_voter_is_refused(tmp_path: Path) -> None:
    own, plain = free_ports(2)
    with process_at(f"127.0.0.1:{plain}", answer_like_dledger):
        peers = f"n0-127.0.0.1:{own};n1-127.0.0.1:{plain}"
        command = [sys.executable, "-m", "node.server", "--id", "n0", "--group", "g", "--peers", peers]
        engine = subprocess.run(
            [*command, "--data", str(tmp_path), "--init"], capture_output=True, text=True, timeout=60, check=False
        )
    assert engine.returncode == 3, engine.stderr
    said = engine.stderr.strip().splitlines()[-1]
    assert "n1" in said and "DLedger" in said
    assert "n1" in json.loads((tmp_path / "engine-refused.json").read_text())["reason"]
