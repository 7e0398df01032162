"""One hierarchy of errors that people see, and one place where they become an answer.

Under /api and /live, and for fragments: `application/problem+json`. For a browser's navigation: the page `error.html`,
which says what happened, what to do, and where to go on. What nobody expected gets a reference, by which the log has
its traceback.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from app.security.gate import wants_page
from app.security.policy import SAFE_METHODS, find
from node.http_methods import allowed

log = logging.getLogger(__name__)
REFERENCE_BYTES: Final = 4
# What to do, where the error itself does not say it.
ACTIONS: Final = {
    403: "Sign in as somebody who may, or ask an admin of this console for the role: an admin gives it under Users.",
    404: "Look for it from the list of clusters. A group that was removed here, or an old address, leads nowhere.",
    405: "Use the page's own buttons; the API is described at /api/v1/openapi.json.",
    409: "Look at the page again: the group has changed since it was drawn.",
    410: "It existed and is not kept any more. What is still there is found from the page before this one.",
    412: "Look at the page again, then repeat: the group has changed since it was drawn.",
    413: "Send less at once.",
    421: "Open the console by a name it answers to.",
    429: "Wait as long as it says, then try again.",
    422: "Correct what is named and send it again. Nothing was changed.",
    502: "Look at the group's page: it shows which members answer. Try again once this one does.",
    503: "Try again in a few seconds.",
}


# A POST that appends to a group's log: its errors say whether it may have happened (SAFETY C2).
APPENDS: Final = re.compile(r"/api/v1/clusters/[^/]+/entries")


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
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(detail)
        self.headers = headers or {}
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

    def __init__(self, cluster_id: str) -> None:
        super().__init__(f"No group is called {cluster_id!r} here.")


class NoReplicatedLog(NotFound):
    title = "No replicated log"

    def __init__(self, cluster_id: str) -> None:
        super().__init__(
            f"{cluster_id} is a classic pair, a master and its slaves: it has no replicated log, no members to change"
            " and no leader to move. Its overview shows its brokers; docs/classic-ha.md says how one is promoted, and"
            " how their files are compared."
        )


class Forbidden(ConsoleError):
    status = 403
    title = "Not allowed"


class Conflict(ConsoleError):
    status = 409
    title = "Conflict"


class Invalid(ConsoleError):
    status = 422
    title = "Invalid request"


class SecretUnreadable(ConsoleError):
    """A secret of the console's own that its key does not open."""

    status = 503
    title = "A secret cannot be read"


class TermMoved(ConsoleError):
    status = 412
    title = "The term moved"


class NodeUnreachable(ConsoleError):
    status = 502
    title = "The node does not answer"


class NothingListens(NodeUnreachable):
    """Its machine refuses the connection: the process that should listen there is gone, and that is known at once."""


def problem(
    status: int, title: str, detail: str, *, code: str | int | None = None, action: str | None = None, **extra: Any
) -> JSONResponse:
    body: dict[str, Any] = {"type": "about:blank", "status": status, "title": title, "detail": detail, **extra}
    if code is not None:
        body["code"] = code
    if action is not None:
        body["action"] = action
    return JSONResponse(body, status_code=status, media_type="application/problem+json")


def render(scope: Scope, status: int, title: str, detail: str, **extra: Any) -> Response:
    """A page for people, problem+json for programs; `extra` as `problem` takes it."""
    app = scope.get("app")
    if app is None or not wants_page(scope):
        if appends(scope):  # who asked a node says so, otherwise it was refused before
            extra.setdefault("outcome", "not_appended")
        return problem(status, title, detail, **extra)
    context = {
        "status": status,
        "title": title,
        "detail": detail,
        "action": extra.get("action") or ACTIONS.get(status),
        "again": again(scope) if status >= 500 else None,
        "cluster": cluster_of(scope),
    }
    answer: Response = app.state.templates.TemplateResponse(Request(scope), "error.html", context, status_code=status)
    return answer


def appends(scope: Scope) -> bool:
    return scope["method"] == "POST" and APPENDS.fullmatch(scope["path"]) is not None


def again(scope: Scope) -> str | None:
    """The same page once more; what changes something is not repeated by a click."""
    query = scope.get("query_string", b"").decode("latin-1")
    return scope["path"] + (f"?{query}" if query else "") if scope["method"] in SAFE_METHODS else None


def cluster_of(scope: Scope) -> Any:
    """The group whose page was asked for, where it is one that is watched."""
    area, _, rest = scope["path"].removeprefix("/").partition("/")
    console = getattr(scope["app"].state, "console", None)
    watch = console.watches.get(rest.partition("/")[0]) if console is not None and area == "clusters" else None
    viewer = scope.get("state", {}).get("viewer")
    seen = watch is not None and viewer is not None and viewer.sight.sees(watch.info.id)
    return watch.info if watch is not None and seen else None


def unexpected(scope: Scope, error: Exception) -> Response:
    """The answer to an exception that no handler took: never bare, and found again in the log by its reference."""
    reference = secrets.token_hex(REFERENCE_BYTES)
    path = find(scope["method"], scope["path"]).secret_path or scope["path"]  # a link that failed opens the console yet
    log.error("%s %s failed, reference %s", scope["method"], path, reference, exc_info=error)
    changed = "" if scope["method"] in SAFE_METHODS else " Whether it was done is unknown: look before you repeat it."
    if isinstance(error, SQLAlchemyError):
        status, title = 503, "The console's database does not answer"
        detail = f"It is locked, full or away.{changed} The nodes are not affected, and the console goes on watching."
        action = f"Try again in a few seconds. If it stays so, look at the database's disk and at the log: {reference}."
    else:
        status, title = 500, "The console failed at this"
        detail = f"An error that it did not expect.{changed} The nodes are not affected."
        action = f"Try again. If it stays so, report what the console's log has under the reference {reference}."
    said = {"action": action, "reference": reference} | ({"outcome": "unknown"} if appends(scope) else {})
    try:
        return render(scope, status, title, detail, **said)
    except Exception:  # the page itself may be what is broken
        log.exception("the page of an error could not be drawn")
        return problem(status, title, detail, **said)


async def on_console_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ConsoleError)
    said = {"code": error.code, "action": error.action, **error.extra}
    answer = render(request.scope, error.status, error.title, error.detail, **said)
    answer.headers.update(error.headers)
    return answer


async def on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    title, detail = {
        404: ("Not found", f"There is nothing at {path}."),
        405: ("Method not allowed", f"{path} cannot be asked with {method}."),
    }.get(error.status_code, (str(error.detail), str(error.detail)))
    answer = render(request.scope, error.status_code, title, detail)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    if error.status_code == 405:
        answer.headers["allow"] = ", ".join(allowed(request.app.router.routes, request.scope))
    return answer


async def on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fields = [
        {"field": ".".join(map(str, one["loc"])), "reason": one["msg"].removeprefix("Value error, ")}
        for one in error.errors()
    ]
    detail = "; ".join(f"{one['field']}: {one['reason']}" for one in fields)
    return render(request.scope, 422, "Invalid request", detail, fields=fields)


HANDLERS: dict[int | type[Exception], Any] = {
    ConsoleError: on_console_error,
    HTTPException: on_http_exception,
    RequestValidationError: on_validation_error,
}
