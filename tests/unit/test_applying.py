"""Applying: in order, once a life, from the applier's own position; results go to the requests that they belong to."""

from __future__ import annotations

import pytest

from node.consensus.api import MS, Appended, Applied, Outcome, Proposal, Timing
from node.consensus.applying import APPLY_ENTRIES_MAX, Applying
from node.consensus.effects import ApplyLog
from node.protocol.codes import ResponseCode
from node.protocol.messages import PushKind, PushRequest
from tests.unit.core_kit import Leader, Solo, store_of

TIMING = Timing()


class Machine:
    """n0 leads with an applier; the test is the applier. Its NOOP, entry 0, is committed."""

    def __init__(self, *, stands: int | None = -1) -> None:
        self.leader = Leader(applies=True)
        self.solo = self.leader.solo
        self.done: list[Outcome] = []
        self.order: ApplyLog | None = None
        if stands is not None:
            self.start(stands)

    @property
    def applying(self) -> Applying:
        return self.solo.replica.applying

    def take(self) -> ApplyLog | None:
        """The order of this step, if there is one."""
        self.solo.take()
        found = self.solo.effects.apply
        self.order = found or self.order
        return found

    def start(self, index: int, term: int | None = None) -> ApplyLog | None:
        self.applying.ready(index, term, self.solo.now)
        return self.take()

    def append(self, *batches: list[bytes], at_apply: bool = True) -> None:
        """Appended and committed; what that orders is in `order`."""
        proposals = [Proposal(batch, self.done.append, at_apply=at_apply) for batch in batches]
        self.solo.replica.propose_many(proposals, self.solo.now)
        pushes = [m for to, m in self.solo.take() if to == "n1" and isinstance(m, PushRequest)]
        self.solo.sync()
        self.solo.ack("n1", pushes[-1], self.solo.store.end_index)
        self.order = self.solo.effects.apply or self.order

    def apply(self, upto: int | None = None, error: str = "") -> ApplyLog | None:
        """The open order is carried out up to there; what is ordered next."""
        order = self.order
        assert order is not None
        upto = order.last_index if upto is None else upto
        results = [b"r%d" % index for index in range(order.first_index, upto + 1)]
        self.applying.applied(order.life, upto, results, self.solo.now, error)
        return self.take()

    @property
    def applied(self) -> int | None:
        return self.solo.replica.applied_index

    def alarms(self) -> set[str]:
        return {code for code, _ in self.solo.replica.member.alarms}


def test_in_a_log_alone_committed_is_applied() -> None:
    leader = Leader()
    done: list[Outcome] = []
    leader.solo.replica.propose_many([Proposal([b"a", b"b"], done.append, at_apply=True)], leader.solo.now)
    pushes = [m for to, m in leader.solo.take() if to == "n1" and isinstance(m, PushRequest)]
    leader.solo.sync()
    leader.solo.ack("n1", pushes[-1], 2)
    assert leader.solo.effects.apply is None
    assert [(one.applied, one.results, one.last_index) for one in done] == [(Applied.YES, (), 2)]
    replica = leader.solo.replica
    assert replica.applied_index == replica.committed_index == leader.solo.store.applied_index == 2
    assert replica.status(leader.solo.now).applier is None


def test_committed_entries_are_ordered_once_and_applied_is_what_was_reported() -> None:
    machine = Machine()
    assert machine.order == ApplyLog(1, 0, 0, 1024 * 1024, False)
    assert machine.applied == -1
    machine.append([b"a"], [b"b", b"c"], at_apply=False)
    assert machine.order is not None and machine.order.last_index == 0  # one order at a time
    following = machine.apply()
    assert following is not None and (following.first_index, following.last_index) == (1, 3)
    assert machine.applied == 0 and machine.solo.store.applied_index == 0
    assert machine.solo.replica.status(machine.solo.now).log.applied_index == 0
    assert [one.applied for one in machine.done] == [Applied.NOT_ASKED, Applied.NOT_ASKED]  # complete at commit
    assert machine.apply(upto=2) == ApplyLog(1, 3, 3, 1024 * 1024, False)  # the rest is ordered again
    assert machine.apply() is None
    assert machine.applied == machine.solo.store.applied_index == 3


def test_an_entry_that_no_quorum_holds_is_not_ordered() -> None:
    machine = Machine()
    machine.apply()
    machine.solo.replica.propose_many([Proposal([b"a"], machine.done.append)], machine.solo.now)
    machine.take()
    machine.solo.sync()
    assert machine.solo.effects.apply is None and machine.solo.store.end_index == 1


def test_a_follower_applies_too() -> None:
    solo = Solo(store_of([1, 1]), applies=True)
    solo.replica.applying.ready(-1, None, solo.now)
    solo.follow()
    solo.compare(1)
    assert solo.replica.committed_index == -1 and solo.replica.applied_index == -1
    solo.push(PushKind.COMMIT, commit_index=1)
    order = solo.effects.apply
    assert order is not None and (order.first_index, order.last_index) == (0, 1)
    solo.replica.applying.applied(order.life, 1, [b"", b""], solo.now)
    assert solo.replica.applied_index == solo.replica.committed_index == 1


def test_each_request_gets_the_results_of_its_own_entries_when_they_are_applied() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"], [b"b", b"c"], [b"d"])
    assert machine.done == [] and machine.order is not None and machine.order.results_wanted
    machine.apply(upto=2)
    assert [one.results for one in machine.done] == [(b"r1",)]
    machine.apply(upto=3)
    machine.apply()
    assert [one.results for one in machine.done] == [(b"r1",), (b"r2", b"r3"), (b"r4",)]
    assert {(one.code, one.appended, one.applied) for one in machine.done} == {
        (ResponseCode.SUCCESS, Appended.YES, Applied.YES)
    }


def test_a_request_whose_first_entries_are_committed_and_applied_before_its_last_ones_gets_all_results() -> None:
    """A long one lies in several slabs, and each of them is acknowledged by itself."""
    machine = Machine()
    machine.apply()
    proposals = [Proposal(batch, machine.done.append, at_apply=True) for batch in ([b"a"] * 4, [b"b"])]
    machine.solo.replica.propose_many(proposals, machine.solo.now)
    pushes = [m for to, m in machine.solo.take() if to == "n1" and isinstance(m, PushRequest)]
    machine.solo.sync()
    for upto in (2, 3):
        machine.solo.ack("n1", pushes[-1], upto)
        machine.order = machine.solo.effects.apply or machine.order
        assert machine.order is not None and machine.order.results_wanted
        machine.apply()
        assert machine.done == [] and machine.applying.applied_index == upto
    machine.solo.ack("n1", pushes[-1], 5)
    machine.order = machine.solo.effects.apply
    machine.apply()
    assert [(one.applied, one.results) for one in machine.done] == [
        (Applied.YES, (b"r1", b"r2", b"r3", b"r4")), (Applied.YES, (b"r5",)),
    ]  # fmt: skip


def test_a_request_half_applied_in_an_earlier_life_has_no_known_result() -> None:
    machine = Machine()
    machine.apply()
    machine.solo.replica.propose_many([Proposal([b"a"] * 4, machine.done.append, at_apply=True)], machine.solo.now)
    pushes = [m for to, m in machine.solo.take() if to == "n1" and isinstance(m, PushRequest)]
    machine.solo.sync()
    machine.solo.ack("n1", pushes[-1], 2)
    machine.order = machine.solo.effects.apply or machine.order
    machine.apply()
    machine.start(2)
    machine.solo.ack("n1", pushes[-1], 4)
    assert [(one.appended, one.applied) for one in machine.done] == [(Appended.YES, Applied.UNKNOWN)]


def test_a_request_that_was_not_appended_does_not_wait() -> None:
    machine = Machine()
    machine.apply()
    machine.solo.replica.propose_many([Proposal([b"a"], machine.done.append, 99, at_apply=True)], machine.solo.now)
    assert [(one.code, one.applied) for one in machine.done] == [(ResponseCode.INCONSISTENT_INDEX, Applied.NOT_ASKED)]


def test_lost_leadership_leaves_committed_ones_committed_and_the_others_unknown() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"])
    machine.solo.replica.propose_many([Proposal([b"b"], machine.done.append, at_apply=True)], machine.solo.now)
    machine.solo.replica.member.adopt_term(9, machine.solo.now, "a test says so")
    assert [(one.first_index, one.appended, one.applied) for one in machine.done] == [
        (2, Appended.UNKNOWN, Applied.NOT_ASKED),
        (1, Appended.YES, Applied.UNKNOWN),
    ]
    assert "committed" in machine.done[1].detail and machine.done[1].code is ResponseCode.SUCCESS
    machine.take()
    machine.apply()  # it is applied all the same, and nobody is told twice
    assert machine.applied == 1 and len(machine.done) == 2


def test_a_result_that_does_not_come_in_time_is_unknown() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"])
    machine.solo.tick(TIMING.closure_timeout_ns // MS // 2)
    assert machine.done == []
    machine.solo.now += TIMING.closure_timeout_ns
    machine.applying.tick(machine.solo.now)
    assert [(one.appended, one.applied) for one in machine.done] == [(Appended.YES, Applied.UNKNOWN)]
    machine.apply()
    assert len(machine.done) == 1


def test_a_restarted_applier_is_fed_from_where_it_says_that_it_stands() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"], [b"b"], [b"c"])
    open_order = machine.order
    assert open_order is not None and (open_order.first_index, open_order.last_index) == (1, 3)
    order = machine.start(2, term=1)  # it applied two of them before it ended, and never said so
    assert order is not None and (order.life, order.first_index, order.last_index) == (2, 3, 3)
    assert machine.applied == 2
    assert [one.applied for one in machine.done] == [Applied.UNKNOWN, Applied.UNKNOWN]
    machine.applying.applied(open_order.life, 3, [b"?"] * 3, machine.solo.now)  # the old one's word comes late
    assert machine.applied == 2
    machine.apply()
    assert machine.applied == 3 and machine.done[2].results == (b"r3",)


def test_an_applier_that_went_back_gets_entries_again_and_a_half_told_result_whole() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a", b"b"])
    machine.apply(upto=1)
    order = machine.start(-1)
    assert order is not None and (order.first_index, order.last_index) == (0, 2) and machine.applied == -1
    machine.apply()
    assert [one.results for one in machine.done] == [(b"r1", b"r2")]


def test_one_that_ended_is_an_alarm_and_unknown_until_another_one_says_where_it_stands() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"])
    machine.applying.lost(1, "killed", machine.solo.now)
    machine.take()
    assert machine.applied is None and machine.alarms() == {"applier_down"}
    assert machine.solo.store.applied_index == 0  # what the last checkpoint may say
    machine.append([b"b"])
    assert machine.solo.effects.apply is None
    order = machine.start(0, term=1)
    assert order is not None and order.first_index == 1 and machine.alarms() == set()
    machine.applying.lost(1, "the old one", machine.solo.now)
    assert machine.applied == 0


def test_an_entry_that_fails_is_an_alarm_and_tried_again_with_a_back_off() -> None:
    machine = Machine()
    machine.apply()
    machine.append([b"a"], [b"b"])
    assert machine.apply(upto=1, error="no such table") is None
    assert machine.applied == 1 and machine.alarms() == {"apply_failed"}
    [alarm] = machine.solo.replica.status(machine.solo.now).alarms
    assert alarm.text == "entry 2 is not applied: no such table"
    for wait_ns in (TIMING.apply_retry_min_ns, 2 * TIMING.apply_retry_min_ns):
        assert machine.applying.next_deadline() is not None
        machine.applying.tick(machine.solo.now + wait_ns - 1)
        assert machine.take() is None
        machine.solo.now += wait_ns
        machine.applying.tick(machine.solo.now)
        order = machine.take()
        assert order is not None and (order.first_index, order.last_index) == (2, 2)
        machine.apply(upto=1, error="no such table")
    machine.solo.now += TIMING.apply_retry_max_ns
    machine.applying.tick(machine.solo.now)
    machine.take()
    machine.apply()
    assert machine.applied == 2 and machine.alarms() == set()
    assert [one.applied for one in machine.done] == [Applied.YES, Applied.UNKNOWN]  # nobody waits that long


def test_what_lags_is_fed_in_bounded_orders() -> None:
    machine = Machine(stands=None)
    machine.append([b"x"] * (2 * APPLY_ENTRIES_MAX), at_apply=False)
    assert machine.applied is None and machine.order is None
    first = machine.start(-1)
    assert first is not None and (first.first_index, first.last_index) == (0, APPLY_ENTRIES_MAX - 1)
    second = machine.apply()
    assert second is not None and second.last_index - second.first_index + 1 == APPLY_ENTRIES_MAX


def test_one_that_outlived_the_engine_waits_for_what_it_has_applied_to_be_committed_again() -> None:
    machine = Machine(stands=None)
    assert machine.start(2, term=1) is None
    assert machine.applied == 0 <= machine.solo.replica.committed_index
    machine.append([b"a"], [b"b"], [b"c"])
    assert machine.order is not None and (machine.order.first_index, machine.order.last_index) == (3, 3)
    assert [one.applied for one in machine.done] == [Applied.UNKNOWN, Applied.UNKNOWN]
    machine.apply()
    assert machine.done[2].results == (b"r3",)


def test_a_state_of_another_history_is_not_fed() -> None:
    machine = Machine(stands=None)
    machine.append([b"a"], [b"b"])
    assert machine.start(1, term=7) is None
    assert machine.alarms() == {"applier_diverged"}
    machine.append([b"c"])
    assert machine.solo.effects.apply is None
    order = machine.start(1, term=1)
    assert order is not None and order.first_index == 2 and machine.alarms() == set()


def test_a_state_older_than_the_log_is_not_fed_with_a_gap() -> None:
    machine = Machine(stands=None)
    machine.append([b"a"], [b"b"], at_apply=False)
    machine.solo.store.begin_index = 2  # trimmed
    assert machine.start(0) is None
    assert machine.alarms() == {"applier_behind"}
    assert machine.start(1) is not None


def test_too_many_that_wait_for_results_are_refused_before_anything_is_appended() -> None:
    machine = Machine()
    machine.apply()
    limit = machine.solo.replica.config.pending_requests_max
    machine.append(*[[b"a"]] * limit)
    end = machine.solo.store.end_index
    machine.solo.replica.propose_many([Proposal([b"late"], machine.done.append, at_apply=True)], machine.solo.now)
    assert machine.done[-1].code is ResponseCode.LEADER_PENDING_FULL and machine.solo.store.end_index == end
    machine.append([b"plain"], at_apply=False)
    assert machine.done[-1].appended is Appended.YES
    while machine.apply() is not None:
        pass
    assert sum(one.applied is Applied.YES for one in machine.done) == limit


def test_an_applier_that_claims_what_it_was_not_given_is_a_bug() -> None:
    machine = Machine()
    order = machine.order
    assert order is not None
    with pytest.raises(AssertionError, match=r"applied up to 1 of 0\.\.0"):
        machine.applying.applied(order.life, 1, [], machine.solo.now)
    with pytest.raises(AssertionError, match="log alone"):
        _ = Solo().replica.applying
