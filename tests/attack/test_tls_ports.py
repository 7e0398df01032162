"""Attacks on ports that speak TLS, drawn from a seed (ATTACK_SEED has others drawn): handshakes that do not end, what
is no TLS, certificates that are none of ours or name somebody else. Members go on, clients get in, and what a member
says of its peers is true.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from app.command_line import run as quorumscope
from app.pki import Authority, Wanted
from node.client import LedgerClient
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.tls import client_context
from tests.attack.remoting_kit import drawn
from tests.process.group import Group, append_surely
from tests.process.test_refusals import Wire, request
from tests.process.test_secret import forged, hello_as
from tests.process.undisturbed import WITHIN_S, begun, in_client, quietly, settled, until

pytestmark = pytest.mark.process
ROWS: Final = "certificate client = append + read + observe, certificate reader = read"
BAD: Final = ["of another authority", "of itself", "expired", "none"]


class TlsGroup(Group):
    """Members with certificates of one authority; clients may append only where [access] says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pki = directory / "pki"
        assert quorumscope(["pki", "demo", str(self.pki)]) == 0
        self.authority = Authority(2, self.pki)
        self.token_file = directory / "token"  # rows ask for one
        self.token_file.touch(0o600)
        self.token_file.write_text("a-token-of-the-members-0123456789")

    def arguments(self, node_id: str, *more: str) -> list[str]:
        given = {"cert": f"{node_id}.crt", "key": f"{node_id}.key", "ca": "ca.crt"}
        sets = [part for what, name in given.items() for part in ("--set", f"node.tls_{what}_file={self.pki / name}")]
        rows = ("--set", f"node.token_file={self.token_file}", "--set", f"access.rows={ROWS}")
        return super().arguments(node_id, *sets, *rows, *more)

    def context(self, name: str = "client") -> ssl.SSLContext:
        return client_context(self.pki / f"{name}.crt", self.pki / f"{name}.key", self.pki / "ca.crt")

    def client(self, **options: object) -> LedgerClient:
        return super().client(**({"tls": self.context()} | options))

    def made(self, name: str, how: str) -> ssl.SSLContext | None:
        """A context with a certificate for `name` that no member may take."""
        if how == "none":
            return None
        authority = Authority(2, self.pki if how == "expired" else None)
        if how == "expired":
            authority._from, authority._until = (datetime.now(UTC) - timedelta(days=days) for days in (9, 1))
        certificate, key = authority.own() if how == "of itself" else authority.issue(Wanted(name, serves=True))
        made = self.directory / f"{name} {how}"
        made.write_bytes(certificate + key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(made)
        return context


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    with begun(TlsGroup(tmp_path_factory.mktemp("tls"))) as made:
        yield made


class TlsWire(Wire):
    """A raw connection over TLS."""

    def __init__(self, group: TlsGroup, member: str, context: ssl.SSLContext) -> None:
        super().__init__(group, member)
        self.socket = context.wrap_socket(self.socket)


# --- handshakes -----------------------------------------------------------------------------------------------------


def _first_words(context: ssl.SSLContext) -> bytes:
    """A whole ClientHello."""
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


def _says_nothing(_rng: random.Random, _hello: bytes, _one: socket.socket) -> None:
    pass


def _stops_behind_its_hello(_rng: random.Random, hello: bytes, one: socket.socket) -> None:
    one.sendall(hello)


def _half_a_hello(rng: random.Random, hello: bytes, one: socket.socket) -> None:
    for begin in range(rng.randrange(1, 60)):  # byte by byte
        one.sendall(hello[begin : begin + 1])


def _goes_on_with_noise(rng: random.Random, hello: bytes, one: socket.socket) -> None:
    one.sendall(hello + rng.randbytes(rng.randrange(1, 1 << 16)))


def _speaks_in_the_clear(rng: random.Random, _hello: bytes, one: socket.socket) -> None:
    one.sendall(
        rng.choice([request(RequestCode.METADATA, {"group": "g"}), b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(99)])
    )


def _many_hellos(rng: random.Random, hello: bytes, one: socket.socket) -> None:
    one.sendall(hello * rng.randrange(2, 50))


def _a_long_record(rng: random.Random, _hello: bytes, one: socket.socket) -> None:
    one.sendall(b"\x16\x03\x01\xff\xff" + bytes(rng.randrange(1 << 14)))


def _leaves_at_once(_rng: random.Random, hello: bytes, one: socket.socket) -> None:
    one.sendall(hello)
    one.close()


HANDSHAKES: Final[list[Callable[[random.Random, bytes, socket.socket], None]]] = [
    _says_nothing, _stops_behind_its_hello, _half_a_hello, _goes_on_with_noise, _speaks_in_the_clear, _many_hellos,
    _a_long_record, _leaves_at_once,
]  # fmt: skip


def test_handshakes_that_do_not_end_keep_nobody_out_and_move_nothing(group: TlsGroup) -> None:
    rng = drawn("handshakes")
    hello = _first_words(group.context())

    async def attack(client: LedgerClient) -> None:
        leader = await client.leader()
        with contextlib.ExitStack() as held:
            for number in range(rng.randrange(400, 600)):  # more than there are places for the unproven
                one = held.enter_context(Wire(group, leader)).socket
                with contextlib.suppress(OSError):  # it was closed while it sent
                    rng.choice(HANDSHAKES)(rng, hello, one)
                if number % 100 == 0:
                    newcomer = group.client(deadline_s=WITHIN_S)
                    await newcomer.state(leader)
                    await newcomer.close()

        async def as_before() -> bool:
            return bool((await client.state(leader))["connections"]["unproven"] == 0)

        await until(as_before)

    quietly(group, attack)


# --- certificates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", BAD)
def test_a_certificate_that_nobody_vouches_for_opens_nothing(group: TlsGroup, how: str) -> None:
    context = group.made("n1", how) or ssl._create_unverified_context()

    async def attack(_client: LedgerClient) -> None:
        for member in group.peers:
            with pytest.raises((OSError, AssertionError)), TlsWire(group, member, context) as wire:
                wire.ask(request(RequestCode.HELLO, hello_as("n1")))

    quietly(group, attack)


def test_a_client_s_certificate_makes_no_member(group: TlsGroup) -> None:
    rng = drawn("a client's")

    async def attack(_client: LedgerClient) -> None:
        for victim in group.peers:
            mask = rng.choice([one for one in group.peers if one != victim])
            hello = hello_as(mask, term=rng.choice([1, 1 << 19, 1 << 61]))
            hello |= rng.choice([{}, {"nonce": "aa"}, {"version_min": 99, "version_max": 1 << 70}, {"caps": [[[]]]}])
            with TlsWire(group, victim, group.context()) as wire:
                answer = json.loads(wire.ask(request(RequestCode.HELLO, hello)).body)
                assert answer["code"] != ResponseCode.SUCCESS and "store_id" not in answer
            with TlsWire(group, victim, group.context()) as wire:
                assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}

    quietly(group, attack)


def test_a_members_certificate_has_no_rights_of_a_client(group: TlsGroup) -> None:
    """Nor those of a member before its HELLO, or after one of another group: a row of [access] has to name it."""
    rng = drawn("a member's")

    async def attack(client: LedgerClient) -> None:
        end_index = (await client.state(await client.leader()))["log"]["end_index"]
        for victim in group.peers:
            other = rng.choice([one for one in group.peers if one != victim])
            with TlsWire(group, victim, group.context(other)) as wire:
                if rng.random() < 0.5:
                    hello = hello_as(other) | {"group": f"g{rng.randrange(9)}"}
                    answer = json.loads(wire.ask(request(RequestCode.HELLO, hello)).body)
                    assert answer["code"] == ResponseCode.UNKNOWN_GROUP  # who holds a member's certificate hears why
                    with pytest.raises(AssertionError, match="closed without an answer"):
                        wire.ask(request(RequestCode.GET, {"beginIndex": 0, "group": "g"}))
                    continue
                asked = [
                    (RequestCode.APPEND, {"group": "g", "body": [1, 2, 3]}), (RequestCode.GET, {"beginIndex": 0}),
                    (RequestCode.INTROSPECT, {"what": "state"}), (RequestCode.LEADERSHIP_TRANSFER, {"group": "g"}),
                ]  # fmt: skip
                for code, fields in rng.sample(asked, len(asked)):
                    answer = json.loads(wire.ask(request(code, fields | {"group": "g"})).body)
                    assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER, f"{code!r}: {answer}"
                assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}
        assert (await client.state(await client.leader()))["log"]["end_index"] == end_index

    quietly(group, attack)


def _serves_with(context: ssl.SSLContext | None, listener: socket.socket) -> None:
    """At a member's address: a TLS server with that certificate, or one that speaks in the clear."""
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        with accepted, contextlib.suppress(OSError):
            accepted.settimeout(5)
            one = accepted if context is None else context.wrap_socket(accepted, server_side=True)
            with one:
                asked = one.recv(1 << 16)
                one.sendall(asked if context is None else request(200, hello_as("n2")))
                one.recv(1)


@pytest.mark.parametrize("how", [*BAD, "another member's"])
def test_who_serves_at_a_members_address_with_a_wrong_certificate_counts_for_nothing(group: TlsGroup, how: str) -> None:
    """And an alarm says so, as long as it is there."""
    victim = "n2"
    serving: ssl.SSLContext | None = None
    if how != "none":
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if how == "another member's":
            serving.load_cert_chain(group.pki / "n1.crt", group.pki / "n1.key")
        else:
            group.made(victim, how)
            serving.load_cert_chain(group.directory / f"{victim} {how}")
    host, _, port = group.peers[victim].rpartition(":")
    rest = [one for one in group.peers if one != victim]

    async def attack(client: LedgerClient) -> None:
        async def known() -> bool:
            states = [await client.state(one) for one in rest]
            peers = [one for state in states for one in state["peers"] if one["id"] == victim]
            assert not any(one["connected"] for one in peers)
            said = [one for state in states for one in state["alarms"] if one["code"] == "foreign_process"]
            return len(said) == len(rest) and all(one["peer_id"] == victim for one in said)

        await append_surely(client, b"without it", WITHIN_S)
        await until(known)
        await append_surely(client, b"still without it", WITHIN_S)

    async def over(client: LedgerClient) -> None:
        await settled(group, client)

        async def none() -> bool:
            return not any([(await client.state(one))["alarms"] for one in group.peers])

        await until(none)

    group.kill(victim)
    with socket.create_server((host, int(port))) as listener:
        thread = threading.Thread(target=_serves_with, args=(serving, listener), daemon=True)
        thread.start()
        try:
            in_client(group, attack)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(WITHIN_S)
    group.start(victim)
    in_client(group, over)
