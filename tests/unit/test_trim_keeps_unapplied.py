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
    assert begin < store.begin_index <= 100
    store.close()


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_first_entry_that_is_left_is_where_it_stays(kind: str, tmp_path: Path) -> None:
    """S5: one that may be cut yet made way for a smaller one, which everybody else has in the file before."""
    store: LogStore = MemoryStore(data_file_size=4096) if kind == "memory" else open_store(tmp_path)
    store.append_as_leader([b"x" * 300] * 11, 1)
    store.append_as_leader([b"x" * 300], 1)  # begins the next file
    sync(store)
    for applied, begin in ((10, 0), (11, 11)):
        store.note_progress(applied, applied)
        store.remove_prefix(11)
        assert store.begin_index == begin
    store.close()
