"""Damage from committed entries into a tail that no leader shares: the leader's word for what is committed (S6)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.codes import ResponseCode, VoterState
from node.protocol.entry import EntryError
from node.protocol.messages import FetchRequest, FetchResponse, PushKind
from node.store.file_store import FileStore
from node.store.log_store import EntryMeta, HardState, LogStore
from tests.unit.core_kit import Solo, store_of
from tests.unit.store_fixtures import fill, kill, open_store, record, sync
from tests.unit.store_layout import flip
from tests.unit.test_store_faults import place_of, ranges

BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
OK = ResponseCode.SUCCESS
OURS = [1, 1, 1, 2, 2, 2, 2]  # 0..3 committed; the leader has other entries from 4 on
THEIRS = [1, 1, 1, 2, 3, 3, 3]


def give(solo: Solo, theirs: LogStore) -> list[tuple[int, int]]:
    """For a while everybody asked gives what the leader's log holds; which ranges were asked for."""
    asked: list[tuple[int, int]] = []
    for _ in range(30):
        sent = solo.tick(100)
        while sent:
            requests = [(to, one) for to, one in sent if isinstance(one, FetchRequest)]
            sent = []
            for to, one in requests:
                asked.append((one.first_index, one.last_index))
                slab = theirs.read_slab(one.first_index, 10_000)
                while slab.last_index > one.last_index:
                    slab = theirs.read_slab(one.first_index, len(slab.data) - 1)
                sent += solo.receive(to, FetchResponse(one.seq, OK, theirs.end_index, slab))
                while solo.effects.mend is not None:
                    order = solo.effects.mend
                    solo.replica.disk.mended(order.log_epoch, order.carry_out(solo.store), "", solo.now)
                    sent += solo.take()
        solo.push(PushKind.COMMIT, term=solo.replica.term)
    return asked


def compare(solo: Solo, theirs: LogStore, index: int, **changes: int) -> tuple[ResponseCode, int, int]:
    meta = theirs.read_meta(index)
    ask = {"prev_index": index, "prev_term": meta.term, "prev_chain": meta.chain, **changes}
    answer = solo.push(PushKind.COMPARE, term=3, **ask)
    assert answer is not None
    return ResponseCode(answer.code), answer.x_term, answer.x_index


def over_the_border(first: int = 2, last: int = 4, *, committed: int = 3) -> Solo:
    store = store_of(OURS, term=3, voter_state=VoterState.VOTER)
    store.rot(first, last, known=True)
    solo = Solo(store)
    solo.follow(term=3)
    solo.replica.member.committed_index = committed
    return solo


def test_what_is_committed_heals_on_the_leaders_word_and_the_rest_is_cut() -> None:
    solo, theirs = over_the_border(), store_of(THEIRS)
    assert compare(solo, theirs, 3)[0] is BUSY
    assert (2, 4) in give(solo, theirs) and len(solo.store.faults) == 1  # its entries do not lead on to ours
    assert compare(solo, theirs, 3)[0] is BUSY
    assert (2, 3) in give(solo, theirs)
    assert [(one.first_index, one.last_index) for one in solo.store.faults] == [(4, 4)]
    assert [solo.store.read_meta(index) for index in (2, 3)] == [theirs.read_meta(index) for index in (2, 3)]
    assert compare(solo, theirs, 3)[0] is OK
    solo.push(PushKind.TRUNCATE, term=3, first_index=4, prev_term=3, commit_index=6)
    assert solo.effects.truncate is not None and solo.effects.truncate.cut_index == 4


def test_a_leader_that_asks_above_is_led_to_the_last_entry_that_it_can_vouch_for() -> None:
    solo, theirs = over_the_border(), store_of(THEIRS)
    assert compare(solo, theirs, 4, prev_term=2)[0] is BUSY  # it may be the leader's own: it may link yet
    give(solo, theirs)
    assert compare(solo, theirs, 4, prev_term=2) == (ResponseCode.INCONSISTENT_STATE, 0, 4)


def test_nothing_above_what_is_committed_is_taken_on_anybodys_word() -> None:
    solo, theirs = over_the_border(committed=2), store_of(THEIRS)
    for index in (3, 4, 3):
        compare(solo, theirs, index)
        asked = give(solo, theirs)
        assert all(last >= 4 for _, last in asked)
    assert ranges(solo.store) == [(2, 4)]  # type: ignore[arg-type]


def test_a_word_without_a_chain_or_of_another_leader_heals_nothing() -> None:
    solo, theirs = over_the_border(), store_of(THEIRS)
    give(solo, theirs)
    compare(solo, theirs, 3, prev_chain=None)  # type: ignore[arg-type]
    assert all(last == 4 for _, last in give(solo, theirs))
    compare(solo, theirs, 3)
    solo.follow(term=4)
    assert all(last == 4 for _, last in give(solo, theirs))
    assert ranges(solo.store) == [(2, 4)]  # type: ignore[arg-type]


def test_the_leaders_word_has_to_fit_what_the_entries_come_to() -> None:
    solo, theirs = over_the_border(), store_of(THEIRS)
    give(solo, theirs)
    compare(solo, theirs, 3, prev_chain=77)
    assert (2, 3) in give(solo, theirs)
    assert ranges(solo.store) == [(2, 4)]  # type: ignore[arg-type]


# --- on disk --------------------------------------------------------------------------------------------------------
@pytest.fixture
def stores(tmp_path: Path) -> tuple[FileStore, FileStore]:
    """A log of 60 entries with damage in 28..32, and one that left it behind entry 29, as its checkpoints say."""
    ours = open_store(tmp_path / "ours")
    ours.save_hard_state(HardState(3, None, VoterState.VOTER))
    fill(ours, 2, 30)
    ours.note_progress(29, 29)
    sync(ours)
    kill(ours)
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    theirs = open_store(tmp_path / "theirs")
    theirs.truncate(30, record(theirs, 30))
    theirs.append_as_leader([b"x" * 90] * 20, 7)
    for index in range(28, 33):
        path, offset, size = place_of(tmp_path / "ours", index)
        flip(path, offset + size - 1)
    ours = open_store(tmp_path / "ours")
    ours.scrub(0, 10**6)
    ours.note_faults(ours.scrub(0, 10**6).faults)
    assert ranges(ours) == [(28, 32)]
    return ours, theirs


def test_a_part_of_a_fault_heals_up_to_the_entry_that_is_vouched_for(stores: tuple[FileStore, FileStore]) -> None:
    ours, theirs = stores
    tail = [ours.read_meta(index) for index in range(33, 60)]
    anchor = theirs.read_meta(29)
    assert ours.mend(theirs.read_slab(28, 1), anchor).wanted_through == 29
    result = ours.mend(theirs.read_slab(29, 1), anchor)
    assert [(one.first_index, one.last_index) for one in result.healed] == [(28, 29)]
    assert ranges(ours) == [(30, 32)]
    assert [ours.read_meta(index) for index in (28, 29)] == [theirs.read_meta(index) for index in (28, 29)]
    assert [ours.read_meta(index) for index in range(33, 60)] == tail
    ours.truncate(30, record(ours, 30))
    ours.append_slab(theirs.read_slab(30, 10_000))
    sync(ours)
    assert ours.faults == () and ours.read_meta(ours.end_index) == theirs.read_meta(ours.end_index)


def test_what_does_not_come_to_the_vouched_chain_changes_nothing(stores: tuple[FileStore, FileStore]) -> None:
    ours, theirs = stores
    slab, anchor = theirs.read_slab(28, 1), theirs.read_meta(28)
    for wrong in (replace(anchor, chain=7), replace(anchor, term=9)):
        result = ours.mend(slab, wrong)
        assert not result.healed and result.mended_through == 27 and "chain" in result.detail
    assert ranges(ours) == [(28, 32)]


def test_an_entry_that_is_vouched_for_is_in_the_fault(stores: tuple[FileStore, FileStore]) -> None:
    ours, theirs = stores
    for index in (27, 33):
        with pytest.raises(EntryError):
            ours.mend(theirs.read_slab(28, 1), EntryMeta(index, 2, 7))


def test_entries_that_would_run_over_sound_ones_are_not_written(stores: tuple[FileStore, FileStore]) -> None:
    """No leader's committed entries do; a chain proves to one in 2^32."""
    ours, theirs = stores
    theirs.truncate(28, record(theirs, 28))
    (slab,) = theirs.append_as_leader([b"y" * 1500], 2)
    before = ours.read_meta(33)
    result = ours.mend(slab, theirs.read_meta(28))
    assert not result.healed and "33" in result.detail
    assert ours.read_meta(33) == before
