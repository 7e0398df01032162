"""What an Idempotency-Key stands for: one caller's one call, with one body.

The key with the same call finds what the first call started. Invariant: with any other kind or body, or from somebody
else of the same name, it finds nothing and starts nothing (422). A key is one over operations and audits.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.console.errors import Invalid
from app.db.models import OperationRow
from app.security.roles import Viewer

if TYPE_CHECKING:
    from app.db.audits import AuditRow

Row = TypeVar("Row", "OperationRow", "AuditRow")


def fingerprint(caller: Viewer, kind: str, body: dict[str, Any]) -> str:
    said = json.dumps([caller.user_id, caller.name, kind, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


async def earlier(
    db: AsyncSession, table: type[Row], caller: str, key: str | None, fingerprint: str | None
) -> Row | None:
    """What this caller's key has started, in `table`. Raises Invalid where it stands for something else."""
    from app.db.audits import AuditRow  # it asks here itself

    if key is None:
        return None
    found: Row | None = None
    tables: tuple[type[OperationRow | AuditRow], ...] = (OperationRow, AuditRow)
    for one in tables:
        mine = (one.requested_by == caller) & (one.idempotency_key == key)
        row: OperationRow | AuditRow | None = await db.scalar(select(one).where(mine))
        if row is None:
            continue
        if row.fingerprint != fingerprint or not isinstance(row, table):
            raise Invalid(
                "This Idempotency-Key was used for another call; a key stands for one call with one body.",
                title="Key used already", action="Take a new key for a new call. Nothing was started.",
            )  # fmt: skip
        found = row
    return found
