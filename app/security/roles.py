"""Roles, the rights they carry on each group, and the viewer of one request.

A role holds on every group, unless another one is named for a group; `none` gives no group at all. What concerns the
console as a whole (its own state, people, routes of messages, which groups are watched) asks for the right everywhere.
Invariants: a right that is not listed for a role is refused, and an unknown role has no rights at all; the right
`admin` is never had on one group alone (whoever approves an address of one group may show it the token of others).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    NONE = "none"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Right(StrEnum):
    # To be signed in: one's own account, and lists that show what one has a right to see.
    OWN = "own"
    VIEW = "view"
    # Bodies of entries are customers' data.
    READ_BODIES = "read_bodies"
    # Operator actions: transfers, audits, appends.
    OPERATE = "operate"
    # People, clusters, settings, the trail.
    ADMIN = "admin"


RIGHTS: dict[str, frozenset[Right]] = {
    Role.NONE: frozenset({Right.OWN}),
    Role.VIEWER: frozenset({Right.OWN, Right.VIEW}),
    Role.OPERATOR: frozenset({Right.OWN, Right.VIEW, Right.READ_BODIES, Right.OPERATE}),
    Role.ADMIN: frozenset(Right),
}
ON_A_GROUP: Final = (Role.NONE, Role.VIEWER, Role.OPERATOR)


def weaker(first: str, second: str) -> str:
    """The role with fewer rights: a token never has more than its owner has today."""
    return min(first, second, key=lambda role: len(RIGHTS.get(role, ())))


@dataclass(frozen=True, slots=True)
class Sight:
    """Which groups somebody has a right on: all but `groups`, or `groups` alone."""

    all_but: bool
    groups: frozenset[str] = frozenset()

    def sees(self, cluster_id: str) -> bool:
        return (cluster_id in self.groups) is not self.all_but

    @property
    def everything(self) -> bool:
        return self.all_but and not self.groups


ALL: Final = Sight(True)


@dataclass(frozen=True, slots=True)
class Grants:
    """A role, and the groups on which it is another one."""

    role: str
    on: tuple[tuple[str, str], ...] = ()

    def role_on(self, cluster_id: str) -> str:
        return dict(self.on).get(cluster_id, self.role)

    def can(self, right: str, cluster_id: str | None = None) -> bool:
        """On one group; without one, everywhere."""
        if right == Right.OWN:
            return right in RIGHTS.get(self.role, frozenset())
        if cluster_id is None or right == Right.ADMIN:
            return all(right in RIGHTS.get(one, frozenset()) for one in (self.role, *dict(self.on).values()))
        return right in RIGHTS.get(self.role_on(cluster_id), frozenset())

    def can_somewhere(self, right: str) -> bool:
        if right == Right.ADMIN:
            return self.can(right)
        return any(right in RIGHTS.get(one, frozenset()) for one in (self.role, *dict(self.on).values()))

    def sight(self, right: str = Right.VIEW) -> Sight:
        by_default = right in RIGHTS.get(self.role, frozenset())
        return Sight(by_default, frozenset(one for one, _ in self.on if self.can(right, one) is not by_default))

    def within(self, other: Grants) -> Grants:
        """What both allow, group by group."""
        named = {one for one, _ in self.on + other.on}
        role = weaker(self.role, other.role)
        on = {one: weaker(self.role_on(one), other.role_on(one)) for one in named}
        return grants_of(role, on)


def grants_of(role: str, on: Mapping[str, str] | None = None) -> Grants:
    return Grants(role, tuple(sorted((one, given) for one, given in (on or {}).items() if given != role)))


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks: handlers find it at `request.state.viewer`."""

    user_id: int
    name: str
    grants: Grants
    via: str  # "session" | "token"
    credential_id: int
    # Of the session's or token's secret; its number may be the next one's when it is gone.
    credential_hash: str = ""
    csrf_token: str = ""
    expires_at: datetime | None = None
    # Signed in with one factor, where two are asked for: nothing is open but the page that sets up the second.
    must_enrol: bool = False
    # Not from an OpenID provider.
    local: bool = True

    @property
    def role(self) -> str:
        return self.grants.role

    def role_on(self, cluster_id: str) -> str:
        return self.grants.role_on(cluster_id)

    def can(self, right: str, cluster_id: str | None = None) -> bool:
        """On one group; without one, everywhere."""
        return self.grants.can(right, cluster_id)

    @property
    def sight(self) -> Sight:
        return self.grants.sight()
