"""Users from the command line: who there is, and what they may do; changes are in the trail, before and after.

Invariant: there is always a local admin who can sign in (`grants.keep_an_admin`, for the API as well).
"""

from __future__ import annotations

import asyncio
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import User
from app.security import trail
from app.security.grants import GrantError, change, grants_json
from app.security.identity import end_sessions
from app.security.links import at_the_console
from app.security.people import user_named, user_to_change
from app.security.second_factor import remove
from app.security.tokens import within
from app.times import rfc3339


def listing(db_url: str) -> list[dict[str, Any]]:
    async def work(db: AsyncSession) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                **grants_json(row),
                "source": "local" if row.local else "oidc",
                "second_factor": row.totp_confirmed_at is not None,
                "disabled_at": rfc3339(row.disabled_at) if row.disabled_at else None,
            }
            for row in await db.scalars(select(User).order_by(User.name_key))
        ]

    return asyncio.run(within(db_url, work))


def reset_second_factor(db_url: str, name: str) -> bool:
    """Whether there was one. LookupError when there is no such user."""

    async def work(db: AsyncSession) -> bool:
        user = await user_named(db, name)
        if user is None:
            raise LookupError(f"there is no user {name!r}; `quorumscope user list` names them")
        had = await remove(db, user)
        ended = await end_sessions(db, user.id)
        row = trail.row_of(at_the_console(), action="user reset-second-factor", target=f"users/{user.name}")
        said = {"before": {"second_factor": "set" if had else "none"}, "after": {"sessions_ended": ended}}
        await trail.add(db, row, 0, said)
        return had

    return asyncio.run(within(db_url, work))


def give(db_url: str, name: str, role: str, group: str | None) -> dict[str, Any]:
    """What they have then. LookupError when there is no such user, GrantError for what cannot be given."""

    async def work(db: AsyncSession) -> dict[str, Any]:
        user = await user_to_change(db, name)
        if user is None:
            raise LookupError(f"there is no user {name!r}; `quorumscope user link {name}` makes one")
        if not user.local:
            raise GrantError(f"{user.name} comes from an OpenID provider: their groups there give the role")
        before = grants_json(user)
        if group is not None:
            await change(db, user, groups={group: None if role == "default" else role})
        else:
            await change(db, user, to=role)
        after = grants_json(user)
        row = trail.row_of(at_the_console(), action="user role", target=f"users/{user.name}")
        await trail.add(db, row, 0, {"before": before, "after": after})
        return after

    return asyncio.run(within(db_url, work))
