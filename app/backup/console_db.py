"""The console's database in a back-up: a consistent copy of a SQLite file, beside a running console or without one.

Invariants: the copy is SQLite's own (its online backup: one moment's state, whatever is written meanwhile), checked by
SQLite before it counts; the key file that opens its sealed secrets does not travel along. Sessions, login links and API
tokens of the time of the back-up open nothing where it is restored: since then they may have been ended, used, revoked
or made void, and the copy cannot know. Whoever restores may keep the tokens.
PostgreSQL has tools of its own, and is refused with their name.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.backup.taking import BackupRefused
from node.store.backup.manifest import CONSOLE, File, Manifest
from node.store.backup.pieces import compare_file
from node.store.errors import wrap
from node.store.files.os_files import make_directory, sync_directory
from node.store.files.platform import OS

LOGINS: Final = ("login_links", "sessions")  # tables of what opens the console at the moment, or did
TOKENS: Final = "api_tokens"
MADE_AT: Final = "console_db_made_at"  # in a manifest: of which run its copy is, for later ones may have taken none
ASIDE: Final = ("", "-wal", "-shm", "-journal")  # SQLite's own files of a database, which it takes for the new one's


def database_path(db: str) -> Path:
    """The file of a SQLite database that is named by its path or URL. Raises BackupRefused."""
    scheme, separator, rest = db.partition("://")
    if separator and not scheme.startswith("sqlite"):
        raise BackupRefused(
            "the console's database on PostgreSQL is backed up with PostgreSQL's own tools:"
            " pg_dump --format=custom --file=console.dump DATABASE, and pg_restore for the way back"
        )
    path = Path(rest.removeprefix("/") if separator else db)
    if not path.is_file():
        raise BackupRefused(f"{path}: there is no such database (--db FILE names the console's)")
    return path


def copy_database(db: str, directory: Path, name: str) -> File:
    """Into `directory`, which is there; durable on return. Raises BackupRefused, StoreError."""
    path = database_path(db)
    target = directory / f"{CONSOLE}{name}.sqlite"
    free = OS.space_left_bytes(directory)
    if free is not None and free < path.stat().st_size:
        raise BackupRefused(f"the disk of {directory} has {free} bytes left, {path} has {path.stat().st_size}")
    _copy(path, target)
    return _described(directory, target)


def restore_database(source: Path, file: File, target: Path, *, keep_tokens: bool = False) -> int:
    """Where no file is yet; how many API tokens are revoked in it. Raises BackupRefused, BackupDamaged, StoreError."""
    for own in (target.with_name(f"{target.name}{ending}") for ending in ASIDE):
        if own.exists():
            raise BackupRefused(f"{own} is there already: stop the console and move it away first")
    compare_file(source / file.name, file.size_bytes, file.sha256)
    make_directory(target.parent)
    part = target.with_name(f"{target.name}.restoring")
    part.unlink(missing_ok=True)
    try:
        _copy(source / file.name, part)
        revoked = _end_logins(part, keep_tokens)
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)
    return revoked


def made_at(made: Manifest) -> str | None:
    """Of when the copy in a back-up is; None: it has none. Releases before this one noted the last run's time alone."""
    return None if made.console_db is None else str(made.extra.get(MADE_AT, made.made_at))


def check_database(source: Path, file: File) -> None:
    """Raises BackupDamaged, BackupRefused."""
    compare_file(source / file.name, file.size_bytes, file.sha256)
    try:
        with closing(sqlite3.connect(f"{_url(source / file.name)}?mode=ro&immutable=1", uri=True)) as copy:
            _check(copy, source / file.name)
    except sqlite3.Error as error:
        raise BackupRefused(f"{source / file.name}: {error}") from error


def _copy(path: Path, target: Path) -> None:
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        with (
            closing(sqlite3.connect(f"{_url(path)}?mode=rw", uri=True)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, which says everything
            _check(copy, path)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except sqlite3.Error as error:
        raise BackupRefused(f"{path}: {error}") from error
    except OSError as error:
        raise wrap(error, f"copying {path} to {target}") from error


def _end_logins(path: Path, keep_tokens: bool) -> int:
    """How many tokens. Raises BackupRefused. One made by a release that had no such tables is left as it is."""
    try:
        with closing(sqlite3.connect(f"{_url(path)}?mode=rw", uri=True)) as copy, copy:
            copy.execute("PRAGMA synchronous=FULL")
            there = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in sorted(there.intersection(LOGINS)):
                copy.execute(f"DELETE FROM {table}")
            if keep_tokens or TOKENS not in there:
                return 0
            now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            return copy.execute(f"UPDATE {TOKENS} SET revoked_at = ? WHERE revoked_at IS NULL", (now,)).rowcount
    except sqlite3.Error as error:
        raise BackupRefused(f"{path}: {error}") from error


def _url(path: Path) -> str:
    """`?`, `#` and `%` in a name are no parameters of SQLite's."""
    return path.absolute().as_uri()


def _check(copy: sqlite3.Connection, path: Path) -> None:
    (found,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise BackupRefused(f"{path} is not sound: {found}")


def _described(directory: Path, target: Path) -> File:
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    sync_directory(directory)
    return File(target.name, target.stat().st_size, digest)
