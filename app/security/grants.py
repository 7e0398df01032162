"""What a user or a token is granted, as it is stored: a default role, and roles on single groups.

Invariants: a role on a group is one of none, viewer, operator; an admin has all groups, so an admin's grants name none;
a group that is named is one that is watched, or was named before. A group that is removed takes with it what was
granted on it beyond the default; what was withheld stays, should another group come under its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import select, true
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import ApiToken, Cluster, User
from app.security.people import held
from app.security.roles import ALL, ON_A_GROUP, Grants, Role, Sight, grants_of, weaker

GROUPS_MAX: Final = 200


class GrantError(ValueError):
    """Grants that cannot be given; the message says why."""


class LastAdmin(GrantError):
    """Nobody could administer the console any more."""


def granted(row: User | ApiToken) -> Grants:
    return grants_of(row.role, row.cluster_roles)


def changed(
    role: str, on: Mapping[str, str], *, to: str | None = None, groups: Mapping[str, str | None] | None = None
) -> tuple[str, dict[str, str]]:
    """The role and the groups' roles after a change: None for a group puts it back to the default.

    Raises GrantError.
    """
    role_after = role if to is None else Role(to).value
    after = dict(on)
    for cluster_id, given in (groups or {}).items():
        if given is None:
            after.pop(cluster_id, None)
        elif given in ON_A_GROUP:
            after[cluster_id] = str(given)
        else:
            raise GrantError(f"{given!r} is no role on a group: it is one of {', '.join(ON_A_GROUP)}")
    if role_after == Role.ADMIN:
        if groups and any(given is not None for given in groups.values()):
            raise GrantError("an admin has all groups: give another role first, then roles on groups")
        after = {}
    if len(after) > GROUPS_MAX:
        raise GrantError(f"roles on at most {GROUPS_MAX} groups can be given to one")
    return role_after, after


async def check_known(
    db: AsyncSession, groups: Mapping[str, str | None] | None, before: Mapping[str, str], sight: Sight = ALL
) -> None:
    """Raises GrantError for a group that is neither watched nor named before, or that the giver does not see."""
    new = set(groups or ()) - {one for one in before if sight.sees(one)}
    found = await db.scalars(select(Cluster.id).where(Cluster.id.in_(new))) if new else ()
    known = {one for one in found if sight.sees(one)}
    if new - known:
        raise GrantError(f"no group is called {', '.join(sorted(new - known))} here; a group is named by its id")


async def change(
    db: AsyncSession, row: User, *, to: str | None = None, groups: Mapping[str, str | None] | None = None
) -> None:
    """Of a user who is there: one of `people.user_to_change`. Raises GrantError, LastAdmin."""
    if to is not None and to != Role.ADMIN:
        await keep_an_admin(db, row)
    await check_known(db, groups, row.cluster_roles)
    row.role, row.cluster_roles = changed(row.role, row.cluster_roles, to=to, groups=groups)


async def keep_an_admin(db: AsyncSession, user: User) -> None:
    """Before `user`, one of `people.user_to_change`, is no admin any more. Raises LastAdmin.

    Local ones count: the provider may be away, or name no admins any more.
    """
    if user.role != Role.ADMIN or not user.local:
        return
    able = (User.role == Role.ADMIN.value) & User.disabled_at.is_(None) & User.oidc_subject.is_(None)
    if await db.scalar(select(User.id).where(able, User.id != user.id).limit(1)) is None:
        raise LastAdmin(f"{user.name} is the last admin; name another one first")


async def forget_group(db: AsyncSession, cluster_id: str) -> None:
    """The group was removed (see the module's docstring)."""
    rows: list[User | ApiToken] = [*await held(db, true()), *await db.scalars(select(ApiToken))]
    for row in rows:
        given = row.cluster_roles.get(cluster_id)
        if given is not None and weaker(given, row.role) == row.role:
            row.cluster_roles = {one: role for one, role in row.cluster_roles.items() if one != cluster_id}


def grants_json(row: User | ApiToken, sight: Sight = ALL) -> dict[str, Any]:
    """A group that the reader does not see is not named: also one that is withheld from the reader."""
    on = {one: role for one, role in sorted(row.cluster_roles.items()) if sight.sees(one)}
    return {"role": row.role, "cluster_roles": on}
