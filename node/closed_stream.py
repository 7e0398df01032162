"""A streamed answer whose source is closed with it, however it ends: at its end, by a HEAD, or with the connection.

Otherwise an async generator that was left halfway holds what it opened (a session of the database, a place among the
readers) until the garbage collector comes by.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class ClosedStream(StreamingResponse):
    def __init__(self, source: AsyncGenerator[str, None] | AsyncGenerator[bytes, None], *, media_type: str,
                 headers: dict[str, str] | None = None) -> None:  # fmt: skip
        super().__init__(source, media_type=media_type, headers=headers)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()
