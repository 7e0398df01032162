"""Alerts in the console's database: routes, what stands and what was sent of it, mutes, windows, messages.

Invariants: what `Alerts.save` is given is stored in one transaction, so that a message and the memory that it was due
are there together or not at all; the history is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, select, update

from app.db.base import seen
from app.db.engine import Sessions, again_if_taken, put_row
from app.db.models import AlertMessage, AlertMute, AlertRoute, AlertRow, AlertWindow
from app.security.roles import ALL, Sight

MESSAGES_KEPT: Final = 2000
WINDOWS_KEPT: Final = timedelta(days=7)
PENDING: Final = "pending"


class Alerts:
    """The repository."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    async def routes(self) -> list[AlertRoute]:
        async with self.sessions() as db:
            return list(await db.scalars(select(AlertRoute).order_by(AlertRoute.name)))

    async def add_route(self, row: AlertRoute) -> bool:
        """False: there is one of that name already."""

        async def add() -> bool:
            async with self.sessions() as db, db.begin():
                if await db.scalar(select(AlertRoute.id).where(AlertRoute.name == row.name)) is not None:
                    return False
                db.add(row)
            return True

        return await again_if_taken(add)

    async def change_route(self, route_id: int, **values: Any) -> None:
        async with self.sessions() as db, db.begin():
            await db.execute(update(AlertRoute).where(AlertRoute.id == route_id).values(**values))

    async def remove_route(self, route_id: int) -> None:
        async with self.sessions() as db, db.begin():
            await db.execute(delete(AlertRoute).where(AlertRoute.id == route_id))

    async def standing(self) -> list[AlertRow]:
        async with self.sessions() as db:
            return list(await db.scalars(select(AlertRow)))

    async def pending(self) -> list[AlertMessage]:
        asked = select(AlertMessage).where(AlertMessage.state == PENDING).order_by(AlertMessage.created_at)
        async with self.sessions() as db:
            return list(await db.scalars(asked))

    async def save(
        self,
        alerts: Iterable[AlertRow],
        gone: Iterable[tuple[str, str]],
        messages: Iterable[AlertMessage],
        routes: Iterable[tuple[int, Mapping[str, Any]]],
    ) -> None:
        async with self.sessions() as db, db.begin():
            for row in [*alerts, *messages]:
                await db.merge(row)
            for scope, problem_id in gone:
                await db.execute(delete(AlertRow).where(AlertRow.scope == scope, AlertRow.problem_id == problem_id))
            for route_id, values in routes:
                await db.execute(update(AlertRoute).where(AlertRoute.id == route_id).values(**values))

    async def messages(self, limit: int, before_id: str | None = None, sight: Sight = ALL) -> list[AlertMessage]:
        """Newest first, from behind the one of that id; those about no group only for who sees all."""
        asked = select(AlertMessage).order_by(AlertMessage.created_at.desc(), AlertMessage.id.desc()).limit(limit)
        if not sight.everything:
            asked = asked.where(seen(AlertMessage.payload["group"]["id"].as_string(), sight))
        if before_id is not None:
            before = select(AlertMessage.created_at).where(AlertMessage.id == before_id).scalar_subquery()
            same_time = (AlertMessage.created_at == before) & (AlertMessage.id < before_id)
            asked = asked.where((AlertMessage.created_at < before) | same_time)
        async with self.sessions() as db:
            return list(await db.scalars(asked))

    async def message(self, message_id: str) -> AlertMessage | None:
        async with self.sessions() as db:
            return await db.get(AlertMessage, message_id)

    async def mutes(self) -> list[AlertMute]:
        async with self.sessions() as db:
            return list(await db.scalars(select(AlertMute).order_by(AlertMute.until)))

    async def mute(self, row: AlertMute) -> None:
        await put_row(self.sessions, row)

    async def unmute(self, scope: str, problem_id: str) -> None:
        async with self.sessions() as db, db.begin():
            await db.execute(delete(AlertMute).where(AlertMute.scope == scope, AlertMute.problem_id == problem_id))

    async def windows(self) -> list[AlertWindow]:
        async with self.sessions() as db:
            return list(await db.scalars(select(AlertWindow).order_by(AlertWindow.begin, AlertWindow.id)))

    async def add_window(self, row: AlertWindow) -> None:
        async with self.sessions() as db, db.begin():
            db.add(row)

    async def remove_window(self, window_id: int) -> None:
        async with self.sessions() as db, db.begin():
            await db.execute(delete(AlertWindow).where(AlertWindow.id == window_id))

    async def trim(self, now: datetime) -> None:
        """Deletes mutes that ended, windows that ended WINDOWS_KEPT ago, messages beyond the newest MESSAGES_KEPT."""
        newest = select(AlertMessage.created_at).order_by(AlertMessage.created_at.desc())
        async with self.sessions() as db, db.begin():
            await db.execute(delete(AlertMute).where(AlertMute.until < now))
            await db.execute(delete(AlertWindow).where(AlertWindow.until < now - WINDOWS_KEPT))
            oldest = await db.scalar(newest.offset(MESSAGES_KEPT).limit(1))
            if oldest is not None:
                over = (AlertMessage.created_at <= oldest) & (AlertMessage.state != PENDING)
                await db.execute(delete(AlertMessage).where(over))
