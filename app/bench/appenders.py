"""The ways into the log that can be measured: our own client (submitting, or a task for each append), DLedger's JSON,
and REST.

The last two are there for compatibility. Each keeps as many connections as make sense for it, and does nothing more
than the protocol needs, so that the figure is the node's and not some HTTP library's.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from app.bench.cluster import GROUP, BenchCluster
from app.bench.load import Appender
from node.client import LedgerClient
from node.client.link import MemberLink
from node.config import parse_peers
from node.http_server import CONNECTIONS_MAX
from node.protocol.codes import RequestCode

APPENDERS: Final = ("client", "tasks", "json", "rest")
ANSWER_WITHIN_S: Final = 30.0
CONTROL_READY_WITHIN_S: Final = 20.0


@asynccontextmanager
async def open_appender(cluster: BenchCluster, via: str) -> AsyncIterator[Appender]:
    """An appender that reaches the leader that way."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.using())
        if via == "client":
            yield client
            return
        if via == "tasks":
            yield TasksAppender(client)
            return
        leader_id = await client.leader()
        if via == "json":
            link = MemberLink(leader_id, parse_peers(cluster.peers)[leader_id], GROUP)
            stack.callback(link.close)
            yield JsonAppender(link)
            return
        rest = RestAppender(cluster.control_ports[leader_id])
        stack.push_async_callback(rest.close)
        await rest.wait_until_ready()
        yield rest


class TasksAppender:
    """Our client without its `submit`: every append is awaited by a task of its own."""

    def __init__(self, client: LedgerClient) -> None:
        self.append, self.append_many = client.append, client.append_many


class JsonAppender:
    """DLedger's own APPEND: one JSON body a request, all over one connection, as its Java client does it."""

    def __init__(self, link: MemberLink) -> None:
        self._link = link

    async def append(self, body: bytes) -> object:
        return await self._ask({"body": base64.b64encode(body).decode()})

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        return await self._ask({"batchMsgs": [base64.b64encode(body).decode() for body in bodies]})

    async def _ask(self, fields: dict[str, object]) -> object:
        answer = await self._link.ask(RequestCode.APPEND, fields, ANSWER_WITHIN_S)
        if answer.code().value != 200:
            raise RuntimeError(f"DLedger's APPEND was answered {answer.code().name}")
        return answer


class RestAppender:
    """POST /api/v1/entries over kept-alive connections, one request at a time on each.

    There are half as many as a control plane has places: it takes those of idle ones away where it has none left.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(CONNECTIONS_MAX // 2)  # the rest of the requests waits here for its turn

    async def append(self, body: bytes) -> object:
        return await self._post("application/octet-stream", body)

    async def append_many(self, bodies: Sequence[bytes]) -> object:
        entries = [base64.b64encode(body).decode() for body in bodies]
        return await self._post("application/json", json.dumps({"entries": entries, "as": "base64"}).encode())

    async def wait_until_ready(self) -> None:
        """The control plane starts after its engine."""
        async with asyncio.timeout(CONTROL_READY_WITHIN_S):
            for _ in itertools.count():
                try:
                    await self.append(b"bench: ready?")
                    return
                except (OSError, RuntimeError):
                    await asyncio.sleep(0.1)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The one used last that is still open; a server closes those that were idle for some seconds."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _post(self, kind: str, body: bytes) -> object:
        async with self._places:
            return await self._post_now(kind, body)

    async def _post_now(self, kind: str, body: bytes) -> object:
        reader, writer = await self._connection()
        head = f"POST /api/v1/entries HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        try:
            answer_head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            _, _, behind = answer_head.partition("content-length:")
            content = await reader.readexactly(int(behind.split("\r\n", 1)[0]))
        except asyncio.IncompleteReadError as error:  # an EOFError, which a command line takes for an interruption
            raise ConnectionError(f"the control plane closed a connection: {error}") from error
        if " 200 " not in answer_head.split("\r\n", 1)[0]:
            writer.close()
            raise RuntimeError(f"REST append was answered {answer_head.split(chr(13), 1)[0]}: {content[:200]!r}")
        self._idle.append((reader, writer))
        return content

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        await asyncio.sleep(0)
