"""Faults: their arithmetic, and a store in memory that has some (what the core builds on)."""

from __future__ import annotations

import pytest

from node.protocol.entry import EntryError
from node.store.errors import StoreCorrupt
from node.store.faults.ranges import cut, fault_at, in_words, merged, next_fault
from node.store.faults.results import Fault
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import store_of


def fault(first: int, last: int) -> Fault:
    return Fault(first, last, "crc_invalid", "")


def test_neighbours_and_overlaps_are_one_fault() -> None:
    found = merged([fault(7, 8), fault(1, 2), fault(3, 5), fault(20, 30)], 2, 25)
    assert [(one.first_index, one.last_index) for one in found] == [(2, 5), (7, 8), (20, 25)]
    assert fault_at(found, 4) == found[0] and fault_at(found, 6) is None and fault_at(found, 25) == found[2]
    assert next_fault(found, 6) == found[1] and next_fault(found, 26) is None
    assert cut(found, 8) == (found[0], fault(7, 7)) and cut(found, 2) == ()


def test_faults_are_named_in_words() -> None:
    many = [fault(number, number + number % 2) for number in range(0, 30, 5)]
    text = "entry 0 (crc_invalid), entries 5..6 (crc_invalid), entry 10 (crc_invalid) and 3 more ranges"
    assert in_words(many, 3) == text
    assert in_words(many[:1]) == "entry 0 (crc_invalid)"


def damaged_and_sound() -> tuple[MemoryStore, MemoryStore]:
    damaged, sound = store_of([1] * 4 + [2] * 4), store_of([1] * 4 + [2] * 4)
    damaged.rot(3, 5)
    return damaged, sound


def test_rot_shows_when_it_is_read_and_only_there() -> None:
    store, _sound = damaged_and_sound()
    for read in (store.get, store.meta, lambda index: store.read_slab(index, 1000)):
        with pytest.raises(StoreCorrupt) as error:
            read(4)
        assert [(one.first_index, one.last_index) for one in error.value.faults] == [(4, 4)]
    assert store.recent_slab(4, 1000) is None
    assert store.read_slab(1, 1000).last_index == 2
    assert store.read_slab(6, 1000).prev_chain is None
    assert store.end_chain is not None and store.faults == ()


def test_a_scrub_finds_what_nobody_read() -> None:
    store, _sound = damaged_and_sound()
    found = store.scrub(0, 10_000)
    assert found.next_index == 8
    store.note_faults(found.faults)
    assert [(one.first_index, one.last_index) for one in store.faults] == [(3, 5)]


def test_a_fault_heals_only_when_both_sides_link() -> None:
    store, sound = damaged_and_sound()
    store.note_faults([fault(3, 5)])
    first, rest = sound.read_slab(3, 49), sound.read_slab(4, 49)
    with pytest.raises(EntryError, match="neither begins"):
        store.mend(rest)
    assert store.mend(first).mended_through == 3 and store.faults != ()
    assert store.mend(rest).mended_through == 4
    done = store.mend(sound.read_slab(5, 49))
    assert (done.mended_through, done.healed, store.faults) == (5, (fault(3, 5),), ())
    assert store.read_slab(0, 10_000) == sound.read_slab(0, 10_000)
    with pytest.raises(EntryError, match="fits no fault"):
        store.mend(first)


def test_entries_of_another_history_heal_nothing() -> None:
    store, _sound = damaged_and_sound()
    store.note_faults([fault(3, 5)])
    other = store_of([1] * 3 + [3] * 5)
    failed = store.mend(other.read_slab(3, 3 * 48 + 9))
    assert failed.mended_through == 2 and "chain" in failed.detail
    assert store.faults == (fault(3, 5),)


def test_a_cut_takes_the_faults_behind_it_along() -> None:
    store, _sound = damaged_and_sound()
    store.note_faults([fault(3, 5), fault(7, 7)])
    store._cut(5)
    assert (store.end_index, store.faults) == (4, (fault(3, 4),))
    store._cut(3)
    assert store.faults == () and store.meta(2) is not None
