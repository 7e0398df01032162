"""The gate: every request passes it before any handler, in this order.

head -> Host -> headers -> foreign Origin -> rule (app.security.policy) -> who is it -> CSRF -> second factor -> right
-> trail -> handler.
What fails on this way, in the gate or behind it, is answered here and by `failed`, with the same headers.

Invariants: no handler runs for a caller without the rule's right; no session cookie authorises a change without the
session's CSRF token; stream and API paths never redirect; a refused change is in the trail as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.console.settings import ConsoleSettings
from app.db.engine import Sessions
from app.security import headers as security_headers
from app.security import policy, trail
from app.security.identity import Identity
from app.security.roles import Grants, Right, Viewer
from app.security.secrets import same
from node.config import is_loopback
from node.protocol.peers import name_in
from node.request_head import fault_in_head, without_cookies

FORM_BYTES_MAX = 1 << 20
PUBLIC_BYTES_MAX = 128 << 10  # of a body from whoever is not known yet: names, passwords, codes, a provider's token
FORM_FIELDS_MAX = 1000
FORM_TYPE = "application/x-www-form-urlencoded"
API_TYPES = ("application/json", "application/octet-stream")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Refusal(Exception):
    """Raised inside the gate, rendered by it."""

    def __init__(self, status: int, title: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.title, self.detail = status, title, detail


class EnrolFirst(Refusal):
    """Whoever browses is led to the page that sets up the second factor."""

    def __init__(self) -> None:
        super().__init__(
            403, "Second factor needed", f"This account needs a second factor: set it up at {policy.ENROLMENT_PAGE}."
        )


RefusalRenderer = Callable[[Scope, int, str, str], Response]
FailureRenderer = Callable[[Scope, Exception], Response]


class Gate:
    """Pure ASGI, so that streams pass through unbuffered."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: ConsoleSettings,
        sessions: Sessions,
        identity: Identity,
        cookie_name: Callable[[], str],
        render: RefusalRenderer,
        failed: FailureRenderer,
    ) -> None:
        self.app = app
        self.settings = settings
        self.sessions = sessions
        self.identity = identity
        self.cookie_name = cookie_name
        self.render = render
        self.failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        begun = False

        async def note_begin(message: Message) -> None:
            nonlocal begun
            begun = True
            await with_headers(message)

        with_headers = self.with_headers(scope["path"], send)
        scope.setdefault("state", {})["viewer"] = None
        try:
            await self.pass_through(scope, receive, note_begin)
        except Refusal as refusal:
            await self.refuse(scope, receive, note_begin, refusal)
        except Exception as error:
            if begun:  # half an answer cannot be taken back: the server ends the connection
                raise
            await self.failed(scope, error)(scope, receive, note_begin)
        return None

    def with_headers(self, path: str, send: Send) -> Send:
        extra = security_headers.for_path(path, secure=self.settings.secure)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                have = MutableHeaders(scope=message)
                for name, value in extra:
                    have.setdefault(name.decode(), value.decode())
            await send(message)

        return send_with_headers

    async def pass_through(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path, asked = scope["method"], scope["path"], Headers(scope=scope)
        scope["state"]["cookies"], scope["headers"] = asked.get("cookie", ""), without_cookies(asked.raw)
        changes = method not in policy.SAFE_METHODS
        check_head(scope, asked)
        check_host(asked.get("host", ""), self.settings)
        check_origin(asked, changes=changes, secure=self.settings.secure)
        rule = policy.find(method, path)
        viewer = await self.who(asked)
        scope["state"]["viewer"] = viewer
        action = rule.trail or (f"{method} {rule.secret_path or path}" if changes and not rule.own_trail else None)
        begin = self.recorder(scope, viewer, action, rule.secret_path)
        try:
            if rule.right is not None and viewer is None:
                raise Refusal(401, "Not signed in", "Sign in, or send an API token as `Authorization: Bearer …`.")
            if changes and path.startswith("/api/"):
                check_api_type(asked)
            if changes and rule.right is None:
                receive = replay(await read_form(receive, PUBLIC_BYTES_MAX), receive)
            if changes and viewer is not None and viewer.via == "session" and rule.right is not None:
                receive = await check_csrf(asked, receive, viewer)
            if rule.right is not None and viewer is not None:
                check_enrolled(path, viewer)
                self.check_right(scope, rule, viewer)
        except Refusal as refusal:
            if action is not None and viewer is not None:
                await trail.complete(self.sessions, await begin(), refusal.status, {"refused": refusal.detail})
            raise
        if action is None:
            return await self.app(scope, receive, send)
        return await self.recorded(await begin(), scope, receive, send)

    def check_right(self, scope: Scope, rule: policy.Rule, viewer: Viewer) -> None:
        """A group that somebody does not see is answered like one that there is not. Raises Refusal."""
        path, right = scope["path"], rule.right
        assert right is not None
        group = policy.group_of(path)
        if group is not None:
            hidden = not viewer.can(Right.VIEW, group)
            if hidden or (viewer.grants.on and group not in scope["app"].state.console.watches):
                raise Refusal(404, "Unknown cluster", f"No group is called {group!r} here.")
        if not (viewer.grants.can_somewhere(right) if rule.somewhere else viewer.can(right, group)):
            where = " on every group" if group is None and not rule.somewhere and viewer.grants.on else ""
            role = viewer.role if group is None else viewer.role_on(group)
            raise Refusal(403, "Not allowed", f"{path} needs the right `{right}`{where}; {role}s do not have it.")

    async def recorded(self, row_id: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the handler and completes the trail's row with the status it answered."""
        status = 500

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note_status)
        finally:
            await trail.complete(self.sessions, row_id, status, scope["state"].get("trail_detail"))

    def recorder(
        self, scope: Scope, viewer: Viewer | None, action: str | None, secret_path: str | None
    ) -> Callable[[], Awaitable[int]]:
        query = scope.get("query_string", b"").decode("latin-1")
        shown = secret_path or scope["path"] + (f"?{query}" if query else "")
        group = policy.group_of(scope["path"])
        if viewer is not None and group is not None:  # the trail says the role that they have there
            viewer = replace(viewer, grants=Grants(viewer.role_on(group)))

        async def begin() -> int:
            return await trail.begin(
                self.sessions,
                viewer,
                action=action or "",
                method=scope["method"],
                path=shown,
                address=client_address(scope, self.settings),
                target=target_of(scope["path"]) if secret_path is None else "",
            )

        return begin

    async def who(self, asked: Headers) -> Viewer | None:
        """A bearer token that is wrong is nobody: it never falls back to the cookie."""
        authorization = asked.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            return await self.identity.by_token(token.strip()) if scheme.lower() == "bearer" else None
        cookie = read_cookie(asked.get("cookie", ""), self.cookie_name())
        return await self.identity.by_cookie(cookie) if cookie else None

    async def refuse(self, scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
        if refusal.status == 401 and wants_page(scope) and scope["method"] in policy.SAFE_METHODS:
            query = scope.get("query_string", b"").decode("latin-1")
            target = scope["path"] + (f"?{query}" if query else "")
            response: Response = RedirectResponse(f"/login?next={quote(target, safe='')}", status_code=303)
        elif isinstance(refusal, EnrolFirst) and wants_page(scope):
            response = RedirectResponse(policy.ENROLMENT_PAGE, status_code=303)
        else:
            response = self.render(scope, refusal.status, refusal.title, refusal.detail)
            if refusal.status == 401:
                response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)


def check_enrolled(path: str, viewer: Viewer) -> None:
    if viewer.must_enrol and policy.ENROLMENT.fullmatch(path) is None:
        raise EnrolFirst


def target_of(path: str) -> str:
    """What a call is about, where its handler says nothing better: the resource in its path."""
    return path.removeprefix("/api/v1").strip("/")


def wants_page(scope: Scope) -> bool:
    """True for a browser's navigation: not the API, not a stream, not a fragment that htmx fetches."""
    asked = Headers(scope=scope)
    if scope["path"].startswith(("/api/", "/live/")) or "hx-request" in asked:
        return False
    return "text/html" in asked.get("accept", "")


def read_cookie(header: str, name: str) -> str | None:
    """The last one of that name, as it was sent (node.request_head says why)."""
    found = None
    for one in header.split(";"):
        key, _, value = one.partition("=")
        if key.strip() == name:
            found = value.strip().removeprefix('"').removesuffix('"')
    return found


def check_head(scope: Scope, asked: Headers) -> None:
    """Raises Refusal."""
    fault = fault_in_head(scope, asked)
    if fault is not None:
        raise Refusal(*fault)


def check_host(host: str, settings: ConsoleSettings) -> None:
    """Against DNS rebinding: a page elsewhere may resolve its own name to our address, but it cannot lie in Host.

    Raises Refusal.
    """
    name = name_in(host)
    allowed = LOOPBACK_NAMES if settings.loopback else {settings.host}
    if name in allowed or name in settings.allowed_hosts:
        return
    if not settings.loopback and is_address(name):
        return
    raise Refusal(421, "Unknown host", f"This console does not answer to {name!r}; add it to console.allowed_hosts.")


def is_address(name: str) -> bool:
    """An IP literal cannot be rebound."""
    return is_loopback(name) or name.replace(".", "").isdigit() or ":" in name


def check_origin(asked: Headers, *, changes: bool, secure: bool) -> None:
    """A browser on another site is refused, whatever it carries; navigations to us (GET) are fine. Raises Refusal."""
    origin = asked.get("origin")
    ours = f"{'https' if secure else 'http'}://{asked.get('host', '')}"
    if origin is not None and origin != ours:
        raise Refusal(403, "Foreign origin", f"Requests from {origin} are refused; this console is {ours}.")
    if changes and asked.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refusal(403, "Foreign site", "A change may only come from this console's own pages.")


def check_api_type(asked: Headers) -> None:
    """Only types that a plain form on another site cannot send; no body needs no type. Raises Refusal."""
    given = asked.get("content-type", "").partition(";")[0].strip().lower()
    if given in API_TYPES or (not given and asked.get("content-length", "0") == "0"):
        return
    raise Refusal(415, "Unsupported media type", f"Send application/json (or an octet-stream), not {given!r}.")


async def check_csrf(asked: Headers, receive: Receive, viewer: Viewer) -> Receive:
    """The token from the header, or from the form's hidden field; the body that was read is given on again.

    Raises Refusal.
    """
    token = asked.get("x-csrf-token")
    if token is None and asked.get("content-type", "").partition(";")[0].strip().lower() == FORM_TYPE:
        body = await read_form(receive, FORM_BYTES_MAX)
        fields: dict[str, list[Any]] = parse_qs(body.decode("latin-1"))
        token = fields.get("csrf_token", [None])[0]
        receive = replay(body, receive)
    if token is None or not same(token, viewer.csrf_token):
        raise Refusal(403, "Form expired", "The CSRF token is missing or belongs to another session; reload the page.")
    return receive


async def read_form(receive: Receive, bytes_max: int) -> bytes:
    """Its body. What takes forms apart looks at every byte, on the loop, also at those between fields. Raises
    Refusal."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise Refusal(413, "Too large", f"A form may have {bytes_max} bytes here.")
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    if body.count(b"&") + body.count(b";") > FORM_FIELDS_MAX:
        raise Refusal(413, "Too large", f"A form may have {FORM_FIELDS_MAX} fields.")
    return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


def client_address(scope: Scope, settings: ConsoleSettings) -> str:
    """Behind a proxy the last X-Forwarded-For entry, which the proxy itself wrote: some write a header of their own
    behind the caller's."""
    if settings.behind_proxy:
        forwarded = ",".join(Headers(scope=scope).getlist("x-forwarded-for"))
        if forwarded:
            return forwarded.rpartition(",")[2].strip()
    client = scope.get("client")
    return client[0] if client else ""
