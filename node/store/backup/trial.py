"""The test of a back-up: it is restored into a directory that goes again, recovered there, and compared.

Recovery is the engine's own, without a checkpoint to believe: it reads every record. Then what the store says of the
end of each piece (term, chain) is held against the manifest.

Invariant: nothing of the back-up is written to; what was restored is removed, whatever comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.store.backup.manifest import TRIAL, BackupDamaged, LogBackup, Manifest
from node.store.backup.pieces import compare_file
from node.store.backup.restoring import Birth, refuse_unrestorable, restore_store, space_wanted
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.os_files import make_directory
from node.store.files.platform import OS, Platform

NODE_ID: Final = "trial"


@dataclass(frozen=True, slots=True)
class Tried:
    """What was restored and compared."""

    begin_index: int
    end_index: int
    end_term: int
    end_chain: int

    @property
    def entries(self) -> int:
        return self.end_index - self.begin_index + 1


def try_restore(source: Path, manifest: Manifest, scratch: Path, platform: Platform = OS) -> Tried | None:
    """None: the back-up holds no log. Raises BackupDamaged where it is not what it was, StoreError."""
    if manifest.console_db is not None:
        one = manifest.console_db
        compare_file(source / one.name, one.size_bytes, one.sha256, platform)
    log = manifest.log
    if log is None:
        return None
    make_directory(scratch, platform)
    free, wanted = platform.space_left_bytes(scratch), space_wanted(log)
    if free is not None and free < wanted:
        raise StoreRefused(
            f"the disk of {scratch} has {free} bytes left, a trial restore needs up to {wanted}: name another place"
            " with --scratch DIR"
        )
    place = scratch / f"{TRIAL}{platform.new_id()[:8]}"
    try:
        return _tried(source, log, place, platform)
    finally:
        platform.remove_tree(place)


def _tried(source: Path, log: LogBackup, place: Path, platform: Platform) -> Tried:
    birth = Birth(log.group)
    refuse_unrestorable(log, birth)
    directory = place / f"dledger-{NODE_ID}"
    restore_store(source, log, directory, NODE_ID, birth, platform)
    platform.unlink(directory / CHECKPOINT)
    store = FileStore.open(
        directory, group=log.group, node_id=NODE_ID, data_file_size=log.data_file_size,
        index_file_size=log.index_file_size, kind=log.kind, platform=platform,
    )  # fmt: skip
    try:
        _compare(log, store)
        return Tried(store.begin_index, store.end_index, store.end_term, store.end_chain or 0)
    finally:
        store.close()


def _compare(log: LogBackup, store: FileStore) -> None:
    if store.faults or (store.begin_index, store.end_index) != (log.begin_index, log.end_index):
        raise BackupDamaged(
            f"restored and recovered, the log holds entries {store.begin_index} to {store.end_index} with"
            f" {len(store.faults)} damaged ranges; the manifest says {log.begin_index} to {log.end_index}"
        )
    for piece in log.pieces:
        found = store.read_meta(piece.last_index)
        if (found.term, found.chain) != (piece.last_term, piece.last_chain):
            raise BackupDamaged(
                f"restored and recovered, entry {piece.last_index} is of term {found.term} with another chain than the"
                f" manifest says of piece {piece.name}"
            )
