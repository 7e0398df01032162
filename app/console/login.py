"""Ways in and out for people: the one-time link, a password where one is set, the second factor, and logging out.

Invariants: opening a link consumes nothing; a session is new after every login (an old cookie is closed, never reused);
`next` never leads off this console; a wrong name and a wrong password answer alike, in the same time. Who fails too
often waits, per account and per address (app.security.limits): 429 with Retry-After, before anything is hashed. No
database session is open while a password is checked; a login is in the trail with the transaction that makes its
session, and failures are summed up there (app.security.failures). Where a user has a second factor, link and password
open no session: a sealed cookie says for five minutes that the first factor was right, void once either has changed.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import Response

from app.console.drawing import page, see
from app.console.errors import ConsoleError, SecretUnreadable
from app.db.models import User
from app.security import links, second_factor, trail
from app.security.failures import Failures
from app.security.gate import client_address, read_cookie
from app.security.grants import granted
from app.security.identity import close_session
from app.security.limits import LoginLimits
from app.security.oidc import Provider
from app.security.passwords import Hashing, TooBusy
from app.security.people import user_named
from app.security.roles import Viewer
from app.security.sealed import Seal, SealError
from app.security.sealed_cookies import SealedCookie
from app.security.second_factor import CODE_CHARS_MAX, SecondFactors, recovery_codes_left
from app.security.secrets import PASSWORD_CHARS_MAX, digest
from app.times import rfc3339

BUSY_RETRY_S: Final = 2
LOGIN_FAILED: Final = "login failed"
LINK_FAILED: Final = "login link failed"
CODE_FAILED: Final = "second factor failed"
HALF_LOGIN_S: Final = 300
NEXT_CHARS_MAX: Final = 1024
router = APIRouter(include_in_schema=False)


class LinkGone(ConsoleError):
    status = 410
    title = "This link is used up"


GONE = LinkGone(
    "Login links work once and live a day.",
    action="Ask an admin for another one, or run `quorumscope user link NAME` on the console's machine.",
)


def safe_next(target: str | None) -> str:
    """A path on this console; `//host` and `/\\host` would leave it."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")) or not target.isprintable():
        return "/"
    return target


@router.get("/login")
async def login_page(request: Request, next: str = "/") -> Response:
    if request.state.viewer is not None:
        return see(safe_next(next))
    return page(request, "login", {"next": safe_next(next), "error": None})


@router.post("/login")
async def login(
    request: Request,
    name: Annotated[str, Form(max_length=64)],
    password: Annotated[str, Form(max_length=PASSWORD_CHARS_MAX)],
    next: Annotated[str, Form(max_length=2048)] = "/",
) -> Response:
    parts, target = request.app.state, safe_next(next)
    limits: LoginLimits = parts.login_limits
    failures: Failures = parts.failures
    hashing: Hashing = parts.hashing
    address = client_address(request.scope, parts.settings)
    wait_s = limits.begin(name, address)
    if wait_s:
        failures.note(LOGIN_FAILED, address, 403, name=name, limited=True)
        return too_many(request, target, wait_s)
    async with parts.sessions() as db:
        user = await user_named(db, name)
    known = user.password_hash if user is not None and user.disabled_at is None else None
    try:
        right = await hashing.matches(password, known)
    except TooBusy:
        limits.undo(name, address)
        return too_many(request, target, BUSY_RETRY_S)
    if not right:
        failures.note(LOGIN_FAILED, address, 403, name=name)
        return page(request, "login", {"next": target, "error": "Wrong name or password."}, 403)
    async with parts.sessions() as db, db.begin():
        user = await user_named(db, name)
        if user is None or user.disabled_at is not None or user.password_hash != known:
            return page(request, "login", {"next": target, "error": "Wrong name or password."}, 403)
        limits.succeeded(name, address)
        return await first_factor_done(request, db, user, target, "login")


def too_many(request: Request, target: str, wait_s: int) -> Response:
    error = f"Too many tries. Wait {wait_s} s, then try again; a one-time login link works meanwhile."
    return wait(page(request, "login", {"next": target, "error": error}, 429), wait_s)


def wait(answer: Response, wait_s: int) -> Response:
    answer.headers["retry-after"] = str(wait_s)
    return answer


@router.get("/login/link/{token}")
async def link_page(request: Request, token: str) -> Response:
    async with request.app.state.sessions() as db:
        found = await links.look(db, token)
    if found is None:
        raise GONE
    expires = rfc3339(found.expires_at)
    return page(
        request, "login_link", {"token": token, "user": found.user_name, "role": found.role, "expires_at": expires}
    )


@router.post("/login/link/{token}")
async def use_link(request: Request, token: str) -> Response:
    async with request.app.state.sessions() as db, db.begin():
        user = await links.consume(db, token)
        if user is not None:
            return await first_factor_done(request, db, user, "/", "login by link")
    failures: Failures = request.app.state.failures
    failures.note(LINK_FAILED, client_address(request.scope, request.app.state.settings), GONE.status)
    raise GONE


@router.post("/logout")
async def logout(request: Request) -> Response:
    viewer: Viewer = request.state.viewer
    if viewer.via == "session":
        async with request.app.state.sessions() as db, db.begin():
            await close_session(db, viewer.credential_id)
    answer: Response = see("/login")
    if not viewer.local:
        request.state.viewer = None
        provider: Provider | None = request.app.state.provider
        back = f"{request.app.state.settings.provider_url}/login"
        answer = page(request, "logged_out", {"url": provider.end_session_url(back) if provider else None})
    answer.delete_cookie(**cookie_shape(request))
    return answer


# --- the second factor ---


def half_logins(seal: Seal) -> SealedCookie:
    return SealedCookie(seal, "half", "a login that wants its second factor", HALF_LOGIN_S)


async def first_factor_done(request: Request, db: AsyncSession, user: User, target: str, action: str) -> Response:
    """In, or on to the second factor."""
    if user.totp_confirmed_at is None:
        return await enter(request, db, user, target, action)
    half: SealedCookie = request.app.state.half_logins
    kept = target if len(target) <= NEXT_CHARS_MAX else "/"
    said = {"user": user.id, "proof": proof_of(user), "next": kept, "action": action}
    answer = see("/login/second-factor")
    answer.set_cookie(**cookie_shape(request, half.name), value=half.text_of(said), max_age=half.life_s)
    return answer


def proof_of(user: User) -> str:
    """Of what the first factor was shown to: another password or another secret, and it has to be shown again."""
    return digest(f"{user.password_hash} {user.totp_sealed!r}")


async def half_in(request: Request, db: AsyncSession) -> tuple[User, dict[str, Any]] | None:
    """Whose first factor was right a moment ago."""
    half: SealedCookie = request.app.state.half_logins
    said = half.content_of(read_cookie(request.state.cookies, cookie_shape(request, half.name)["key"]))
    user = await db.get(User, said["user"]) if said is not None else None
    if said is None or user is None or user.disabled_at is not None or user.totp_confirmed_at is None:
        return None
    return (user, said) if proof_of(user) == said["proof"] else None


@router.get("/login/second-factor")
async def code_page(request: Request) -> Response:
    async with request.app.state.sessions() as db:
        found = await half_in(request, db)
    return again_from_the_start() if found is None else page(request, "login_code", {"error": None})


def again_from_the_start() -> Response:
    return see("/login")


@router.post("/login/second-factor")
async def use_code(request: Request, code: Annotated[str, Form(max_length=CODE_CHARS_MAX)]) -> Response:
    parts = request.app.state
    limits: LoginLimits = parts.own_limits  # its keys are no names that a stranger could try to log in under
    factors: SecondFactors = parts.second_factors
    address = client_address(request.scope, parts.settings)
    async with parts.sessions() as db:
        found = await half_in(request, db)
    if found is None:
        return again_from_the_start()
    account = second_factor.account_of(found[0])
    wait_s = limits.begin(account, address)
    if wait_s:
        parts.failures.note(CODE_FAILED, address, 403, name=found[0].name, limited=True)
        error = f"Too many tries. Wait {wait_s} s, then try again."
        return wait(page(request, "login_code", {"error": error}, 429), wait_s)
    async with parts.sessions() as db, db.begin():
        found = await half_in(request, db)
        if found is None:
            return again_from_the_start()
        user, said = found
        try:
            used = await factors.accept(db, user, code)
        except SealError as error:
            raise SecretUnreadable(str(error)) from None
        if used is not None:
            limits.succeeded(account, address)
            detail = {"second_factor": used, "recovery_codes_left": await recovery_codes_left(db, user.id)}
            answer = await enter(request, db, user, safe_next(said["next"]), said["action"], detail)
            answer.delete_cookie(**cookie_shape(request, parts.half_logins.name))
            return answer
    parts.failures.note(CODE_FAILED, address, 403, name=user.name)
    return page(request, "login_code", {"error": "Wrong code, or one that was used already."}, 403)


async def enter(
    request: Request, db: AsyncSession, user: User, target: str, action: str, detail: dict[str, Any] | None = None,
    oidc_sid: str | None = None,
) -> Response:  # fmt: skip
    """A fresh session for `user`, and its row in the trail; what the browser carried before is closed."""
    before: Viewer | None = request.state.viewer
    if before is not None and before.via == "session":
        await close_session(db, before.credential_id)
    settings = request.app.state.settings
    address = client_address(request.scope, settings)
    token = await request.app.state.identity.open_session(
        db, user, address=address, agent=request.headers.get("user-agent", ""), oidc_sid=oidc_sid
    )
    viewer = Viewer(user.id, user.name, granted(user), "login", 0)
    path = request.url.path if "/link/" not in request.url.path else "/login/link/…"
    asked = {"method": request.method, "path": path, "address": address}
    row = trail.row_of(viewer, action=action, target=f"users/{user.name}", **asked)
    await trail.add(db, row, 303, detail)
    answer = see(target)
    answer.set_cookie(**cookie_shape(request), value=token, max_age=settings.session_max_s)
    return answer


def cookie_shape(request: Request, ending: str = "") -> dict[str, Any]:
    """`__Host-` wants Secure, Path=/ and no Domain."""
    secure: bool = request.app.state.settings.secure
    name: str = request.app.state.cookie_name() + (f"-{ending}" if ending else "")
    return {"key": name, "path": "/", "secure": secure, "httponly": True, "samesite": "lax"}
