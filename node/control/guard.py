"""What every request passes before a handler: Host, Origin, content type, token, group.

Invariants: a name that is not ours in Host (DNS rebinding) and any foreign Origin are refused; a write comes as
application/json or octet-stream, which no plain form on another site can send; where a token is configured, only the
health checks go without it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.config import Settings, is_loopback, read_token, split_address
from node.control.problems import Problem, document
from node.protocol.codes import ResponseCode

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WRITE_TYPES = frozenset({"application/json", "application/octet-stream"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/leaderz"})
HEADERS = (
    ("x-content-type-options", "nosniff"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
)


class Guard:
    """Pure ASGI: streams and raw bytes pass unbuffered."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.group = settings.node.group
        host = split_address(settings.control.address)[0]
        self.hosts = set(settings.control.allowed_hosts) | {host}
        if is_loopback(host):
            self.hosts |= LOOPBACK_NAMES
        self.scheme = "https" if settings.control.tls_cert_file is not None else "http"
        file = settings.control_token_file
        self.token = read_token(file) if file is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        send = with_headers(send)
        try:
            for check in self.checks():
                check(scope, Headers(scope=scope))
        except Problem as problem:
            answer = document(problem.status, problem.title, problem.detail, problem.headers, **problem.extra)
            return await answer(scope, receive, send)
        return await self.app(scope, receive, send)

    def checks(self) -> tuple[Callable[[Scope, Headers], None], ...]:
        return (self.check_host, self.check_origin, self.check_token, self.check_type, self.check_group)

    def check_host(self, _: Scope, asked: Headers) -> None:
        try:
            name = urlsplit(f"//{asked.get('host', '')}").hostname or ""
        except ValueError:
            name = ""
        if name not in self.hosts:
            raise Problem(421, "Unknown host", f"{name!r} is not a name of this node; see [control] allowed_hosts.")

    def check_origin(self, scope: Scope, asked: Headers) -> None:
        origin = asked.get("origin")
        if origin is not None and origin != f"{self.scheme}://{asked.get('host', '')}":
            raise Problem(403, "Foreign origin", f"Requests from {origin} are refused.")
        if scope["method"] not in SAFE_METHODS and asked.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Problem(403, "Foreign site", "A write from another site is refused.")

    def check_token(self, scope: Scope, asked: Headers) -> None:
        if self.token is None or scope["path"] in OPEN_PATHS:
            return
        scheme, _, shown = asked.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self.token.encode()):
            headers = {"www-authenticate": "Bearer"}
            raise Problem(401, "Not allowed", "Send the node's token as `Authorization: Bearer …`.", headers=headers)

    def check_type(self, scope: Scope, asked: Headers) -> None:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return
        given = asked.get("content-type", "").partition(";")[0].strip().lower()
        if given not in WRITE_TYPES and not (not given and asked.get("content-length", "0") == "0"):
            raise Problem(415, "Unsupported media type", f"Send application/json or an octet-stream, not {given!r}.")

    def check_group(self, scope: Scope, _: Headers) -> None:
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("group")
        if asked and asked[0] != self.group:
            detail = f"This node is in the group {self.group!r}, not {asked[0]!r}."
            raise Problem(404, "Unknown group", detail, code=int(ResponseCode.UNKNOWN_GROUP))


def with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            have = MutableHeaders(scope=message)
            for name, value in HEADERS:
                have.setdefault(name, value)
        await send(message)

    return send_with_headers
