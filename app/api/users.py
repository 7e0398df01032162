"""People and the admin trail: admins only.

Invariant: there is always an admin who can sign in; the last one can be neither demoted, disabled nor removed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.responses import StreamingResponse

from app.api.common import Cursor, Json, Limit, RowCursor, SessionsDep, note, page_of
from app.api.models import (
    OF_GROUPS,
    GroupId,
    GroupRole,
    LoginLinkView,
    NewUserView,
    Page,
    RoleName,
    TrailView,
    UserView,
)
from app.console.cursors import before_id
from app.console.errors import Conflict, Invalid, NotFound
from app.db.engine import again_if_taken
from app.db.models import TrailRow, User
from app.security import links
from app.security.grants import GROUPS_MAX, GrantError, LastAdmin, change, grants_json, keep_an_admin
from app.security.identity import end_sessions
from app.security.people import NAME, user_named, user_to_change
from app.security.trail_chain import entries, line_of
from app.times import rfc3339, utc_now
from node.closed_stream import ClosedStream
from node.openapi_statuses import TEXT, gives
from node.views.request_body import RequestBody

router = APIRouter(tags=["people"])
Name = Annotated[str, Path(max_length=64)]


class NewUser(RequestBody):
    name: Annotated[str, Field(pattern=NAME)]
    role: RoleName = "viewer"
    cluster_roles: Annotated[dict[GroupId, GroupRole], Field(max_length=GROUPS_MAX, json_schema_extra=OF_GROUPS)] = (
        Field(default_factory=dict)
    )


class UserPatch(RequestBody):
    role: RoleName | None = None
    cluster_roles: Annotated[
        Annotated[dict[GroupId, GroupRole | None], Field(max_length=GROUPS_MAX, json_schema_extra=OF_GROUPS)] | None,
        Field(description="only these change; null: back to the default"),
    ] = None
    disabled: bool | None = None
    second_factor_required: Annotated[
        bool | None, Field(description="until they have one, their sessions open nothing but its page")
    ] = None


@router.get("/users", response_model=Page[UserView])
async def list_users(sessions: SessionsDep, limit: Limit = 100, cursor: Cursor = None) -> Json:
    """The users, by name."""
    asked = select(User).order_by(User.name_key).limit(limit + 1)
    if cursor is not None:
        asked = asked.where(User.name_key > cursor.lower())
    async with sessions() as db:
        return page_of([user_json(row) for row in await db.scalars(asked)], limit, "name")


@router.post("/users", status_code=201, response_model=NewUserView)
async def add_user(body: NewUser, request: Request, sessions: SessionsDep, response: Response) -> Json:
    """Adds a user; the answer has the one-time login link to hand over."""

    async def add() -> tuple[Json, str]:
        async with sessions() as db, db.begin():
            taken = await user_named(db, body.name)
            if taken is not None:
                raise Conflict(f"There is a user {taken.name} already; names differ by more than case.")
            try:
                user = await links.new_user(db, body.name, body.role, dict(body.cluster_roles))
            except GrantError as error:
                raise Invalid(str(error)) from None
            return user_json(user), await links.link_for(db, user)

    shown, link = await again_if_taken(add)
    response.headers["location"] = f"/api/v1/users/{body.name}"
    note(request, f"users/{body.name}", after=shown)
    return {**shown, "login_link": link}


@router.get("/users/{name}", response_model=UserView)
async def one_user(name: Name, sessions: SessionsDep) -> Json:
    async with sessions() as db:
        return user_json(await find(db, name))


@router.patch("/users/{name}", response_model=UserView)
async def change_user(name: Name, body: UserPatch, request: Request, sessions: SessionsDep) -> Json:
    """A disabled user's sessions end at once, and open login links are void. An admin has every group: whoever becomes
    one loses their roles on single ones."""
    async with sessions() as db, db.begin():
        user = await find_to_change(db, name)
        before = user_json(user)
        given_here = (body.role, body.cluster_roles, body.second_factor_required)
        if not user.local and any(one is not None for one in given_here):
            raise Conflict(
                f"{user.name} comes from an OpenID provider: their groups there give the role ([oidc] roles)."
            )
        try:
            if body.disabled:
                await keep_an_admin(db, user)
            await change(db, user, to=body.role, groups=body.cluster_roles)
        except LastAdmin as error:
            raise Conflict(f"{error}.") from None
        except GrantError as error:
            raise Invalid(str(error)) from None
        if body.second_factor_required is not None:
            user.second_factor_required = body.second_factor_required
        if body.disabled is not None:
            user.disabled_at = utc_now() if body.disabled else None
            if body.disabled:
                await end_sessions(db, user.id)
                await links.void_links(db, user.id)
        after = user_json(user)
    note(request, f"users/{user.name}", before=before, after=after)
    return after


@router.delete("/users/{name}", status_code=204)
async def remove_user(name: Name, request: Request, sessions: SessionsDep) -> None:
    async with sessions() as db, db.begin():
        user = await find_to_change(db, name)
        try:
            await keep_an_admin(db, user)
        except LastAdmin as error:
            raise Conflict(f"{error}.") from None
        note(request, f"users/{user.name}", before=user_json(user))
        await db.delete(user)


@router.post("/users/{name}/login-link", status_code=201, response_model=LoginLinkView)
async def another_link(name: Name, request: Request, sessions: SessionsDep) -> Json:
    """Makes a new login link; earlier ones of this user are void from now on. A disabled user gets none."""
    async with sessions() as db, db.begin():
        user = await find(db, name)
        note(request, f"users/{user.name}")
        try:
            return {"name": user.name, "login_link": await links.issue_in(db, user.name, None)}
        except links.NoLink as error:
            raise Conflict(str(error)) from None


@router.get("/admin-trail", response_model=Page[TrailView])
async def admin_trail(request: Request, sessions: SessionsDep, limit: Limit = 100, cursor: RowCursor = None) -> Json:
    """The admin trail, newest first. `status` null: the console died while it ran. Anonymous failures are summed up."""
    await request.app.state.failures.flush()
    asked = select(TrailRow).order_by(TrailRow.id.desc()).limit(limit + 1)
    before = before_id(cursor)
    if before is not None:
        asked = asked.where(TrailRow.id < before)
    async with sessions() as db:
        return page_of([trail_json(row) for row in await db.scalars(asked)], limit)


@router.get(
    "/admin-trail/export",
    response_class=StreamingResponse,
    responses=gives("application/x-ndjson", TEXT, example='{"seq":1,"hash":"…"}\n'),
)
async def export_trail(request: Request, sessions: SessionsDep) -> StreamingResponse:
    """The whole admin trail in the order of its hash chain; `quorumscope trail verify` says how the hashes are made."""
    await request.app.state.failures.flush()

    async def lines() -> AsyncGenerator[str, None]:
        async with sessions() as db, aclosing(entries(db)) as chunks:
            async for chunk in chunks:
                yield "".join(line_of(one) for one in chunk)

    headers = {"content-disposition": 'attachment; filename="admin-trail.jsonl"'}
    return ClosedStream(lines(), media_type="application/x-ndjson", headers=headers)


async def find(db: AsyncSession, name: str) -> User:
    return known(await user_named(db, name), name)


async def find_to_change(db: AsyncSession, name: str) -> User:
    return known(await user_to_change(db, name), name)


def known(user: User | None, name: str) -> User:
    if user is None:
        raise NotFound(f"There is no user {name!r}.", title="Unknown user")
    return user


def user_json(row: User) -> Json:
    return {
        "name": row.name,
        **grants_json(row),
        "source": "local" if row.local else "oidc",
        "has_password": row.password_hash is not None,
        "second_factor": row.totp_confirmed_at is not None,
        "second_factor_required": row.second_factor_required,
        "disabled_at": rfc3339(row.disabled_at) if row.disabled_at else None,
        "created_at": rfc3339(row.created_at),
    }


def trail_json(row: TrailRow) -> Json:
    return {
        "id": row.id,
        "at": rfc3339(row.at),
        "user": row.user_name,
        "role": row.role,
        "via": row.via,
        "address": row.address,
        "credential": row.credential,
        "action": row.action,
        "target": row.target,
        "method": row.method,
        "path": row.path,
        "status": row.status,
        "detail": row.detail,
    }
