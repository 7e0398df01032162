"""Stores of a small group, and back-ups of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.backup.source import DirectorySource
from app.backup.taking import now_text, open_directory, take_log, write
from node.protocol.codes import VoterState
from node.protocol.entry import Entry, Magic
from node.protocol.group_members import GroupMembers
from node.store.backup.manifest import Manifest, hold
from node.store.backup.restoring import Birth, Restored, restore_group, restore_member
from node.store.file_store import FileStore
from node.store.files.os_files import make_directory
from node.store.files.platform import OS, Platform
from node.store.log_store import HardState
from tests.unit.store_fixtures import entries_of, fill, open_store, sync

GROUP_ID = "0123456789abcdef" * 2
TOKEN = "token-of-the-new-group"
VOTERS = ("n0", "n1", "n2")


def make_member(directory: Path, terms: int = 3, per_term: int = 20, **more: Any) -> FileStore:
    """A member's store with entries, all of them committed."""
    store = open_store(directory / "dledger-n0", group_id=GROUP_ID, **more)
    add(store, terms, per_term)
    return store


def add(store: FileStore, terms: int = 1, per_term: int = 20, seed: int = 1) -> None:
    fill(store, terms, per_term, seed=seed)
    commit_all(store)


def commit_all(store: FileStore) -> None:
    known = store.hard_state
    state = HardState(max(known.term, store.end_term), None, VoterState.VOTER, group_id=known.group_id)
    store.save_hard_state(state)
    store.note_progress(store.end_index, store.end_index)
    sync(store)


def add_members(store: FileStore, members: GroupMembers, change: str = "a change") -> None:
    store.append_as_leader([members.body(change)], store.end_term, Magic.CONFIG_CHANGE)
    commit_all(store)


def back_up(member: Path, directory: Path, platform: Platform = OS) -> Manifest:
    """One run of the log alone."""
    make_directory(directory, platform)
    lock = hold(directory, platform)
    source = DirectorySource(member)
    try:
        known = open_directory(directory, platform)
        log, _, _, _ = take_log(source, directory, known, platform=platform)
        made = Manifest(now_text(), 1 if known is None else known.runs + 1, str(member), log)
        return write(directory, known, made, platform)
    finally:
        source.close()
        lock.release()


def new_group(backup: Path, manifest: Manifest, into: Path, platform: Platform = OS) -> list[Restored]:
    assert manifest.log is not None
    birth = Birth("again", TOKEN, VOTERS)
    return restore_group(backup, manifest.log, into, birth, lambda _data: None, platform)


def old_member(backup: Path, manifest: Manifest, data: Path, node_id: str = "n1", platform: Platform = OS) -> Restored:
    assert manifest.log is not None
    return restore_member(backup, manifest.log, data, node_id, Birth("g"), lambda _data: None, platform)


def contents(store: FileStore) -> list[Entry]:
    return entries_of(store)
