"""One-time login links: how the first person gets in, and how a lost password is no disaster.

Invariants: opening a link shows a button and consumes nothing (mail scanners open links); pressing the button consumes
it, once, whoever else presses at the same time. A link lives a day.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import utc_now
from app.db.engine import open_engine, open_sessions, upgrade_async
from app.db.models import LoginLink, User
from app.security.roles import Role
from app.security.secrets import digest, new_token

LIFE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OpenLink:
    user_name: str
    role: str
    expires_at: datetime


async def issue_in(db: AsyncSession, user_name: str, role: str | None, *, life: timedelta = LIFE) -> str:
    """The link's path. Makes the user if there is none; a role given for an existing user becomes theirs."""
    user = await db.scalar(select(User).where(User.name == user_name))
    if user is None:
        user = User(name=user_name, role=Role(role or Role.VIEWER).value)
        db.add(user)
        await db.flush()
    elif role is not None:
        user.role = Role(role).value
    user.disabled_at = None
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
            return await issue_in(db, user, role)
    finally:
        await engine.dispose()


def issue(db_url: str, user: str, role: str | None = None) -> str:
    """For the command line: the path to append to the console's address."""
    return asyncio.run(issue_async(db_url, user, role))


async def look(db: AsyncSession, token: str) -> OpenLink | None:
    """Who a link is for, without consuming it; None when it is used up, expired or unknown."""
    row = await db.scalar(select(LoginLink).where(LoginLink.token_hash == digest(token)))
    if row is None or row.used_at is not None or row.expires_at <= utc_now() or row.user.disabled_at is not None:
        return None
    return OpenLink(row.user.name, row.user.role, row.expires_at)


async def consume(db: AsyncSession, token: str) -> User | None:
    """The user, for the one caller that was first."""
    now = utc_now()
    live = LoginLink.used_at.is_(None) & (LoginLink.expires_at > now)
    done = await db.execute(update(LoginLink).where(LoginLink.token_hash == digest(token), live).values(used_at=now))
    if not isinstance(done, CursorResult) or done.rowcount != 1:
        return None
    row = await db.scalar(select(LoginLink).where(LoginLink.token_hash == digest(token)))
    return row.user if row is not None and row.user.disabled_at is None else None
