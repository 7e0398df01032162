"""Real receivers of messages on this machine: an HTTP server that answers as it is asked to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from app.console.server import bind


@dataclass
class Receiver:
    """`got`: (headers, body) of every request; `mode`: a status, or redirect | hang | endless."""

    url: str = ""
    mode: int | str = 204
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    elsewhere: int = 0
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: Request) -> Response:
        self.got.append((dict(request.headers), await request.body()))
        if self.mode == "redirect":
            return RedirectResponse("/elsewhere", status_code=307)
        if self.mode == "hang":
            await self.freed.wait()
        if self.mode == "endless":
            return StreamingResponse(self.endless())
        return Response(b"x" * 100, status_code=self.mode if isinstance(self.mode, int) else 200)

    async def endless(self) -> AsyncIterator[bytes]:
        while not self.freed.is_set():
            yield b"y" * 1024
            await asyncio.sleep(0)

    async def other(self, _request: Request) -> Response:
        self.elsewhere += 1
        return Response()


@asynccontextmanager
async def http_receiver(port: int = 0) -> AsyncIterator[Receiver]:
    one = Receiver()
    routes = [Route("/hook", one.take, methods=["POST"]), Route("/elsewhere", one.other, methods=["POST", "GET"])]
    listener = bind("127.0.0.1", port)
    one.url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"
    config = uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield one
    finally:
        one.freed.set()
        server.should_exit = True
        await serving
        listener.close()
