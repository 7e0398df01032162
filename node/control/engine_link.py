"""The control plane's one connection to its engine, over the engine's own port.

Invariants: an answer finds its request by `opaque`; whatever waits when the connection ends learns that it was *sent*,
so an append is then unknown and never "not appended". A connection is opened when it is needed, one at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from typing import Any

from node.config import Settings, read_token, split_address
from node.protocol.codes import RemotingCode, RequestCode
from node.protocol.entry import BytesLike
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.tls import client_context

CONNECT_TIMEOUT_S = 0.5


class EngineAway(Exception):
    """No connection can be made: the engine does not run. Nothing was sent."""


class EngineSilent(Exception):
    """It was sent, and no answer came: stopped, paused, or the connection broke."""


class EngineRefused(Exception):
    """The engine answered with a remoting error."""


class EngineLink:
    """See the module's docstring."""

    def __init__(self, settings: Settings) -> None:
        self.host, self.port = split_address(settings.self_address)
        if self.host in ("0.0.0.0", "::"):
            self.host = "127.0.0.1"
        self.group, self.self_id = settings.node.group, settings.node.id
        self.token = read_token(settings.node.token_file) if settings.node.token_file is not None else None
        self.tls: ssl.SSLContext | None = None
        node = settings.node
        if node.tls_cert_file is not None and node.tls_key_file is not None and node.tls_ca_file is not None:
            self.tls = client_context(node.tls_cert_file, node.tls_key_file, node.tls_ca_file)
        self.connection: Connection | None = None
        self.opening = asyncio.Lock()
        self.opaques = itertools.count(1)
        self.waiting: dict[int, asyncio.Future[Frame]] = {}

    async def connected(self) -> Connection:
        if self.connection is not None and not self.connection.closed:
            return self.connection
        async with self.opening:
            if self.connection is None or self.connection.closed:
                connection = Connection(self.on_frame, self.on_closed)
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await dial(connection, self.host, self.port, self.tls)
                except (OSError, TimeoutError) as error:
                    raise EngineAway(f"{self.host}:{self.port}: {error or 'no connection in time'}") from None
                self.connection = connection
            return self.connection

    def on_frame(self, _: Connection, frame: Frame) -> None:
        future = self.waiting.pop(frame.opaque, None)
        if future is not None and not future.done():
            future.set_result(frame)

    def on_closed(self, connection: Connection) -> None:
        if self.connection is connection:
            self.connection = None
        waiting, self.waiting = self.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(EngineSilent("the engine closed the connection"))

    async def request(self, code: RequestCode, pieces: list[bytes], timeout_s: float) -> BytesLike:
        """The answer's body. Raises EngineAway, EngineSilent, EngineRefused."""
        connection = await self.connected()
        opaque = next(self.opaques) & 0x7FFFFFFF
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.waiting[opaque] = future
        connection.send_body(code, 0, opaque, pieces)
        try:
            async with asyncio.timeout(timeout_s):
                frame = await future
        except TimeoutError:
            raise EngineSilent(f"no answer within {timeout_s:g} s") from None
        finally:
            self.waiting.pop(opaque, None)
        if frame.code != RemotingCode.SUCCESS:
            raise EngineRefused(frame.remark or f"remoting code {frame.code}")
        return frame.body

    async def json(self, code: RequestCode, fields: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """A JSON request with the base fields that DLedger wants, and the answer's object."""
        sent = {"group": self.group, "remoteId": self.self_id, "localId": "control", "term": -1, **fields}
        if self.token is not None:
            sent["token"] = self.token
        body = await self.request(code, [json.dumps(sent).encode()], timeout_s)
        try:
            answer = json.loads(bytes(body))
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise EngineRefused("the engine answered something else than a JSON object")
        return answer

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
