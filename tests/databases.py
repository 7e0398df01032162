"""Which database a test's console has: a SQLite file, or, where TEST_DATABASE_SERVER names a server, one of PostgreSQL.

A test gives the path that its SQLite file would have; the same path is the same database. What a test is about that
only SQLite has (its file, its locks) is marked `sqlite`, and is not run on PostgreSQL (tests/postgresql.py).
"""

from __future__ import annotations

import functools
import hashlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine, make_url

from app.db.engine import normal_url, sync_url, upgrade

SERVER: Final = os.environ.get("TEST_DATABASE_SERVER")  # such as postgresql://user:word@127.0.0.1:5433
_made: set[str] = set()


def database_url(path: Path) -> str:
    """Of an empty database, or of the one that this path has already."""
    if SERVER is None:
        return f"sqlite:///{path}"
    name = "t" + hashlib.sha256(str(path).encode()).hexdigest()[:20]
    if name not in _made:
        _make(name)
    return of_server(name)


def prepared_url(path: Path) -> str:
    """Of a database as the migrations leave it: a copy costs nothing, the migrations half a second."""
    if SERVER is None:
        if not path.exists():
            path.write_bytes(migrated_file())
        return f"sqlite:///{path}"
    name = "t" + hashlib.sha256(str(path).encode()).hexdigest()[:20]
    if name not in _made:
        _make(name, _migrated_template())
    return of_server(name)


def opened(path: Path) -> Engine:
    """Another program's way into that database."""
    return create_engine(sync_url(database_url(path)))


def of_server(name: str) -> str:
    assert SERVER is not None
    return make_url(SERVER).set(database=name).render_as_string(hide_password=False)


def _make(name: str, template: str = "template1") -> None:
    engine = create_engine(normal_url(of_server("postgres")), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{name}"'))
        connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    engine.dispose()
    _made.add(name)


@functools.cache
def _migrated_template() -> str:
    """One for each test process: nobody may be connected to what is copied."""
    name = f"migrated_{os.getpid()}"
    _make(name)
    upgrade(of_server(name))
    return name


@functools.cache
def migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "pristine.db"
        upgrade(f"sqlite:///{path}")
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA journal_mode=DELETE")
        database.close()
        return path.read_bytes()
