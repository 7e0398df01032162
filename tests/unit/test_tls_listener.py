"""TLS in front of a web server: whoever never speaks loses its place, whoever comes gets in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.command_line import run as quorumscope
from app.console.server import BoundedH11
from node.control.http_protocol import BoundedHttp
from node.http_server import BoundedServer, Places
from node.tls_listener import TlsListener
from tests.unit.test_http_server import ENDS_WITHIN_S, GET, app, ended, until

HOST = "localhost"
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[Loop] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "pki"
    assert quorumscope(["pki", "demo", str(folder)]) == 0
    return folder


def server_side(pki: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(pki / "console.crt"), str(pki / "console.key"))
    return context


def client_side(pki: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pki / "ca.crt"))


@contextlib.asynccontextmanager
async def listening(pki: Path, **bounds: float) -> AsyncIterator[tuple[TlsListener, int]]:
    """A listener whose connections are uvicorn's, as `BoundedServer` makes them."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as one:
        config = uvicorn.Config(app, lifespan="off", log_level="critical")
        config.load()
        state = uvicorn.server.ServerState()
        made = TlsListener(one, server_side(pki), lambda: H11Protocol(config, state, {}), **bounds)
        try:
            yield made, one.getsockname()[1]
        finally:
            made.close()
            await made.wait_closed()
            for connection in list(state.connections):
                connection.transport.abort()


async def page(pki: Path, port: int) -> bytes:
    async with asyncio.timeout(ENDS_WITHIN_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side(pki), server_hostname=HOST)
        writer.write(GET)
        line = await reader.readline()
        writer.close()
        return line


def on(loop: Loop, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("protocol", [BoundedHttp, BoundedH11])
def test_a_page_comes_over_tls_and_what_is_no_tls_is_ended(pki: Path, protocol: type[Places], loop: Loop) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
            config = uvicorn.Config(
                app, http=protocol, lifespan="off", log_level="critical", timeout_graceful_shutdown=0,
                ssl_certfile=str(pki / "console.crt"), ssl_keyfile=str(pki / "console.key"),
            )  # fmt: skip
            server = BoundedServer(config)
            serving = asyncio.create_task(server.serve(sockets=[one]))
            await until(lambda: server.started)
            assert b"200" in await page(pki, port)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)  # no TLS
            assert b"200" not in await ended(reader)
            writer.close()
            assert b"200" in await page(pki, port)
            server.should_exit = True
            await serving
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)

    on(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["silent", "half a hello"])
def test_a_handshake_that_does_not_end_is_ended(pki: Path, sent: bytes, loop: Loop) -> None:
    async def work() -> None:
        async with listening(pki, within_s=0.2) as (listener, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert not await ended(reader)
            writer.close()
            await until(lambda: not listener.handshakes)

    on(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_newcomer_gets_the_place_of_the_handshake_begun_first(pki: Path, loop: Loop) -> None:
    async def work() -> None:
        async with listening(pki, handshakes_max=4, within_s=3600) as (listener, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            assert b"200" in await page(pki, port)
            for reader, _ in silent[:36]:
                assert not await ended(reader)
            assert listener.handshakes <= 4
            for _, writer in silent:
                writer.close()

    on(loop, work())


def test_an_accept_that_fails_ends_a_handshake_and_not_the_listening(pki: Path) -> None:
    class Without(socket.socket):
        """No descriptor is left, three times."""

        failures = 3

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def work() -> None:
        with Without() as one:
            one.bind(("127.0.0.1", 0))
            one.listen(100)
            config = uvicorn.Config(app, lifespan="off", log_level="critical")
            config.load()
            listener = TlsListener(one, server_side(pki), lambda: H11Protocol(config, uvicorn.server.ServerState(), {}))
            assert b"200" in await page(pki, one.getsockname()[1])
            assert not one.failures
            listener.close()
            await listener.wait_closed()

    asyncio.run(work())
