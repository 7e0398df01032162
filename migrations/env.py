"""Alembic's entry.

The URL comes from `app.db.engine.upgrade`, or from QUORUMSCOPE_CONSOLE__DB_URL for the alembic command. Of several
processes that bring one database up to date, one does, and the others wait for it and find it done.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alembic import context
from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import URL, Connection

from app.db import models
from app.db.base import Base
from app.db.engine import database_path, prepare_directory, sync_url

for tables in ("app.db.audits", "app.db.schedules"):
    if importlib.util.find_spec(tables) is not None:
        importlib.import_module(tables)

assert models.Base is Base


TURN: Final = int.from_bytes(b"qscope")  # PostgreSQL's advisory locks are numbers; this one is the console's


def database_url() -> URL:
    given = context.config.attributes.get("db_url")
    if given is not None:
        return given
    named = os.environ.get("QUORUMSCOPE_CONSOLE__DB_URL", "sqlite:///.quorumscope/console.db")
    prepare_directory(named)
    return sync_url(named)


@contextmanager
def turn_by_directory(url: URL) -> Iterator[None]:
    """For SQLite, which commits each step of a migration by itself. The file's own locks are SQLite's."""
    path = database_path(url)
    if path is None:
        yield
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def wait_for_turn(connection: Connection) -> None:
    """For PostgreSQL: to the end of the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(TURN)))


def run() -> None:
    url = database_url()
    engine = create_engine(url, hide_parameters=True)
    with turn_by_directory(url), engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
        with context.begin_transaction():
            wait_for_turn(connection)
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    context.configure(url=str(database_url()), target_metadata=Base.metadata, literal_binds=True, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    run()
