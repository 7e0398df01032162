"""API tokens from the command line: issue, list and revoke without a session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.engine import open_engine, open_sessions, upgrade_async
from app.db.models import ApiToken
from app.security import trail
from app.security.grants import grants_json
from app.security.identity import issue_api_token
from app.security.links import at_the_console
from app.security.people import user_named
from app.times import rfc3339, utc_now

Result = TypeVar("Result")


async def within(db_url: str, work: Callable[[AsyncSession], Awaitable[Result]]) -> Result:
    """One transaction on an up-to-date schema."""
    await upgrade_async(db_url)
    engine = open_engine(db_url)
    try:
        async with open_sessions(engine)() as db, db.begin():
            return await work(db)
    finally:
        await engine.dispose()


def issue(
    db_url: str, user: str, name: str, role: str = "operator", days: int | None = 90,
    groups: Mapping[str, str | None] | None = None,
) -> str:  # fmt: skip
    """The token, shown once. LookupError when there is no such user, GrantError for what cannot be given."""

    async def work(db: AsyncSession) -> str:
        row = await user_named(db, user)
        if row is None:
            raise LookupError(f"there is no user {user!r}; `quorumscope user link {user}` makes one")
        made, token = await issue_api_token(db, row, name, role, days=days, groups=groups)
        after = {"after": {"id": made.id, "prefix": made.prefix, "name": name, **grants_json(made)}}
        entry = trail.row_of(at_the_console(), action="token issue", target=f"users/{row.name}")
        await trail.add(db, entry, 0, after)
        return token

    return asyncio.run(within(db_url, work))


def listing(db_url: str) -> list[dict[str, Any]]:
    async def work(db: AsyncSession) -> list[dict[str, Any]]:
        rows = await db.scalars(select(ApiToken).where(ApiToken.revoked_at.is_(None)).order_by(ApiToken.id))
        return [
            {
                "id": row.id,
                "user": row.user.name,
                "name": row.name,
                "prefix": row.prefix,
                **grants_json(row),
                "created_at": rfc3339(row.created_at),
                "expires_at": rfc3339(row.expires_at) if row.expires_at else None,
            }
            for row in rows
        ]

    return asyncio.run(within(db_url, work))


def revoke(db_url: str, token_id: int) -> bool:
    """False when there is no such token."""

    async def work(db: AsyncSession) -> bool:
        row = await db.get(ApiToken, token_id)
        if row is None:
            return False
        row.revoked_at = row.revoked_at or utc_now()
        await trail.add(db, trail.row_of(at_the_console(), action="token revoke", target=f"tokens/{token_id}"), 0)
        return True

    return asyncio.run(within(db_url, work))
