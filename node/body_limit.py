"""Bounds requests' bodies: one by `body_bytes_max` (413), all that are being read together by `held_bytes_max` (503).

A body whose stated length is too long is refused before a byte of it is read; one that grows too long is refused
when it does, through the app's own handler of HTTPException, so that both are problem+json like any other error.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# (scope, status, title, detail) -> the answer
Refuse = Callable[[Scope, int, str, str], Response]


class BodyLimit:
    """Pure ASGI."""

    def __init__(self, app: ASGIApp, *, body_bytes_max: int, held_bytes_max: int, refuse: Refuse) -> None:
        self.app, self.refuse = app, refuse
        self.body_bytes_max, self.held_bytes_max = body_bytes_max, held_bytes_max
        self.held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdigit() and int(stated) > self.body_bytes_max:
            answer = self.refuse(scope, 413, "Too large", self.too_large)
            return await answer(scope, receive, send)
        held_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal held_bytes
            message = await receive()
            size = len(message.get("body", b""))
            held_bytes += size
            self.held_bytes += size
            if held_bytes > self.body_bytes_max:
                raise HTTPException(413, self.too_large)
            if self.held_bytes > self.held_bytes_max:
                text = "Too many bodies are being read at once; try again."
                raise HTTPException(503, text, headers={"retry-after": "1"})
            return message

        try:
            await self.app(scope, receive_bounded, send)
        finally:
            self.held_bytes -= held_bytes
        return None

    @property
    def too_large(self) -> str:
        return f"A body may have {self.body_bytes_max} bytes. Send less at once."
