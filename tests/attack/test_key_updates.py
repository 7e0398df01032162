"""Attacks by what TLS lets whoever shook hands send without end: updates of the key (1.3), renegotiation (1.2).

Drawn from a seed (ATTACK_SEED has others drawn). Python's `ssl` sends neither, so OpenSSL itself does. Each such
connection is ended, others are answered meanwhile, and who updates the key and asks something is answered as well.
"""

from __future__ import annotations

import ctypes
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from app.command_line import run as quorumscope
from node.client import LedgerClient
from tests.attack.remoting_kit import drawn
from tests.attack.test_tls_ports import TlsGroup
from tests.attack.test_web_floods import WAIT_S, process, until
from tests.ports import free_ports
from tests.process.undisturbed import begun, quietly

pytestmark = pytest.mark.process
REQUESTED, NOT_REQUESTED = 1, 0
SET_MAX_PROTO, TLS_1_2 = 124, 0x303
UPDATES_MAX: Final = 400_000  # 11 MB: far more than the kernel holds for a connection


@cache
def libssl() -> Any:
    found = ctypes.CDLL("libssl.so.3")
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, given in [
        ("TLS_client_method", pointer, []), ("TLS_server_method", pointer, []),
        ("SSL_CTX_new", pointer, [pointer]), ("SSL_new", pointer, [pointer]),
        ("SSL_free", None, [pointer]), ("SSL_CTX_free", None, [pointer]), ("SSL_set_fd", number, [pointer, number]),
        ("SSL_connect", number, [pointer]), ("SSL_accept", number, [pointer]),
        ("SSL_do_handshake", number, [pointer]),
        ("SSL_key_update", number, [pointer, number]), ("SSL_renegotiate", number, [pointer]),
        ("SSL_ctrl", ctypes.c_long, [pointer, number, ctypes.c_long, pointer]),
        ("SSL_write", number, [pointer, ctypes.c_char_p, number]),
        ("SSL_read", number, [pointer, ctypes.c_char_p, number]),
        ("SSL_CTX_use_certificate_file", number, [pointer, ctypes.c_char_p, number]),
        ("SSL_CTX_use_PrivateKey_file", number, [pointer, ctypes.c_char_p, number]),
    ]:  # fmt: skip
        function = getattr(found, name)
        function.restype, function.argtypes = result, given
    return found


class OpenSsl:
    """A connection that has shaken hands."""

    def __init__(self, port: int, certificate: Path | None = None, version: int | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.context = libssl().SSL_CTX_new(libssl().TLS_client_method())
        if certificate is not None:
            libssl().SSL_CTX_use_certificate_file(self.context, str(certificate).encode(), 1)
            libssl().SSL_CTX_use_PrivateKey_file(self.context, str(certificate.with_suffix(".key")).encode(), 1)
        self.tls = libssl().SSL_new(self.context)
        if version is not None:
            libssl().SSL_ctrl(self.tls, SET_MAX_PROTO, version, None)
        libssl().SSL_set_fd(self.tls, self.socket.fileno())
        assert libssl().SSL_connect(self.tls) == 1

    def close(self) -> None:
        libssl().SSL_free(self.tls)
        libssl().SSL_CTX_free(self.context)
        self.socket.close()

    def update(self, kind: int) -> bool:
        """False: the connection was ended."""
        return bool(libssl().SSL_key_update(self.tls, kind) == 1 and libssl().SSL_do_handshake(self.tls) == 1)

    def write(self, what: bytes) -> bool:
        return bool(libssl().SSL_write(self.tls, what, len(what)) > 0)

    def read(self) -> bytes:
        buffer = ctypes.create_string_buffer(1 << 14)
        count = libssl().SSL_read(self.tls, buffer, len(buffer))
        return buffer.raw[: max(0, count)]


def flood(one: OpenSsl, rng: random.Random, little: bytes) -> int:
    """How many updates were sent before the end; between them a little of what the port speaks, now and then."""
    often, kinds = (
        rng.choice([0, 0, 500, 5_000]),
        rng.choice([[REQUESTED], [NOT_REQUESTED], [REQUESTED, NOT_REQUESTED]]),
    )
    for number in range(UPDATES_MAX):
        if not one.update(rng.choice(kinds)) or (often and number % often == 0 and not one.write(little)):
            return number
    return UPDATES_MAX


def floods(
    port: int, rng: random.Random, little: bytes, certificate: Path | None = None
) -> tuple[list[Any], list[int]]:
    """A few at a time, and what each of them came to."""
    came_to: list[int] = []

    def run(one: OpenSsl, seed: int) -> None:
        came_to.append(flood(one, random.Random(seed), little))
        one.close()

    threads = [
        threading.Thread(target=run, args=(OpenSsl(port, certificate), rng.randrange(1 << 30)), daemon=True)
        for _ in range(rng.randrange(1, 5))
    ]
    for thread in threads:
        thread.start()
    return threads, came_to


@contextmanager
def control_plane(folder: Path) -> Iterator[tuple[int, ssl.SSLContext]]:
    assert quorumscope(["pki", "demo", str(folder / "pki")]) == 0
    member, port = free_ports(2)
    flags = ["--id", "n0", "--group", "g", "--peers", f"n0-127.0.0.1:{member}", "--data", str(folder)]
    for what, name in {"cert": "n0.crt", "key": "n0.key"}.items():
        flags += ["--set", f"control.tls_{what}_file={folder}/pki/{name}"]
    with process("node.control", *flags, "--control", f"127.0.0.1:{port}"):
        tls = ssl.create_default_context(cafile=str(folder / "pki" / "ca.crt"))
        until(lambda: healthy(port, tls))
        yield port, tls


def healthy(port: int, tls: ssl.SSLContext) -> bool:
    try:
        url = f"https://127.0.0.1:{port}/healthz"
        return bool(httpx2.get(url, verify=tls, timeout=WAIT_S, trust_env=False).status_code == 200)
    except httpx2.HTTPError:
        return False


@pytest.mark.long
def test_updates_of_the_key_without_end_are_ended_at_a_web_port(tmp_path: Path) -> None:
    """One connection that nobody knew kept everybody else from being answered, for as long as it went on."""
    rng = drawn("key updates")
    with control_plane(tmp_path) as (port, tls):
        for _ in range(3):
            threads, came_to = floods(port, rng, b"GET /healthz HTTP/1.1\r\nx: ")
            while any(one.is_alive() for one in threads):
                assert healthy(port, tls)
            assert len(came_to) == len(threads) and max(came_to) < UPDATES_MAX
        # Who asks something after each is no flood, and renegotiates nothing.
        request = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        one = OpenSsl(port)
        for _ in range(500):
            assert one.update(rng.choice([REQUESTED, NOT_REQUESTED])) and one.write(request)
            answer = one.read()
            while answer and not answer.endswith(b"}"):
                answer += one.read()
            assert answer.startswith(b"HTTP/1.1 200")
        one.close()
        one = OpenSsl(port, version=TLS_1_2)
        libssl().SSL_renegotiate(one.tls)
        assert libssl().SSL_do_handshake(one.tls) != 1
        one.close()
        assert healthy(port, tls)


def test_updates_of_the_key_without_end_are_ended_at_a_member_port(tmp_path: Path) -> None:
    """Of a client whose certificate is in no row."""
    rng = drawn("key updates of a client")
    with begun(TlsGroup(tmp_path)) as group:

        async def attack(client: LedgerClient) -> None:
            leader = await client.leader()
            port = int(group.peers[leader].rpartition(":")[2])
            threads, came_to = floods(port, rng, b"", group.pki / "client.crt")
            while any(one.is_alive() for one in threads):
                await client.state(leader)
            assert len(came_to) == len(threads) and max(came_to) < UPDATES_MAX

        quietly(group, attack)
