"""Alembic's entry.

The URL comes from `app.db.engine.upgrade`, or from QUORUMSCOPE_CONSOLE__DB_URL for the alembic command.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

from alembic import context
from sqlalchemy import create_engine

from app.db import models
from app.db.base import Base
from app.db.engine import prepare_directory, sync_url

for tables in ("app.db.audits", "app.db.schedules"):
    if importlib.util.find_spec(tables) is not None:
        importlib.import_module(tables)

assert models.Base is Base


def database_url() -> object:
    given = context.config.attributes.get("db_url")
    if given is not None:
        return given
    named = os.environ.get("QUORUMSCOPE_CONSOLE__DB_URL", "sqlite:///.quorumscope/console.db")
    prepare_directory(named)
    return sync_url(named)


def run() -> None:
    engine = create_engine(database_url(), hide_parameters=True)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


if context.is_offline_mode():
    context.configure(url=str(database_url()), target_metadata=Base.metadata, literal_binds=True, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    run()
