"""The demo's HTTP server, on loopback: `demo break` and the console's card ask the demo through it to break something.

`GET URL/state`, `POST URL/break/<what>[?node=n1]`, `POST URL/heal[?node=n1]`, where URL is
http://127.0.0.1:PORT/<secret>.
Invariants: without the secret nothing is done and nothing is answered; a request is bounded, one per connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from app.demo.breaks import Breaker, CannotBreak, as_json

HEAD_BYTES_MAX: Final = 8192
WITHIN_S: Final = 10.0
REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict"}


class DemoControl:
    """Listens on a free port; `url` holds the secret."""

    def __init__(self, breaker: Breaker, state: Callable[[], dict[str, Any]]) -> None:
        self.breaker = breaker
        self.state = state
        self.secret = secrets.token_urlsafe(24)
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens; `url` is known from here on."""
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{self.secret}"

    async def stop(self) -> None:
        """Closes it, with every open connection."""
        if self._server is not None:
            self._server.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(WITHIN_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, _, rest = head.partition(" ")
                status, body = await self._answer(method, rest.partition(" ")[0])
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            writer.close()
            return
        payload = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} {REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(payload)}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n".encode()
            + payload
        )
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def _answer(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        parts = urlsplit(target)
        secret, _, path = parts.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return 404, {"detail": "there is nothing here"}
        if path == "state" and method == "GET":
            return 200, self.state()
        what = path.removeprefix("break/")
        if what == path != "heal":
            return 404, {"detail": f"no {path}: state, heal, or break/" + "|".join(self.breaker.kinds)}
        if method != "POST":
            return 405, {"detail": "a break is a POST"}
        node = parse_qs(parts.query).get("node", [None])[0]
        try:
            done = self.breaker.heal(node or None) if path == "heal" else self.breaker.do(what, node or None)
            return 200, as_json(await done)
        except CannotBreak as error:
            return 409, {"detail": str(error)}
