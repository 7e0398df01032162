"""What is let in: as much as a quorum's links carry in time, those who were told to wait first (C5)."""

from __future__ import annotations

import pytest

from node.client.retry import sleeps_s
from node.consensus.admission import GRACE_NS, UNKNOWN_FACTOR, Admission
from node.consensus.api import MS, SECOND, Appended, Outcome, Proposal, ReplicaConfig
from node.consensus.push_window import LATE_NS, SAMPLES, DeliveryRate, InFlight
from node.protocol.codes import ResponseCode
from node.protocol.messages import PushRequest
from tests.unit.core_kit import PEERS, Leader

MB = 1_000_000
FLOOR = 1024 * 1024
RATE = 5 * MB


def admission() -> Admission:
    return Admission(ReplicaConfig("g", "n0", PEERS))


class Link:
    """A peer that takes one slab of a megabyte after the other, each in `took_ns`."""

    def __init__(self) -> None:
        self.rate = DeliveryRate(256 * 1024)
        self.now = 0
        self.index = 0
        self.taken = 0

    def send(self, count: int, size_bytes: int = MB) -> None:
        for _ in range(count):
            self.index += 1
            self.rate.sent(InFlight(self.index, self.index, size_bytes, self.now))

    def take(self, took_ns: int) -> None:
        self.now += took_ns
        self.taken += 1
        self.rate.taken(self.taken, self.now)


# --- the rate -----------------------------------------------------------------------------------------------------


def test_a_rate_is_what_was_taken_while_more_waited() -> None:
    link = Link()
    assert link.rate.bytes_per_s(link.now) is None
    link.send(10)
    for _ in range(10):
        link.take(200 * MS)
    assert link.rate.bytes_per_s(link.now) == RATE


def test_a_link_that_is_not_kept_busy_tells_nothing() -> None:
    link = Link()
    for _ in range(10):
        link.send(1, 1000)
        link.take(100 * MS)
    assert link.rate.bytes_per_s(link.now) is None


def test_a_link_that_became_slow_is_noticed_before_its_next_answer_and_one_that_became_fast_at_once() -> None:
    link = Link()
    link.send(100)
    for _ in range(10):
        link.take(10 * MS)
    fast = link.rate.bytes_per_s(link.now)
    assert fast is not None and 90 * MB <= fast <= 110 * MB
    assert link.rate.bytes_per_s(link.now + LATE_NS - 1) == fast  # a pause of the machine is not a slow link
    late = link.rate.bytes_per_s(link.now + 400 * MS)
    assert late is not None and late <= 2.5 * MB
    for _ in range(SAMPLES):
        link.take(200 * MS)
    assert link.rate.bytes_per_s(link.now) == RATE
    for _ in range(10):
        link.take(10 * MS)
    again = link.rate.bytes_per_s(link.now)
    assert again is not None and again >= 90 * MB


def test_what_is_void_is_not_waited_for() -> None:
    link = Link()
    link.send(10)
    link.take(200 * MS)
    link.rate.forget_sent()
    assert link.rate.bytes_per_s(link.now + 10 * SECOND) == RATE
    link.rate.taken(10, link.now)
    assert link.rate.bytes_per_s(link.now) == RATE


# --- who is let in ------------------------------------------------------------------------------------------------


def test_as_much_waits_as_passes_in_half_of_an_acknowledgements_time() -> None:
    one = admission()
    assert one.limit_bytes(RATE) == RATE  # of 2 s
    assert one.limit_bytes(10_000) == FLOOR
    assert one.limit_bytes(None) == UNKNOWN_FACTOR * FLOOR
    assert one.judge(None, MB, RATE - 1, RATE, 0) == 0
    wait_ns = one.judge(None, MB, RATE + MB, RATE, 0)
    assert 200 * MS <= wait_ns <= 210 * MS  # until that megabyte has passed


def test_who_was_told_to_wait_comes_before_who_asks_for_the_first_time() -> None:
    one, full = admission(), RATE + MB
    waits = [one.judge(name, MB, full, RATE, 0) for name in "abc"]
    assert waits == sorted(waits) and waits[2] - waits[0] == pytest.approx(400 * MS, abs=MS)
    room = RATE - MB // 2  # for one
    assert one.judge("new", MB, room, RATE, 200 * MS) > 0
    assert one.judge("b", MB, room, RATE, 200 * MS) > 0  # too early: it is a's turn
    assert one.judge("a", MB, room, RATE, 200 * MS) == 0
    assert one.judge("b", MB, room, RATE, 400 * MS) == 0
    assert one.judge("a", MB, room, RATE, 400 * MS) > 0  # what it asks for now is new


def test_a_promise_ends_by_itself_and_an_idle_link_waits_for_nobody() -> None:
    one = admission()
    for number in range(100):
        one.judge(number, MB, RATE + MB, RATE, 0)
    assert one.judge("new", MB, RATE - MB, RATE, MS) > 0
    assert one.judge("other", MB, RATE // 5, RATE, MS) == 0
    assert one.judge("other", MB, RATE - MB, RATE, 60 * SECOND + GRACE_NS) == 0
    assert not one.promised


def test_own_bytes_are_given_their_own_time_within_bounds() -> None:
    one = admission()
    assert one.own_time_ns(4 * MB, RATE) == 800 * MS
    assert one.own_time_ns(4 * FLOOR, None) == 4 * SECOND
    assert one.own_time_ns(4 * MB, 1) == 6 * SECOND


# --- the leader ---------------------------------------------------------------------------------------------------


class SlowGroup(Leader):
    """A leader whose followers take 5 MB/s: what they acknowledge comes after its bytes have passed."""

    def __init__(self) -> None:
        super().__init__()
        self.on_way: list[tuple[int, str, PushRequest]] = []  # when it arrived, at whom
        self.free_at = {"n1": self.solo.now, "n2": self.solo.now}
        self.seen = len(self.solo.sent)

    def ask(self, origin: str, size_bytes: int, done: list[Outcome]) -> None:
        proposal = Proposal([bytes(size_bytes)], done.append, origin=origin)
        self.solo.replica.propose_many([proposal], self.solo.now)
        self.take()

    def take(self) -> None:
        """What left since the last look is on its way."""
        self.solo.take()
        for to, message in self.solo.sent[self.seen :]:
            if isinstance(message, PushRequest) and message.slab is not None:
                took_ns = len(message.slab.data) * SECOND // RATE
                self.free_at[to] = max(self.free_at[to], self.solo.now) + took_ns
                self.on_way.append((self.free_at[to], to, message))
        self.on_way.sort(key=lambda one: one[:2])
        self.seen = len(self.solo.sent)

    def stand_still(self, milliseconds: int) -> None:
        """What is on its way comes so much later."""
        self.free_at = {to: max(at, self.solo.now) + milliseconds * MS for to, at in self.free_at.items()}
        self.on_way = [(at + milliseconds * MS, to, message) for at, to, message in self.on_way]

    def pass_time(self, milliseconds: int) -> None:
        """The disk syncs at once; the links carry what they can."""
        until = self.solo.now + milliseconds * MS
        self.solo.sync()
        while self.on_way and self.on_way[0][0] <= until:
            self.solo.now, to, push = self.on_way.pop(0)
            assert push.slab is not None
            self.solo.ack(to, push, push.slab.last_index, dispatch_epoch=push.dispatch_epoch)
            self.take()
        self.solo.now = until
        self.leadership.closures.expire(until, "n0")


def test_over_slow_links_nothing_is_let_in_that_cannot_be_acknowledged_in_time() -> None:
    group, outcomes = SlowGroup(), dict[str, list[Outcome]]()
    back_at: dict[str, int] = {}
    clients = [f"c{number}" for number in range(24)]
    served = dict.fromkeys(clients, 0)
    for client in clients:
        outcomes[client] = []
        group.ask(client, MB, outcomes[client])
    for _ in range(3000):
        group.pass_time(10)
        for client in clients:
            for outcome in outcomes[client]:
                assert outcome.appended is not Appended.UNKNOWN
                if outcome.appended is Appended.YES:
                    served[client] += 1
                    back_at[client] = group.solo.now
                else:
                    assert outcome.code is ResponseCode.LEADER_PENDING_FULL and outcome.retry_after_ns > 0
                    back_at[client] = group.solo.now + outcome.retry_after_ns
            outcomes[client].clear()
            if back_at.get(client, group.solo.now + 1) <= group.solo.now:
                del back_at[client]
                group.ask(client, MB, outcomes[client])
    assert sum(served.values()) >= 0.95 * 30 * RATE / MB
    assert max(served.values()) - min(served.values()) <= 2


@pytest.mark.parametrize(
    ("stalls_ms", "acknowledged"),
    [
        pytest.param({}, 0.98, id="none"),
        pytest.param(dict.fromkeys(range(2000, 12000, 3000), 600), 0.8, id="0.6 s again and again"),
        pytest.param(dict.fromkeys(range(2000, 12000, 4000), 1200), 0.7, id="1.2 s again and again"),
        pytest.param({9000: 1800}, 0.8, id="1.8 s at the end"),
    ],
)
def test_links_that_stood_still_are_kept_busy_again_by_clients_that_were_refused(
    stalls_ms: dict[int, int], acknowledged: float
) -> None:
    """Until the last append of ten seconds has ended. Who slept for as long as was reckoned at the links' slowest left
    them idle for 6 to 18 seconds."""
    group, done = SlowGroup(), {f"c{number}": list[Outcome]() for number in range(24)}
    back_at = dict.fromkeys(done, group.solo.now)
    served = idle_ms = now_ms = 0
    waiting = set(done)
    while waiting:
        for client in [one for one in waiting if back_at.get(one, group.solo.now + 1) <= group.solo.now]:
            del back_at[client]
            group.ask(client, MB, done[client])
        if now_ms in stalls_ms:
            group.stand_still(stalls_ms[now_ms])
        group.pass_time(10)
        now_ms += 10
        idle_ms += 10 * (not group.on_way)
        for client, outcomes in done.items():
            for outcome in outcomes:
                sleep_s = sleeps_s(outcome.retry_after_ns / SECOND) * 1.02
                served += outcome.appended is Appended.YES
                if outcome.appended is Appended.NOT_APPENDED or now_ms < 10_000:
                    back_at[client] = group.solo.now + int(sleep_s * SECOND)
                else:
                    waiting.discard(client)
            outcomes.clear()
    assert idle_ms <= 500 and served * MB / RATE >= acknowledged * now_ms / 1000


def test_each_request_of_a_turn_is_judged_once_enough_waits_or_room_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader asks the admission only where it may say no: what is left out must be what it lets in."""
    leader = Leader()
    monkeypatch.setattr(leader.leadership._peers, "quorum_rate", lambda *_: 1)  # so that the floor is the limit

    def refused(*origins: str) -> int:
        done: list[Outcome] = []
        asked = [Proposal([b"x"], done.append, origin=origin) for origin in origins]
        leader.solo.replica.propose_many(asked, leader.solo.now)
        assert all(one.code is ResponseCode.LEADER_PENDING_FULL for one in done)
        return len(done)

    leader.propose([bytes(FLOOR // 2)])
    assert refused("early") == 0, "less than the floor waits, and nobody holds a promise"
    leader.leadership.admission.judge("promised", MB, 10 * FLOOR, 1, leader.solo.now)
    assert refused("late") == 1 and refused("promised") == 0, "half of the floor waits, and the rest is promised"

    leader = Leader()
    monkeypatch.setattr(leader.leadership._peers, "quorum_rate", lambda *_: 1)
    leader.propose([bytes(FLOOR)])
    assert refused("a", "b") == 2


def test_a_body_of_the_largest_size_is_let_in_alone_and_given_its_time() -> None:
    group, done = SlowGroup(), list[Outcome]()
    largest = group.leadership.checks.body_bytes_max
    for number in range(3):
        group.ask(f"c{number}", largest, done)
        group.pass_time(4000)
    assert [outcome.appended for outcome in done] == [Appended.YES] * 3


def test_what_moves_on_is_given_more_time_than_what_stands() -> None:
    """The link became slow after they were let in: the first are acknowledged late, and those behind them later."""
    for moves in (True, False):
        leader = Leader()
        pushes = [leader.propose([b"%d" % number])[0] for number in range(6)]
        leader.solo.sync()
        closures = leader.leadership.closures
        for number, push in enumerate(pushes):
            leader.solo.now += 900 * MS
            if moves:
                leader.solo.ack("n1", push, number + 1)
            closures.expire(leader.solo.now, "n0")
        known = [outcome.appended for outcome in leader.done]
        assert known == [Appended.YES if moves else Appended.UNKNOWN] * 6


def test_what_a_damaged_peer_takes_is_measured_and_forgotten_like_any_others() -> None:
    """It does not count from its damage on, perhaps for days: nothing may be kept for it meanwhile (S6)."""
    leader = Leader()
    for number in range(5):
        for push in leader.propose([b"x"]):
            assert push.slab is not None
            leader.solo.ack("n1", push, push.slab.last_index, faulty_from=1)
            leader.solo.ack("n2", push, push.slab.last_index)
        rates = [leader.solo.replica.peers.of[peer].window.rate for peer in ("n1", "n2")]
        assert [rate.waiting for rate in rates] == [0, 0], number
    assert leader.solo.replica.peers.of["n1"].watermark_index == 0
