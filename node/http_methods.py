"""HEAD and OPTIONS on every path, and what a path allows; shared by control plane and console.

Invariants: a HEAD is checked and answered as the GET that it asks about, with that GET's headers and no body, and what
would stream for ever ends at its first byte; OPTIONS changes nothing and needs what a GET needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")


def allowed(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """The methods that this path may be asked with, in alphabetical order; empty: there is no such path."""
    routes = list(routes)
    found = [one for one in METHODS if any(matches(route, scope, one) for route in routes)]
    return sorted({*found, "OPTIONS", *(["HEAD"] if "GET" in found else [])}) if found else []


def matches(route: BaseRoute, scope: Scope, method: str) -> bool:
    return route.matches({**scope, "method": method})[0] is Match.FULL


class Options:
    """Inside of the guards: who may not read a path does not learn what it allows."""

    def __init__(self, app: ASGIApp, routes: list[BaseRoute]) -> None:
        self.app, self.routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            methods = allowed(self.routes, scope)
            if methods:
                return await Response(status_code=204, headers={"allow": ", ".join(methods)})(scope, receive, send)
        return await self.app(scope, receive, send)


class Head:
    """Outside of everything, so that a HEAD's headers are those of the GET."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self.app(scope, receive, send)
        ended = False

        async def send_head(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                await send(message)
            elif message["type"] == "http.response.body" and not ended:
                ended = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if ended and message.get("more_body", False):
                raise OSError("a HEAD wants no body")  # as a connection that is gone: a stream ends

        try:
            await self.app({**scope, "method": "GET"}, receive, send_head)
        except (ClientDisconnect, OSError):
            if not ended:
                raise
        return None
