"""Bytes that are no request any more, whatever the console does then: the connection ends, and the log has no error."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from app.console.server import BoundedH11

HEAD = b"POST /x HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CHUNK = b"-1\r\nabc\r\n"


class Sent(asyncio.Transport):
    """What is sent, and whether the connection was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """The same."""


@pytest.mark.parametrize("answered", ["before", "begun", "after"])
def test_a_body_that_breaks_off_into_nonsense_ends_the_connection(
    answered: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, over = asyncio.Event(), asyncio.Event()
    failed: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]}
        try:
            if answered != "before":
                await send(start)
                await send({"type": "http.response.body", "body": b"o", "more_body": True})
            if answered == "after":
                await send({"type": "http.response.body", "body": b"k"})
            over.set()
            await broken.wait()
            if answered == "before":
                await send(start)
            if answered != "after":
                await send({"type": "http.response.body", "body": b"k" if answered == "begun" else b"ok"})
        finally:
            over.set()

    async def story() -> Sent:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, said: failed.append(said))
        config = uvicorn.Config(application, http=BoundedH11, log_config=None)
        config.load()
        state = ServerState()
        protocol, sent = BoundedH11(config=config, server_state=state, app_state={}), Sent()
        protocol.connection_made(sent)
        protocol.data_received(HEAD)
        await over.wait()
        protocol.data_received(NO_CHUNK)  # raises where an answer cannot be begun any more
        broken.set()
        await asyncio.gather(*state.tasks)
        return sent

    with caplog.at_level(logging.WARNING):
        sent = asyncio.run(story())
    assert sent.closed
    assert sent.data.startswith(b"HTTP/1.1 400" if answered == "before" else b"HTTP/1.1 401")
    assert sent.data.count(b"HTTP/1.1 4") == 1  # one head, whatever its detail says
    assert not failed and not [one for one in caplog.records if one.levelno >= logging.ERROR]
