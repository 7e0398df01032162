"""A route that FastAPI describes and does not carry out."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from node.control.direct import DirectRoute


def test_a_sender_that_leaves_within_its_body_is_no_error_of_ours() -> None:
    done: list[bytes] = []

    async def endpoint(request: Request) -> Response:
        done.append(await request.body())
        return Response()

    said: list[Message] = [
        {"type": "http.request", "body": b'{"entries": ["half', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return said.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    route = DirectRoute("/entries", endpoint, methods=["POST"])
    scope = {"type": "http", "method": "POST", "path": "/entries", "headers": []}
    asyncio.run(route.app(scope, receive, send))
    assert (done, sent, said) == ([], [], [])
