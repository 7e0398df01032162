"""Opening the database, and bringing its schema to this version.

SQLite by default (a file, WAL, foreign keys on); `postgresql://…` by URL (psycopg 3, not installed by default).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.resources import resource

Sessions = async_sessionmaker[AsyncSession]


def normal_url(db_url: str) -> URL:
    """The URL with an async driver named; a bare path means SQLite."""
    url = make_url(db_url if "://" in db_url else f"sqlite:///{db_url}")
    if url.get_backend_name() == "sqlite":
        return url.set(drivername="sqlite+aiosqlite")
    if url.drivername in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    return url


def sync_url(db_url: str) -> URL:
    """The same database for Alembic, which works synchronously."""
    url = normal_url(db_url)
    return url.set(drivername="sqlite") if url.get_backend_name() == "sqlite" else url


def sqlite_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", "busy_timeout=5000", "synchronous=NORMAL"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def open_engine(db_url: str) -> AsyncEngine:
    url = normal_url(db_url)
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True)
    engine = create_async_engine(url)
    event.listen(engine.sync_engine, "connect", sqlite_pragmas)
    return engine


def open_sessions(engine: AsyncEngine) -> Sessions:
    return async_sessionmaker(engine, expire_on_commit=False)


def alembic_config(db_url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(resource("migrations")).replace("%", "%%"))
    config.attributes["db_url"] = sync_url(db_url)
    return config


def prepare_directory(db_url: str) -> None:
    """SQLite makes the file, not its directory."""
    url = normal_url(db_url)
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


def upgrade(db_url: str, revision: str = "head") -> None:
    """Runs the migrations; blocking."""
    prepare_directory(db_url)
    command.upgrade(alembic_config(db_url), revision)


def downgrade(db_url: str, revision: str) -> None:
    command.downgrade(alembic_config(db_url), revision)


async def upgrade_async(db_url: str) -> None:
    await asyncio.to_thread(upgrade, db_url)
