"""Calls about one's own access: identity, password, sessions, API tokens. Admins see and end everybody's."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy import literal, select

from app.api.common import Json, Limit, RowCursor, RowId, SessionsDep, ViewerDep, note, page_of
from app.api.models import (
    OF_GROUPS,
    PRINTABLE,
    GroupId,
    GroupRole,
    Me,
    NewTokenView,
    Page,
    RoleName,
    SessionView,
    TokenView,
)
from app.console.cursors import before_id
from app.console.errors import Conflict, ConsoleError, Invalid, NotFound
from app.db.models import ApiToken, LoginSession, User
from app.security.grants import GROUPS_MAX, GrantError, grants_json
from app.security.identity import TokensFull, end_sessions, issue_api_token, revoke_tokens
from app.security.limits import LoginLimits
from app.security.links import void_links
from app.security.passwords import Hashing, TooBusy, weakness
from app.security.roles import RIGHTS, Right, Viewer
from app.security.secrets import PASSWORD_CHARS_MAX, PASSWORD_CHARS_MIN
from app.times import rfc3339, utc_now
from node.views.request_body import RequestBody

router = APIRouter(tags=["access"])


class NewPassword(RequestBody):
    password: Annotated[str, Field(min_length=PASSWORD_CHARS_MIN, max_length=PASSWORD_CHARS_MAX)]
    current: Annotated[str | None, Field(max_length=PASSWORD_CHARS_MAX)] = None
    end_tokens: Annotated[bool, Field(description="revoke all of one's API tokens as well")] = False


class TooManyTries(ConsoleError):
    status = 429
    title = "Too many tries"


BUSY = TooManyTries("Many passwords are being checked; try again.", headers={"retry-after": "2"})


def begin_try(request: Request, account: str) -> LoginLimits:
    """A guess at something of one's own account; raises TooManyTries."""
    limits: LoginLimits = request.app.state.own_limits
    wait_s = limits.begin(account, account)
    if wait_s:
        raise TooManyTries(f"Wait {wait_s} s, then try again.", headers={"retry-after": str(wait_s)})
    return limits


async def check_password(request: Request, viewer: Viewer, known: str | None, given: str | None) -> None:
    """Nothing, where there is none. Raises Invalid, TooManyTries."""
    if known is None:
        return
    account = f"password of {viewer.name}"
    hashing: Hashing = request.app.state.hashing
    limits = begin_try(request, account)
    try:
        if not await hashing.matches(given or "", known):
            raise Invalid("`current` is not the present password.")
    except TooBusy:
        limits.undo(account, account)
        raise BUSY from None
    limits.succeeded(account, account)


class NewToken(RequestBody):
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)]
    role: RoleName = "viewer"
    cluster_roles: Annotated[dict[GroupId, GroupRole], Field(max_length=GROUPS_MAX, json_schema_extra=OF_GROUPS)] = (
        Field(default_factory=dict)
    )
    days: Annotated[int | None, Field(ge=1, le=3650)] = 90


@router.get("/me", response_model=Me)
async def me(viewer: ViewerDep) -> Json:
    ends = rfc3339(viewer.expires_at) if viewer.expires_at is not None else None
    return {
        "name": viewer.name,
        "source": "local" if viewer.local else "oidc",
        "role": viewer.role,
        "cluster_roles": {one: role for one, role in viewer.grants.on if viewer.sight.sees(one)},
        "rights": sorted(RIGHTS[viewer.role] - {Right.OWN}),
        "via": viewer.via,
        "expires_at": ends,
    }


@router.put("/me/password", status_code=204)
async def set_password(body: NewPassword, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> None:
    """Sets one's password. Who has one already gives it too; the first one needs only the session of a login link.

    Other sessions end, open login links are void, and with `end_tokens` all API tokens are revoked. A password that is
    easily guessed is refused.
    """
    if viewer.via != "session":
        raise Conflict("A password is set from a session, not with an API token.")
    weak = weakness(body.password, viewer.name)
    if weak is not None:
        raise Invalid(weak)
    hashing: Hashing = request.app.state.hashing
    async with sessions() as db:
        user = await db.get_one(User, viewer.user_id)
        known = user.password_hash
        if not user.local:
            raise Conflict("You log in at the OpenID provider: there is no password here.")
    await check_password(request, viewer, known, body.current)
    try:
        hashed = await hashing.hash(body.password)
    except TooBusy:
        raise BUSY from None
    async with sessions() as db, db.begin():
        user = await db.get_one(User, viewer.user_id)
        if user.password_hash != known:
            raise Conflict("The password was changed meanwhile.")
        user.password_hash = hashed
        await void_links(db, user.id)
        ended = await end_sessions(db, user.id, but=viewer.credential_id)
        revoked = await revoke_tokens(db, user.id) if body.end_tokens else 0
    note(request, f"users/{viewer.name}", after={"password": "set", "sessions_ended": ended, "tokens_revoked": revoked})


@router.get("/sessions", response_model=Page[SessionView])
async def list_sessions(viewer: ViewerDep, sessions: SessionsDep, limit: Limit = 100, cursor: RowCursor = None) -> Json:
    """Login sessions, newest first: one's own, for an admin everybody's. Called with an API token: an admin's only."""
    asked = select(LoginSession).order_by(LoginSession.id.desc()).limit(limit + 1)
    if (before := before_id(cursor)) is not None:
        asked = asked.where(LoginSession.id < before)
    if not viewer.can("admin"):
        asked = asked.where(LoginSession.user_id == viewer.user_id, literal(viewer.via == "session"))
    async with sessions() as db:
        return page_of([session_json(row, viewer) for row in await db.scalars(asked)], limit)


@router.delete("/sessions/{session_id}", status_code=204)
async def end_session(session_id: RowId, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> None:
    async with sessions() as db, db.begin():
        row = await db.get(LoginSession, session_id)
        own = row is not None and row.user_id == viewer.user_id and viewer.via == "session"
        if row is None or not (own or viewer.can("admin")):
            raise NotFound("There is no such session.")
        note(request, f"sessions/{row.id}", before={"user": row.user.name})
        await db.delete(row)


@router.get("/tokens", response_model=Page[TokenView])
async def list_tokens(viewer: ViewerDep, sessions: SessionsDep, limit: Limit = 100, cursor: RowCursor = None) -> Json:
    """API tokens, newest first: one's own, an admin's call: everybody's; a token's: itself alone."""
    asked = select(ApiToken).where(ApiToken.revoked_at.is_(None)).order_by(ApiToken.id.desc()).limit(limit + 1)
    if (before := before_id(cursor)) is not None:
        asked = asked.where(ApiToken.id < before)
    if not viewer.can("admin"):
        own = ApiToken.user_id == viewer.user_id
        asked = asked.where(own if viewer.via == "session" else ApiToken.id == viewer.credential_id)
    async with sessions() as db:
        return page_of([token_json(row, viewer) for row in await db.scalars(asked)], limit)


@router.post("/tokens", status_code=201, response_model=NewTokenView)
async def new_token(
    body: NewToken, request: Request, viewer: ViewerDep, sessions: SessionsDep, response: Response
) -> Json:
    """Issues an API token, which is in this answer and nowhere else. It never has more rights than its owner."""
    if viewer.via != "session":
        raise Conflict("A token cannot make tokens: sign in, or use `quorumscope token`.")
    async with sessions() as db, db.begin():
        user = await db.get(User, viewer.user_id)
        assert user is not None
        try:
            row, token = await issue_api_token(
                db, user, body.name, body.role, days=body.days, groups=dict(body.cluster_roles), sight=viewer.sight
            )
        except TokensFull as error:
            raise Conflict(str(error)) from None
        except GrantError as error:
            raise Invalid(str(error)) from None
        row.user = user
        shown = token_json(row, viewer)
    response.headers["location"] = f"/api/v1/tokens/{row.id}"
    note(request, f"tokens/{row.id}", after=shown)
    return {**shown, "token": token}


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: RowId, request: Request, viewer: ViewerDep, sessions: SessionsDep) -> None:
    async with sessions() as db, db.begin():
        row = await db.get(ApiToken, token_id)
        if row is None or not (viewer.can("admin") or is_own(row, viewer)):
            raise NotFound("There is no such token.")
        note(request, f"tokens/{row.id}", before=token_json(row, viewer))
        row.revoked_at = row.revoked_at or utc_now()


def is_own(row: ApiToken, viewer: Viewer) -> bool:
    """A token has no right over its owner's other tokens."""
    return row.id == viewer.credential_id if viewer.via == "token" else row.user_id == viewer.user_id


def session_json(row: LoginSession, viewer: Viewer) -> Json:
    return {
        "id": row.id,
        "user": row.user.name,
        "created_at": rfc3339(row.created_at),
        "seen_at": rfc3339(row.seen_at),
        "expires_at": rfc3339(row.expires_at),
        "address": row.address,
        "agent": row.agent,
        "current": viewer.via == "session" and viewer.credential_id == row.id,
    }


def token_json(row: ApiToken, viewer: Viewer) -> Json:
    return {
        "id": row.id,
        "user": row.user.name,
        "name": row.name,
        "prefix": row.prefix,
        **grants_json(row, viewer.sight),
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at) if row.expires_at else None,
        "last_used_at": rfc3339(row.last_used_at) if row.last_used_at else None,
    }
