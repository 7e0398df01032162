"""The admin trail: who did what to what, from where and through which token; what was before and after.

An attempt is written before it runs and completed with its status after. A change that cannot be recorded does not
happen: `begin` raises, and the gate answers 503. What happened and could not be completed afterwards stays in the trail
with its answer unknown: `complete` never costs the answer. Both are entries of a hash chain (app.security.trail_chain)
in the transaction that writes the row.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.engine import Sessions
from app.db.models import TrailRow
from app.security.roles import Grants, Viewer
from app.security.trail_chain import BEGUN, ENDED, append, begun_content, trim
from app.times import utc_now

log = logging.getLogger(__name__)
NOBODY = Viewer(0, "-", Grants("-"), "none", 0)
TRIM_S = 3600.0
TRIES = 5  # another process, such as the command line, may take the chain's next place first


def row_of(
    viewer: Viewer | None, *, action: str, method: str = "", path: str = "", address: str = "", target: str = ""
) -> TrailRow:
    who = viewer or NOBODY
    return TrailRow(
        at=utc_now(),
        user_name=who.name,
        role=who.role,
        via=who.via,
        credential=f"{who.via} {who.credential_id}" if who.credential_id else "",
        address=address[:64],
        action=action[:64],
        method=method[:8],
        path=path[:512],
        target=target[:200],
        status=None,
        detail=None,
    )


async def add(db: AsyncSession, row: TrailRow, status: int, detail: dict[str, Any] | None = None) -> None:
    """Something that is over, in the transaction of what it did."""
    db.add(row)
    await db.flush()
    await append(db, row.id, BEGUN, begun_content(row))
    await end(db, row.id, status, detail)


async def end(db: AsyncSession, row_id: int, status: int, detail: dict[str, Any] | None) -> None:
    values: dict[str, Any] = {"status": status, "detail": detail or None}
    target = (detail or {}).get("target")
    if target is not None:
        values["target"] = str(target)[:200]
    await db.execute(update(TrailRow).where(TrailRow.id == row_id).values(**values))
    await append(db, row_id, ENDED, values)


async def begin(
    sessions: Sessions, viewer: Viewer | None, *, action: str, method: str, path: str, address: str, target: str = ""
) -> int:
    for left in reversed(range(TRIES)):
        row = row_of(viewer, action=action, method=method, path=path, address=address, target=target)
        try:
            async with sessions() as db, db.begin():
                db.add(row)
                await db.flush()
                await append(db, row.id, BEGUN, begun_content(row))
            return row.id
        except IntegrityError:
            if not left:
                raise
    raise AssertionError("unreachable")


async def complete(sessions: Sessions, row_id: int, status: int, detail: dict[str, Any] | None) -> None:
    for left in reversed(range(TRIES)):
        try:
            async with sessions() as db, db.begin():
                await end(db, row_id, status, detail)
            return
        except IntegrityError:
            if not left:
                log.exception("the answer %d could not be noted in row %d of the trail", status, row_id)
        except SQLAlchemyError:
            log.exception("the answer %d could not be noted in row %d of the trail", status, row_id)
            return


async def trim_forever(sessions: Sessions, days: int) -> None:
    """Retention: at the start, and then every hour."""
    while True:
        try:
            async with sessions() as db, db.begin():
                await trim(db, utc_now() - timedelta(days=days))
        except SQLAlchemyError:
            log.exception("old rows of the trail could not be removed")
        await asyncio.sleep(TRIM_S)


async def note(sessions: Sessions, row: TrailRow, status: int, detail: dict[str, Any] | None = None) -> None:
    """A row of its own for something that is over."""
    row_id = await begin(
        sessions, Viewer(0, row.user_name, Grants(row.role), row.via, 0), action=row.action, method=row.method,
        path=row.path, address=row.address, target=row.target,
    )  # fmt: skip
    await complete(sessions, row_id, status, detail)
