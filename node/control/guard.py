"""The guard: checks every request before a handler sees it: path, Host, Origin, content type, token, group.

Invariants: a name that is not ours in Host (DNS rebinding) and any foreign Origin are refused; a write comes as
application/json or octet-stream, which no plain form on another site can send; where a token is configured, only the
health checks go without one, and no call is carried out for a token without the right to it (node.control.rights).
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.access_rows import Right
from node.config import Settings, is_loopback, read_token, split_address
from node.control.problems import KEYS_PATH, Problem, document, outcome_of, unexpected
from node.control.rights import ANYBODY, OPEN_PATHS, THE_NODE, Caller, is_recorded, needed
from node.control.trail import Recorder
from node.control_tokens import ControlToken, digest_of, read_tokens, rfc3339, words_of
from node.control_url import control_host
from node.protocol.codes import ResponseCode
from node.protocol.peers import name_in
from node.request_head import fault_in_head, without_cookies
from node.rereading import Rereading
from node.views.request_body import NO_KEY

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
WRITE_TYPES = frozenset({"application/json", "application/octet-stream"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
TOKEN = "the control plane's token"
TOKENS = "the control plane's named tokens"
LOOK_EVERY_S: Final = 1.0
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """Pure ASGI: streams and raw bytes pass unbuffered."""

    def __init__(self, app: ASGIApp, settings: Settings, rereading: Rereading, recorder: Recorder) -> None:
        self.app, self.recorder = app, recorder
        self.group = settings.node.group
        host = split_address(settings.control.address)[0]
        self.hosts = {*settings.control.allowed_hosts, host, control_host(settings)}
        if is_loopback(host):
            self.hosts |= LOOPBACK_NAMES
        self.scheme = "https" if settings.control.tls_cert_file is not None else "http"
        file = settings.control_token_file
        self.token: str | None = None
        if file is not None:
            self.use_token(read_token(file))
            rereading.add(TOKEN, lambda: read_token(file), self.use_token)
        self.named: NamedTokens | None = None
        if settings.control.tokens_file is not None:
            self.named = NamedTokens(settings.control.tokens_file, rereading)
        self.checks: tuple[Callable[[Scope, Headers], None], ...] = (
            self.check_path,
            self.check_head,
            self.check_host,
            self.check_origin,
            self.check_token,
            self.check_type,
            self.check_key,
            self.check_group,
        )

    def use_token(self, token: str) -> None:
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, with_headers_sent = False, with_headers(send)

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await with_headers_sent(message)

        try:
            await self.pass_through(scope, receive, send_noted)
        except Exception as error:
            if begun:  # half an answer cannot be taken back: the server ends the connection
                raise
            await unexpected(scope, error)(scope, receive, send_noted)
        return None

    async def pass_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope)
        scope["headers"] = without_cookies(asked.raw)
        try:
            for check in self.checks:
                check(scope, asked)
            if self.is_recorded(scope):
                return await self.recorder.carry_out(self.app, scope, receive, send)
        except Problem as problem:
            if problem.status == 403 and "caller" in scope.get("state", {}) and self.is_recorded(scope):
                problem = await self.recorder.refused(scope, problem)
            extra = {"outcome": outcome_of(scope)} | problem.extra
            answer = document(problem.status, problem.title, problem.detail, problem.headers, **extra)
            return await answer(scope, receive, send)
        return await self.app(scope, receive, send)

    def is_recorded(self, scope: Scope) -> bool:
        return is_recorded(scope["method"], scope["path"])

    def check_path(self, scope: Scope, _: Headers) -> None:
        """The router takes a line break at a path's end for no part of it; what rights are asked by must be what it
        serves. What is not UTF-8 would be taken for another name. Raises Problem."""
        target = scope.get("raw_path", b"") + b"?" + scope.get("query_string", b"")
        if b"%" in target or not target.isascii():
            try:
                unquote_to_bytes(target).decode()
            except UnicodeDecodeError:
                raise Problem(400, "Not UTF-8", "The path and its parameters are UTF-8, percent-encoded.") from None
        if not scope["path"].isprintable():
            if scope["path"].startswith(KEYS_PATH):
                text = (
                    "A key with characters that cannot be printed goes through `quorumscope kv` or the Python client."
                )
                raise Problem(422, "Invalid request", text)
            raise Problem(404, "Not found", f"There is nothing at {scope['path']!r}.")

    def check_head(self, scope: Scope, asked: Headers) -> None:
        """Raises Problem."""
        fault = fault_in_head(scope, asked)
        if fault is not None:
            raise Problem(*fault)

    def check_host(self, _: Scope, asked: Headers) -> None:
        name = name_in(asked.get("host", ""))
        if name not in self.hosts:
            raise Problem(421, "Unknown host", f"{name!r} is not a name of this node; see [control] allowed_hosts.")

    def check_origin(self, scope: Scope, asked: Headers) -> None:
        origin = asked.get("origin")
        if origin is not None and origin != f"{self.scheme}://{asked.get('host', '')}":
            raise Problem(403, "Foreign origin", f"Requests from {origin} are refused.")
        if scope["method"] not in SAFE_METHODS and asked.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Problem(403, "Foreign site", "A write from another site is refused.")

    def check_token(self, scope: Scope, asked: Headers) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        caller = self.caller(asked)
        right = needed(scope["method"], scope["path"])
        scope.setdefault("state", {}).update(caller=caller, still=lambda: self.still(asked, right))
        if right not in caller.rights:
            word = words_of(right)
            detail = (
                f"This needs the right `{word}`; the token {caller.name} has {words_of(caller.rights)}. Show one that"
                f" has it: `quorumscope access issue NAME --file FILE --rights {word}` makes one, on this node's"
                " machine (FILE: its [control] tokens_file)."
            )
            raise Problem(403, "Not allowed", detail)

    def still(self, asked: Headers, right: Right) -> bool:
        """Whether what let a call in would do so now: for streams, which outlive that moment."""
        try:
            return right in self.caller(asked).rights
        except Problem:
            return False

    def caller(self, asked: Headers) -> Caller:
        """Whose token was sent. Raises Problem where one is in force and none of them was."""
        if self.token is None and self.named is None:
            return ANYBODY
        scheme, _, shown = asked.get("authorization", "").partition(" ")
        shown, detail = shown.strip(), "Send the node's token as `Authorization: Bearer …`."
        if scheme.lower() == "bearer":
            if self.token is not None and hmac.compare_digest(shown.encode(), self.token.encode()):
                return THE_NODE
            found = self.named.find(shown) if self.named is not None else None
            if found is not None and (found.ends_at is None or datetime.now(UTC) < found.ends_at):
                return Caller(found.name, found.rights, found.id)
            if found is not None and found.ends_at is not None:
                detail = f"The token {found.name} ended at {rfc3339(found.ends_at)}: ask for another one."
        raise Problem(401, "Not allowed", detail, headers={"www-authenticate": "Bearer"})

    def check_type(self, scope: Scope, asked: Headers) -> None:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return
        given = asked.get("content-type", "").partition(";")[0].strip().lower()
        empty = asked.get("content-length", "0") == "0" and "transfer-encoding" not in asked
        if given not in WRITE_TYPES and not (not given and empty):
            text = f"Send application/json or an octet-stream, not {given!r}."
            raise Problem(415, "Unsupported media type", text)

    def check_key(self, scope: Scope, asked: Headers) -> None:
        """Who sends a key with an append trusts that a retry appends nothing. This node could keep that promise only
        while it leads and its control plane runs, so the key is refused and not overlooked. Raises Problem."""
        if outcome_of(scope) is not None and "idempotency-key" in asked:
            raise Problem(422, "No key for appends", NO_KEY)

    def check_group(self, scope: Scope, _: Headers) -> None:
        query = scope.get("query_string", b"")
        asked = parse_qs(query.decode("latin-1")).get("group", ()) if query else ()
        other = next((one for one in asked if one != self.group), None)
        if other is not None:
            detail = f"This node is in the group {self.group!r}, not {other!r}."
            raise Problem(404, "Unknown group", detail, code=int(ResponseCode.UNKNOWN_GROUP))


class NamedTokens:
    """Those of the tokens file, which is read again as soon as it is another one, and on SIGHUP."""

    def __init__(self, path: Path, rereading: Rereading) -> None:
        self.path, self.rereading = path, rereading
        self.stamp, self.looked_s = self.stamp_now(), time.monotonic()
        self.by_digest: dict[str, ControlToken] = {}
        self.use(read_tokens(path))
        rereading.add(TOKENS, lambda: read_tokens(path), self.use)

    def use(self, tokens: Sequence[ControlToken]) -> None:
        self.by_digest = {one.digest: one for one in tokens}

    def stamp_now(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode

    def find(self, shown: str) -> ControlToken | None:
        """By its SHA-256, so that the time of the look-up says nothing of a token."""
        if time.monotonic() >= self.looked_s + LOOK_EVERY_S:
            self.looked_s, stamp = time.monotonic(), self.stamp_now()
            if stamp != self.stamp:
                self.stamp = stamp
                self.rereading.one(TOKENS)
        return self.by_digest.get(digest_of(shown))


def with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            have = {name for name, _ in given}
            message["headers"] = given + [one for one in HEADERS if one[0] not in have]
        await send(message)

    return send_with_headers
