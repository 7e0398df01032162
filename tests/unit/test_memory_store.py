"""What only the store in memory can do: lose power at will."""

import pytest

from node.store.errors import StoreFull
from node.store.memory_store import MemoryStore
from tests.unit.store_fixtures import record


def test_losing_power_loses_what_was_not_durable_and_nothing_else() -> None:
    store = MemoryStore()
    store.append_as_leader([b"kept", b"kept too"], 1)
    ticket = store.prepare_sync()
    assert ticket is not None
    store.append_as_leader([b"lost"], 2)
    store.note_progress(2, 2)
    ticket.run()
    assert store.finish_sync(ticket) == 1
    chain = store.meta(1)
    store.lose_unsynced()
    assert (store.end_index, store.end_term, store.meta(1)) == (1, 1, chain)
    assert store.recovered_commit_index <= 1
    assert store.prepare_sync() is None


def test_a_full_store_changes_nothing() -> None:
    store = MemoryStore()
    store.append_as_leader([b"a", b"b"], 1)
    store.full = True
    with pytest.raises(StoreFull):
        store.append_as_leader([b"c"], 1)
    with pytest.raises(StoreFull):
        store.truncate(1, record(store, 1))
    assert (store.end_index, store.archive) == (1, [])


def test_the_ring_can_be_told_to_forget() -> None:
    store = MemoryStore()
    store.append_as_leader([b"a", b"b", b"c"], 1)
    store.recent_from = 2
    assert store.recent_slab(1, 1000) is None
    recent = store.recent_slab(2, 1000)
    assert recent == store.read_slab(2, 1000)
