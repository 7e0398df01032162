"""Roles, the rights they carry, and the viewer of one request.

Invariant: a right that is not listed for a role is refused; an unknown role has no rights at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Right(StrEnum):
    VIEW = "view"
    # Bodies of entries are customers' data.
    READ_BODIES = "read_bodies"
    # Operator actions: transfers, audits, appends.
    OPERATE = "operate"
    # People, clusters, settings, the trail.
    ADMIN = "admin"


RIGHTS: dict[str, frozenset[Right]] = {
    Role.VIEWER: frozenset({Right.VIEW}),
    Role.OPERATOR: frozenset({Right.VIEW, Right.READ_BODIES, Right.OPERATE}),
    Role.ADMIN: frozenset(Right),
}
ORDER: tuple[Role, ...] = (Role.VIEWER, Role.OPERATOR, Role.ADMIN)


def weaker(first: str, second: str) -> str:
    """The role with fewer rights: a token never has more than its owner has today."""
    return min(first, second, key=lambda role: len(RIGHTS.get(role, ())))


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks: handlers find it at `request.state.viewer`."""

    user_id: int
    name: str
    role: str
    via: str  # "session" | "token"
    credential_id: int
    csrf_token: str = ""
    expires_at: datetime | None = None

    def can(self, right: str) -> bool:
        return right in RIGHTS.get(self.role, frozenset())
