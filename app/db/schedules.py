"""Schedules of audits in the console's database: which group is audited, how deeply, every how many seconds.

Invariants: a schedule goes with its group; of one due time one change of `next_at` succeeds, whoever tries.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ForeignKey, Integer, String, Text, delete, func, select, update
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, seen
from app.db.engine import Sessions
from app.security.roles import ALL, Sight
from app.times import rfc3339, utc_now, written_ahead

Json = dict[str, Any]


class ScheduleRow(Base):
    """`last_at`: when it was due last; `last_audit_id`: what was started then, and `skipped`: why nothing was."""

    __tablename__ = "audit_schedules"
    id: Mapped[int] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id", ondelete="CASCADE"), index=True)
    depth: Mapped[str] = mapped_column(String(16))
    every_s: Mapped[int] = mapped_column(Integer)
    next_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    last_at: Mapped[datetime | None]
    last_audit_id: Mapped[str | None] = mapped_column(String(36))
    skipped: Mapped[str | None] = mapped_column(Text)


def as_json(row: ScheduleRow) -> Json:
    """A schedule as the REST API gives it."""
    return {
        "id": row.id,
        "cluster_id": row.cluster_id,
        "depth": row.depth,
        "every_s": row.every_s,
        "next_at": rfc3339(row.next_at),
        "created_by": row.created_by,
        "created_at": rfc3339(row.created_at),
        "last_at": rfc3339(row.last_at) if row.last_at else None,
        "last_audit_id": row.last_audit_id,
        "skipped": row.skipped,
    }


class Schedules:
    """The repository."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def add(self, row: ScheduleRow, most: int) -> ScheduleRow | None:
        """None: there are `most` already."""
        async with self._sessions.begin() as db:
            if (await db.scalar(select(func.count()).select_from(ScheduleRow)) or 0) >= most:
                return None
            db.add(row)
        return row

    async def get(self, schedule_id: int) -> ScheduleRow | None:
        async with self._sessions() as db:
            return await db.get(ScheduleRow, schedule_id)

    async def remove(self, schedule_id: int) -> None:
        async with self._sessions.begin() as db:
            await db.execute(delete(ScheduleRow).where(ScheduleRow.id == schedule_id))

    async def newest(
        self, cluster_id: str | None, limit: int, before_id: int | None = None, sight: Sight = ALL
    ) -> Sequence[ScheduleRow]:
        """The newest first, from behind that one; of one group, or of all that are seen."""
        asked = select(ScheduleRow).order_by(ScheduleRow.id.desc()).limit(limit)
        if cluster_id is not None:
            asked = asked.where(ScheduleRow.cluster_id == cluster_id)
        if not sight.everything:
            asked = asked.where(seen(ScheduleRow.cluster_id, sight))
        if before_id is not None:
            asked = asked.where(ScheduleRow.id < before_id)
        async with self._sessions() as db:
            return list(await db.scalars(asked))

    async def due(self, now: datetime) -> Sequence[ScheduleRow]:
        asked = select(ScheduleRow).where(ScheduleRow.next_at <= now).order_by(ScheduleRow.next_at, ScheduleRow.id)
        async with self._sessions() as db:
            return list(await db.scalars(asked))

    async def ahead(self, now: datetime) -> list[tuple[ScheduleRow, datetime]]:
        """Those that were planned while the clock was ahead, each with the time within one period from now that it
        would be due at. A first time that somebody chose is left alone, where it was chosen by a right clock."""
        async with self._sessions() as db:
            later = list(await db.scalars(select(ScheduleRow).where(ScheduleRow.next_at > now)))
        found = []
        for row in later:
            period = timedelta(seconds=row.every_s)
            reckoned = row.last_at is not None or written_ahead(row.created_at, now)
            if reckoned and written_ahead(row.next_at, now + period):
                found.append((row, row.next_at - (row.next_at - now) // period * period))
        return found

    async def planned(self, row: ScheduleRow, next_at: datetime) -> None:
        """Another time than that at which `row` was due, unless somebody else has said so."""
        same = (ScheduleRow.id == row.id) & (ScheduleRow.next_at == row.next_at)
        async with self._sessions.begin() as db:
            await db.execute(update(ScheduleRow).where(same).values(next_at=next_at))

    async def went(self, row: ScheduleRow, next_at: datetime, audit_id: str | None, skipped: str | None) -> bool:
        """What came of the time that `row` was due; False: somebody else has said so."""
        values: Json = {"next_at": next_at, "last_at": row.next_at, "skipped": skipped}
        if audit_id is not None:
            values["last_audit_id"] = audit_id
        same = (ScheduleRow.id == row.id) & (ScheduleRow.next_at == row.next_at)
        async with self._sessions.begin() as db:
            changed = await db.execute(update(ScheduleRow).where(same).values(**values).returning(ScheduleRow.id))
            return changed.first() is not None
