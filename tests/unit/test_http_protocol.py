"""A control plane's HTTP over a socket: what never ends is refused while it is small, what is merely large passes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from app.console.app import create_app
from app.console.server import BoundedH11, make_server
from app.console.settings import ConsoleSettings
from node.control.http_protocol import HEAD_BYTES_MAX, PIPELINED_MAX, BoundedHttp

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSED = b"HTTP/1.1 400"
# A read of 256 KiB may come before the look at the bound, and sockets hold some more on either side.
SENT_BYTES_MAX = 16 << 20
Work = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def count_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the request's body."""
    size = len(await Request(scope, receive).body())
    await PlainTextResponse(f"{size} bytes")(scope, receive, send)


def connected(work: Work, http: type[asyncio.Protocol] = BoundedHttp) -> None:
    """`work` with a connection to a server of its own."""

    async def run() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            config = uvicorn.Config(count_body, http=http, lifespan="off", log_level="critical")
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                await work(reader, writer)
            finally:
                writer.close()
                server.should_exit = True
                await serving

    asyncio.run(run())


@pytest.mark.parametrize(
    "endless",
    [
        (b"GET /", repeat(b"a" * 8192)),
        (GET + b"a: ", repeat(b"b" * 8192)),
        (GET, repeat(b"a" * 8192)),
        (GET, repeat(b"a: b\r\n" * 1024)),
        (CHUNKED + b"1;", repeat(b"x" * 8192)),
        (CHUNKED + b"1\r\nx\r\n0\r\n", repeat(b"a: b\r\n" * 1024)),
    ],
    ids=["url", "value", "name", "headers", "chunk extension", "trailers"],
)
def test_what_does_not_end_is_refused(endless: tuple[bytes, Iterator[bytes]]) -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = asyncio.create_task(reader.read(12))
        sent = 0
        for piece in chain([endless[0]], endless[1]):
            writer.write(piece)
            sent += len(piece)
            await asyncio.sleep(0)
            if answer.done():
                break
            assert sent < SENT_BYTES_MAX, "nothing stops it"
        assert answer.result() == REFUSED

    connected(work)


def test_a_long_head_a_large_body_and_many_requests_pass() -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        long = GET + b"a: " + b"b" * (HEAD_BYTES_MAX - 100) + b"\r\n\r\n"
        large = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000000
        chunked = CHUNKED + b"3\r\nabc\r\n" * 30000 + b"0\r\nlast: one\r\n\r\n"
        for request, size in ((long, 0), (large, 1000000), (chunked, 90000)) * 3:
            for first in range(0, len(request), 50_000):
                writer.write(request[first : first + 50_000])
                await writer.drain()
                await asyncio.sleep(0)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(f"{size} bytes")) == f"{size} bytes".encode()

    connected(work)


def test_pipelined_requests_are_answered_in_order_and_bounded() -> None:
    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for size in range(PIPELINED_MAX):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
        for size in range(PIPELINED_MAX):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(len(f"{size} bytes")) == f"{size} bytes".encode()
        writer.write((GET + b"\r\n") * 10 * PIPELINED_MAX)
        assert (await reader.read()).count(REFUSED) == 1

    connected(work)


def test_the_console_keeps_the_parser_whose_bound_it_sets(tmp_path: Path) -> None:
    settings = ConsoleSettings(db_url=f"sqlite:///{tmp_path / 'console.db'}")
    config = make_server(settings, create_app(settings)).config
    assert config.http is BoundedH11 and config.h11_max_incomplete_event_size is not None


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", GET + b"a b: c\r\n\r\n", b"GET / SPDY/9\r\n\r\n"]
)
def test_what_is_no_request_is_answered_as_problem_json(sent: bytes) -> None:
    """It was plain text, at the control plane and at the console alone."""

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        answer = await reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(REFUSED) and b"content-type: application/problem+json" in head
        said = json.loads(body)
        assert said["status"] == 400 and said["title"] == "Unreadable request" and said["detail"]

    for http in (BoundedHttp, BoundedH11):
        connected(work, http)


@pytest.mark.parametrize("http", [BoundedHttp, BoundedH11])
@pytest.mark.parametrize(
    "framing",
    [
        b"HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n",
    ],
)
def test_where_a_body_ends_can_be_read_in_one_way(http: type[asyncio.Protocol], framing: bytes) -> None:
    """A proxy may go by the length, or know no chunks: what it takes for a body was answered as the next request (RFC
    9112, 6.1 and 6.3)."""

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / " + framing + b"\r\n0\r\n\r\n" + GET + b"\r\n")
        writer.write_eof()
        answer = await reader.read()
        assert answer.startswith(REFUSED) and b"HTTP/1.1 200" not in answer

    connected(work, http)
