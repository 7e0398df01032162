"""Removes operations and audits that were over long ago, with what belongs to them: findings, a job's directory, and
the Idempotency-Keys that stand for them.

Schedules start an audit every ten minutes at most, and each is a row, its findings and a directory: without an end
they fill the disk. What somebody asked for stays in the trail, which has a retention of its own.

Invariants: what is not over stays, and so do the newest audits of each group, among which its sentence looks for a
finding that is still open; a directory goes before its row, so that none is left that nothing names; no transaction is
long.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.exc import SQLAlchemyError

from app.db.audits import FINAL, AuditRow
from app.db.engine import Sessions
from app.db.models import OperationRow
from app.db.repositories import RUNNING
from app.times import utc_now

log = logging.getLogger(__name__)
AUDITS_KEPT_PER_CLUSTER: Final = 50
AT_ONCE: Final = 200
EVERY_S: Final = 3600.0


async def remove_forever(sessions: Sessions, days: int) -> None:
    """At the start, and then every hour."""
    while True:
        try:
            before = utc_now() - timedelta(days=days)
            await remove_operations(sessions, before)
            await remove_audits(sessions, before)
        except SQLAlchemyError:
            log.exception("old operations and audits could not be removed")
        await asyncio.sleep(EVERY_S)


async def remove_operations(sessions: Sessions, before: datetime) -> int:
    """Removes operations that ended before `before`; returns how many."""
    over = select(OperationRow.id).where(OperationRow.state != RUNNING, OperationRow.updated_at < before)
    removed = 0
    while True:
        async with sessions() as db, db.begin():
            ids = list(await db.scalars(over.limit(AT_ONCE)))
            await db.execute(delete(OperationRow).where(OperationRow.id.in_(ids)))
        removed += len(ids)
        if len(ids) < AT_ONCE:
            return removed


async def remove_audits(sessions: Sessions, before: datetime) -> int:
    """Those that ended before, but for the newest of each group; how many they were."""
    removed, stuck = 0, set[str]()
    async with sessions() as db:
        groups = list(await db.scalars(select(AuditRow.cluster_id).group_by(AuditRow.cluster_id).having(
            func.count() > AUDITS_KEPT_PER_CLUSTER)))  # fmt: skip
    for cluster_id in groups:
        while rows := await some_audits(sessions, cluster_id, before, stuck):
            gone = await asyncio.to_thread(without_directories, rows)
            stuck |= {one.id for one in rows} - gone
            async with sessions() as db, db.begin():
                await db.execute(delete(AuditRow).where(AuditRow.id.in_(gone)))
            removed += len(gone)
    return removed


async def some_audits(sessions: Sessions, cluster_id: str, before: datetime, but: set[str]) -> Sequence[AuditRow]:
    mine = AuditRow.cluster_id == cluster_id
    newest = select(AuditRow.id).where(mine).order_by(AuditRow.number.desc()).limit(AUDITS_KEPT_PER_CLUSTER)
    async with sessions() as db:
        kept = [*but, *await db.scalars(newest)]
        over = (AuditRow.finished_at < before) & AuditRow.state.in_(FINAL) & AuditRow.id.not_in(kept)
        return (await db.scalars(select(AuditRow).where(mine, over).limit(AT_ONCE))).all()


def without_directories(rows: Sequence[AuditRow]) -> set[str]:
    """The audits of which nothing is left on the disk. Blocking."""
    gone = set()
    for row in rows:
        directory = Path(row.directory)
        try:
            if directory.name == row.id:  # and never what a changed row names
                shutil.rmtree(directory)
        except FileNotFoundError:
            pass
        except OSError:
            log.exception("the directory of audit %s could not be removed: the audit stays", row.id)
            continue
        gone.add(row.id)
    return gone
