"""One run of a back-up: what is committed and not held yet is read from a member, checked, and added.

Invariants: a run goes on only from the very entry that the back-up ends with (index, term and chain), in the group that
it is of; nothing is written that was not checked; the manifest is replaced last, so a run that ends anywhere before
leaves the back-up as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.backup.source import Described, Source, SourceError
from node.protocol.entry import CHAIN_START, HEAD, HEAD_BYTES, EntryError, Magic, Slab
from node.protocol.group_entries import members_named_in
from node.protocol.group_kind import BROKER_NAME
from node.store.backup.manifest import (
    CONSOLE,
    ENTRIES,
    LOCK,
    MANIFEST,
    SNAPSHOT,
    TRIAL,
    BackupDamaged,
    LogBackup,
    Manifest,
    check_files,
    read_manifest,
    write_manifest,
)
from node.store.backup.pieces import READ_BYTES, PieceWriter, checked_slab, compare_file, runs_in
from node.store.files.os_files import make_directory, sync_directory
from node.store.files.platform import FILE, OS, Platform
from node.store.log_store import EntryMeta

# What runs leave behind, exactly: a directory of somebody's that begins alike is not theirs.
OWN_FILE: Final = re.compile(rf"{LOCK}|{MANIFEST}(\.tmp)?|{CONSOLE}[0-9]+\.sqlite(-journal|-wal|-shm)?")
PIECE: Final = re.compile(r"[0-9]{20}(\.part)?")
TRIAL_FOLDER: Final = re.compile(rf"{TRIAL}[0-9a-f]{{8}}")
FOLDER: Final = "directory"
CHECKED_BYTES: Final = 256 * 1024 * 1024  # of old pieces, which a run that adds to them reads again
SPARE_BYTES: Final = 16 * 1024 * 1024  # beside the entries: the manifest, names, what the file system needs itself


class BackupRefused(Exception):
    """This run may not write there, or may not go on from what is there; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a run did."""

    manifest: Manifest
    from_index: int
    entries: int
    bytes_read: int
    notes: tuple[str, ...] = ()


Say = Callable[[int, int], None]  # how many entries are read, and how many bytes


def take_log(
    source: Source, directory: Path, known: Manifest | None, say: Say = lambda _entries, _bytes: None,
    platform: Platform = OS,
) -> tuple[LogBackup, int, int, list[str]]:  # fmt: skip
    """The log behind what `known` holds, in new pieces: (what it is then, entries and bytes read, remarks).

    The manifest is not written yet. Raises BackupRefused, SourceError, StoreError.
    """
    described, notes = source.described, []
    held = None if known is None else known.log
    if held is not None:
        _refuse_another_group(directory, held, described)
    elif described.begin_index > 0 and (described.base is None or described.base.meta.chain is None):
        raise BackupRefused(
            f"the log of {described.member_id} was trimmed by a Java node: no checksum is known before entry"
            f" {described.begin_index}, so nothing could be checked"
        )
    before, position = _where_to_go_on(source, held)
    if described.end_index < described.begin_index and held is None:
        raise BackupRefused(f"nothing is committed in group {described.group!r} yet: there is nothing to back up")
    why = source.keep(min(before.index + 1, max(described.end_index, 0)))
    if why is not None:
        notes.append(f"no pin on {described.member_id}: {why}; its retention may remove entries while they are read")
    if held is None and described.begin_index > 0:
        notes.append(f"the log of {described.member_id} was trimmed: the back-up begins with entry {before.index + 1}")
    members = _known_members(held, described)
    _check_space(directory, source, before.index + 1, position, platform)
    writer = PieceWriter(directory, before, platform)
    try:
        read = _Reading(source, position, writer, members, described.sealed_from)
        read.all_up_to(described.end_index, say)
        writer.finish()
    finally:
        writer.close()
    log = LogBackup(
        described.group, described.group_id, described.kind, described.data_file_size, described.index_file_size,
        max(described.sealed_from, 0), described.base if held is None else held.base,
        ((() if held is None else held.pieces) + tuple(writer.pieces)),
        described.peers or ({} if held is None else held.peers),
        described.flush or ("" if held is None else held.flush), read.members,
    )  # fmt: skip
    return log, writer.last.index - before.index, read.bytes_read, notes


def open_directory(directory: Path, platform: Platform = OS) -> Manifest | None:
    """What a directory holds that a back-up is to go to; made where it is not there. Raises BackupRefused, StoreError.

    The caller holds its lock. What a run left behind that did not end is removed.
    """
    found = read_manifest(directory, platform)
    others = _foreign(directory, platform, in_all=found is None)
    if others:
        raise BackupRefused(f"{directory} holds {others[0]}, which is no part of a back-up: name an empty directory")
    if found is not None:
        try:
            check_files(directory, found, platform)
            check_some_pieces(directory, found, platform)
        except BackupDamaged as error:
            text = "nothing was added, for nothing could be restored of it: begin a new back-up in another directory"
            raise BackupDamaged(f"{error}; {text}") from error
    drop_unnamed(directory, found, platform)
    return found


def check_some_pieces(directory: Path, made: Manifest, platform: Platform = OS) -> None:
    """Reads some of the pieces that a run builds on: all of them within a few runs. Raises BackupDamaged, StoreError.

    All of them each time would make a run as long as a trial restore, which is what `--verify` is for.
    """
    held = () if made.log is None else made.log.pieces
    total = sum(one.size_bytes for one in held)
    begin = made.runs * CHECKED_BYTES % total if total > CHECKED_BYTES else 0
    at = 0
    for one in (*held, *held):  # on from the beginning, where it comes to the end
        if at + one.size_bytes > begin and at < min(begin + CHECKED_BYTES, begin + total):
            compare_file(directory / ENTRIES / one.name, one.size_bytes, one.sha256, platform)
        at += one.size_bytes


def check_target(directory: Path, forbidden: tuple[Path, ...] = (), platform: Platform = OS) -> None:
    """A back-up does not lie in a data directory, and not among other files. Raises BackupRefused."""
    resolved = directory.resolve()
    for one in (resolved, *resolved.parents):
        names = set(platform.names(one)) if one.is_dir() else set()
        is_store = "quorumscope.json" in names or {"data", "index"} <= names or "operator-trail.jsonl" in names
        if is_store or any(name.startswith("dledger-") for name in names):
            raise BackupRefused(f"{directory} lies in {one}, a member's data directory: name one outside of it")
    for place in forbidden:
        if resolved == place.resolve() or place.resolve() in resolved.parents:
            raise BackupRefused(f"{directory} lies in {place}, where what is to be backed up is: name another one")
    if directory.exists() and not directory.is_dir():
        raise BackupRefused(f"{directory} is no directory")


def drop_unnamed(directory: Path, manifest: Manifest | None, platform: Platform = OS) -> None:
    """Removes what no manifest names from the folders of a back-up: a run that did not end left it."""
    named = set() if manifest is None else manifest.file_names
    for name in platform.names(directory / ENTRIES):
        if f"{ENTRIES}/{name}" not in named and PIECE.fullmatch(name):
            platform.unlink(directory / ENTRIES / name)
    for name in platform.names(directory):
        if OWN_FILE.fullmatch(name) and name not in named | {LOCK, MANIFEST}:
            platform.unlink(directory / name)
        if _is_own_folder(directory, name, platform) and not any(one.startswith(f"{name}/") for one in named):
            platform.remove_tree(directory / name)


def _foreign(directory: Path, platform: Platform, *, in_all: bool) -> list[str]:
    """What no run of a back-up makes there; unless `in_all`, only where the pieces of the log lie.

    Names alone are not enough: what is taken for a run's rest is removed.
    """
    found = []
    for name in platform.names(directory):
        kind = platform.file_kind(directory / name)
        if name == ENTRIES and kind == FOLDER:
            inside = platform.names(directory / name)
            found += [f"{name}/{one}" for one in inside if not PIECE.fullmatch(one)]
        elif name == ENTRIES or (
            in_all and not (kind == FILE and OWN_FILE.fullmatch(name)) and not _is_own_folder(directory, name, platform)
        ):  # a link, which leads to somebody else's files
            found.append(name)
    return found


def _is_own_folder(directory: Path, name: str, platform: Platform) -> bool:
    """Whether a run makes such a directory (of a trial, of a snapshot), and nothing but that."""
    if platform.file_kind(directory / name) != FOLDER:
        return False
    if TRIAL_FOLDER.fullmatch(name):
        return all(one.startswith("dledger-") for one in platform.names(directory / name))
    number = name.removeprefix(SNAPSHOT)
    return (
        name.startswith(SNAPSHOT) and number.isdecimal()
        and set(platform.names(directory / name)) <= {f"snapshot_{number}"}
    )  # fmt: skip


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def write(directory: Path, known: Manifest | None, made: Manifest, platform: Platform = OS) -> Manifest:
    """The run's last step; afterwards what only the manifest before named is removed."""
    make_directory(directory, platform)
    write_manifest(directory, made, platform)
    if known is not None:
        drop_unnamed(directory, made, platform)
        sync_directory(directory, platform)
    return made


def _refuse_another_group(directory: Path, held: LogBackup, described: Described) -> None:
    if held.group != described.group:
        raise BackupRefused(
            f"{directory} is a back-up of group {held.group!r}, {described.place} is of {described.group!r}:"
            " name another directory"
        )
    if None not in (held.group_id, described.group_id) and held.group_id != described.group_id:
        raise BackupRefused(
            f"{directory} is a back-up of another group {held.group!r}: its id is {held.group_id}, that of"
            f" {described.place} is {described.group_id}; name another directory"
        )
    for name in ("kind", "data_file_size", "index_file_size"):
        if getattr(held, name) != getattr(described, name):
            raise BackupRefused(f"{directory} is a back-up of a log with another {name}: name another directory")


def _begins_elsewhere(source: Source) -> bool:
    """Whether entry 0 may lie behind a broker's old commit log, which is no part of a back-up."""
    return source.described.kind == BROKER_NAME and source.described.end_index >= 0


def _where_to_go_on(source: Source, held: LogBackup | None) -> tuple[EntryMeta, int]:
    """The entry before the first one that is read, and the position of that one. Raises BackupRefused, SourceError."""
    described, base = source.described, source.described.base
    if held is None:
        if base is None:
            at = source.position_of(0)[0] if _begins_elsewhere(source) else 0
            return EntryMeta(-1, -1, CHAIN_START), at
        return base.meta, base.pos
    last = EntryMeta(held.end_index, held.end_term, held.end_chain)
    if described.end_index < last.index:
        raise BackupRefused(
            f"{described.member_id} knows only entry {described.end_index} as committed, the back-up ends with entry"
            f" {last.index}: read another member, or wait until this one has caught up"
        )
    if last.index < described.begin_index - 1:
        raise BackupRefused(
            f"the log of {described.member_id} begins with entry {described.begin_index}, the back-up ends with entry"
            f" {last.index}: what lay between was removed there; read another member, or begin in a new directory"
        )
    if base is not None and base.meta.index == last.index:
        found, position = base.meta, base.pos
    else:
        at, size = source.position_of(last.index)
        raw = source.read(at, HEAD_BYTES)
        if len(raw) < HEAD_BYTES:
            raise SourceError(f"entry {last.index} cannot be read on {described.member_id}")
        _, _, index, term, _, _, chain, body_crc, _ = HEAD.unpack(raw)
        unsealed = chain == 0 and body_crc == 0 and index < described.sealed_from
        found, position = EntryMeta(index, term, last.chain if unsealed else chain), at + size
    if found != last:
        raise BackupRefused(
            f"entry {last.index} on {described.member_id} is of term {found.term} with another chain than the back-up's"
            f" last entry (term {last.term}): this is not the log that was backed up; name another directory"
        )
    return last, position


def _known_members(held: LogBackup | None, described: Described) -> tuple[int, str] | None:
    if held is not None:
        return held.members
    return None if described.base is None else described.base.members


def _check_space(directory: Path, source: Source, first_index: int, position: int, platform: Platform) -> None:
    """Raises BackupRefused where the entries do not fit."""
    end = source.described.end_index
    if end < first_index:
        return
    at, size = source.position_of(end)
    wanted = max(0, at + size - position) + SPARE_BYTES
    free = platform.space_left_bytes(directory)
    if free is not None and free < wanted:
        raise BackupRefused(
            f"the disk of {directory} has {free} bytes left, entries {first_index} to {end} need up to {wanted}"
        )


class _Reading:
    """Reads records one file after the other, checks them, and hands them to the writer."""

    def __init__(
        self, source: Source, position: int, writer: PieceWriter, members: tuple[int, str] | None, sealed_from: int
    ) -> None:
        self._source, self._position, self._writer = source, position, writer
        self._sealed_from = sealed_from
        self.members = members
        self.bytes_read = 0

    def all_up_to(self, end_index: int, say: Say) -> None:
        """Raises SourceError where a record is not there, or is not what it should be."""
        first = self._writer.last.index + 1
        while self._writer.last.index < end_index:
            self._source.still_reading(self._writer.last.index + 1)
            block = self._source.read(self._position, READ_BYTES)
            self.bytes_read += len(block)
            if not self._records(block, end_index):
                self._to_next_file(block)
            say(self._writer.last.index + 1 - first, self.bytes_read)

    def _records(self, block: bytes, end_index: int) -> bool:
        taken = 0
        for start, stop in runs_in(block, end_index):
            try:
                slab = checked_slab(block[start:stop], self._position + start, self._writer.last, self._sealed_from)
            except EntryError as error:
                raise self._damaged(str(error)) from error
            self._note_members(slab)
            self._writer.add(slab)
            taken = stop
        self._position += taken
        return taken > 0

    def _to_next_file(self, block: bytes) -> None:
        """Behind the last record of a file lies its filler."""
        file_bytes = self._source.described.data_file_size
        left = file_bytes - self._position % file_bytes
        magic, size = HEAD.unpack(block[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"))[:2]
        if magic != Magic.BLANK or size != left:
            raise self._damaged("what follows is no record")
        self._position += left

    def _damaged(self, detail: str) -> SourceError:
        described, index = self._source.described, self._writer.last.index
        return SourceError(
            f"behind entry {index} the log of {described.member_id} ({described.place}) cannot be read: {detail};"
            " read another member, and see `quorumscope status`"
        )

    def _note_members(self, slab: Slab) -> None:
        """The newest entry about the group's members."""
        named = members_named_in(self._source.described.kind, slab)
        if named:
            self.members = named[-1]
