"""One-time login links: how the first person gets in, and how a lost password is no disaster.

Invariants: opening a link shows a button and consumes nothing (mail scanners open links); pressing the button consumes
it, once, whoever else presses at the same time. A link lives a day, and is void as soon as a newer one is made, any one
is used, or a password is set. Making a link lets nobody in who was shut out: a disabled user gets none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.engine import open_engine, open_sessions, upgrade_async
from app.db.models import ConsoleMeta, LoginLink, User
from app.security import trail
from app.security.grants import change, grants_json
from app.security.people import user_named, user_to_change, valid_name
from app.security.roles import Grants, Role, Viewer
from app.security.secrets import digest, new_token
from app.times import CLOCKS_DIFFER, utc_now, written_ahead
from node.operator_trail import login_name

LIFE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OpenLink:
    user_name: str
    role: str
    expires_at: datetime


class NoLink(ValueError):
    """No way in is made here for this user; the message says why."""


async def void_links(db: AsyncSession, user_id: int) -> None:
    """Whatever links were handed out for this user open nothing any more."""
    open_ones = (LoginLink.user_id == user_id) & LoginLink.used_at.is_(None)
    await db.execute(update(LoginLink).where(open_ones).values(used_at=utc_now()))


async def issue_in(db: AsyncSession, user_name: str, role: str | None, *, life: timedelta = LIFE) -> str:
    """The link's path. Makes the user if there is none; a role given for an existing user becomes theirs.

    Raises ValueError for a name that is none, NoLink for a user who gets none, LastAdmin for a role that takes the last
    one away.
    """
    user = await user_to_change(db, user_name)
    if user is None:
        user = await new_user(db, user_name, role)
    elif user.disabled_at is not None:
        raise NoLink(f"{user.name} is disabled: an admin enables them first, under Users")
    elif not user.local:
        raise NoLink(f"{user.name} comes from an OpenID provider and logs in there; a local user gets a link")
    elif role is not None:
        await change(db, user, to=role)
    return await link_for(db, user, life)


async def new_user(
    db: AsyncSession, name: str, role: str | None, groups: Mapping[str, str | None] | None = None
) -> User:
    """Raises ValueError for a name that is none, or grants that cannot be given; IntegrityError for a name that another
    one took meanwhile."""
    if not valid_name(name):
        raise ValueError(f"{name!r} is no user's name: letters, digits, '.', '_', '@' and '-', at most 64")
    user = User(name=name, role=Role(role or Role.VIEWER).value, cluster_roles={})
    await change(db, user, groups=groups)
    db.add(user)
    await db.flush()
    return user


async def link_for(db: AsyncSession, user: User, life: timedelta = LIFE) -> str:
    """The path of a new link; earlier ones are void."""
    await db.execute(delete(LoginLink).where(LoginLink.user_id == user.id))
    token = new_token()
    now = utc_now()
    db.add(LoginLink(token_hash=digest(token), user_id=user.id, issued_at=now, expires_at=now + life))
    return f"/login/link/{token}"


async def issue_async(db_url: str, user: str, role: str | None = None) -> str:
    """Brings the schema up to date, then issues."""
    await upgrade_async(db_url)
    engine = open_engine(db_url)
    try:
        async with open_sessions(engine)() as db, db.begin():
            known = await user_to_change(db, user)
            said = {"before": grants_json(known)} if known is not None else {}
            path = await issue_in(db, user, role)
            after = await user_named(db, user)
            assert after is not None
            row = trail.row_of(at_the_console(), action="user link", target=f"users/{after.name}")
            await trail.add(db, row, 0, {**said, "after": grants_json(after)})
            return path
    finally:
        await engine.dispose()


def at_the_console() -> Viewer:
    """Whoever runs a command on the console's machine: their name there."""
    return Viewer(0, login_name(), Grants("-"), "command line", 0)


def noted_address(db_url: str) -> str | None:
    """Where the console of this database was last reached; None before its first start."""

    async def look_up() -> str | None:
        engine = open_engine(db_url)
        try:
            async with open_sessions(engine)() as db:
                row = await db.get(ConsoleMeta, "address")
                return row.value if row is not None else None
        finally:
            await engine.dispose()

    return asyncio.run(look_up())


def issue(db_url: str, user: str, role: str | None = None) -> str:
    """For the command line: the path to append to the console's address."""
    return asyncio.run(issue_async(db_url, user, role))


async def look(db: AsyncSession, token: str) -> OpenLink | None:
    """Who a link is for, without consuming it; None when it is used up, expired or unknown."""
    row = await db.scalar(select(LoginLink).where(LoginLink.token_hash == digest(token)))
    now = utc_now()
    if row is None or row.used_at is not None or row.expires_at <= now or row.user.disabled_at is not None:
        return None
    if written_ahead(row.issued_at, now):
        return None
    return OpenLink(row.user.name, row.user.role, row.expires_at)


async def consume(db: AsyncSession, token: str) -> User | None:
    """The user, for the one caller that was first."""
    now = utc_now()
    live = LoginLink.used_at.is_(None) & (LoginLink.expires_at > now) & (LoginLink.issued_at <= now + CLOCKS_DIFFER)
    done = await db.execute(update(LoginLink).where(LoginLink.token_hash == digest(token), live).values(used_at=now))
    if not isinstance(done, CursorResult) or done.rowcount != 1:
        return None
    row = await db.scalar(select(LoginLink).where(LoginLink.token_hash == digest(token)))
    if row is None or row.user.disabled_at is not None or not row.user.local:
        return None
    await void_links(db, row.user_id)
    return row.user
