"""Makes stores of a back-up: the members of a new group, or one member of the group that was backed up.

*A new group* gets an id of its own, made of a token (SAFETY C9), and as its last entry one that names it and its
members (M1): the log is the old group's up to there, and from there on no other's. All its members begin with the same
entries, as voters, in the term of that entry, in which nobody of them votes. Nothing of the old group's members comes
along: no store id, no life, no vote, no record of a peer. *A member* of the group that was backed up keeps the group's
id. It is REJOINING (E8): it has no vote and counts for nothing until it holds everything that a confirmed leader has;
what is restored only spares it the way there.

Invariants: a store is written by the same code that an engine writes it with, and read again from its files before it
counts; it gets its name last, so whoever ends this at any moment leaves either no restored store or a whole one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from node.protocol.codes import VoterState
from node.protocol.entry import POSITION_MAX, TERM_MAX
from node.protocol.group_entries import entry_about_group, members_named_in
from node.protocol.group_id import group_id_of
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME, has_state_machine
from node.protocol.group_members import GroupMembers, members_in
from node.snapshots import directory as snapshots
from node.store.backup.manifest import BackupDamaged, LogBackup
from node.store.backup.pieces import READ_BYTES, compare_file, slabs_of
from node.store.errors import StoreRefused, wrap
from node.store.file_store import FileStore
from node.store.files.identity import Base
from node.store.files.lock_file import LockFile
from node.store.files.os_files import make_directory, sync_directory, write_all
from node.store.files.platform import OS, Platform
from node.store.log_store import HardState
from node.store.reader import StoreReader

UNSYNCED_BYTES_MAX: Final = 64 * 1024 * 1024
SPARE_BYTES: Final = 80 * 1024 * 1024  # what a store allocates ahead, and its small files
STAGE: Final = ".restoring"
LOCK: Final = f"{STAGE}.lock"
TRAIL: Final = "operator-trail.jsonl"
RESTORED_KEPT: Final = 16  # of the entries about a group's members, in the hard state
Record = tuple[int, str]  # where such an entry is, and what it says
Note = Callable[[Path], None]  # records in a data directory what it is made from


@dataclass(frozen=True, slots=True)
class Birth:
    """What a restored store is to be. `token`: a new group's, None for a member of the old one; `voters`: of a new
    group, whose addresses are each member's own configuration's to say."""

    group: str
    token: str | None = None
    voters: Sequence[str] = ()

    def group_id(self, log: LogBackup) -> str | None:
        return log.group_id if self.token is None else group_id_of(self.token, self.group)


@dataclass(frozen=True, slots=True)
class Restored:
    """One store: where it is, and what a reading of its files found."""

    node_id: str
    directory: Path
    store_id: str
    begin_index: int
    end_index: int
    end_term: int


def voters_of(log: LogBackup) -> list[str]:
    """The voters of a back-up's configuration (M1): of its newest entry about the members, else those of the birth."""
    named = None if log.members is None else members_in(log.members[1].encode())
    return sorted(log.peers if named is None else named.voters)


def last_entry(log: LogBackup, birth: Birth) -> bytes:
    """What a new group's members begin with behind the back-up: its id and its members; the same on all of them."""
    group_id = birth.group_id(log)
    members = GroupMembers(dict.fromkeys(sorted(birth.voters), ""), removed={})
    fields = json.loads(members.body(f"restored {group_id}"))
    return json.dumps({"group_id": group_id, **fields}, sort_keys=True).encode()


def space_wanted(log: LogBackup, stores: int = 1) -> int:
    """How many bytes so many stores of it take at most."""
    entries = log.end_index - log.begin_index + 1
    return stores * (log.entries_bytes * 101 // 100 + 32 * entries + SPARE_BYTES)


def refuse_unrestorable(log: LogBackup, birth: Birth) -> None:
    """Raises StoreRefused where no group could go on from that back-up."""
    if not log.pieces:
        raise StoreRefused("the back-up holds no entry: there is nothing to restore")
    if log.lacks_state is not None:
        raise StoreRefused(log.lacks_state)
    if log.end_term >= TERM_MAX - 1 or log.end_index >= POSITION_MAX - 1:
        raise StoreRefused(f"the log ends with entry {log.end_index} of term {log.end_term}: nothing can follow it")
    if birth.token is not None and birth.group_id(log) == log.group_id:
        raise StoreRefused("that name and token make the id of the group that was backed up: give another token")
    if birth.token is not None and not birth.voters:
        raise StoreRefused("the back-up does not say who the members were: name them with --peers")


def restore_store(
    source: Path, log: LogBackup, directory: Path, node_id: str, birth: Birth, platform: Platform = OS
) -> Restored:
    """Writes one store into `directory`, which is not there yet, and reads it again. Raises StoreError.

    The caller gives the directory its name in the end.
    """
    refuse_unrestorable(log, birth)
    base = log.base
    if base is not None:
        base = Base(base.meta, base.pos, birth.group_id(log), base.members)
    named: list[Record] = []
    store = FileStore.open(
        directory, group=birth.group, node_id=node_id, data_file_size=log.data_file_size,
        index_file_size=log.index_file_size, group_id=birth.group_id(log), born_at=base, kind=log.kind,
        platform=platform, origin_pos=_origin_of(source, log, platform),
    )  # fmt: skip
    try:
        _append_all(source, log, store, platform, named)
        _copy_snapshot(source, log, directory, platform)
        state = _hard_state(store, log, birth, named)
        store.save_hard_state(state)
        applied_index = store.applied_index if has_state_machine(log.kind) else store.end_index
        store.note_progress(store.end_index, applied_index)
        chain, store_id = store.end_chain, store.store_id
    finally:
        store.close()
    restored = read_again(directory, node_id, store_id, platform)
    expected = log.end_index + (1 if birth.token is not None else 0)
    if (restored.begin_index, restored.end_index) != (log.begin_index, expected) or chain is None:
        raise BackupDamaged(
            f"the restored store holds entries {restored.begin_index} to {restored.end_index}, not"
            f" {log.begin_index} to {expected}"
        )
    return restored


def _origin_of(source: Path, log: LogBackup, platform: Platform) -> int:
    """Where entry 0 lies: behind a broker's old commit log, which no back-up holds, not at 0."""
    if log.base is not None or log.kind != BROKER_NAME:
        return 0
    return next(slabs_of(source, log, platform)).pos


def _append_all(source: Path, log: LogBackup, store: FileStore, platform: Platform, named: list[Record]) -> None:
    """`named`: the entries about the group's members are added to it."""
    unsynced = 0
    for slab in slabs_of(source, log, platform):
        store.append_slab(slab)
        unsynced += len(slab.data)
        named += members_named_in(log.kind, slab)
        if unsynced >= UNSYNCED_BYTES_MAX:
            _sync(store)
            unsynced = 0
    _sync(store)
    if (store.end_index, store.end_term, store.end_chain) != (log.end_index, log.end_term, log.end_chain):
        raise BackupDamaged(
            f"the restored log ends with entry {store.end_index} of term {store.end_term}, the manifest says"
            f" {log.end_index} of term {log.end_term}, or another chain"
        )


def _copy_snapshot(source: Path, log: LogBackup, directory: Path, platform: Platform) -> None:
    """A state machine's, in the place where it looks for one."""
    if log.snapshot is None:
        return  # then its log has every entry, and is applied again
    folder = directory / snapshots.FOLDER / f"snapshot_{log.snapshot.index}"
    make_directory(folder, platform)
    for one in log.snapshot.files:
        compare_file(source / one.name, one.size_bytes, one.sha256, platform)
        copy_file(source / one.name, folder / Path(one.name).name, platform)
    sync_directory(folder, platform)
    snapshots.verify(snapshots.read_snapshot(folder, platform), platform)


def copy_file(source: Path, target: Path, platform: Platform) -> None:
    """A copy, synced; its name is not durable yet. Raises StoreError."""
    try:
        fd = platform.open(source, os.O_RDONLY)
    except OSError as error:
        raise wrap(error, f"opening {source}") from error
    try:
        to = platform.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        at = 0
        try:
            while block := platform.pread(fd, READ_BYTES, at):
                write_all(to, block, at, f"writing {target}", platform)
                at += len(block)
            platform.fsync(to)
        finally:
            platform.close(to)
    except OSError as error:
        raise wrap(error, f"copying {source} to {target}") from error
    finally:
        platform.close(fd)


def _sync(store: FileStore) -> None:
    ticket = store.prepare_sync()
    if ticket is not None:
        ticket.run()
        store.finish_sync(ticket)


def _hard_state(store: FileStore, log: LogBackup, birth: Birth, named: list[Record]) -> HardState:
    """Term, vote and configuration of a restored store; a new group's last entry is appended before.

    A plain log's hard state names the newest entry about the members, any other one's the last few: what its base or
    a snapshot that lies before the newest one has to say, its index does not show (`configurations.py`).
    """
    known = store.hard_state
    configurations = () if log.members is None else (log.members,)
    if log.kind != PLAIN_NAME and named:
        at_base = () if log.base is None or log.base.members is None else (log.base.members,)
        configurations = (*at_base, *named)[-RESTORED_KEPT:]
    if birth.token is None:
        return replace(
            known, term=log.end_term, voted_for=None, vote_floor=log.end_term, voter_state=VoterState.REJOINING,
            group_id=log.group_id, configurations=configurations,
        )  # fmt: skip
    term = log.end_term + 1
    body = last_entry(log, birth)
    own = entry_about_group(log.kind, body, store.get(store.end_index))
    store.append_as_leader([own.body], term, own.magic, own.channel, own.patch_at)
    newest = (store.end_index, body.decode())
    configurations = (newest,) if log.kind == PLAIN_NAME else (*configurations, newest)
    return replace(
        known, term=term, voted_for=None, vote_floor=term, voter_state=VoterState.VOTER, group_id=birth.group_id(log),
        marks_from=term + 1, configurations=configurations,
    )  # fmt: skip


def read_again(directory: Path, node_id: str, store_id: str, platform: Platform = OS) -> Restored:
    """Every byte of a store, from its files. Raises BackupDamaged where anything is wrong."""
    reader = StoreReader(directory, platform=platform)
    report = reader.verify()
    if report.problems:
        first = report.problems[0]
        raise BackupDamaged(f"the restored store is not sound: {first.kind} in {first.file}: {first.detail}")
    return Restored(node_id, directory, store_id, report.begin_index, report.end_index, report.end_term)


# --- names ------------------------------------------------------------------------------------------------------------
@contextmanager
def alone_at(target: Path, *, is_group: bool, platform: Platform = OS) -> Iterator[None]:
    """One restore at a time: two would remove each other's files. Raises StoreRefused.

    Beside the directory of a group, which is put in place whole; in that of a member, whose parent may be anybody's.
    """
    place, name = (target.parent, f"{STAGE}-{target.name}.lock") if is_group else (target, LOCK)
    is_new = not platform.exists(place)
    make_directory(place, platform)
    path = place / name

    def take(fd: int) -> None:
        try:
            platform.lock(fd)
        except OSError as error:
            raise StoreRefused(f"another restore is writing to {target}: wait until it has ended") from error

    lock, is_done = LockFile(path, platform, take), False
    try:
        yield
        is_done = True
    finally:
        platform.unlink(path)
        lock.release()
        if is_new and not is_done and not platform.names(place):
            platform.remove_tree(place)


@contextmanager
def _staged(stage: Path, platform: Platform) -> Iterator[None]:
    """A directory to write in. What an earlier restore to this target left there when it was killed goes first; where
    this one ends in an error, nothing stays."""
    platform.remove_tree(stage)
    make_directory(stage, platform)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        platform.remove_tree(stage)
        raise


def restore_member(
    source: Path, log: LogBackup, data: Path, node_id: str, birth: Birth, note: Note, platform: Platform = OS
) -> Restored:
    """One member's data directory. Raises StoreRefused where it holds anything, StoreError."""
    make_directory(data, platform)
    _refuse_filled(data, platform)
    _refuse_small_disk(data, log, 1, platform)
    stage = data / STAGE
    with _staged(stage, platform):
        done = restore_store(source, log, stage / f"dledger-{node_id}", node_id, birth, platform)
        note(data)
        named = data / f"dledger-{node_id}"
        platform.replace(stage / f"dledger-{node_id}", named)
    sync_directory(data, platform)
    platform.remove_tree(stage)
    return replace(done, directory=named)


def restore_group(
    source: Path, log: LogBackup, into: Path, birth: Birth, note: Note, platform: Platform = OS
) -> list[Restored]:
    """A data directory for each voter of a new group, `into`/ID; all of them appear at once.

    Raises StoreRefused where `into` holds anything, StoreError.
    """
    if platform.exists(into):
        _refuse_filled(into, platform)
    make_directory(into.parent, platform)
    stage = into.parent / f"{STAGE}-{into.name}"
    done: dict[str, Restored] = {}
    with _staged(stage, platform):
        _refuse_small_disk(stage, log, len(birth.voters), platform)
        for node_id in birth.voters:
            make_directory(stage / node_id, platform)
            directory = stage / node_id / f"dledger-{node_id}"
            done[node_id] = restore_store(source, log, directory, node_id, birth, platform)
            note(stage / node_id)
            sync_directory(stage / node_id, platform)
        try:
            platform.replace(stage, into)
        except OSError as error:
            raise StoreRefused(
                f"{into} cannot be put in place ({error.strerror or error}): name a directory that is not there yet, or"
                " restore one member at a time with --id ID --group-token TOKEN"
            ) from error
    sync_directory(into.parent, platform)
    return [replace(one, directory=into / node_id / f"dledger-{node_id}") for node_id, one in done.items()]


def _refuse_filled(directory: Path, platform: Platform) -> None:
    held = [name for name in platform.names(directory) if name not in (STAGE, LOCK, TRAIL)]
    if held:
        raise StoreRefused(
            f"{directory} is not empty, it holds {held[0]}: name a directory that is empty, or not there"
        )


def _refuse_small_disk(directory: Path, log: LogBackup, stores: int, platform: Platform) -> None:
    free, wanted = platform.space_left_bytes(directory), space_wanted(log, stores)
    if free is not None and free < wanted:
        raise StoreRefused(f"the disk of {directory} has {free} bytes left, the restore needs up to {wanted}")


def as_json(done: Sequence[Restored]) -> list[Mapping[str, object]]:
    """What was restored, for the caller of the process."""
    return [
        {
            "node_id": one.node_id, "directory": str(one.directory), "store_id": one.store_id,
            "begin_index": one.begin_index, "end_index": one.end_index, "end_term": one.end_term,
        }
        for one in done
    ]  # fmt: skip
