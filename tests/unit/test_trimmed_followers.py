"""A follower whose log's front goes while its leader still sends entries of it: no quarrel (SAFETY R1, R6)."""

from __future__ import annotations

from dataclasses import replace

from node.protocol.codes import ResponseCode
from node.protocol.entry import Slab
from node.protocol.messages import PushResponse
from node.store.log_store import EntryMeta
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import Solo, store_of

OK = ResponseCode.SUCCESS
TERMS = [1] * 12


def follower(end: int = 7, *, base: int = 5) -> tuple[Solo, MemoryStore]:
    """It matched and committed up to `end`, then an operator removed its front by force; and its leader's log."""
    solo, theirs = Solo(store_of(TERMS[: end + 1])), store_of(TERMS)
    solo.follow()
    solo.compare(end)
    solo.replica.member.advance_commit(end, solo.now)
    solo.sync()
    solo.store.note_progress(end, end)
    record = solo.store.get(base + 1)
    assert record is not None
    solo.store.data_file_size = record.pos  # a file begins there
    solo.store.remove_prefix(base, forced=True)
    assert solo.store.begin_index == base + 1
    return solo, theirs


def slab_of(theirs: MemoryStore, first: int, last: int) -> Slab:
    size = sum(len(theirs.read_slab(index, 1).data) for index in range(first, last + 1))
    slab = theirs.read_slab(first, size)
    assert (slab.first_index, slab.last_index) == (first, last)
    return slab


def sent(solo: Solo, slab: Slab, **changes: int) -> PushResponse:
    answer = solo.append_synced(slab, 1, **changes)
    assert answer is not None
    return answer


def test_what_is_sent_again_from_below_the_begin_is_there_already() -> None:
    solo, theirs = follower()
    for first, last in ((2, 4), (2, 5), (3, 7), (0, 0)):
        answer = sent(solo, slab_of(theirs, first, last))
        assert (answer.code, answer.verified_index, answer.end_index) == (OK, 7, 7)


def test_of_a_slab_over_the_begin_what_is_new_is_appended() -> None:
    solo, theirs = follower()
    answer = sent(solo, slab_of(theirs, 4, 10))
    assert (answer.code, answer.verified_index, answer.durable_index) == (OK, 10, 10)
    assert solo.store.read_meta(10) == theirs.read_meta(10) and solo.store.begin_index == 6


def test_a_slab_over_the_begin_that_another_history_leads_to_is_a_fork() -> None:
    solo, theirs = follower()
    slab = slab_of(theirs, 4, 10)
    wrong = replace(slab, prev_chain=77, data=slab.data)
    answer = sent(solo, wrong)
    assert answer.code != OK and answer.end_index == 7
    assert {code for code, _ in solo.replica.member.alarms} == {"fork"}


def test_what_lies_below_the_begin_and_was_never_compared_is_refused() -> None:
    """A leader that was not matched with above it: nothing here says what it is."""
    solo, theirs = follower()
    solo.follow(term=2)
    answer = sent(solo, slab_of(theirs, 2, 4), term=2)
    assert answer.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
    assert EntryMeta(5, 1, solo.store.base.chain) == solo.store.base
