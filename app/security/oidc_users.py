"""Users whom the OpenID provider vouches for: found by issuer and subject, never by a name or an address.

A name is only how they are shown here, taken at their first login. Invariants: nobody from a provider becomes a local
user's self, whatever they are called; role and roles on groups are what their groups give at each login, and nothing
once these are taken away; whom an admin has disabled here stays out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import User
from app.security.grants import grants_json
from app.security.group_roles import grants_by, groups_in
from app.security.identity import end_sessions
from app.security.people import user_named, valid_name
from app.security.roles import Grants, Role
from app.times import utc_now
from node.config_models import OidcTable
from node.role_rows import role_rows_of

Json = dict[str, Any]
NAME_CHARS_MAX: Final = 64
GROUPS_SHOWN: Final = 20
NO_GROUP: Final = "None of your groups at the provider has a role here."


@dataclass(frozen=True, slots=True)
class Entry:
    """Who came, and why they may not come in (`refused`); `changed`: for the trail."""

    user: User | None
    name: str
    refused: str | None
    changed: Json


async def user_of(db: AsyncSession, settings: OidcTable, claims: Json) -> Entry:
    """In the caller's transaction, which is to be kept also when somebody is refused."""
    rows = role_rows_of(settings.roles)
    groups = groups_in(claims.get(settings.groups_claim))
    grants = grants_by(rows, groups)
    who = (User.oidc_issuer == settings.issuer) & (User.oidc_subject == claims["sub"])
    user: User | None = await db.scalar(select(User).where(who))
    named = sorted({row.group for row in rows} & groups)[:GROUPS_SHOWN]
    if user is None:
        return await new_user(db, settings, claims, grants, named)
    before = grants_json(user)
    if user.disabled_at is not None:
        return Entry(user, user.name, "An admin of this console has disabled you.", {})
    take(user, grants or Grants(Role.NONE.value))
    after, changed = grants_json(user), Json(groups=named)
    if before != after:
        changed |= {"before": before, "after": after}
    if grants is None:
        return Entry(user, user.name, NO_GROUP, changed | {"sessions_ended": await end_sessions(db, user.id)})
    user.oidc_confirmed_at = utc_now()
    return Entry(user, user.name, None, changed)


async def new_user(
    db: AsyncSession, settings: OidcTable, claims: Json, grants: Grants | None, named: list[str]
) -> Entry:
    name = name_in(claims, settings.name_claim)
    if grants is None:
        return Entry(None, name, NO_GROUP, {})
    if await user_named(db, name) is not None:
        taken = f"Somebody else is called {name} here. An admin removes that user, or the provider names you otherwise."
        return Entry(None, name, taken, {})
    user = User(
        name=name, role=Role.NONE.value, cluster_roles={}, oidc_issuer=settings.issuer, oidc_subject=claims["sub"],
        oidc_confirmed_at=utc_now(),
    )  # fmt: skip
    take(user, grants)
    db.add(user)
    await db.flush()
    return Entry(user, user.name, None, {"groups": named, "after": grants_json(user)})


def take(user: User, grants: Grants) -> None:
    user.role, user.cluster_roles = grants.role, dict(grants.on)


def name_in(claims: Json, claim: str) -> str:
    """As names are written here; the subject where the claim says nothing."""
    said = claims.get(claim)
    said = said if isinstance(said, str) and said else claims["sub"]
    name = re.sub(r"[^A-Za-z0-9._@-]+", "-", said).lstrip("._@-")[:NAME_CHARS_MAX]
    return name if valid_name(name) else "user"
