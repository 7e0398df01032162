"""Ways in and out for people: the one-time link, a password where one is set, and logging out.

Invariants: opening a link consumes nothing; a session is new after every login (an old cookie is closed, never reused);
`next` never leads off this console; a wrong name and a wrong password answer alike, in the same time.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import RedirectResponse, Response

from app.console.errors import ConsoleError
from app.db.base import rfc3339
from app.db.models import User
from app.security import links
from app.security.gate import client_address
from app.security.identity import close_session
from app.security.roles import Viewer
from app.security.secrets import PASSWORD_CHARS_MAX, password_matches

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
        return RedirectResponse(safe_next(next), status_code=303)
    return page(request, "login.html", 200, next=safe_next(next), error=None)


@router.post("/login")
async def login(
    request: Request,
    name: Annotated[str, Form(max_length=64)],
    password: Annotated[str, Form(max_length=PASSWORD_CHARS_MAX)],
    next: Annotated[str, Form(max_length=2048)] = "/",
) -> Response:
    async with request.app.state.sessions() as db, db.begin():
        user = await db.scalar(select(User).where(User.name == name, User.disabled_at.is_(None)))
        if not await asyncio.to_thread(password_matches, password, user.password_hash if user else None):
            request.state.trail_detail = {"tried": name}
            return page(request, "login.html", 403, next=safe_next(next), error="Wrong name or password.")
        assert user is not None
        return await enter(request, db, user, safe_next(next))


@router.get("/login/link/{token}")
async def link_page(request: Request, token: str) -> Response:
    async with request.app.state.sessions() as db:
        found = await links.look(db, token)
    if found is None:
        raise GONE
    expires = rfc3339(found.expires_at)
    return page(request, "login_link.html", 200, token=token, user=found.user_name, role=found.role, expires_at=expires)


@router.post("/login/link/{token}")
async def use_link(request: Request, token: str) -> Response:
    async with request.app.state.sessions() as db, db.begin():
        user = await links.consume(db, token)
        if user is None:
            raise GONE
        return await enter(request, db, user, "/")


@router.post("/logout")
async def logout(request: Request) -> Response:
    viewer: Viewer = request.state.viewer
    if viewer.via == "session":
        async with request.app.state.sessions() as db, db.begin():
            await close_session(db, viewer.credential_id)
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(**cookie_shape(request))
    return answer


async def enter(request: Request, db: AsyncSession, user: User, target: str) -> Response:
    """A fresh session for `user`; what the browser carried before is closed."""
    before: Viewer | None = request.state.viewer
    if before is not None and before.via == "session":
        await close_session(db, before.credential_id)
    settings = request.app.state.settings
    token = await request.app.state.identity.open_session(
        db,
        user,
        address=client_address(request.scope, settings),
        agent=request.headers.get("user-agent", ""),
    )
    request.state.trail_detail = {"user_name": user.name, "role": user.role}
    answer = RedirectResponse(target, status_code=303)
    answer.set_cookie(**cookie_shape(request), value=token, max_age=settings.session_max_s)
    return answer


def cookie_shape(request: Request) -> dict[str, Any]:
    """`__Host-` wants Secure, Path=/ and no Domain."""
    secure: bool = request.app.state.settings.secure
    name: str = request.app.state.cookie_name()
    return {"key": name, "path": "/", "secure": secure, "httponly": True, "samesite": "lax"}


def page(request: Request, name: str, status: int, **context: object) -> Response:
    answer: Response = request.app.state.templates.TemplateResponse(request, name, context, status_code=status)
    return answer
