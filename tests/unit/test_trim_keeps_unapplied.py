"""`remove_prefix` keeps what is not applied yet: a state machine that lags reads it from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.store.log_store import LogStore
from node.store.memory_store import MemoryStore
from tests.unit.store_fixtures import open_store, sync


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_prefix_goes_no_further_than_what_is_applied(kind: str, tmp_path: Path) -> None:
    store: LogStore = MemoryStore(data_file_size=4096) if kind == "memory" else open_store(tmp_path)
    for _ in range(6):
        store.append_as_leader([b"x" * 300] * 20, 1)
    sync(store)
    store.note_progress(100, 30)
    store.remove_prefix(100)
    assert 0 < store.begin_index <= 31
    begin = store.begin_index
    store.remove_prefix(100)
    assert store.begin_index == begin
    store.note_progress(100, 100)
    store.remove_prefix(100)
    assert begin < store.begin_index <= 101
    store.close()
