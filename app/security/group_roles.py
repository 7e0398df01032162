"""What somebody's groups at the OpenID provider give them here.

The strongest role of all rows that name one of the groups counts, everywhere or on the group of members that a row is
about; `none on ID` withholds that one whatever else is given, but from an admin, who has all. Invariant: whoever is in
no row's group is given nothing at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from app.security.roles import RIGHTS, Grants, Role, grants_of
from node.role_rows import RoleRow

GROUPS_MAX: Final = 2000
GROUP_CHARS_MAX: Final = 512


def groups_in(claim: Any) -> frozenset[str]:
    """A claim that is no list of texts lists none: no part of one is taken for a group."""
    if not isinstance(claim, list) or len(claim) > GROUPS_MAX:
        return frozenset()
    if not all(isinstance(one, str) and len(one) <= GROUP_CHARS_MAX for one in claim):
        return frozenset()
    return frozenset(claim)


def stronger(roles: Iterable[str]) -> str:
    return max(roles, key=lambda role: len(RIGHTS[role]), default=Role.NONE.value)


def grants_by(rows: Iterable[RoleRow], groups: Collection[str]) -> Grants | None:
    """None: no row names any of them."""
    matching = [row for row in rows if row.group in groups]
    if not matching:
        return None
    role = stronger(row.role for row in matching if row.on is None)
    if role == Role.ADMIN:
        return grants_of(role)
    on: dict[str, str] = {}
    for cluster_id in {row.on for row in matching if row.on is not None}:
        given = [row.role for row in matching if row.on == cluster_id]
        on[cluster_id] = Role.NONE.value if Role.NONE in given else stronger([role, *given])
    return grants_of(role, on)
