"""From a cookie or a bearer token to a viewer, and the life of sessions.

Invariants: a disabled user, a revoked or expired token and an expired or idle session are nobody. `seen_at` is
written at most once a minute, so that polling pages do not write to the database.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.base import utc_now
from app.db.engine import Sessions
from app.db.models import ApiToken, LoginSession, User
from app.security.roles import Role, Viewer, weaker
from app.security.secrets import API_TOKEN_PREFIX, csrf_token_of, digest, new_api_token, new_token

SEEN_EVERY = timedelta(minutes=1)


class Identity:
    """Looks people up by what they carry."""

    def __init__(self, sessions: Sessions, *, idle_s: int, max_s: int) -> None:
        self.sessions = sessions
        self.idle = timedelta(seconds=idle_s)
        self.max = timedelta(seconds=max_s)

    async def by_cookie(self, token: str) -> Viewer | None:
        now = utc_now()
        async with self.sessions() as db:
            row = await db.scalar(select(LoginSession).where(LoginSession.token_hash == digest(token)))
            if row is None or row.user.disabled_at is not None:
                return None
            if row.expires_at <= now or row.seen_at + self.idle <= now:
                return None
            if row.seen_at + SEEN_EVERY <= now:
                row.seen_at = now
                await db.commit()
            ends = min(row.expires_at, row.seen_at + self.idle)
            return Viewer(row.user_id, row.user.name, row.user.role, "session", row.id, csrf_token_of(token), ends)

    async def by_token(self, token: str) -> Viewer | None:
        if not token.startswith(API_TOKEN_PREFIX):
            return None
        now = utc_now()
        async with self.sessions() as db:
            row = await db.scalar(select(ApiToken).where(ApiToken.token_hash == digest(token)))
            if row is None or row.revoked_at is not None or row.user.disabled_at is not None:
                return None
            if row.expires_at is not None and row.expires_at <= now:
                return None
            if row.last_used_at is None or row.last_used_at + SEEN_EVERY <= now:
                row.last_used_at = now
                await db.commit()
            role = weaker(row.role, row.user.role)
            return Viewer(row.user_id, row.user.name, role, "token", row.id, "", row.expires_at)

    async def still_valid(self, viewer: Viewer) -> bool:
        """For streams, which outlive the request that opened them."""
        now = utc_now()
        async with self.sessions() as db:
            if viewer.via == "session":
                session = await db.get(LoginSession, viewer.credential_id)
                alive = session is not None and session.expires_at > now and session.seen_at + self.idle > now
                user = session.user if session is not None else None
            else:
                token = await db.get(ApiToken, viewer.credential_id)
                alive = token is not None and token.revoked_at is None
                alive = alive and (token.expires_at is None or token.expires_at > now) if token else False
                user = token.user if token is not None else None
        return alive and user is not None and user.disabled_at is None and user.role == viewer.role

    async def open_session(self, db: AsyncSession, user: User, *, address: str, agent: str) -> str:
        """Adds a session and returns its token, which goes into the cookie and nowhere else."""
        token = new_token()
        now = utc_now()
        await db.execute(delete(LoginSession).where(LoginSession.expires_at <= now))
        db.add(
            LoginSession(
                token_hash=digest(token),
                user_id=user.id,
                created_at=now,
                seen_at=now,
                expires_at=now + self.max,
                address=address[:64],
                agent=agent[:200],
            )
        )
        return token


async def close_session(db: AsyncSession, session_id: int) -> None:
    await db.execute(delete(LoginSession).where(LoginSession.id == session_id))


async def issue_api_token(
    db: AsyncSession, user: User, name: str, role: str, *, days: int | None = None
) -> tuple[ApiToken, str]:
    """A row and the token itself, shown once."""
    token, prefix = new_api_token()
    row = ApiToken(
        user_id=user.id,
        name=name,
        prefix=prefix,
        token_hash=digest(token),
        role=weaker(Role(role), user.role),
        created_at=utc_now(),
        expires_at=None if days is None else utc_now() + timedelta(days=days),
    )
    db.add(row)
    await db.flush()
    return row, token
