"""The admin trail: an attempt is written before it runs and completed with its status after.

A change that cannot be recorded does not happen: `begin` raises, and the gate answers 503. What happened and could not
be completed afterwards stays in the trail with its answer unknown: `complete` never costs the answer.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from app.db.engine import Sessions
from app.db.models import TrailRow
from app.security.roles import Viewer

log = logging.getLogger(__name__)
NOBODY = Viewer(0, "-", "-", "none", 0)


async def begin(sessions: Sessions, viewer: Viewer | None, *, action: str, method: str, path: str, address: str) -> int:
    who = viewer or NOBODY
    row = TrailRow(
        user_name=who.name,
        role=who.role,
        via=who.via,
        address=address[:64],
        action=action[:64],
        method=method[:8],
        path=path[:512],
        status=None,
        detail=None,
    )
    async with sessions() as db, db.begin():
        db.add(row)
    return row.id


async def complete(sessions: Sessions, row_id: int, status: int, detail: dict[str, Any] | None) -> None:
    values: dict[str, Any] = {"status": status}
    if detail:
        values["detail"] = detail
        values |= {key: detail[key] for key in ("user_name", "role") if key in detail}
    try:
        async with sessions() as db, db.begin():
            await db.execute(update(TrailRow).where(TrailRow.id == row_id).values(**values))
    except SQLAlchemyError:
        log.exception("the answer %d could not be noted in row %d of the trail", status, row_id)
