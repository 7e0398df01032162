"""The console watches itself: gathers the facts of `app.console.own_facts` every few seconds and has them judged.

Invariants: what cannot be found out stays unknown and ends nothing else; the database is tried by writing to it, as
everything here does, and waits no longer than a page would.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from app.console.console import Console
from app.console.own_facts import (
    CertificateFacts,
    ClockFacts,
    DatabaseFacts,
    DiskFacts,
    OwnFacts,
    TokenFacts,
)
from app.console.own_rules import AUTHORITIES, OURS, TOKEN_SOON, OwnProblems
from app.db.engine import Sessions, between_writes, database_path, normal_url
from app.db.models import ApiToken
from app.db.repositories import set_meta
from app.times import rfc3339, utc_now
from node.background import Background, reason_of
from node.certificates import ends_of

log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 5.0
# Beyond the database's own patience.
WRITE_S: Final = 8.0
META_KEY: Final = "written_at"
TOKENS_MAX: Final = 100
ERROR_CHARS_MAX: Final = 200


class OwnWatch:
    """`facts` is the newest picture; its problems are in `console.own`."""

    def __init__(self, console: Console, sessions: Sessions) -> None:
        self.console = console
        self.sessions = sessions
        self.rules = OwnProblems()
        self.facts = OwnFacts(as_of=utc_now())
        self.background = Background()

    async def start(self) -> None:
        self.background.keep("watching this console", self.run)

    async def stop(self) -> None:
        async with between_writes(self.sessions):
            await self.background.stop()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the console could not look at itself")
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        database = await self.try_database()
        disk, certificates = await asyncio.to_thread(self.look_at_files)
        tokens = await self.tokens_that_end()
        self.facts = OwnFacts(
            as_of=utc_now(), database=database, disk=disk, certificates=certificates, tokens=tokens,
            clocks=tuple(self.clocks()),
            not_reread=self.console.rereading.text, not_reread_since=self.console.rereading.since,
            restart_needed=self.console.restart_needed,
        )  # fmt: skip
        self.console.own["console"] = self.rules.judge(self.facts)

    async def try_database(self) -> DatabaseFacts:
        size, place = self.database_file()
        began = time.monotonic()
        try:
            async with asyncio.timeout(WRITE_S):
                await set_meta(self.sessions, META_KEY, rfc3339(utc_now()))
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            since = self.facts.database.failing_since or utc_now()
            return DatabaseFacts(size_bytes=size, failing_since=since, error=said(error), place=place)
        return DatabaseFacts(write_ms=round((time.monotonic() - began) * 1000, 1), size_bytes=size, place=place)

    def database_file(self) -> tuple[int | None, str]:
        """(bytes with its write-ahead log, where it is)."""
        path = self.file()
        if path is None:
            return None, normal_url(self.console.settings.db_url).render_as_string(hide_password=True)
        sizes = [one.stat().st_size for one in (path, Path(f"{path}-wal")) if one.is_file()]
        return (sum(sizes) if sizes else None), str(path)

    def file(self) -> Path | None:
        return database_path(normal_url(self.console.settings.db_url))

    def look_at_files(self) -> tuple[DiskFacts | None, tuple[CertificateFacts, ...]]:
        path = self.file()
        place = (path.parent if path is not None else Path()).resolve()
        try:
            usage = shutil.disk_usage(place)
            disk = DiskFacts(path=str(place), free_bytes=usage.free, total_bytes=usage.total)
        except OSError:
            disk = None
        settings = self.console.settings
        named = ((OURS, settings.tls_cert_file, min), (AUTHORITIES, settings.node_ca_file, max))
        found = []
        for what, one, of_all in named:
            if one is None:
                continue
            try:
                found.append(CertificateFacts(what=what, path=str(one), ends_at=of_all(ends_of(one))))
            except (OSError, ValueError) as error:
                found.append(CertificateFacts(what=what, path=str(one), error=reason_of(error)[:ERROR_CHARS_MAX]))
        return disk, tuple(found)

    async def tokens_that_end(self) -> tuple[TokenFacts, ...]:
        """Those that end within a week, or ended within the last one."""
        now = utc_now()
        soon = ApiToken.expires_at.between(now - TOKEN_SOON, now + TOKEN_SOON)
        asked = select(ApiToken).where(ApiToken.revoked_at.is_(None), soon).order_by(ApiToken.expires_at)
        try:
            async with self.sessions() as db:
                rows = list(await db.scalars(asked.limit(TOKENS_MAX)))
        except SQLAlchemyError:
            return self.facts.tokens
        return tuple(
            TokenFacts(id=row.id, name=row.name, user=row.user.name, ends_at=row.expires_at, used_at=row.last_used_at)
            for row in rows
            if row.expires_at is not None and row.user.disabled_at is None
        )

    def clocks(self) -> list[ClockFacts]:
        """Of the members that have answered just now."""
        now = utc_now()
        return [
            ClockFacts(
                scope=watch.info.id,
                group=watch.info.name,
                node_id=one.node_id,
                offset_ms=round(one.clock.offset_ms, 1),
                margin_ms=round(one.clock.margin_ms, 1),
            )
            for watch in list(self.console.watches.values())
            for one in watch.samples
            if one.clock is not None and fresh(one.last_seen, now)
        ]


def fresh(seen: datetime | None, now: datetime) -> bool:
    return seen is not None and abs(now - seen) < timedelta(seconds=LOOK_EVERY_S)


def said(error: Exception) -> str:
    """What the database itself says, without the statement."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig if isinstance(error.orig, Exception) else error
    text = f"no answer within {WRITE_S:.0f} s" if isinstance(error, TimeoutError) and not str(error) else str(error)
    return " ".join(text.split())[:ERROR_CHARS_MAX] or type(error).__name__
