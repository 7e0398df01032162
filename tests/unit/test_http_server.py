"""The bounded server of control plane and console over sockets: whoever is slow is left, whoever comes gets in."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.console.server import BoundedH11
from node import http_server
from node.config import parse_node_arguments
from node.control.app import BODY_BYTES_MAX, create_app
from node.control.http_protocol import BoundedHttp
from node.control.problems import Problem
from node.control.shared_work import SharedWork
from node.http_server import YIELDS_S, BoundedServer, Places
from tests.unit.console_kit import run, running

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
GET = HEAD + b"\r\n"
ENDS_WITHIN_S = 60.0
LONG_BYTES = 8 << 20  # more than the system's own buffers take
SERVERS: list[BoundedServer] = []
PROTOCOLS = (BoundedHttp, BoundedH11)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its connections ten times a second, not once."""
    monkeypatch.setattr(http_server, "TICKS_PER_LOOK", 1)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """/: the size of the body; /endless: bytes for ever; /wait: an answer that never comes."""
    if scope["path"] == "/endless":

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)

        await StreamingResponse(endless())(scope, receive, send)
    elif scope["path"] == "/long":
        await PlainTextResponse(bytes(LONG_BYTES))(scope, receive, send)
    elif scope["path"] == "/wait":
        await asyncio.Event().wait()
    else:
        size = len(await Request(scope, receive).body())
        await PlainTextResponse(f"{size}")(scope, receive, send)


@asynccontextmanager
async def serving(
    protocol: type[Places], *, connections_max: int = 512, limit_s: float = 0.2, untaken_bytes_max: int = 64 << 20
) -> AsyncIterator[int]:
    limits = {
        "limits_s": {"head": limit_s, "body": limit_s, "stalled": limit_s},
        "connections_max": connections_max, "untaken_bytes_max": untaken_bytes_max,
    }  # fmt: skip
    bounded = type("Bounded", (protocol,), limits)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1000)
        config = uvicorn.Config(
            app, http=bounded, lifespan="off", log_level="critical", timeout_graceful_shutdown=0,
            timeout_keep_alive=3600,
        )  # fmt: skip
        server = BoundedServer(config)
        SERVERS.append(server)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


def held(protocol: type[Places]) -> bool:
    """Whether a connection of this test's server is there."""
    return any(isinstance(one, protocol) for one in SERVERS[-1].server_state.connections)


async def until(fact: Callable[[], bool]) -> None:
    while not fact():  # noqa: ASYNC110 - what is awaited has no event
        await asyncio.sleep(0.05)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the other side ended it."""
    async with asyncio.timeout(ENDS_WITHIN_S):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: x\r\na: ",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\nabc",
    ],
    ids=["silent", "half a line", "half a head", "half a body"],
)
def test_a_request_that_does_not_come_to_its_end_is_ended(protocol: type[Places], sent: bytes) -> None:
    async def work() -> None:
        async with serving(protocol) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)

            async def drip() -> None:
                while sent:
                    await asyncio.sleep(0.05)
                    writer.write(b"x")

            dripping = asyncio.create_task(drip())
            assert b"200" not in await ended(reader)
            dripping.cancel()
            writer.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reader_that_takes_nothing_is_left(protocol: type[Places]) -> None:
    async def work() -> None:
        async with serving(protocol) as port:
            with socket.create_connection(("127.0.0.1", port), timeout=ENDS_WITHIN_S) as silent:
                silent.sendall(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
                async with asyncio.timeout(ENDS_WITHIN_S):
                    await until(lambda: held(protocol))
                    await until(lambda: not held(protocol))

    run(work())


async def asks_and_takes_nothing(port: int) -> socket.socket:
    one = socket.socket()
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, ("127.0.0.1", port))
    await loop.sock_sendall(one, b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
    return one


def untaken_bytes() -> int:
    """Of all answers of this test's server."""
    return sum(one.transport.get_write_buffer_size() for one in SERVERS[-1].server_state.connections)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_that_nobody_takes_are_bounded_in_their_sum(protocol: type[Places]) -> None:
    """100 connections that asked a control plane for 16 MiB each and took nothing had it hold a gigabyte."""

    most_bytes = 8 * LONG_BYTES

    async def work() -> None:
        async with serving(protocol, limit_s=3600, untaken_bytes_max=most_bytes) as port:
            deaf = [await asks_and_takes_nothing(port) for _ in range(30)]
            most = 0
            for _ in range(3):  # who comes after them gets all of it, however slowly
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
                writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                taken = 0
                while piece := await reader.read(65536):
                    taken += len(piece)
                    most = max(most, untaken_bytes())
                    await asyncio.sleep(0.001)
                assert taken > LONG_BYTES
                writer.close()
            assert LONG_BYTES < most <= most_bytes
            assert len(SERVERS[-1].server_state.connections) < len(deaf) / 2
            for one in deaf:
                one.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_newcomer_gets_the_place_of_the_one_that_idles_longest(protocol: type[Places]) -> None:
    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            async with asyncio.timeout(ENDS_WITHIN_S):
                assert b"200" in await reader.readline()
            assert await ended(idle[0][0]) == b""
            for _, one in [*idle, (reader, writer)]:
                one.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_newcomer_gets_the_place_of_who_takes_nothing(
    protocol: type[Places], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody who asked for something long and took none of it kept a place for half a minute."""
    monkeypatch.setattr(http_server, "YIELDS_S", 0.2)

    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            deaf = [await asks_and_takes_nothing(port) for _ in range(4)]
            answer = b""
            async with asyncio.timeout(ENDS_WITHIN_S):
                while b"200 OK" not in answer:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(HEAD + b"connection: close\r\n\r\n")
                    answer = await ended(reader)
                    writer.close()
            for one in deaf:
                one.close()

    run(work())


def in_state(state: str) -> int:
    """How many connections of this test's server are."""
    return sum(one.state_now()[0] == state for one in SERVERS[-1].server_state.connections)


async def gets_in(port: int) -> None:
    answer = b""
    async with asyncio.timeout(ENDS_WITHIN_S):
        while b"200 OK" not in answer:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"connection: close\r\n\r\n")
            answer = await ended(reader)
            writer.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_half_bodies_keep_nobody_out(protocol: type[Places]) -> None:
    """512 heads with a part of their bodies held every place for a minute, and who came was refused."""

    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            halves = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in halves:
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx")
            await until(lambda: in_state("body") == 4)
            await gets_in(port)
            for _, writer in halves:
                writer.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_newcomer_gets_the_place_of_who_takes_drop_by_drop(protocol: type[Places]) -> None:
    """Whoever took a little now and then kept a place for as long as they liked."""

    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            askers = [await asks_and_takes_nothing(port) for _ in range(4)]
            await until(lambda: in_state("stalled") == 4)
            here = SERVERS[-1].server_state.connections
            slow, *others = here
            now_s = time.monotonic()
            for one in others:
                one.idle_s = now_s + 3600
            for one in here:
                one.taken_s = now_s + 3600  # as if some of the answer had just been taken
            slow.idle_s = now_s - YIELDS_S
            assert slow.free_a_place() and here == set(others)
            assert not slow.free_a_place(), "who began just now may go on"
            for two in askers:
                two.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_newcomer_gets_the_place_of_who_sends_requests_ahead(protocol: type[Places]) -> None:
    """Whoever had the next request there before the answer to the last one was never idle: a place for ever."""

    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            asked = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n"
            writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(4)]
            for number, writer in enumerate(writers):
                writer.write(asked * (2 if number < 2 else 1))
            here = SERVERS[-1].server_state.connections
            await until(lambda: in_state("answer") == 4 and sum(one.has_more() for one in here) == 2)
            ahead = [one for one in here if one.has_more()]
            for one in here:
                one.idle_s = time.monotonic() + 3600
            assert not ahead[0].free_a_place(), "who began just now may go on"
            for one in here:
                one.idle_s = time.monotonic() - YIELDS_S
            await gets_in(port)
            assert len(set(ahead) & here) == 1
            assert ahead[0].free_a_place() and not set(ahead) & here
            assert not next(iter(here)).free_a_place(), "one answer may take its time"
            for writer in writers:
                writer.close()

    run(work())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_where_everybody_has_a_request_a_newcomer_is_told_to_come_again(protocol: type[Places]) -> None:
    async def work() -> None:
        async with serving(protocol, connections_max=4, limit_s=3600) as port:
            busy = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in busy:
                writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = b""
            async with asyncio.timeout(ENDS_WITHIN_S):
                while b"503" not in answer:  # until all four have been read
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(GET)
                    answer = await ended(reader)
                    writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"application/problem+json" in head and b"retry-after: 1" in head
            assert json.loads(body)["status"] == 503
            for _, writer in busy:
                writer.close()

    run(work())


# --- bodies ---


def test_too_large_a_body_is_413_as_problem_json_on_the_console(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(9 * 16):
                    yield b" " * 65536

            for content in (b" " * (9 << 20), pieces()):
                headers = {"content-type": "application/json"}
                answer = await ann.change("POST", "/api/v1/tokens", content=content, headers=headers)
                assert answer.status_code == 413, answer.text
                assert answer.headers["content-type"] == "application/problem+json" and answer.json()["detail"]

    run(work())


def test_too_large_a_body_is_413_as_problem_json_on_a_control_plane(tmp_path: Path) -> None:
    settings = parse_node_arguments(
        ["--id", "n0", "--group", "g", "--peers", "n0-127.0.0.1:1", "--data", str(tmp_path), "--control", "127.0.0.1:2"]
    )

    async def work() -> None:
        import httpx2

        transport = httpx2.ASGITransport(app=create_app(settings))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(BODY_BYTES_MAX // 65536 + 2):
                    yield b"x" * 65536

            for path in ("entries", "leadership-transfer"):
                for content in (b"x" * (BODY_BYTES_MAX + 1), pieces()):
                    kind = {"content-type": "application/json"}
                    answer = await client.post(f"/api/v1/{path}", content=content, headers=kind)
                    assert answer.status_code == 413, answer.text
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.headers["x-content-type-options"] == "nosniff"

    run(work())


# --- what many ask for ---


def test_work_that_many_ask_for_is_done_once_and_different_works_are_bounded() -> None:
    async def work() -> None:
        shared: SharedWork[int] = SharedWork(2)
        go, done = asyncio.Event(), 0

        async def one() -> int:
            nonlocal done
            await go.wait()
            done += 1
            return done

        many = [asyncio.create_task(shared.get("a", one)) for _ in range(100)]
        other = asyncio.create_task(shared.get("b", one))
        await asyncio.sleep(0)
        with pytest.raises(Problem) as caught:
            await shared.get("c", one)
        assert caught.value.status == 503 and caught.value.headers == {"retry-after": "1"}
        many[0].cancel()
        go.set()
        assert set(await asyncio.gather(*many[1:])) == {1} and await other == 2 and done == 2
        assert not shared.running

    run(work())


def test_pages_are_streamed_for_members_only_and_to_a_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            for n in range(50):
                answer = await ann.get(f"/live/group-entries?cluster=demo&node=x{n}")
                assert answer.status_code == 404
            assert not kit.app.state.hub.topics, "no name that somebody makes up is rendered for"
            monkeypatch.setattr("app.console.live.SUBSCRIBERS_PER_PERSON", 0)
            busy = await ann.get("/live/group-entries?cluster=demo")
            assert busy.status_code == 503 and busy.headers["retry-after"] == "5"
            assert busy.headers["content-type"] == "application/problem+json"

    run(work())
