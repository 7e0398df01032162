"""What is written to a TLS connection is counted until it is taken, leaves in order, and goes with its connection."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import uvloop

from app.command_line import run as quorumscope
from node.tls_pieces import PIECE_BYTES, InPieces, in_pieces

Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[Loop] = [asyncio.new_event_loop, uvloop.new_event_loop]
LONG = 24 << 20  # more than the kernel takes of what nobody reads
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "pki"
    assert quorumscope(["pki", "demo", str(folder)]) == 0
    return folder


class _Kept:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.open, self.heard, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.out = in_pieces(cast(asyncio.Transport, transport), cast(asyncio.BaseProtocol, self))
        self.open.set()

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, _exc: Exception | None) -> None:
        self.ended.set()


class Plain(_Kept, asyncio.Protocol):
    """Reads what it is given."""

    def data_received(self, data: bytes) -> None:
        self.said.append(data.decode())
        self.heard.set()


class Buffered(_Kept, asyncio.BufferedProtocol):
    """Reads into its own buffer."""

    buffer = bytearray(100)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.said.append(self.buffer[:nbytes].decode())
        self.heard.set()


Work = Callable[[_Kept, ssl.SSLSocket], Awaitable[None]]


def connected(pki: Path, loop: Loop, kind: type[_Kept], work: Work) -> None:
    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(pki / "console.crt"), str(pki / "console.key"))
        trusting = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        made = kind()
        running = asyncio.get_running_loop()
        server = await running.create_server(lambda: cast(asyncio.Protocol, made), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]

        def dial() -> ssl.SSLSocket:
            plain = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
            return trusting.wrap_socket(plain, server_hostname="localhost")

        with await asyncio.to_thread(dial) as other:
            await made.open.wait()
            async with asyncio.timeout(WITHIN_S):
                await work(made, other)
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def taken(other: ssl.SSLSocket) -> bytes:
    got = bytearray()
    with suppress(OSError):
        while piece := other.recv(1 << 20):
            got += piece
        other.unwrap()  # the other end waits for our goodbye, for half a minute
    return bytes(got)


@pytest.mark.parametrize("kind", [Plain, Buffered])
@pytest.mark.parametrize("loop", LOOPS)
def test_what_nobody_takes_is_counted_and_comes_whole_and_in_order(pki: Path, loop: Loop, kind: type[_Kept]) -> None:
    rng = random.Random(5)
    pieces = [rng.randbytes(rng.choice([0, 1, 100, PIECE_BYTES, PIECE_BYTES + 1, 1 << 20])) for _ in range(60)]
    whole = rng.randbytes(LONG) + b"".join(pieces)

    async def work(made: _Kept, other: ssl.SSLSocket) -> None:
        made.out.write(whole[:LONG])
        assert made.out.get_write_buffer_size() > LONG // 2 and made.said == ["pause"]
        while pieces:
            count = rng.randrange(1, 5)
            made.out.writelines(pieces[:count])
            del pieces[:count]
        await asyncio.to_thread(other.sendall, b"hello")
        await made.heard.wait()
        made.out.close()  # behind what was written
        assert made.out.is_closing()
        made.out.write(b"too late")
        assert await asyncio.to_thread(taken, other) == whole
        await made.ended.wait()
        assert made.said == ["pause", "hello", "resume"] and made.out.get_write_buffer_size() == 0

    connected(pki, loop, kind, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_waits_goes_with_its_connection(pki: Path, loop: Loop) -> None:
    async def work(made: _Kept, other: ssl.SSLSocket) -> None:
        made.out.write(bytes(LONG))
        made.out.abort()
        await made.ended.wait()
        assert made.out.is_closing()
        assert len(await asyncio.to_thread(taken, other)) < LONG

    connected(pki, loop, Plain, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_without_tls_a_transport_is_itself(loop: Loop) -> None:
    async def work() -> None:
        made = Plain()
        running = asyncio.get_running_loop()
        server = await running.create_server(lambda: made, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            await made.open.wait()
            assert not isinstance(made.out, InPieces)
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work())
