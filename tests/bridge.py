"""An app that lives in another thread's loop, callable from anywhere: what tests of synchronous tools need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

App = Callable[[Any, Any, Any], Any]


class Bridge:
    """Carries one call after the other over to the loop in which the app was started."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self.app, self.loop, self.host = app, loop, host.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answered: list[Any] = []
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_there() -> Any:
            return given.pop() if given else {"type": "http.disconnect"}

        async def send_there(message: Any) -> None:
            answered.append(message)

        scope = {key: value for key, value in scope.items() if key not in ("app", "state", "extensions")}
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name != b"host"] + [
            (b"host", self.host)
        ]
        run = asyncio.run_coroutine_threadsafe(self.app(scope, receive_there, send_there), self.loop)
        await asyncio.wrap_future(run)
        for message in answered:
            await send(message)


@contextmanager
def lived_in(make: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """What `make` opens, open in a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    context = make()
    try:
        opened = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        try:
            yield opened, loop
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
