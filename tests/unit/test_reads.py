"""Linearizable reads (SAFETY C1) and leases (E5, E7)."""

from __future__ import annotations

from node.consensus.api import MS, ReadOutcome
from node.protocol.codes import ResponseCode
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushKind,
    PushRequest,
    ReadIndexRequest,
    ReadIndexResponse,
    ReadWay,
)
from tests.unit.core_kit import Solo, store_of


class Reader:
    """n0 leads and has committed its NOOP (entry 0)."""

    def __init__(self, *, committed: bool = True, **changes: bool) -> None:
        self.solo = Solo(**changes)
        sent = self.solo.lead()
        self.outcomes: list[ReadOutcome] = []
        if committed:
            compare = next(m for to, m in sent if to == "n1" and isinstance(m, PushRequest))
            append = next(m for _to, m in self.solo.ack("n1", compare, -1) if isinstance(m, PushRequest))
            self.solo.sync()
            self.solo.ack("n1", append, 0)
            assert self.solo.replica.committed_index == 0

    def read(self) -> list[int]:
        """The numbers of the heartbeats that the read sent out."""
        self.solo.replica.read_index(self.outcomes.append, self.solo.now)
        return [m.seq for to, m in self.solo.take() if to == "n1" and isinstance(m, HeartBeatRequest)]

    def beat_answer(self, seq: int, peer: str = "n1", end: int = 0) -> None:
        term = self.solo.replica.term
        self.solo.receive(peer, HeartBeatResponse(seq, term, ResponseCode.SUCCESS, end))


def test_a_read_waits_for_a_quorum_that_answers_frames_sent_after_it_arrived() -> None:
    reader = Reader()
    before = reader.solo.replica.member.last_seq
    (seq,) = reader.read()
    reader.beat_answer(before)
    assert not reader.outcomes
    reader.beat_answer(seq)
    assert [(o.code, o.read_index) for o in reader.outcomes] == [(ResponseCode.SUCCESS, 0)]


def test_no_read_rests_on_a_push_answer() -> None:
    """It does not say whether its sender still is a voter, and the HELLO that does takes another connection (E8)."""
    reader = Reader()
    (seq,) = reader.read()
    reader.solo.replica.propose([b"x"], reader.solo.now)
    push = next(m for to, m in reader.solo.take() if to == "n1" and isinstance(m, PushRequest))
    reader.solo.ack("n1", push, 1, durable=0)
    assert not reader.outcomes
    reader.beat_answer(seq)
    assert [o.read_index for o in reader.outcomes] == [0]


def test_no_read_before_an_own_entry_is_committed() -> None:
    reader = Reader(committed=False)
    (seq,) = reader.read()
    reader.beat_answer(seq, end=-1)
    assert not reader.outcomes


def test_reads_share_rounds() -> None:
    reader = Reader()
    (first,) = reader.read()
    assert reader.read() == [] and reader.read() == []  # they wait for the round that is out
    reader.beat_answer(first)
    assert len(reader.outcomes) == 1
    second = reader.solo.replica.member.last_seq
    reader.beat_answer(second)
    assert len(reader.outcomes) == 3


class Logged(Reader):
    """The same, for reads through the log."""

    def ask(self) -> list[PushRequest]:
        """What the read sent to n1."""
        self.solo.replica.read_index(self.outcomes.append, self.solo.now, ReadWay.LOG)
        return self.pushes()

    def pushes(self) -> list[PushRequest]:
        return [m for to, m in self.solo.take() if to == "n1" and isinstance(m, PushRequest)]

    def commit(self, push: PushRequest) -> list[PushRequest]:
        """n1 holds all of it, durably; what that sends to n1."""
        assert push.slab is not None
        self.solo.sync()
        sent = self.solo.ack("n1", push, push.slab.last_index)
        return [m for to, m in sent if to == "n1" and isinstance(m, PushRequest)]


def test_a_read_through_the_log_waits_for_an_entry_that_was_appended_after_it_came() -> None:
    reader = Logged()
    (push,) = reader.ask()
    assert push.slab is not None and (push.slab.first_index, push.slab.count) == (1, 1)
    reader.beat_answer(reader.solo.replica.member.last_seq)
    assert not reader.outcomes  # no round of heartbeats stands in for it
    assert reader.ask() == [] and reader.ask() == []  # the next entry serves them
    sent = reader.commit(push)
    assert [(o.code, o.read_index) for o in reader.outcomes] == [(ResponseCode.SUCCESS, 1)]
    (second,) = [one for one in sent if one.slab is not None]
    assert second.slab is not None and second.slab.first_index == 2
    reader.commit(second)
    assert [o.read_index for o in reader.outcomes] == [1, 2, 2]
    assert reader.solo.store.end_index == 2


def test_a_read_through_the_log_ends_with_its_leadership_or_its_time() -> None:
    reader = Logged()
    reader.ask()
    reader.ask()
    reader.solo.push(PushKind.COMMIT, "n2", term=9)
    assert [o.code for o in reader.outcomes] == [ResponseCode.TERM_CHANGED] * 2
    late = Logged()
    late.ask()
    late.ask()
    late.solo.now += late.solo.replica.config.timing.read_timeout_ns
    leadership = late.solo.replica.leadership
    assert leadership is not None and leadership.reads.next_deadline() is not None
    leadership.reads.expire(late.solo.now)
    assert [o.code for o in late.outcomes] == [ResponseCode.TIMEOUT] * 2
    assert len(leadership.reads) == 0 and leadership.reads.next_deadline() is None


def test_where_nothing_may_be_appended_a_round_trip_serves_it() -> None:
    """Behind a take-leadership (E7), and on a full disk."""
    reader = Logged()
    leadership = reader.solo.replica.leadership
    assert leadership is not None
    leadership.reads.lease_void = True
    assert reader.ask() == []
    reader.beat_answer(reader.solo.replica.member.last_seq)
    assert [(o.code, o.read_index) for o in reader.outcomes] == [(ResponseCode.SUCCESS, 0)]
    assert reader.solo.store.end_index == 0


def test_by_name_a_round_trip_is_made_also_where_the_lease_holds() -> None:
    reader = Reader(lease_reads=True)
    (seq,) = reader.read()
    reader.beat_answer(seq)
    reader.outcomes.clear()
    assert reader.read() == [] and len(reader.outcomes) == 1  # the lease
    reader.solo.replica.read_index(reader.outcomes.append, reader.solo.now, ReadWay.INDEX)
    assert len(reader.outcomes) == 1
    reader.beat_answer(reader.solo.replica.member.last_seq)
    assert len(reader.outcomes) == 2


def test_a_follower_asks_for_the_way_that_its_caller_wants() -> None:
    for lease_reads, way, asked in (
        (False, ReadWay.USUAL, ReadWay.INDEX), (True, ReadWay.USUAL, ReadWay.LEASE), (False, ReadWay.LOG, ReadWay.LOG),
        (True, ReadWay.INDEX, ReadWay.INDEX), (False, ReadWay.LEASE, ReadWay.LEASE),
    ):  # fmt: skip
        solo = Solo(store_of([1]), lease_reads=lease_reads)
        solo.compare(0, term=2)
        solo.replica.read_index(lambda _outcome: None, solo.now, way)
        (request,) = [m for _to, m in solo.take() if isinstance(m, ReadIndexRequest)]
        assert request.way is asked


def test_the_leader_serves_a_followers_read_by_its_lease_where_that_is_asked_for() -> None:
    reader = Reader(lease_reads=True)
    (seq,) = reader.read()
    reader.beat_answer(seq)
    for way in ReadWay:
        reader.solo.receive("n2", ReadIndexRequest(60 + way, 1, way))
    answered = [m.seq - 60 for _to, m in reader.solo.sent if isinstance(m, ReadIndexResponse)]
    assert answered == [ReadWay.USUAL, ReadWay.LEASE]


def test_a_read_fails_when_nobody_answers_or_leadership_ends() -> None:
    reader = Reader()
    reader.read()
    reader.solo.push(PushKind.COMMIT, "n2", term=9)
    reader.solo.replica.read_index(reader.outcomes.append, reader.solo.now)  # now a follower's
    reader.solo.tick(3000)
    assert [o.code for o in reader.outcomes] == [ResponseCode.TERM_CHANGED, ResponseCode.TERM_CHANGED]


def test_a_followers_read_asks_the_leader_and_waits_for_its_own_log() -> None:
    solo = Solo(store_of([1]))
    outcomes: list[ReadOutcome] = []
    solo.compare(0, term=2)
    solo.replica.read_index(outcomes.append, solo.now)
    ((to, request),) = [(to, m) for to, m in solo.take() if isinstance(m, ReadIndexRequest)]
    assert to == "n1" and request.term == 2
    solo.receive("n1", ReadIndexResponse(request.seq, 2, ResponseCode.SUCCESS, 1))
    assert not outcomes
    solo.append(solo.slab(0, term=2), 1, term=2, commit_index=1)
    assert [(o.code, o.read_index) for o in outcomes] == [(ResponseCode.SUCCESS, 1)]


def test_a_followers_read_is_served_once_its_own_leadership_commits() -> None:
    """Its leader ended between the answer and the next commit: no leader may ever speak to it again."""
    solo = Solo(store_of([1, 1]))
    outcomes: list[ReadOutcome] = []
    solo.compare(1, term=2)
    solo.replica.read_index(outcomes.append, solo.now)
    request = next(m for _to, m in solo.take() if isinstance(m, ReadIndexRequest))
    solo.receive("n1", ReadIndexResponse(request.seq, 2, ResponseCode.SUCCESS, 1))
    sent = solo.lead()
    compare = next(m for to, m in sent if to == "n1" and isinstance(m, PushRequest))
    append = next(m for _to, m in solo.ack("n1", compare, 1) if isinstance(m, PushRequest))
    solo.sync()
    assert not outcomes
    solo.ack("n1", append, 2)
    assert [(o.code, o.read_index) for o in outcomes] == [(ResponseCode.SUCCESS, 1)]


def test_a_followers_read_fails_without_a_leader_or_in_time() -> None:
    solo = Solo(store_of([1]))
    outcomes: list[ReadOutcome] = []
    solo.replica.read_index(outcomes.append, solo.now)
    solo.follow()
    solo.replica.read_index(outcomes.append, solo.now)
    for _ in range(25):
        solo.now += 100 * MS
        solo.push(PushKind.COMMIT)
        solo.replica.tick(solo.now)
    assert [o.code for o in outcomes] == [ResponseCode.NOT_LEADER, ResponseCode.TIMEOUT]


def test_the_leader_confirms_a_followers_read_and_names_its_end() -> None:
    reader = Reader()
    reader.solo.receive("n2", ReadIndexRequest(55, 1))
    reader.beat_answer(reader.solo.replica.member.last_seq)
    answers = [(to, m) for to, m in reader.solo.sent if isinstance(m, ReadIndexResponse)]
    assert answers == [("n2", ReadIndexResponse(55, 1, ResponseCode.SUCCESS, 0, 0))]
    (refused,) = [
        m for _to, m in reader.solo.receive("n2", ReadIndexRequest(56, 7)) if isinstance(m, ReadIndexResponse)
    ]
    assert refused.code is ResponseCode.NOT_LEADER


def test_lease_reads_are_off_by_default_and_end_before_the_followers_lease() -> None:
    reader = Reader(lease_reads=True)
    (seq,) = reader.read()
    reader.beat_answer(seq)
    sent_at = reader.solo.now
    assert len(reader.outcomes) == 1
    reader.solo.now = sent_at + 449 * MS  # 500 ms less a tenth for the clocks' drift
    assert reader.read() == [] and len(reader.outcomes) == 2
    reader.solo.now = sent_at + 450 * MS
    assert len(reader.read()) == 1 and len(reader.outcomes) == 2


def test_e7_no_lease_read_after_take_leadership() -> None:
    reader = Reader(lease_reads=True)
    (seq,) = reader.read()
    reader.beat_answer(seq)
    reader.solo.replica.transfer("n1", reader.solo.now, on_done=lambda _outcome: None)
    reader.solo.take()
    assert len(reader.read()) == 1 and len(reader.outcomes) == 1
