"""The follower's side of replication (SAFETY R1, R4-R8, S4) and its codes, which are DLedger's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from node.consensus.api import MS
from node.consensus.entry_handler import ANSWERED_ONCE_BYTES_MAX
from node.protocol.codes import FlushMode, ResponseCode, Role
from node.protocol.entry import INDEX_UNIT
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse, Message, PushKind, PushResponse
from node.protocol.slab_encode import encode_slab
from node.store.log_store import Fault, SyncTicket
from tests.unit.core_kit import Solo, store_of

BUSY = ResponseCode.PUSH_REQUEST_IS_FULL


@pytest.mark.parametrize("kind", list(PushKind))
@pytest.mark.parametrize(
    ("sender", "changes", "code"),
    [
        ("n9", {}, ResponseCode.UNKNOWN_MEMBER),
        ("n1", {"leader_id": "n0"}, ResponseCode.UNEXPECTED_MEMBER),
        ("n1", {"leader_id": "n2"}, ResponseCode.UNEXPECTED_MEMBER),
        ("n1", {"term": 2}, ResponseCode.EXPIRED_TERM),
        ("n2", {"term": 3}, ResponseCode.INCONSISTENT_LEADER),
    ],
)
def test_r4_every_push_is_checked_for_term_and_leader(kind: PushKind, sender: str, changes: Any, code: int) -> None:
    solo = Solo(store_of([1, 1], term=2))
    solo.follow(term=3)
    fields = {"term": 3, "commit_index": 9, "first_index": 0, "prev_term": 3, **changes}
    answer = solo.push(kind, sender, **fields)
    assert answer is not None and answer.code == code and answer.term == 3
    assert solo.replica.committed_index == -1 and solo.effects.truncate is None


def test_r4_a_leader_answers_not_follower() -> None:
    solo = Solo()
    solo.lead()
    answer = solo.push(PushKind.COMMIT, term=1)
    assert answer is not None and answer.code == ResponseCode.NOT_FOLLOWER
    assert solo.replica.role is Role.LEADER


def test_a_higher_term_deposes_and_is_durable_before_the_answer() -> None:
    solo = Solo()
    solo.lead()
    answer = solo.push(PushKind.COMMIT, term=5)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert solo.effects.hard_state is not None and solo.effects.hard_state.term == 5
    assert solo.replica.role is Role.FOLLOWER and solo.replica.leader_id == "n1"


# --- COMPARE: R1, R6, R7 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "changes", "expected"),
    [
        (4, {}, (ResponseCode.SUCCESS, 4, -1, -1)),
        (-1, {}, (ResponseCode.SUCCESS, -1, -1, -1)),
        (4, {"prev_chain": None}, (ResponseCode.SUCCESS, 4, -1, -1)),
        (4, {"prev_term": 9}, (ResponseCode.INCONSISTENT_STATE, -1, 2, 3)),
        (2, {"prev_term": 9}, (ResponseCode.INCONSISTENT_STATE, -1, 1, 0)),
        (4, {"prev_index": 7, "prev_term": 2}, (ResponseCode.INCONSISTENT_STATE, -1, -1, -1)),
        (4, {"prev_chain": 12345}, (ResponseCode.INCONSISTENT_STATE, -1, 2, 4)),  # a fork: its own term and index
    ],
)
def test_r6_compare(index: int, changes: Any, expected: tuple[int, ...]) -> None:
    solo = Solo(store_of([1, 1, 1, 2, 2]))
    answer = solo.compare(index, term=3, **changes)
    assert answer is not None
    assert (answer.code, answer.verified_index, answer.x_term, answer.x_index) == expected
    assert answer.end_index == 4 and answer.durable_index == 4


def test_r6_log_backtracking_stays_above_the_committed_index() -> None:
    solo = Solo(store_of([1, 1, 1, 1, 1]))
    solo.compare(2, term=2, commit_index=1)
    assert solo.replica.committed_index == 1
    answer = solo.compare(4, term=3, prev_term=2)  # another leader: verified begins anew, committed does not
    assert answer is not None and (answer.x_term, answer.x_index) == (1, 2)
    refused = solo.compare(1, term=3, prev_term=2)
    assert refused is not None and refused.code == ResponseCode.INCONSISTENT_INDEX
    assert [detail["code"] for kind, detail in solo.events if kind == "alarm"] == ["order_refused"]


def test_r7_a_fork_is_an_alarm() -> None:
    solo = Solo(store_of([1, 1]))
    solo.compare(1, prev_chain=1)
    assert ("fork", "n1") in solo.replica.member.alarms
    solo.compare(1)
    assert ("fork", "n1") not in solo.replica.member.alarms


def test_r1_verified_begins_anew_with_another_leader() -> None:
    solo = Solo(store_of([1, 1, 1]))
    assert solo.compare(2, term=2) is not None
    assert solo.replica.member.verified_index == 2
    answer = solo.push(PushKind.COMMIT, "n2", term=3, commit_index=2)
    assert answer is not None and answer.verified_index == -1
    assert solo.replica.committed_index == -1  # min(leader's commit, verified), never the end (R3)


# --- TRUNCATE: R5, R8, S4 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "prev_term", "code", "cuts"),
    [
        (5, 3, ResponseCode.SUCCESS, False),  # beyond the end
        (3, 2, ResponseCode.SUCCESS, False),  # the same term there: no conflict
        (3, 3, BUSY, True),  # another term there
        (3, -1, BUSY, True),  # the leader has nothing there, and our term is lower than its
        (2, 3, ResponseCode.INCONSISTENT_INDEX, False),  # at or below verified
        (1, 3, ResponseCode.INCONSISTENT_INDEX, False),
        (4, 3, ResponseCode.INCONSISTENT_STATE, False),  # no COMPARE vouches for entry 3
    ],
)
def test_r5_truncate(cut: int, prev_term: int, code: int, cuts: bool) -> None:
    solo = Solo(store_of([1, 1, 1, 2, 2]))
    solo.compare(2, term=3)
    answer = solo.push(PushKind.TRUNCATE, term=3, first_index=cut, prev_term=prev_term)
    assert answer is not None and answer.code == code
    assert (solo.effects.truncate is not None) is cuts
    assert solo.store.end_index == 4  # the cut itself is the driver's


def test_r5_nothing_of_the_leaders_own_term_is_cut_by_an_order_that_names_nothing() -> None:
    solo = Solo(store_of([1, 1, 3], term=3))
    solo.compare(1, term=3)
    answer = solo.push(PushKind.TRUNCATE, term=3, first_index=2, prev_term=-1)
    assert answer is not None and answer.code == ResponseCode.SUCCESS and solo.effects.truncate is None


def test_r5_a_stale_epoch_is_dropped() -> None:
    solo = Solo(store_of([1, 1]))
    solo.compare(0, term=2, dispatch_epoch=5)
    assert solo.push(PushKind.TRUNCATE, term=2, first_index=1, prev_term=2, dispatch_epoch=4) is None
    assert solo.effects.truncate is None


def test_r5_r8_busy_until_the_cut_is_durable() -> None:
    solo = Solo(store_of([1, 1, 1]))
    solo.compare(0, term=2)
    order = {"term": 2, "first_index": 1, "prev_term": 2}
    assert solo.push(PushKind.TRUNCATE, **order).code == BUSY  # type: ignore[union-attr]
    cut = solo.effects.truncate
    assert cut is not None and (cut.cut_index, cut.log_epoch) == (1, 1)
    assert (cut.record.leader_id, cut.record.term, cut.record.to_index) == ("n1", 2, 2)
    assert solo.replica.member.durable_index == 0
    solo.replica.disk.flushed(0, 2, solo.now)  # a sync that began before the cut says nothing any more
    assert solo.replica.member.durable_index == 0
    assert solo.compare(0, term=2).code == BUSY  # type: ignore[union-attr]
    assert solo.append(solo.slab(0, term=2), 1, term=2).code == BUSY  # type: ignore[union-attr]
    solo.store.truncate(1, cut.record)
    solo.replica.disk.truncated(cut.log_epoch, 1, solo.now)
    solo.take()
    assert solo.push(PushKind.TRUNCATE, **order).code == ResponseCode.SUCCESS  # type: ignore[union-attr]
    answer = solo.append_synced(solo.slab(0, term=2), 1, term=2)
    assert answer is not None and answer.code == ResponseCode.SUCCESS


def with_a_sync_under_way_and_a_cut_ordered() -> tuple[Solo, SyncTicket]:
    """Three entries, of which the last is to go; the sync of two of them began before that was said."""
    solo = Solo(store_of([1]))
    solo.append(solo.slab(0, [b"a", b"b"]), 1)
    ticket = solo.store.prepare_sync()
    assert ticket is not None
    solo.compare(1, term=2)
    solo.push(PushKind.TRUNCATE, term=2, first_index=2, prev_term=2)
    return solo, ticket


def test_r8_a_sync_that_ended_during_the_cut_is_not_forgotten() -> None:
    solo, ticket = with_a_sync_under_way_and_a_cut_ordered()
    cut = solo.effects.truncate
    assert cut is not None
    solo.replica.disk.flushed(0, solo.store.finish_sync(ticket), solo.now)  # began before the cut was ordered
    assert solo.replica.member.durable_index == 0
    solo.store.truncate(2, cut.record)
    solo.replica.disk.truncated(cut.log_epoch, 2, solo.now)
    assert solo.replica.member.durable_index == 1 and solo.replica.member.unsynced.total == 0


@pytest.mark.parametrize("archived", [True, False])
def test_r8_no_sync_counts_what_is_ordered_to_go(archived: bool) -> None:
    """A sync that begins in the cut's own epoch, before the cut itself, covers what is about to go."""
    solo = Solo(store_of([1]))
    solo.append(solo.slab(0, [b"a", b"b"]), 1)
    solo.compare(1, term=2)
    solo.push(PushKind.TRUNCATE, term=2, first_index=2, prev_term=2)
    cut = solo.effects.truncate
    assert cut is not None
    solo.sync()
    assert solo.store.durable_index == 2 and solo.replica.member.durable_index == 1
    if archived:
        solo.store.truncate(2, cut.record)
        solo.replica.disk.truncated(cut.log_epoch, 2, solo.now)
        assert solo.replica.member.durable_index == 1
    else:
        solo.replica.disk.truncate_failed(cut.log_epoch, solo.now)
        assert solo.replica.member.durable_index == 2


def test_s4_an_archive_that_cannot_be_written_cuts_nothing() -> None:
    solo = Solo(store_of([1, 1]))
    solo.compare(0, term=2)
    solo.push(PushKind.TRUNCATE, term=2, first_index=1, prev_term=2)
    solo.replica.disk.truncate_failed(1, solo.now)
    solo.take()
    assert solo.store.end_index == 1 and solo.replica.status(solo.now).disk_full
    assert solo.push(PushKind.TRUNCATE, term=2, first_index=1, prev_term=2).code == BUSY  # type: ignore[union-attr]


# --- APPEND -------------------------------------------------------------------------------------------------------


def test_r8_a_sync_that_ended_before_an_archive_failed_is_not_forgotten() -> None:
    solo, ticket = with_a_sync_under_way_and_a_cut_ordered()
    solo.replica.disk.flushed(0, solo.store.finish_sync(ticket), solo.now)
    solo.replica.disk.truncate_failed(1, solo.now)
    assert solo.store.prepare_sync() is None  # no other sync will ever tell
    assert solo.replica.member.durable_index == 2 and solo.replica.member.unsynced.total == 0


def test_s6_no_cut_right_behind_an_entry_that_rotted_since_it_was_compared() -> None:
    solo = Solo(store_of([1, 1, 1, 1]))
    solo.compare(1, term=2)
    solo.store.rot(1)
    solo.push(PushKind.TRUNCATE, term=2, first_index=2, prev_term=2)
    assert BUSY in [message.code for _to, message in solo.sent if isinstance(message, PushResponse)]
    assert solo.effects.truncate is None and solo.store.faults[0].first_index == 1


def test_append_links_writes_and_answers_absolute_watermarks() -> None:
    solo = Solo(store_of([1]))
    answer = solo.append(solo.slab(0, [b"a" * ANSWERED_ONCE_BYTES_MAX, b"b"]), 1, commit_index=1)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert (answer.verified_index, answer.durable_index, answer.end_index) == (2, 0, 2)
    assert solo.effects.sync_wanted and solo.replica.committed_index == 1
    assert marks(solo.sync()) == [(-1, 2, 2)]  # the one-way durable ack


# --- one answer for a small slab that is synced at once ---------------------------------------------------------------


def marks(sent: list[tuple[str, Message]]) -> list[tuple[int, int, int]]:
    """Of the answers among these: (seq, verified, durable)."""
    answers = [message for _to, message in sent if isinstance(message, PushResponse)]
    return [(one.seq, one.verified_index, one.durable_index) for one in answers]


def test_a_slab_alone_is_answered_once_when_it_is_durable() -> None:
    solo = Solo(store_of([1]))
    assert solo.append(solo.slab(0), 1, seq=5, commit_index=1) is None
    assert solo.effects.sync_wanted and solo.replica.committed_index == 1
    assert marks(solo.sync()) == [(5, 1, 1)]
    assert solo.append(solo.slab(1), 1, seq=6) is None
    assert marks(solo.sync()) == [(6, 2, 2)]
    assert marks(solo.late_tick(50)) == []


def test_with_async_every_append_is_answered_at_the_write() -> None:
    solo = Solo(store_of([1]), flush=FlushMode.ASYNC)
    answer = solo.append(solo.slab(0), 1, seq=5)
    assert answer is not None and (answer.seq, answer.verified_index, answer.durable_index) == (5, 1, 0)


def test_a_sync_that_takes_long_is_not_waited_for_longer_than_a_tick() -> None:
    solo = Solo(store_of([1]))
    assert solo.append(solo.slab(0), 1, seq=5) is None
    assert marks(solo.late_tick(50)) == [(5, 1, 0)]
    assert marks(solo.late_tick(50)) == []
    assert marks(solo.sync()) == [(-1, 1, 1)]


def test_whoever_sends_more_is_answered_at_the_write_so_that_its_window_opens() -> None:
    solo = Solo(store_of([1]))
    assert solo.append(solo.slab(0), 1, seq=5) is None
    ticket = solo.store.prepare_sync()
    assert ticket is not None
    answer = solo.append(solo.slab(1), 1, seq=6)
    assert answer is not None and (answer.seq, answer.verified_index, answer.durable_index) == (6, 2, 0)
    solo.replica.disk.flushed(0, solo.store.finish_sync(ticket), solo.now)
    assert marks(solo.take()) == [(-1, 2, 1)]  # both were answered: nobody waits any more
    assert marks(solo.sync()) == [(-1, 2, 2)]


def test_a_window_of_one_slab_and_a_leader_without_chains_wait_for_no_sync() -> None:
    narrow = Solo(store_of([1]), push_window_slabs=1)
    assert narrow.append(narrow.slab(0), 1) is not None
    plain = Solo(store_of([1]))
    assert plain.append(plain.slab(0), 1, prev_chain=None) is not None


@pytest.mark.parametrize("kind", [PushKind.COMMIT, PushKind.COMPARE])
def test_whatever_else_the_leader_asks_is_answered_and_says_it_as_well(kind: PushKind) -> None:
    solo = Solo(store_of([1]))
    assert solo.append(solo.slab(0), 1, seq=5) is None
    fields = {} if kind is PushKind.COMMIT else {"prev_index": 0, "prev_term": 1, "prev_chain": None}
    answer = solo.push(kind, seq=6, **fields)
    assert answer is not None and (answer.seq, answer.verified_index, answer.durable_index) == (6, 1, 0)
    assert marks(solo.late_tick(50)) == []
    assert marks(solo.sync()) == [(-1, 1, 1)]


def test_another_leader_or_epoch_gets_no_answer_to_what_it_did_not_send() -> None:
    solo = Solo(store_of([1]))
    assert solo.append(solo.slab(0), 1, seq=5) is None
    solo.receive("n2", HeartBeatRequest(9, "n2", 2))
    solo.receive("n2", HeartBeatRequest(10, "n2", 2))
    assert marks(solo.late_tick(50)) == [] and marks(solo.sync()) == []
    again = Solo(store_of([1]))
    assert again.append(again.slab(0), 1, seq=5) is None
    answer = again.push(PushKind.COMMIT, seq=8, dispatch_epoch=2)
    assert answer is not None and answer.seq == 8
    assert marks(again.sync()) == [(-1, 1, 1)]


def test_what_closes_a_gap_is_answered_at_the_write_with_all_that_waited_behind_it() -> None:
    solo = Solo(store_of([1]))
    first = solo.slab(0)
    second = encode_slab([b"b"], 2, 1, first.end_pos, first.last_chain or 0)
    assert solo.append(second, 1, seq=6) is None
    before = len(solo.sent)
    solo.append(first, 1, seq=5)
    assert marks(solo.sent[before:]) == [(5, 1, 0), (6, 2, 0)]


def test_a_damaged_member_says_at_once_from_where_it_does_not_count() -> None:
    solo = Solo(store_of([1, 1]))
    solo.compare(1, term=1)
    solo.store.note_faults([Fault(0, 0, "crc_invalid")])
    answer = solo.append(solo.slab(1), 1, seq=5)
    assert answer is not None and answer.faulty_from == 0


def test_a_duplicate_push_is_answered_and_writes_nothing() -> None:
    solo = Solo(store_of([1]))
    slab = solo.slab(0, [b"a", b"b"])
    solo.append(slab, 1)
    answer = solo.append(slab, 1)
    assert answer is not None and answer.code == ResponseCode.SUCCESS and answer.verified_index == 2
    assert solo.store.end_index == 2


def test_a_push_that_overlaps_appends_only_the_rest() -> None:
    solo = Solo(store_of([1]))
    slab = solo.slab(0, [b"a", b"b", b"c"])
    solo.append(encode_slab([b"a"], 1, 1, slab.pos, slab.prev_chain or 0), 1)
    answer = solo.append(slab, 1)
    assert answer is not None and answer.verified_index == 3
    assert solo.store.end_chain == slab.last_chain


def test_a_conflict_inside_a_push_verifies_what_matches_and_cuts_nothing() -> None:
    solo = Solo(store_of([1, 1, 1]))
    meta = solo.store.meta(0)
    assert meta is not None and meta.chain is not None
    same, other = solo.store.get(1), solo.store.get(0)
    assert same is not None and other is not None
    first = encode_slab([same.body], 1, 1, same.pos, meta.chain)
    second = encode_slab([b"new"], 2, 2, first.end_pos, first.last_chain or 0)
    both = replace(
        first, count=2, data=first.data + second.data, index_records=first.index_records + second.index_records,
        last_term=2, last_chain=second.last_chain,
    )  # fmt: skip
    answer = solo.append(both, 1, term=2)
    assert answer is not None and answer.code == ResponseCode.INCONSISTENT_STATE
    assert (answer.verified_index, answer.x_term, answer.x_index) == (1, 1, 2)
    assert solo.store.end_index == 2


def test_early_pushes_wait_for_the_gap_in_a_bounded_map() -> None:
    solo = Solo(store_of([1]), push_window_slabs=2)
    first = solo.slab(0, [b"a"])
    second = encode_slab([b"b"], 2, 1, first.end_pos, first.last_chain or 0)
    third = encode_slab([b"c"], 3, 1, second.end_pos, second.last_chain or 0)
    fourth = encode_slab([b"d"], 4, 1, third.end_pos, third.last_chain or 0)
    assert solo.append(third, 1, seq=3) is None
    assert solo.append(second, 1, seq=2) is None
    assert solo.append(second, 1, seq=9).code == ResponseCode.REPEATED_PUSH  # type: ignore[union-attr]
    assert solo.append(fourth, 1, seq=4).code == ResponseCode.INCONSISTENT_STATE  # type: ignore[union-attr]
    before = len(solo.sent)
    solo.append(first, 1, seq=1)
    answers = [m for _to, m in solo.sent[before:] if isinstance(m, PushResponse)]
    assert [(a.seq, a.code, a.verified_index) for a in answers] == [(1, 200, 1), (2, 200, 2), (3, 200, 3)]


def test_a_damaged_slab_is_refused_whole() -> None:
    solo = Solo(store_of([1]))
    slab = solo.slab(0)
    answer = solo.append(replace(slab, last_chain=0, data=slab.data[:40] + b"\0\0\0\0" + slab.data[44:]), 1)
    assert answer is not None and answer.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert solo.store.end_index == 0 and solo.replica.member.verified_index == 0


def test_s8_s9_a_full_disk_and_too_much_unsynced() -> None:
    solo = Solo(store_of([1]), unsynced_bytes_max=10)
    solo.store.full = True
    assert solo.append(solo.slab(0), 1).code == ResponseCode.DISK_FULL  # type: ignore[union-attr]
    solo.store.full = False
    assert solo.append(solo.slab(0), 1) is None
    assert solo.append(solo.slab(1), 1).code == BUSY  # type: ignore[union-attr]
    solo.sync()
    assert solo.append_synced(solo.slab(1), 1).code == ResponseCode.SUCCESS  # type: ignore[union-attr]


# --- heartbeats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "leader", "term", "code"),
    [
        ("n1", "n9", 3, ResponseCode.UNKNOWN_MEMBER),
        ("n1", "n0", 3, ResponseCode.UNEXPECTED_MEMBER),
        ("n1", "n1", 2, ResponseCode.EXPIRED_TERM),
        ("n2", "n2", 3, ResponseCode.INCONSISTENT_LEADER),
        ("n1", "n1", 3, ResponseCode.SUCCESS),
        ("n2", "n2", 4, ResponseCode.TERM_NOT_READY),
    ],
)
def test_heartbeat_codes(sender: str, leader: str, term: int, code: int) -> None:
    solo = Solo(store_of([1], term=2))
    solo.follow(term=3)
    sent = solo.receive(sender, HeartBeatRequest(5, leader, term))
    answers = [message for _to, message in sent if isinstance(message, HeartBeatResponse)]
    assert [(a.seq, a.code, a.term) for a in answers] == [(5, code, max(3, solo.replica.term))]


def test_after_term_not_ready_the_repeated_heartbeat_is_taken() -> None:
    solo = Solo()
    for code in (ResponseCode.TERM_NOT_READY, ResponseCode.SUCCESS):
        sent = solo.receive("n1", HeartBeatRequest(5, "n1", 4))
        assert [m.code for _to, m in sent if isinstance(m, HeartBeatResponse)] == [code]
    assert solo.replica.leader_id == "n1"


def test_a_heartbeat_checks_the_whole_prefix() -> None:
    solo = Solo(store_of([1, 1, 1]))
    solo.compare(2)
    chain = solo.store.meta(1)
    assert chain is not None
    solo.receive("n1", HeartBeatRequest(5, "n1", 1, 1, chain.chain))
    assert not solo.replica.member.alarms and solo.replica.committed_index == 1
    solo.receive("n1", HeartBeatRequest(6, "n1", 1, 1, 99))
    assert ("fork", "n1") in solo.replica.member.alarms


def test_r8_a_sync_of_another_epoch_is_ignored() -> None:
    solo = Solo(store_of([1]))
    solo.append(solo.slab(0), 1)
    solo.replica.disk.flushed(7, 1, solo.now + MS)
    assert solo.replica.member.durable_index == 0


def test_what_is_held_already_is_proven_by_its_last_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    solo = Solo(store_of([1]))
    slab = solo.slab(0, [b"%d" % number for number in range(200)])
    solo.append(slab, 1)
    looks: list[int] = []
    real = solo.store.meta
    monkeypatch.setattr(solo.store, "meta", lambda index: looks.append(index) or real(index))
    answer = solo.append(slab, 1)
    assert answer is not None and (answer.code, answer.verified_index) == (ResponseCode.SUCCESS, 200)
    assert len(looks) < 10


@pytest.mark.parametrize("pos", [-1, 10**9, -(10**15)])
def test_an_index_record_that_points_elsewhere_is_not_followed(pos: int) -> None:
    solo = Solo(store_of([1]))
    slab = solo.slab(0, [b"a", b"b"])
    solo.append(slab, 1)
    first, last = slab.index_records[:32], list(INDEX_UNIT.unpack(slab.index_records[32:]))
    last[1] = pos
    answer = solo.append(replace(slab, index_records=first + INDEX_UNIT.pack(*last)), 1)
    assert answer is not None and answer.verified_index == 2  # entry by entry, along the records themselves
