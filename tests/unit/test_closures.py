"""Closures: once each, by range, with limits, grouped by whom they wait for (SAFETY C2, C5, E6)."""

from __future__ import annotations

import pytest

from node.consensus.api import MS, Appended, Outcome, ReplicaConfig
from node.consensus.closures import EXPIRY_STEP_NS, Closure, ClosureTable
from node.consensus.configuration import Configuration
from node.protocol.codes import ResponseCode

THREE = Configuration({"n0": "", "n1": "", "n2": ""})


class Table:
    """A table with a config of small limits, and what came out of it."""

    def __init__(self) -> None:
        config = ReplicaConfig(
            "g",
            "n0",
            {"n0": "", "n1": "", "n2": ""},
            pending_requests_max=3,
            pending_entries_max=10,
            pending_bytes_max=99,
        )
        self.table = ClosureTable(config, term=4)
        self.done: list[Outcome] = []

    def add(self, first: int, last: int, *, deadline: int = 2000 * MS, size_bytes: int = 1) -> Closure:
        closure = Closure(self.done.append, first, last, 4, size_bytes, 0, deadline)
        self.table.add(closure)
        return closure


def test_commit_completes_a_run_from_the_left_and_only_whole_requests() -> None:
    t = Table()
    for first, last in ((0, 0), (1, 4), (5, 5)):
        t.add(first, last)
    t.table.commit(3, "n0", 5 * MS)
    assert [(o.first_index, o.last_index) for o in t.done] == [(0, 0)]
    t.table.commit(4, "n0", 5 * MS)
    t.table.commit(4, "n0", 5 * MS)
    ends = [(ResponseCode.SUCCESS, first, last, 4, Appended.YES, "n0") for first, last in ((0, 0), (1, 4))]
    assert t.done == [Outcome(*end) for end in ends], "every field is there, though no constructor made them"
    assert len(t.table) == 1


def test_a_closure_completes_exactly_once() -> None:
    closure = Table().add(0, 0)
    closure.refuse(ResponseCode.NOT_LEADER, None, "")
    with pytest.raises(AssertionError, match="twice"):
        closure.refuse(ResponseCode.NOT_LEADER, None, "")


def test_indexes_ascend() -> None:
    t = Table()
    t.add(0, 5)
    with pytest.raises(AssertionError, match="after"):
        t.add(5, 6)


@pytest.mark.parametrize(
    ("requests", "entries", "size_bytes", "fits"),
    [(2, 2, 2, True), (3, 3, 3, False), (1, 9, 1, True), (1, 10, 1, False), (1, 1, 98, True), (1, 1, 99, False)],
)
def test_c5_limits_in_requests_entries_and_bytes(requests: int, entries: int, size_bytes: int, fits: bool) -> None:
    t = Table()
    t.add(0, 0)
    wanted = (requests, entries, size_bytes)
    assert all(left >= need for left, need in zip(t.table.room(), wanted, strict=True)) is fits


def test_c5_what_completed_makes_room_again() -> None:
    t = Table()
    for index in range(3):
        t.add(index, index, size_bytes=30)
    assert t.table.room() == (0, 7, 9)
    t.table.commit(0, "n0", 5 * MS)
    assert t.table.room() == (1, 8, 39)


def test_c2_a_time_out_is_unknown_with_index_and_term() -> None:
    t = Table()
    t.add(3, 4, deadline=100 * MS)
    t.add(5, 5, deadline=110 * MS)
    t.table.expire(99 * MS, "n0")
    assert not t.done
    t.table.expire(100 * MS, "n0")
    assert [(o.code, o.appended, o.first_index, o.last_index, o.term) for o in t.done] == [
        (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, Appended.UNKNOWN, 3, 4, 4)
    ]
    assert t.table.next_deadline() == 100 * MS + EXPIRY_STEP_NS  # not a scan for every closure
    t.table.expire(160 * MS, "n0")
    assert len(t.done) == 2 and len(t.table) == 0 and t.table.next_deadline() is None


def test_what_moves_on_is_given_the_time_that_a_slab_takes() -> None:
    """Over a slow link nothing completes while one slab is on its way; what stands still is not waited for."""
    t = Table()
    timeout_ns = 2000 * MS
    t.add(3, 3, deadline=timeout_ns)
    t.add(4, 4, deadline=timeout_ns)
    t.table.commit(3, "n0", timeout_ns // 2)
    slab_ns = 300 * MS
    t.table.expire(timeout_ns + slab_ns - 1, "n0", lambda: slab_ns)
    assert len(t.table) == 1
    t.table.expire(timeout_ns + slab_ns + EXPIRY_STEP_NS, "n0", lambda: slab_ns)
    assert len(t.table) == 0 and t.done[-1].appended is Appended.UNKNOWN


def test_e6_a_lost_leadership_fails_everything_as_unknown() -> None:
    t = Table()
    t.add(0, 0)
    t.add(1, 1)
    t.table.fail_all(ResponseCode.TERM_CHANGED, None, "stepped down")
    assert [o.appended for o in t.done] == [Appended.UNKNOWN] * 2
    assert len(t.table) == 0 and t.table.room() == (3, 10, 99)


def test_status_groups_by_whom_they_wait_for() -> None:
    t = Table()
    for index in range(3):
        t.add(index, index, size_bytes=10)
    status = t.table.status({"n0": 5, "n1": 0, "n2": -1}, configuration=THREE, now=7 * MS)
    assert [(g.waits_for, g.needed, g.count, g.first_index, g.last_index, g.bytes) for g in status.groups] == [
        (("n2",), 0, 1, 0, 0, 10),
        (("n1", "n2"), 1, 2, 1, 2, 20),
    ]
    assert status.pending == 3 and status.oldest_age_ms == 7 and status.pending_bytes == 30
    assert [item.waits_for for item in status.items] == [("n2",), ("n1", "n2"), ("n1", "n2")]


def test_observers_see_the_newest_completed_request_and_when_the_first_one_times_out() -> None:
    t = Table()
    t.add(0, 0, deadline=900 * MS)
    t.add(1, 1, deadline=700 * MS)
    before = t.table.status({"n0": 1, "n1": -1, "n2": -1}, configuration=THREE, now=500 * MS)
    assert (before.last_completed_at_ns, before.last_completed_took_ns) == (None, None)
    assert before.groups[0].times_out_in_ms == 200
    t.table.commit(0, "n0", 600 * MS)
    after = t.table.status({"n0": 1, "n1": 0, "n2": -1}, configuration=THREE, now=800 * MS)
    assert (after.last_completed_at_ns, after.last_completed_took_ns) == (600 * MS, 600 * MS)
    assert after.groups[0].times_out_in_ms == 0
