"""What two members said to each other while they proved the secret, said again after a restart, to either end.

Which members and how much of it is drawn from a seed (ATTACK_SEED has others drawn). It proves nothing: nonces are
fresh for every connection of every process.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from node.client import LedgerClient
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.remoting import Frame, decode_frame
from tests.attack.remoting_kit import drawn
from tests.process.test_refusals import Wire
from tests.process.test_secret import SecretGroup, forged
from tests.process.undisturbed import begun, in_client, quietly, settled, until

pytestmark = pytest.mark.process
KEPT_BYTES: Final = 1 << 16  # of each direction of a connection


class Recorder:
    """A relay to one port that keeps how each connection began, in both directions."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.records: list[tuple[bytearray, bytearray]] = []  # what the dialer said, what was answered
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                dialer, _ = self.listening.accept()
            except OSError:
                return
            host, _, port = self.to.rpartition(":")
            try:
                accepter = socket.create_connection((host, int(port)))
            except OSError:
                dialer.close()
                continue
            record = bytearray(), bytearray()
            self.records.append(record)
            for source, sink, kept in ((dialer, accepter, record[0]), (accepter, dialer, record[1])):
                threading.Thread(target=self.pass_on, args=(source, sink, kept), daemon=True).start()

    def pass_on(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data[: KEPT_BYTES - len(kept)]
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


class Recorded(SecretGroup):
    """Members that reach each other through recorders."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.recorders = {
            (source, target): Recorder(address)
            for target, address in self.peers.items() for source in self.peers if source != target
        }  # fmt: skip

    def arguments(self, node_id: str, *more: str) -> list[str]:
        words = super().arguments(node_id, *more)
        reached = {
            target: address if target == node_id else self.recorders[node_id, target].address
            for target, address in self.peers.items()
        }
        words[words.index("--peers") + 1] = ";".join(f"{member}-{address}" for member, address in reached.items())
        return words

    def close(self) -> None:
        super().close()
        for one in self.recorders.values():
            one.close()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with begun(Recorded(tmp_path_factory.mktemp("recorded"))) as made:
        yield made


def frames(data: bytes) -> list[Frame]:
    """The whole ones."""
    found, at = [], 0
    while at + 4 <= len(data) and at + 4 + (size := int.from_bytes(data[at : at + 4], "big")) <= len(data):
        found.append(decode_frame(data[at : at + 4 + size]))
        at += 4 + size
    return found


def proofs(group: Recorded, dialer: str, accepter: str) -> list[tuple[bytes, bytes]]:
    """What was said on connections that were proved."""
    records = [(bytes(said), bytes(answered)) for said, answered in group.recorders[dialer, accepter].records]
    codes = [[frame.code for frame in frames(said)[:2]] for said, _ in records]
    return [one for one, begins in zip(records, codes, strict=True) if begins == [RequestCode.HELLO, RequestCode.PROOF]]


def say_again(group: Recorded, accepter: str, said: bytes, rng: random.Random) -> None:
    """HELLO and PROOF one after the other, or all in one piece: the proof is refused, and the connection ended."""
    hello, proof = frames(said)[:2]
    size = 4 + int.from_bytes(said[:4], "big")
    with Wire(group, accepter) as wire:
        if rng.random() < 0.5:
            offered = json.loads(wire.ask(said[:size]).body)
            assert "mac" in offered and "store_id" not in offered and "end_index" not in offered
            answer = json.loads(wire.ask(said[size : size + 4 + int.from_bytes(said[size : size + 4], "big")]).body)
        else:
            with contextlib.suppress(OSError):
                wire.socket.sendall(said)
            assert wire.answer().opaque == hello.opaque
            refused = wire.answer()
            assert refused.opaque == proof.opaque
            answer = json.loads(refused.body)
        assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER
        with contextlib.suppress(ConnectionError):
            assert wire.ended()
    with Wire(group, accepter) as wire:  # nor does it help to say what only a member may
        wire.ask(said[:size])
        assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}


def test_what_was_said_before_a_restart_proves_nothing_after_it(group: Recorded) -> None:
    rng = drawn("replayed proofs")

    async def recorded_and_restarted(client: LedgerClient) -> tuple[str, dict[str, bytes]]:
        leader = await settled(group, client)
        accepter = rng.choice([one for one in group.peers if one != leader])
        said = {one: rng.choice(proofs(group, one, accepter))[0] for one in group.peers if one != accepter}
        group.kill(accepter)
        group.start(accepter)
        await settled(group, client)
        return accepter, said

    accepter, said = in_client(group, recorded_and_restarted)

    async def attack(_client: LedgerClient) -> None:
        for dialer in rng.sample(list(said), len(said)):
            for _ in range(rng.randrange(1, 4)):
                say_again(group, accepter, said[dialer], rng)

    quietly(group, attack)


def test_answers_of_before_a_restart_make_nobody_that_member(group: Recorded) -> None:
    """At the address of a member that is down: whoever dials it hears what it answered once."""
    rng = drawn("replayed answers")

    async def work(client: LedgerClient) -> None:
        leader = await settled(group, client)
        member = rng.choice([one for one in group.peers if one != leader])
        answered = rng.choice([one for _, one in proofs(group, leader, member)])
        group.kill(member)
        host, _, port = group.peers[member].rpartition(":")
        listening = socket.create_server((host, int(port)))
        heard: list[int] = []

        def serve() -> None:
            while True:
                try:
                    dialer, _ = listening.accept()
                except OSError:
                    return
                with dialer, contextlib.suppress(OSError):
                    heard.append(len(dialer.recv(1 << 16)))
                    dialer.sendall(answered)
                    while dialer.recv(1 << 16):
                        pass

        threading.Thread(target=serve, daemon=True).start()

        async def dialled_again() -> bool:
            return len(heard) > 3

        try:
            await until(dialled_again, "another connection")
            peers = (await client.state(await client.leader()))["peers"]
            assert [one["connected"] for one in peers if one["id"] == member] == [False]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            group.start(member)
        await settled(group, client)

    in_client(group, work)
