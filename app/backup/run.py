"""A back-up from end to end: checks the place, takes its lock, reads, writes the manifest, and tries the restore.

Invariants: nothing is written before the place was checked; the manifest is written once, when everything that it names
is durable; the trial restores from the directory alone, as a restore would.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.audit.replicas import ReplicaSpec
from app.backup import console_db
from app.backup.snapshots import with_snapshot
from app.backup.source import DirectorySource, MemberSource, Source, SourceError
from app.backup.taking import BackupRefused, Say, check_target, now_text, open_directory, take_log, write
from node.children import environment, python, why_failed
from node.operator_trail import NAME as TRAIL_NAME
from node.operator_trail import OperatorTrail, login_name
from node.store.backup.command import TRY
from node.store.backup.manifest import Manifest, hold, read_manifest
from node.store.files.os_files import make_directory

Json = dict[str, Any]


class TrialFailed(Exception):
    """What the process that restores said; the back-up, or the place, is not what it should be."""


@dataclass(frozen=True, slots=True)
class What:
    """What is backed up: a log (`nodes`, tried in their order, or `data`), the console's database (`db`), or both."""

    nodes: tuple[ReplicaSpec, ...] = ()
    data: Path | None = None
    db: str | None = None

    @property
    def has_log(self) -> bool:
        return bool(self.nodes) or self.data is not None


def back_up(what: What, directory: Path, say: Say) -> Json:
    """One run into one directory. Raises BackupRefused, SourceError, StoreError."""
    check_target(directory, () if what.data is None else (what.data,))
    if what.db is not None:
        console_db.database_path(what.db)  # one that cannot be copied ends the run before anything is read
    source = open_source(what) if what.has_log else None
    try:
        make_directory(directory)
        lock = hold(directory)
        try:
            with recorded(source, directory):
                return _run(what, source, directory, say)
        finally:
            lock.release()
    finally:
        if source is not None:
            source.close()


def open_source(what: What) -> Source:
    """The first member that answers. Raises SourceError."""
    if what.data is not None:
        return DirectorySource(what.data)
    failed: list[str] = []
    for spec in what.nodes:
        try:
            return MemberSource(spec)
        except SourceError as error:
            if error.is_denied or (spec is what.nodes[-1] and not failed):
                raise
            failed.append(str(error))
    raise SourceError("; ".join(failed), is_away=True)


@contextmanager
def recorded(source: Source | None, directory: Path) -> Iterator[None]:
    """A member's directory that is read has a row in its trail; a control plane writes its own, for the pin."""
    store = None if source is None else source.described.store_directory
    if store is None:
        yield
        return
    trail = OperatorTrail(store.parent / TRAIL_NAME)
    row = trail.begin(
        user_name=login_name(), role="-", via="command line", credential="", address="", method="", path="",
        action="backup", target=str(directory),
    )  # fmt: skip
    try:
        yield
    except BaseException:
        trail.end(row, 1)
        raise
    trail.end(row, 0)


def _run(what: What, source: Source | None, directory: Path, say: Say) -> Json:
    known = open_directory(directory)
    made = Manifest(now_text(), 1) if known is None else replace(known, made_at=now_text(), runs=known.runs + 1)
    entries, bytes_read, notes = 0, 0, list[str]()
    if source is not None:
        held = None if known is None else known.log
        log, entries, bytes_read, notes = take_log(source, directory, known, say)
        log, more = with_snapshot(source, directory, log, held)
        notes += more
        made = replace(made, log=log, source=source.described.place)
        if log.lacks_state is not None:
            notes.append(f"{log.lacks_state}; read another member, or try again later")
    if what.db is not None:
        name = f"{made.runs:06d}"
        copied = console_db.copy_database(what.db, directory, name)
        made = replace(made, console_db=copied, extra={**made.extra, console_db.MADE_AT: made.made_at})
        notes.append("the console's key file is not in the back-up: keep it elsewhere")
    write(directory, known, made)
    return described(directory, made) | {"new_entries": entries, "bytes_read": bytes_read, "notes": notes}


def described(directory: Path, made: Manifest) -> Json:
    """What a back-up holds, as `--json` says it."""
    log, database = made.log, made.console_db
    return {
        "directory": str(directory), "made_at": made.made_at, "runs": made.runs, "source": made.source or None,
        "group": None if log is None else log.group, "group_id": None if log is None else log.group_id,
        "kind": None if log is None else log.kind,
        "begin_index": None if log is None else log.begin_index, "end_index": None if log is None else log.end_index,
        "end_term": None if log is None else log.end_term,
        "entries": 0 if log is None else log.end_index - log.begin_index + 1,
        "bytes": 0 if log is None else log.entries_bytes, "pieces": 0 if log is None else len(log.pieces),
        "snapshot_index": None if log is None or log.snapshot is None else log.snapshot.index,
        "lacks_state": None if log is None else log.lacks_state,
        "console_db": None if database is None else database.name, "console_db_made_at": console_db.made_at(made),
        "verified": None,
    }  # fmt: skip


def verify(directory: Path, scratch: Path | None) -> Json:
    """Tries the restore of what is in `directory`. Raises TrialFailed, BackupRefused, StoreError."""
    made = read_manifest(directory)
    if made is None:
        raise BackupRefused(f"{directory} is no back-up: there is no manifest in it")
    order = {"action": TRY, "source": str(directory), "scratch": str(scratch or directory)}
    lock = hold(directory) if scratch is None else None  # what lies beside the back-up is its writer's to remove
    try:
        tried = in_process(order)["log"]
    finally:
        if lock is not None:
            lock.release()
    if made.console_db is not None:
        console_db.check_database(directory, made.console_db)
    return described(directory, made) | {"verified": True, "restored": tried}


def in_process(order: Mapping[str, Any]) -> Json:
    """The process that makes stores. Raises TrialFailed."""
    done = subprocess.run(
        python("-m", "node.store.backup"), input=json.dumps(order), capture_output=True, text=True, check=False,
        env=environment(),
    )  # fmt: skip
    if done.returncode or not done.stdout:
        raise TrialFailed(why_failed(done, "backup"))
    result: Json = json.loads(done.stdout)
    return result
