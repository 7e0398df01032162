"""Errors as `application/problem+json`: what went wrong, DLedger's code where there is one, and what to do."""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from node.control.absent import why_absent
from node.http_methods import allowed

log = logging.getLogger(__name__)
REFERENCE_BYTES: Final = 4
# Calls that store something new each time they are made.
APPENDS: Final = frozenset({"/api/v1/entries", "/api/v1/machine/command", "/api/v1/messages"})
KEYS_PATH: Final = "/api/v1/kv/"


class Problem(Exception):
    """Raised by handlers; `extra` becomes members of the document."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail
        self.headers, self.extra = headers or {}, extra


def outcome_of(scope: Scope) -> str | None:
    """Of an append that is refused before the engine hears of it; None: it is none."""
    method, path = scope["method"], scope["path"]
    appends = (method == "POST" and path in APPENDS) or (method in ("PUT", "DELETE") and path.startswith(KEYS_PATH))
    return "not_appended" if appends else None


def document(status: int, title: str, detail: str, headers: dict[str, str] | None = None, **extra: Any) -> JSONResponse:
    kept = {name: value for name, value in extra.items() if value is not None}
    body = {"type": "about:blank", "status": status, "title": title, "detail": detail, **kept}
    return JSONResponse(body, status_code=status, headers=headers, media_type="application/problem+json")


async def on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return document(error.status, error.title, error.detail, error.headers, **error.extra)


async def on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers, title, detail = dict(error.headers or {}), str(error.detail), str(error.detail)
    path = request.scope["path"]
    if error.status_code == 405:
        methods = ", ".join(allowed(request.app.router.routes, request.scope))
        headers, detail = {"allow": methods}, f"{request.method} is not for {path!r}: it takes {methods}."
    elif error.status_code == 404:
        why = why_absent(request.app.state.parts.settings, path)
        detail = why or f"There is nothing at {path!r}; /api/v1/openapi.json lists what there is."
    return document(error.status_code, title, detail, headers, outcome=outcome_of(request.scope))


async def on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"field": ".".join(map(str, one["loc"])), "reason": one["msg"].removeprefix("Value error, ")}
        for one in error.errors()
    ]
    detail = "; ".join(f"{one['field']}: {one['reason']}" for one in fields)
    return document(422, "Invalid request", detail, fields=fields, outcome=outcome_of(request.scope))


def unexpected(scope: Scope, error: Exception) -> Response:
    """The answer to an exception that no handler took. What the exception itself says is in the log alone."""
    reference, changes = secrets.token_hex(REFERENCE_BYTES), scope["method"] not in ("GET", "HEAD", "OPTIONS")
    log.error("%s %r failed, reference %s", scope["method"], scope["path"], reference, exc_info=error)
    done = " Whether it was done is unknown: look before you repeat it." if changes else ""
    return document(
        500,
        "The control plane failed at this",
        f"An error that it did not expect.{done} The log and its engine are not affected.",
        action=f"Try again. If it stays so, report what this node's log has under the reference {reference}.",
        reference=reference,
        outcome=outcome_of(scope) and "unknown",
    )


HANDLERS: dict[int | type[Exception], Any] = {
    Problem: on_problem,
    HTTPException: on_http,
    RequestValidationError: on_validation,
}
