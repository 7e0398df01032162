"""Opening small stores, and ending them the way a killed process does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from node.protocol.entry import Entry
from node.store.file_store import FileStore
from node.store.log_store import LogStore, TruncationRecord
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES

BOOT = "boot-1"


def open_store(directory: Path, **more: Any) -> FileStore:
    """A FileStore with small files."""
    settings: dict[str, Any] = {
        "group": "g", "node_id": "n0", "data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "init": True,
        "boot_id": BOOT,
    }  # fmt: skip
    return FileStore.open(directory, **{**settings, **more})


def kill(store: FileStore) -> None:
    """What SIGKILL leaves: the page cache as it is, no closing slot, the lock free."""
    store._lock.release()
    store.files.data.close()
    store.files.index.close()
    store.durability.checkpoint.close()


def sync(store: LogStore) -> int:
    """One group commit, and the slot that an idle driver writes."""
    for prepare in (store.prepare_sync, store.prepare_checkpoint):
        ticket = prepare()
        if ticket is not None:
            ticket.run()
            store.finish_sync(ticket)
    return store.durable_index


def entries_of(store: FileStore) -> list[Entry]:
    """Everything it holds."""
    return [entry for index in range(store.begin_index, store.end_index + 1) if (entry := store.get(index)) is not None]


def fill(store: FileStore, terms: int, per_term: int, *, seed: int = 1, longest: int = 200) -> None:
    """Appends bodies of mixed length over several terms."""
    chosen = random.Random(seed)
    first = max(store.end_term, 0) + 1
    for term in range(first, first + terms):
        store.append_as_leader([chosen.randbytes(chosen.randrange(longest)) for _ in range(per_term)], term)


def record(store: LogStore, cut_index: int, *, reason: str = "conflict") -> TruncationRecord:
    """An order to cut."""
    return TruncationRecord("n0", "n1", store.end_term, cut_index, store.end_index, reason, -1)
