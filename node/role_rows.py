"""The rows of `[oidc] roles`: which role a group at the OpenID provider gives in the console.

A row is `GROUP = ROLE`, or `GROUP = ROLE on ID` for one group of members alone. ROLE is viewer, operator or admin; with
`on`, it is none, viewer or operator.

Invariant: a row that cannot be read is an error that names it; nothing is granted by mistake.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

ROLES: Final = ("viewer", "operator", "admin")
ROLES_ON: Final = ("none", "viewer", "operator")
ROWS_MAX: Final = 256
# The last "=" counts: names of groups, such as LDAP's, may have some.
_ROW: Final = re.compile(r"\s*(\S.*?)\s*=\s*([a-z]+)(?:\s+on\s+([A-Za-z0-9][\w.-]{0,63}))?\s*")


class RoleRow(NamedTuple):
    """`on`: the id of the one group of members that it is about; None: everywhere."""

    group: str
    role: str
    on: str | None


def role_row_of(text: str) -> RoleRow:
    """Raises ValueError."""
    found = _ROW.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text}" is no row: write "GROUP = operator", or "GROUP = operator on ID" for one group')
    known = ROLES if found[3] is None else ROLES_ON
    if found[2] not in known:
        raise ValueError(f'"{text}": {found[2]!r} is no role here; there are {", ".join(known)}')
    return RoleRow(found[1], found[2], found[3])


def role_rows_of(texts: tuple[str, ...]) -> tuple[RoleRow, ...]:
    """Raises ValueError."""
    if len(texts) > ROWS_MAX:
        raise ValueError(f"{len(texts)} rows; {ROWS_MAX} at most")
    return tuple(map(role_row_of, texts))
