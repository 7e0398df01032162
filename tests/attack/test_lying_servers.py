"""Whoever is dialled over TLS and answers with updates of the key without end: a member that its console or another
member asks, a webhook's receiver, an OpenID provider. Drawn from a seed (ATTACK_SEED has others drawn).

Each such connection is ended for what it is, long before the time for an answer is up: until then the flood had most of
the asker's loop, again with every request.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.console.errors import NodeUnreachable
from app.console.nodes import Nodes
from app.console.settings import ConsoleSettings
from app.notify import webhook
from app.notify.webhook import NotDelivered
from app.pki import Authority, Wanted
from app.security.bounded_transport import ProviderError
from app.security.oidc import Provider
from node.client.link import Lost, MemberLink
from node.config_models import OidcTable
from node.measured_tls import client_context
from node.protocol.codes import RequestCode
from node.transport.tls import client_context as member_context
from tests.attack.remoting_kit import drawn
from tests.attack.test_key_updates import NOT_REQUESTED, REQUESTED, libssl

ENOUGH = "too many bytes that bring nothing"
WITHIN_S = 60.0


class Flood:
    """Serves with a certificate that is in order: reads what comes first, begins an answer, then updates the key until
    the other end has gone."""

    def __init__(self, certificate: Path, rng: random.Random, begins: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.context = libssl().SSL_CTX_new(libssl().TLS_server_method())
        libssl().SSL_CTX_use_certificate_file(self.context, str(certificate).encode(), 1)
        libssl().SSL_CTX_use_PrivateKey_file(self.context, str(certificate).encode(), 1)
        self.kind, self.begins = rng.choice([REQUESTED, NOT_REQUESTED]), begins[: rng.randrange(len(begins) + 1)]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                accepted, _ = self.listening.accept()
            except OSError:
                return
            with accepted:
                accepted.settimeout(None)
                self.flood(accepted)

    def flood(self, accepted: socket.socket) -> None:
        tls = libssl().SSL_new(self.context)
        libssl().SSL_set_fd(tls, accepted.fileno())
        if libssl().SSL_accept(tls) == 1:
            libssl().SSL_read(tls, ctypes.create_string_buffer(1 << 14), 1 << 14)
            if self.begins:
                libssl().SSL_write(tls, self.begins, len(self.begins))
            while libssl().SSL_key_update(tls, self.kind) == 1 and libssl().SSL_do_handshake(tls) == 1:
                pass
        libssl().SSL_free(tls)

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join()
        libssl().SSL_CTX_free(self.context)


@contextmanager
def flooding(folder: Path, rng: random.Random, begins: bytes = b"HTTP/1.1 200 OK\r\nx: ") -> Iterator[int]:
    """Its port; its authority's certificate is `folder/ca.crt`, and that of a member n0 is `folder/n0.pem`."""
    authority = Authority(1)
    (folder / "ca.crt").write_bytes(authority.own()[0])
    for name in ("n0", "n1"):
        certificate, key = authority.issue(Wanted(name, ("127.0.0.1",), serves=True))
        (folder / f"{name}.pem").write_bytes(certificate + key)
    server = Flood(folder / "n0.pem", rng, begins)
    try:
        yield server.port
    finally:
        server.close()


Ask = Callable[[Path, int], Awaitable[Any]]


async def console(folder: Path, port: int) -> None:
    nodes = Nodes(ConsoleSettings(node_ca_file=folder / "ca.crt"))
    try:
        await nodes.request("GET", f"https://127.0.0.1:{port}", "state", timeout_s=WITHIN_S)
    finally:
        await nodes.close()


async def receiver(folder: Path, port: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(webhook, "authorities", lambda: client_context(folder / "ca.crt"))
        await webhook.post(f"https://127.0.0.1:{port}/hook", "key", {"id": "1"}, attempt_s=WITHIN_S)


async def provider(folder: Path, port: int) -> None:
    issuer = f"https://127.0.0.1:{port}"
    asked = Provider(OidcTable(issuer=issuer, client_id="q", ca_file=folder / "ca.crt", roles=("x = admin",)))
    try:
        await asked.metadata()
    finally:
        await asked.close()


async def member(folder: Path, port: int) -> None:
    tls = member_context(folder / "n1.pem", folder / "n1.pem", folder / "ca.crt")
    link = MemberLink("n0", f"127.0.0.1:{port}", "g", tls)
    try:
        await link.ask(RequestCode.METADATA, {}, WITHIN_S)
    finally:
        link.close()


@pytest.mark.parametrize("ask", [console, receiver, provider, member], ids=lambda ask: ask.__name__)
def test_updates_of_the_key_in_place_of_an_answer_end_the_connection(tmp_path: Path, ask: Ask) -> None:
    rng = drawn(f"floods of {ask.__name__}")
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        begins = {} if ask is not member else {"begins": b"\0\0\0"}
        with (
            flooding(folder, rng, **begins) as port,
            pytest.raises((NodeUnreachable, NotDelivered, ProviderError, Lost)) as refused,
        ):
            asyncio.run(ask(folder, port))
        assert ENOUGH in str(refused.value) or ask is member, refused.value
