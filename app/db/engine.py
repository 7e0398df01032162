"""Opening the database, and bringing its schema to this version.

SQLite by default (a file, WAL, foreign keys on); `postgresql://…` by URL (psycopg 3, with the extra `postgresql`).
Invariants: with SQLite one transaction writes at a time, the others of this process wait for their turn in order, at
most BUSY_S, and not in SQLite's own retries; readers wait for nobody; a file that was removed meanwhile takes no write.
The database's file and its directory are made for their owner only. No error says what a statement was given: errors
are logged, and hashes of passwords, addresses of webhooks and names that were tried at the login are among it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    AsyncSessionTransaction,
    async_sessionmaker,
    create_async_engine,
)

from app.db.base import Base
from app.db.opened_file import OpenedFile
from app.resources import resource

log = logging.getLogger(__name__)
T = TypeVar("T")
Sessions = async_sessionmaker[AsyncSession]
BUSY_S: Final = 5.0
WRITE_AGAIN_S: Final = 1.0
WRITER: Final = "writer"
FILE: Final = "file"


def normal_url(db_url: str) -> URL:
    """The URL with an async driver named; a bare path means SQLite."""
    url = make_url(db_url if "://" in db_url else f"sqlite:///{db_url}")
    if url.get_backend_name() == "sqlite":
        return url.set(drivername="sqlite+aiosqlite")
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    return url


class DriverMissing(ImportError):
    """The database's driver is not installed; the message says how to."""


def check_driver(url: URL) -> None:
    """Raises DriverMissing."""
    if url.drivername == "postgresql+psycopg" and importlib.util.find_spec("psycopg") is None:
        raise DriverMissing(
            "PostgreSQL needs the driver psycopg 3, which is not installed: pip install 'quorumscope[postgresql]'"
        )


def sync_url(db_url: str) -> URL:
    """The same database for Alembic, which works synchronously."""
    url = normal_url(db_url)
    check_driver(url)
    return url.set(drivername="sqlite") if url.get_backend_name() == "sqlite" else url


def sqlite_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={round(BUSY_S * 1000)}", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def open_engine(db_url: str) -> AsyncEngine:
    url = normal_url(db_url)
    check_driver(url)
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True, hide_parameters=True)
    engine = create_async_engine(url, hide_parameters=True)
    event.listen(engine.sync_engine, "connect", sqlite_pragmas)
    return engine


class Turn:
    """A transaction that writes, in its turn: what `session.begin()` gives with SQLite."""

    def __init__(self, session: AsyncSession, writer: asyncio.Lock, file: OpenedFile | None) -> None:
        self.writer = writer
        self.file = file
        self.transaction = AsyncSession.begin(session)

    async def __aenter__(self) -> AsyncSessionTransaction:
        try:
            async with asyncio.timeout(BUSY_S):
                await self.writer.acquire()
        except TimeoutError:
            raise OperationalError("BEGIN", None, TimeoutError("the database is locked")) from None
        try:
            if self.file is not None:
                self.file.check()
            return await self.transaction.__aenter__()
        except sqlite3.OperationalError as error:
            self.writer.release()
            raise OperationalError("BEGIN", None, error) from None
        except BaseException:
            self.writer.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.transaction.__aexit__(kind, error, trace)
        finally:
            self.writer.release()


class OneWriter(AsyncSession):
    """Reads whenever it likes; writes within `begin()`, one session at a time."""

    def begin(self) -> Turn:  # type: ignore[override]
        return Turn(self, self.info[WRITER], self.info[FILE])


async def until_taken(write: Callable[[], Awaitable[T]], what: str) -> T:
    """What a background task writes, as often as it takes: a database that is locked, full or away costs time, no row.

    Raises what another try does not mend.
    """
    waits = False
    while True:
        try:
            return await write()
        except OperationalError as error:
            if not waits:  # once, not every second
                log.warning("%s cannot be stored now; it is tried again: %s", what, error.orig)
                waits = True
        await asyncio.sleep(WRITE_AGAIN_S)


async def again_if_taken(transact: Callable[[], Awaitable[T]]) -> T:
    """A transaction that looks for a row before it adds it; once more where another one added it meanwhile.

    With SQLite nobody does. With PostgreSQL neither of two sees the other one's row, and the second is refused its own.
    Raises IntegrityError where the database refuses it again: that is no row of somebody else.
    """
    try:
        return await transact()
    except IntegrityError:
        return await transact()


async def put_row(sessions: Sessions, row: Base) -> None:
    """Stores a row in place of the one that has its key, if there is one; also where another stores it just now.

    Raises IntegrityError where the database refuses it for another reason.
    """

    async def put() -> None:
        async with sessions() as db, db.begin():
            await db.merge(row)

    await again_if_taken(put)


@asynccontextmanager
async def between_writes(sessions: Sessions) -> AsyncIterator[None]:
    """While no transaction of this process writes to SQLite: tasks that are ended now are not cut off in one.

    A driver's thread goes on with what a cancelled task had asked for, and may hold the file's lock beyond its end.
    Waits at most BUSY_S for the one that writes; nothing that ends in here may write itself.
    """
    writer = sessions.kw.get("info", {}).get(WRITER)
    held = False
    if writer is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(BUSY_S):
                held = await writer.acquire()
    try:
        yield
    finally:
        if held:
            writer.release()


def open_sessions(engine: AsyncEngine) -> Sessions:
    if engine.dialect.name != "sqlite":
        return async_sessionmaker(engine, expire_on_commit=False)
    path = database_path(engine.url)
    file = OpenedFile(path) if path is not None else None
    if file is not None:
        event.listen(engine.sync_engine, "do_connect", file.connecting)
        event.listen(engine.sync_engine, "connect", file.connected)
        event.listen(engine.sync_engine, "close", file.closed)
    own = {WRITER: asyncio.Lock(), FILE: file}
    return async_sessionmaker(engine, class_=OneWriter, expire_on_commit=False, info=own)


def alembic_config(db_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(resource("migrations")).replace("%", "%%"))
    config.attributes["db_url"] = sync_url(db_url)
    return config


def database_path(url: URL) -> Path | None:
    named = url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:"
    return Path(str(url.database)) if named else None


def prepare_directory(db_url: str) -> None:
    """SQLite makes no directory, and a file that others may read; its side files take over the file's mode."""
    path = database_path(normal_url(db_url))
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def upgrade(db_url: str, revision: str = "head") -> None:
    """Runs the migrations; blocking."""
    prepare_directory(db_url)
    command.upgrade(alembic_config(db_url), revision)


def downgrade(db_url: str, revision: str) -> None:
    command.downgrade(alembic_config(db_url), revision)


async def upgrade_async(db_url: str) -> None:
    await asyncio.to_thread(upgrade, db_url)
