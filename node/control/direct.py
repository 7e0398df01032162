"""A call that FastAPI describes and does not carry out.

Finding its route among all, solving its parameters and encoding its answer cost three times what an append costs the
control plane. Invariants: errors still become problem documents (ExceptionMiddleware stands outside), bodies are still
bounded; the endpoint takes the request, checks what it reads, and returns the response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class DirectRoute(APIRoute):
    """`endpoint(request)`; its parameters are described in `openapi_extra`, its answer by `response_model`."""

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **described: Any) -> None:
        super().__init__(path, endpoint, **described)

        async def carry_out(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                response = await endpoint(Request(scope, receive))
            except ClientDisconnect:
                return  # before all of its body was here: nothing was done, and nobody waits for an answer
            await response(scope, receive, send)

        self.app = carry_out
