"""Tools for every repair by hand: opens the store by its own identity, checks it, records what was done.

Invariants: the store's lock is held from before the first look to after the last change; what an unclean stop left to
be judged by the *configured* flush mode (SAFETY E8: async, another boot) is still there after a repair that does not
settle it, because this process does not know the mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.protocol.codes import FlushMode
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.identity import IDENTITY, Identity, read_identity
from node.store.files.java_files import checkpoint_slot
from node.store.files.os_files import read_small
from node.store.files.platform import Platform
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import TruncationRecord
from node.store.recovery.opening import open_directory
from node.store.repair.report import Report

_SCRUB_BYTES = 8 * 1024 * 1024


def our_identity(directory: Path, platform: Platform) -> Identity:
    """Whose store this is. Raises StoreRefused where it is not one of ours (yet), or does not say so any more."""
    identity = read_identity(directory, platform)
    if identity is None:
        if not platform.names(directory / "data"):
            raise StoreRefused(f"{directory} is no store: there is nothing in data/ and no {IDENTITY}")
        raise StoreRefused(f"{directory} has no {IDENTITY}: an engine takes it as it is, there is nothing to repair")
    return identity


def open_for_repair(directory: Path, platform: Platform) -> FileStore:
    """Recovers and opens as an engine would, settings from `quorumscope.json`. Raises StoreError.

    Until `settle` its closing leaves the evidence of the last stop as it was found.
    """
    identity = our_identity(directory, platform)
    found = checkpoint_slot(directory, platform)
    opened = open_directory(
        directory, identity.group, identity.node_id, identity.data_file_size, identity.index_file_size, False,
        FlushMode.SYNC, None, platform,
    )  # fmt: skip
    if found is not None and not found.clean and found.boot_id != opened.boot_id:
        opened.boot_id = found.boot_id
    store = FileStore.made_of(opened)
    store.durability.may_say_clean = found is None or found.clean
    return store


def settle(store: FileStore) -> None:
    """The last stop is judged: this machine's boot counts from now on, and `close` says clean."""
    store.durability.boot_id = store.files.platform.boot_id()
    store.durability.may_say_clean = True


def scrub_all(store: FileStore) -> None:
    """Reads everything from the disk itself: afterwards `faults` is all that is wrong with the entries."""
    index = store.begin_index
    while index <= store.end_index:
        step = store.scrub(index, _SCRUB_BYTES)
        store.note_faults(step.faults)
        index = step.next_index


def cut_record(store: FileStore, reason: str, from_index: int) -> TruncationRecord:
    """Who cuts this and why, as the archive and the console show it."""
    return TruncationRecord(
        store.files.node_id, None, store.end_term, from_index, store.end_index, f"repair: {reason}",
        store.recovered_commit_index,
    )  # fmt: skip


def record_of(node_id: str, end_index: int, end_term: int, reason: str) -> TruncationRecord:
    """The same for what touches no entry."""
    return TruncationRecord(node_id, None, end_term, end_index + 1, end_index, f"repair: {reason}", -1)


def file_chunks(directory: Path, names: Iterable[str], platform: Platform) -> Iterator[bytes]:
    """The content of small files that are replaced, one after the other, for the archive; of one that is too long for
    what it is to be, its length."""
    for name in names:
        if platform.exists(directory / name):
            try:
                content = read_small(directory / name, platform)
            except StoreRefused as error:
                content = str(error).encode()
            yield f"{name}\n".encode() + content + b"\n"


@contextmanager
def archives_reported(report: Report, directory: Path, platform: Platform) -> Iterator[None]:
    """Tells in `report` of every archive that is made meanwhile."""
    archive = TruncationArchive(directory, platform=platform)
    before = archive.count
    yield
    for record in archive.records():
        if record.seq > before:
            path = archive.folder / f"{record.seq:010d}"
            entry: dict[str, Any] = {
                "path": str(path),
                "seq": record.seq,
                "from_index": record.from_index,
                "to_index": record.to_index,
                "reason": record.reason,
                "size_bytes": archive.size_bytes(record.seq),
            }
            report.archived.append(entry)
