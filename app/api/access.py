"""Calls about one's own access: identity, password, sessions, API tokens. Admins see and end everybody's."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select

from app.api.common import Json, RowId, SessionsDep, ViewerDep
from app.console.errors import Conflict, Invalid, NotFound
from app.db.base import rfc3339, utc_now
from app.db.models import ApiToken, LoginSession, User
from app.security.identity import issue_api_token
from app.security.roles import RIGHTS, Viewer
from app.security.secrets import PASSWORD_CHARS_MAX, PASSWORD_CHARS_MIN, password_matches, passwords

router = APIRouter(tags=["access"])


class NewPassword(BaseModel):
    model_config = ConfigDict(extra="forbid")
    password: Annotated[str, Field(min_length=PASSWORD_CHARS_MIN, max_length=PASSWORD_CHARS_MAX)]
    current: Annotated[str | None, Field(max_length=PASSWORD_CHARS_MAX)] = None


class NewToken(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=64)]
    role: Literal["viewer", "operator", "admin"] = "viewer"
    days: Annotated[int | None, Field(ge=1, le=3650)] = 90


@router.get("/me")
async def me(viewer: ViewerDep) -> Json:
    ends = rfc3339(viewer.expires_at) if viewer.expires_at is not None else None
    rights = sorted(RIGHTS[viewer.role])
    return {"name": viewer.name, "role": viewer.role, "rights": rights, "via": viewer.via, "expires_at": ends}


@router.put("/me/password", status_code=204)
async def set_password(body: NewPassword, viewer: ViewerDep, sessions: SessionsDep) -> None:
    """Whoever has a password must name it; whoever came by a link may set the first one. Other sessions end."""
    if viewer.via != "session":
        raise Conflict("A password is set from a session, not with an API token.")
    async with sessions() as db, db.begin():
        user = await db.get(User, viewer.user_id)
        assert user is not None
        known = user.password_hash
        if known is not None and not await asyncio.to_thread(password_matches, body.current or "", known):
            raise Invalid("`current` is not the present password.")
        user.password_hash = await asyncio.to_thread(passwords.hash, body.password)
        mine = (LoginSession.user_id == user.id) & (LoginSession.id != viewer.credential_id)
        for other in await db.scalars(select(LoginSession).where(mine)):
            await db.delete(other)


@router.get("/sessions")
async def list_sessions(viewer: ViewerDep, sessions: SessionsDep) -> Json:
    asked = select(LoginSession).order_by(LoginSession.seen_at.desc()).limit(1000)
    if not viewer.can("admin"):
        asked = asked.where(LoginSession.user_id == viewer.user_id)
    async with sessions() as db:
        items = [session_json(row, viewer) for row in await db.scalars(asked)]
    return {"items": items, "next": None}


@router.delete("/sessions/{session_id}", status_code=204)
async def end_session(session_id: RowId, viewer: ViewerDep, sessions: SessionsDep) -> None:
    async with sessions() as db, db.begin():
        row = await db.get(LoginSession, session_id)
        if row is None or not (viewer.can("admin") or row.user_id == viewer.user_id):
            raise NotFound("There is no such session.")
        await db.delete(row)


@router.get("/tokens")
async def list_tokens(viewer: ViewerDep, sessions: SessionsDep) -> Json:
    asked = select(ApiToken).where(ApiToken.revoked_at.is_(None)).order_by(ApiToken.id).limit(1000)
    if not viewer.can("admin"):
        asked = asked.where(ApiToken.user_id == viewer.user_id)
    async with sessions() as db:
        return {"items": [token_json(row) for row in await db.scalars(asked)], "next": None}


@router.post("/tokens", status_code=201)
async def new_token(body: NewToken, viewer: ViewerDep, sessions: SessionsDep, response: Response) -> Json:
    """The token itself is in this answer and nowhere else. It never has more rights than its owner."""
    if viewer.via != "session":
        raise Conflict("A token cannot make tokens: sign in, or use `quorumscope token`.")
    async with sessions() as db, db.begin():
        user = await db.get(User, viewer.user_id)
        assert user is not None
        row, token = await issue_api_token(db, user, body.name, body.role, days=body.days)
        row.user = user
        shown = token_json(row)
    response.headers["location"] = f"/api/v1/tokens/{row.id}"
    return {**shown, "token": token}


@router.delete("/tokens/{token_id}", status_code=204)
async def revoke_token(token_id: RowId, viewer: ViewerDep, sessions: SessionsDep) -> None:
    async with sessions() as db, db.begin():
        row = await db.get(ApiToken, token_id)
        if row is None or not (viewer.can("admin") or row.user_id == viewer.user_id):
            raise NotFound("There is no such token.")
        row.revoked_at = row.revoked_at or utc_now()


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


def token_json(row: ApiToken) -> Json:
    return {
        "id": row.id,
        "user": row.user.name,
        "name": row.name,
        "prefix": row.prefix,
        "role": row.role,
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at) if row.expires_at else None,
        "last_used_at": rfc3339(row.last_used_at) if row.last_used_at else None,
    }
