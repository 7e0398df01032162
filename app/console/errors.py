"""One hierarchy of errors that people see, and one place where they become an answer.

Under /api and /live, and for fragments: `application/problem+json`. For a browser's navigation: the page `error.html`.
"""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from app.security.gate import wants_page


class ConsoleError(Exception):
    """Something the caller can understand; `action` says what to do about it."""

    status = 500
    title = "Internal error"

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        title: str | None = None,
        code: str | int | None = None,
        action: str | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.detail, self.code, self.action, self.extra = detail, code, action, extra
        if status is not None:
            self.status = status
        if title is not None:
            self.title = title


class NotFound(ConsoleError):
    status = 404
    title = "Not found"


class UnknownCluster(NotFound):
    title = "Unknown cluster"


class Conflict(ConsoleError):
    status = 409
    title = "Conflict"


class Invalid(ConsoleError):
    status = 422
    title = "Invalid request"


class TermMoved(ConsoleError):
    status = 412
    title = "The term moved"


class NodeUnreachable(ConsoleError):
    status = 502
    title = "The node does not answer"


def problem(
    status: int, title: str, detail: str, *, code: str | int | None = None, action: str | None = None, **extra: Any
) -> JSONResponse:
    body: dict[str, Any] = {"type": "about:blank", "status": status, "title": title, "detail": detail, **extra}
    if code is not None:
        body["code"] = code
    if action is not None:
        body["action"] = action
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


def render(
    scope: Scope,
    status: int,
    title: str,
    detail: str,
    *,
    code: str | int | None = None,
    action: str | None = None,
    **extra: Any,
) -> Response:
    """A page for people, problem+json for programs."""
    app = scope.get("app")
    if app is None or not wants_page(scope):
        return problem(status, title, detail, code=code, action=action, **extra)
    context = {"status": status, "title": title, "detail": detail, "action": action}
    answer: Response = app.state.templates.TemplateResponse(Request(scope), "error.html", context, status_code=status)
    return answer


async def on_console_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ConsoleError)
    return render(
        request.scope,
        error.status,
        error.title,
        error.detail,
        code=error.code,
        action=error.action,
        **error.extra,
    )


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = {404: "Not found", 405: "Method not allowed"}.get(error.status_code, str(error.detail))
    answer = render(request.scope, error.status_code, title, str(error.detail))
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [{"field": ".".join(map(str, one["loc"])), "reason": one["msg"]} for one in error.errors()]
    detail = "; ".join(f"{one['field']}: {one['reason']}" for one in fields)
    return render(request.scope, 422, "Invalid request", detail, fields=fields)


HANDLERS: dict[int | type[Exception], Any] = {
    ConsoleError: on_console_error,
    HTTPException: on_http_exception,
    RequestValidationError: on_validation_error,
}
