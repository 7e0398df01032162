"""Turns a cookie or a bearer token into a viewer; opens and closes sessions, issues API tokens.

Invariants: a disabled user, a revoked or expired token and an expired or idle session identify nobody; neither does
whom an OpenID provider vouched for, when another one is configured now, or none, or when that was too long ago.
`seen_at` is written at most once a minute, so that polling pages do not write to the database, and in the background: a
database that is locked costs nobody a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.engine import Sessions
from app.db.models import ApiToken, LoginSession, User
from app.security.grants import GrantError, changed, check_known, granted
from app.security.roles import ALL, Sight, Viewer, weaker
from app.security.second_factor import Wanted, must_enrol
from app.security.secrets import API_TOKEN_PREFIX, csrf_token_of, digest, new_api_token, new_token
from app.times import CLOCKS_DIFFER, utc_now, written_ahead
from node.background import Background
from node.config_models import OidcTable

SEEN_EVERY = timedelta(minutes=1)
NOTED_MAX: Final = 10_000
TOKENS_MAX: Final = 100  # of one user, that are in force
TOKENS_SHOWN_FOR = timedelta(days=30)  # after their end
SESSIONS_MAX: Final = 100  # of one user; the oldest ends


class TokensFull(GrantError):
    """A user has as many API tokens as one may have."""


class Identity:
    """Looks people up by what they carry."""

    def __init__(
        self, sessions: Sessions, *, idle_s: int, max_s: int, second_factor: Wanted = "optional",
        provider: OidcTable | None = None,
    ) -> None:  # fmt: skip
        self.sessions = sessions
        self.provider = provider or OidcTable()
        self.second_factor: Wanted = second_factor
        self.idle = timedelta(seconds=idle_s)
        self.max = timedelta(seconds=max_s)
        self.background = Background()
        # (via, credential) -> when this process saw it last; the database follows.
        self.noted: dict[tuple[str, int], datetime] = {}

    async def close(self) -> None:
        await self.background.stop()

    def last_seen(self, via: str, credential_id: int, stored: datetime) -> datetime:
        return max(stored, self.noted.get((via, credential_id), stored))

    def idle_from(self, session: LoginSession, now: datetime) -> datetime:
        """When it was used last; what a clock that was ahead noted would have nobody be idle for so long."""
        seen = self.last_seen("session", session.id, session.seen_at)
        return session.created_at if written_ahead(seen, now) else seen

    def note(self, via: str, credential_id: int, seen: datetime | None, now: datetime) -> None:
        """Written to the database in the background, at most once a minute."""
        seen = self.noted.get((via, credential_id)) if seen is None else self.last_seen(via, credential_id, seen)
        if seen is not None and now < seen + SEEN_EVERY and not written_ahead(seen, now):
            return
        while len(self.noted) >= NOTED_MAX:
            del self.noted[next(iter(self.noted))]
        self.noted[via, credential_id] = now
        self.background.run(f"noting that a {via} was seen", self.store_seen(via, credential_id, now))

    async def store_seen(self, via: str, credential_id: int, at: datetime) -> None:
        change = (
            update(LoginSession).where(LoginSession.id == credential_id).values(seen_at=at)
            if via == "session"
            else update(ApiToken).where(ApiToken.id == credential_id).values(last_used_at=at)
        )
        async with self.sessions() as db, db.begin():
            await db.execute(change)

    def vouched_for(self, user: User, now: datetime, life: timedelta) -> bool:
        """Whom the configured OpenID provider has let in lately; a local user needs none."""
        if user.local:
            return True
        at = user.oidc_confirmed_at
        if at is None or written_ahead(at, now):
            return False
        return user.oidc_issuer == self.provider.issuer and now < at + life

    async def by_cookie(self, token: str) -> Viewer | None:
        now = utc_now()
        async with self.sessions() as db:
            row = await db.scalar(select(LoginSession).where(LoginSession.token_hash == digest(token)))
            if row is None or row.user.disabled_at is not None:
                return None
            if row.expires_at <= now or self.idle_from(row, now) + self.idle <= now:
                return None
            if written_ahead(row.created_at, now):
                return None
            if not self.vouched_for(row.user, now, self.max):
                return None
            self.note("session", row.id, row.seen_at, now)
            ends = min(row.expires_at, self.idle_from(row, now) + self.idle)
            return Viewer(
                row.user_id, row.user.name, granted(row.user), "session", row.id, row.token_hash, csrf_token_of(token),
                ends, must_enrol(row.user, self.second_factor), row.user.local,
            )  # fmt: skip

    async def by_token(self, token: str) -> Viewer | None:
        if not token.startswith(API_TOKEN_PREFIX):
            return None
        now = utc_now()
        async with self.sessions() as db:
            row = await db.scalar(select(ApiToken).where(ApiToken.token_hash == digest(token)))
            if row is None or row.revoked_at is not None or row.user.disabled_at is not None:
                return None
            if row.expires_at is not None and (row.expires_at <= now or written_ahead(row.created_at, now)):
                return None
            if not self.vouched_for(row.user, now, timedelta(days=self.provider.tokens_days)):
                return None
            self.note("token", row.id, row.last_used_at, now)
            grants = granted(row).within(granted(row.user))
            return Viewer(
                row.user_id, row.user.name, grants, "token", row.id, row.token_hash, expires_at=row.expires_at,
                local=row.user.local,
            )  # fmt: skip

    async def still_valid(self, viewer: Viewer) -> bool:
        """For streams, which outlive the request that opened them."""
        now = utc_now()
        async with self.sessions() as db:
            if viewer.via == "session":
                session = await db.get(LoginSession, viewer.credential_id)
                if session is None or session.token_hash != viewer.credential_hash or session.expires_at <= now:
                    return False
                if self.idle_from(session, now) + self.idle <= now:
                    return False
                if written_ahead(session.created_at, now):
                    return False
                user, grants = session.user, granted(session.user)
                if must_enrol(user, self.second_factor):
                    return False
            else:
                token = await db.get(ApiToken, viewer.credential_id)
                if token is None or token.token_hash != viewer.credential_hash or token.revoked_at is not None:
                    return False
                if token.expires_at is not None and (token.expires_at <= now or written_ahead(token.created_at, now)):
                    return False
                user, grants = token.user, granted(token).within(granted(token.user))
        life = self.max if viewer.via == "session" else timedelta(days=self.provider.tokens_days)
        return user.disabled_at is None and grants == viewer.grants and self.vouched_for(user, now, life)

    async def open_session(
        self, db: AsyncSession, user: User, *, address: str, agent: str, oidc_sid: str | None = None
    ) -> str:
        """Adds a session and returns its token, which goes into the cookie and nowhere else. `oidc_sid`: of which
        session at the provider it is a part. What is over goes, and what was begun while the clock was ahead: once the
        time has come it would let in again, for longer than a session may last."""
        token = new_token()
        now = utc_now()
        life = self.max if user.local else min(self.max, timedelta(seconds=self.provider.session_max_s))
        over = (LoginSession.expires_at <= now) | (LoginSession.created_at > now + CLOCKS_DIFFER)
        await db.execute(delete(LoginSession).where(over))
        mine = select(LoginSession.id).where(LoginSession.user_id == user.id).order_by(LoginSession.id.desc())
        older = list(await db.scalars(mine.offset(SESSIONS_MAX - 1)))
        await db.execute(delete(LoginSession).where(LoginSession.id.in_(older)))
        db.add(
            LoginSession(
                token_hash=digest(token),
                user_id=user.id,
                created_at=now,
                seen_at=now,
                expires_at=now + life,
                address=address[:64],
                agent=agent[:200],
                oidc_sid=oidc_sid,
            )
        )
        return token


async def end_sessions(db: AsyncSession, user_id: int, *, but: int | None = None) -> int:
    """All of a user's sessions, but one perhaps; how many those were."""
    mine = LoginSession.user_id == user_id
    if but is not None:
        mine &= LoginSession.id != but
    ended = list(await db.scalars(select(LoginSession.id).where(mine)))
    await db.execute(delete(LoginSession).where(LoginSession.id.in_(ended)))
    return len(ended)


async def revoke_tokens(db: AsyncSession, user_id: int) -> int:
    """All of a user's API tokens; how many those were."""
    live = (ApiToken.user_id == user_id) & ApiToken.revoked_at.is_(None)
    ended = list(await db.scalars(select(ApiToken.id).where(live)))
    await db.execute(update(ApiToken).where(ApiToken.id.in_(ended)).values(revoked_at=utc_now()))
    return len(ended)


async def close_session(db: AsyncSession, session_id: int) -> None:
    await db.execute(delete(LoginSession).where(LoginSession.id == session_id))


async def issue_api_token(
    db: AsyncSession, user: User, name: str, role: str, *, days: int | None = None,
    groups: Mapping[str, str | None] | None = None, sight: Sight = ALL,
) -> tuple[ApiToken, str]:  # fmt: skip
    """A row and the token itself, shown once. Raises GrantError for what cannot be given, TokensFull.

    What was revoked, or is over for long, goes then: whoever makes and revokes tokens over and over fills no table. Not
    before, as the newest row keeps its number from being given again: the trail names tokens by it."""
    in_force = (ApiToken.user_id == user.id) & ApiToken.revoked_at.is_(None)
    in_force &= or_(ApiToken.expires_at.is_(None), ApiToken.expires_at > utc_now())
    if (await db.scalar(select(func.count()).select_from(ApiToken).where(in_force)) or 0) >= TOKENS_MAX:
        raise TokensFull(f"{user.name} has {TOKENS_MAX} API tokens, the most that one may have; revoke one first")
    await check_known(db, groups, user.cluster_roles, sight)
    given, on = changed(role, {}, groups=groups)
    token, prefix = new_api_token()
    row = ApiToken(
        user_id=user.id,
        name=name,
        prefix=prefix,
        token_hash=digest(token),
        role=weaker(given, user.role),
        cluster_roles=on,
        created_at=utc_now(),
        expires_at=None if days is None else utc_now() + timedelta(days=days),
    )
    db.add(row)
    await db.flush()
    over = or_(ApiToken.revoked_at.is_not(None), ApiToken.expires_at <= utc_now() - TOKENS_SHOWN_FOR)
    await db.execute(delete(ApiToken).where(ApiToken.user_id == user.id, over))
    return row, token
