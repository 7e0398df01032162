"""The dispatcher: its table, epochs, windows, resends, and what it does when a peer refuses (SAFETY R1, R2, R6, R7)."""

from __future__ import annotations

from typing import Any

import pytest

from node.consensus.api import MS
from node.consensus.effects import ReadSlab
from node.consensus.entry_dispatcher import EntryDispatcher
from node.consensus.progress import TRANSITIONS_KEPT, Progress
from node.consensus.push_window import CatchUpQuota
from node.protocol.codes import DispatcherState, FlushMode, ResponseCode
from node.protocol.dispatcher import TRANSITIONS, DispatcherEvent
from node.protocol.entry import SLAB_BYTES_MAX
from node.protocol.messages import HeartBeatResponse, PushKind, PushRequest
from tests.unit.core_kit import NOW, Solo, config_of, store_of

S, E = DispatcherState, DispatcherEvent


def pushes(sent: list[Any], to: str, kind: PushKind | None = None) -> list[PushRequest]:
    return [m for peer, m in sent if peer == to and isinstance(m, PushRequest) and kind in (None, m.kind)]


class Led:
    """n0 leads a log of terms 1 1 1; the test answers for n1."""

    def __init__(self, *, matched: bool = True, **changes: Any) -> None:
        self.solo = Solo(store_of([1, 1, 1]), **changes)
        self.first = self.solo.lead()
        self.dispatcher = self.dispatchers["n1"]
        self.peer = self.dispatcher.peer
        if matched:
            (compare,) = pushes(self.first, "n1", PushKind.COMPARE)
            (append,) = pushes(self.solo.ack("n1", compare, 2), "n1", PushKind.APPEND)
            self.solo.ack("n1", append, 3)

    @property
    def dispatchers(self) -> dict[str, EntryDispatcher]:
        assert self.solo.replica.leadership is not None
        return self.solo.replica.leadership.dispatchers

    def propose(self, count: int = 1) -> list[PushRequest]:
        self.solo.replica.propose([b"x"] * count, self.solo.now)
        return pushes(self.solo.take(), "n1")


@pytest.mark.parametrize("event", list(DispatcherEvent))
@pytest.mark.parametrize("state", list(DispatcherState))
def test_the_table_is_obeyed_and_an_unlisted_event_raises(state: S, event: E) -> None:
    peer = Progress("n1", True, config_of())
    peer.state = state
    if (state, event) in TRANSITIONS:
        step = peer.step(event, "why", NOW)
        assert peer.state is TRANSITIONS[(state, event)]
        assert (step is None) == (peer.state is state and event is not E.RECONNECTED)
    else:
        with pytest.raises(AssertionError, match="impossible"):
            peer.step(event, "why", NOW)


def test_every_state_can_be_entered_and_left() -> None:
    assert {to for (state, _event), to in TRANSITIONS.items() if to is not state} == set(DispatcherState)
    assert all(
        any(state is one and to is not one for (state, _e), to in TRANSITIONS.items()) for one in DispatcherState
    )
    assert all((state, E.RECONNECTED) in TRANSITIONS for state in DispatcherState)


def test_the_last_fifty_transitions_are_kept() -> None:
    led = Led()
    for _ in range(TRANSITIONS_KEPT):
        led.solo.connect("n1", end_index=3)
    kept = led.peer.transitions
    assert len(kept) == TRANSITIONS_KEPT
    assert kept[-1].to_state is S.COMPARE and "connected" in kept[-1].reason


def test_fresh_leadership_compares_and_orders_nothing() -> None:
    """FORMATS 6.1."""
    led = Led(matched=False)
    assert [(p.kind, p.prev_index, p.prev_term) for p in pushes(led.first, "n1")] == [(PushKind.COMPARE, 2, 1)]
    assert led.peer.match_index == -1 and led.peer.watermark_index == -1


def test_the_same_slab_goes_to_every_follower_before_the_leaders_own_sync() -> None:
    led = Led()
    (compare,) = pushes(led.first, "n2", PushKind.COMPARE)
    led.solo.ack("n2", compare, 3)
    led.solo.replica.propose([b"a", b"b"], led.solo.now)
    sent = led.solo.take()
    one, other = pushes(sent, "n1", PushKind.APPEND), pushes(sent, "n2", PushKind.APPEND)
    assert one[0].slab is other[0].slab and one[0].slab is not None and one[0].slab.count == 2
    assert led.solo.effects.sync_wanted and led.solo.replica.member.durable_index == 2


@pytest.mark.parametrize("flush", list(FlushMode))
def test_r2_one_answers_own_pair_never_a_later_verified_with_an_earlier_durable(flush: FlushMode) -> None:
    led = Led(matched=False, flush=flush)
    (compare,) = pushes(led.first, "n1", PushKind.COMPARE)
    sent = led.solo.ack("n1", compare, 2, durable=9, end_index=9)  # a long, durable tail that will be cut
    (order,) = pushes(sent, "n1", PushKind.TRUNCATE)
    assert (order.first_index, order.prev_term) == (3, 2)
    (append,) = pushes(led.solo.ack("n1", order, 2, end_index=2), "n1", PushKind.APPEND)
    led.solo.ack("n1", append, 3, durable=2)
    assert led.peer.match_index == 3
    assert led.peer.watermark_index == (2 if flush is FlushMode.SYNC else 3)
    led.solo.ack("n1", append, 3, seq=-1)
    assert led.peer.watermark_index == 3


def test_r1_an_answer_of_an_earlier_epoch_counts_for_nothing() -> None:
    led = Led()
    (append,) = led.propose()
    led.solo.connect("n1", end_index=-1)  # a new connection: wiped meanwhile
    led.solo.ack("n1", append, 4)
    assert (led.peer.match_index, led.peer.watermark_index) == (-1, -1)
    assert led.peer.dispatch_epoch > append.dispatch_epoch
    assert led.solo.replica.committed_index < 4


def test_r1_a_lost_connection_counts_for_nothing() -> None:
    led = Led()
    assert led.peer.watermark_index == 3
    led.solo.replica.links.lost("n1", led.solo.now)
    assert led.peer.watermark_index == -1
    assert not led.propose()


@pytest.mark.parametrize("by_heartbeat", [False, True])
def test_a_log_that_regressed_is_compared_anew(by_heartbeat: bool) -> None:
    led = Led()
    epoch = led.peer.dispatch_epoch
    if by_heartbeat:
        sent = led.solo.receive("n1", HeartBeatResponse(999, led.solo.replica.term, ResponseCode.SUCCESS, end_index=-1))
    else:
        (append,) = led.propose()
        sent = led.solo.ack("n1", append, -1)
    (compare,) = pushes(sent, "n1", PushKind.COMPARE)
    assert compare.prev_index == -1 and compare.dispatch_epoch > epoch
    assert led.peer.state is S.COMPARE and led.peer.match_index == -1
    assert "peer_log_regressed" in [kind for kind, _detail in led.solo.events]


@pytest.mark.parametrize(
    ("ours", "asked_from", "answer", "then"),
    [
        ([1, 1, 1, 1], 3, {"end_index": 1}, 1),  # too short
        ([1, 1, 1, 1], 3, {"end_index": -1}, -1),  # empty
        ([1, 1, 4, 4], 3, {"x_term": 1, "x_index": 0}, 1),  # our last entry of its term
        ([1, 1, 4, 4], 3, {"x_term": 2, "x_index": 2}, 1),  # a term we never had: before its first entry
        ([1, 1, 4, 4], 3, {"x_term": 1, "x_index": 3}, 2),  # bounded by what it will not give up
        ([5, 5, 5, 5], 3, {"x_term": 2, "x_index": 1}, 0),
        ([5, 5, 5, 5], 3, {"x_term": 2, "x_index": -9}, -1),  # nonsense from the network goes no lower than the start
    ],
)
def test_r6_log_backtracking(ours: list[int], asked_from: int, answer: dict[str, int], then: int) -> None:
    solo = Solo(store_of(ours))
    (compare,) = pushes(solo.lead(), "n1", PushKind.COMPARE)
    assert compare.prev_index == asked_from
    fields = {"end_index": 9, "code": ResponseCode.INCONSISTENT_STATE, **answer}
    (again,) = pushes(solo.ack("n1", compare, -1, **fields), "n1", PushKind.COMPARE)
    assert again.prev_index == then


def test_a_peer_below_our_begin_needs_a_snapshot_and_says_so() -> None:
    store = store_of([1, 1, 1], term=1)
    base = store.meta(1)
    assert base is not None
    short = type(store)(store_id="s0", hard_state=store.hard_state, base=base)
    short.append_slab(store.read_slab(2, 1))
    solo = Solo(short)
    (compare,) = pushes(solo.lead(), "n1", PushKind.COMPARE)
    solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0)
    assert solo.replica.leadership is not None
    assert solo.replica.peers.of["n1"].state is S.INSTALL_SNAPSHOT
    assert solo.replica.member.alarms["needs_snapshot", "n1"].text.endswith(
        "its release cannot begin there: upgrade it"
    )


@pytest.mark.parametrize(
    ("code", "x", "alarm"),
    [
        (ResponseCode.INCONSISTENT_INDEX, (-1, -1), "diverged"),
        (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, (-1, -1), "diverged"),
        (ResponseCode.INCONSISTENT_STATE, (1, 2), "fork"),  # equal index and term, and yet a mismatch: R7
    ],
)
def test_r6_r7_a_refusal_is_diverged_with_a_growing_back_off(code: int, x: tuple[int, int], alarm: str) -> None:
    led = Led(matched=False)
    (compare,) = pushes(led.first, "n1", PushKind.COMPARE)
    for back_off_ms in (1000, 2000, 4000):
        led.solo.ack("n1", compare, -1, code=code, end_index=9, x_term=x[0], x_index=x[1])
        assert led.peer.state is S.DIVERGED and (alarm, "n1") in led.solo.replica.member.alarms
        assert led.dispatcher.next_deadline() == led.solo.now + back_off_ms * MS
        led.solo.now += (back_off_ms - 1) * MS
        led.dispatcher.tick(led.solo.now)
        assert led.peer.state is S.DIVERGED
        led.solo.now += MS
        led.dispatcher.tick(led.solo.now)
        compare = pushes(led.solo.take(), "n1", PushKind.COMPARE)[-1]
        if alarm == "fork":
            x = (compare.prev_term, compare.prev_index)
    sent = led.solo.ack("n1", compare, 3)
    assert led.peer.state is S.APPEND and not led.solo.replica.member.alarms and sent == []


def test_r6_a_new_connection_ends_the_back_off() -> None:
    led = Led(matched=False)
    (compare,) = pushes(led.first, "n1", PushKind.COMPARE)
    led.solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_INDEX, end_index=9)
    led.solo.connect("n1", end_index=2)
    assert led.peer.state is S.COMPARE


def test_the_window_bounds_slabs_in_flight_and_refills() -> None:
    led = Led(push_window_slabs=2)
    sent = [push for _ in range(4) for push in led.propose()]
    assert [p.first_index for p in sent] == [4, 5] and len(led.peer.window) == 2
    (more,) = pushes(led.solo.ack("n1", sent[1], 5), "n1")
    assert more.slab is not None and (more.slab.first_index, more.slab.last_index) == (6, 7)


def test_the_window_bounds_bytes_in_flight() -> None:
    led = Led(push_window_bytes=60)
    assert [len(led.propose()) for _ in range(4)] == [1, 1, 0, 0]


def test_an_unanswered_push_is_sent_again_one_at_a_time() -> None:
    led = Led()
    for _ in range(3):
        led.propose()
    led.solo.now += 1000 * MS
    led.dispatcher.tick(led.solo.now)
    again = pushes(led.solo.take(), "n1", PushKind.APPEND)
    assert [p.first_index for p in again] == [4] and led.peer.resends == 1
    assert led.peer.last_error == "no answer to entry 4 in time"
    assert led.propose() == []  # probing
    led.solo.ack("n1", again[0], 6)
    assert led.peer.window.probing is False and len(led.propose()) == 1


def test_a_peer_that_answers_slowly_but_steadily_is_sent_nothing_twice() -> None:
    led = Led()
    sent = [push for _ in range(5) for push in led.propose()]
    for push in sent:
        led.solo.now += 900 * MS
        led.dispatcher.tick(led.solo.now)
        assert led.peer.resends == 0
        led.solo.ack("n1", push, push.first_index)
    (silent,) = led.propose()
    led.solo.now += 1000 * MS
    led.dispatcher.tick(led.solo.now)
    again = pushes(led.solo.take(), "n1", PushKind.APPEND)
    assert [p.first_index for p in again] == [silent.first_index] and led.peer.resends == 1


@pytest.mark.parametrize(
    ("code", "pause_ms"),
    [
        (ResponseCode.PUSH_REQUEST_IS_FULL, 20),
        (ResponseCode.UNEXPECTED_ARGUMENT, 20),
        (ResponseCode.DISK_FULL, 1000),
    ],
)
def test_a_peer_that_cannot_take_it_now_gets_it_later(code: ResponseCode, pause_ms: int) -> None:
    led = Led()
    (append,) = led.propose()
    assert pushes(led.solo.ack("n1", append, 3, code=code), "n1") == []
    assert led.dispatcher.next_deadline() == led.solo.now + pause_ms * MS
    assert (("peer_disk_full", "n1") in led.solo.replica.member.alarms) is (code is ResponseCode.DISK_FULL)
    led.solo.now += pause_ms * MS
    led.dispatcher.tick(led.solo.now)
    (again,) = pushes(led.solo.take(), "n1", PushKind.APPEND)
    led.solo.ack("n1", again, 4)
    assert led.peer.match_index == 4 and not led.solo.replica.member.alarms


def test_what_is_not_in_memory_is_read_by_the_driver() -> None:
    led = Led(matched=False)
    led.solo.store.recent_from = 99
    (compare,) = pushes(led.first, "n1", PushKind.COMPARE)
    led.solo.now += 300 * MS  # nobody appends
    assert pushes(led.solo.ack("n1", compare, 0, end_index=0), "n1") == []
    (read,) = led.solo.effects.reads
    assert (read.peer_id, read.first_index, read.dispatch_epoch) == ("n1", 1, led.peer.dispatch_epoch)
    led.solo.replica.disk.slab_read(read, led.solo.store.read_slab(1, 60), led.solo.now)
    (append,) = pushes(led.solo.take(), "n1", PushKind.APPEND)
    assert (append.prev_index, append.prev_term, append.first_index) == (0, 1, 1)
    (next_read,) = led.solo.effects.reads
    assert next_read.first_index == 2
    led.solo.replica.disk.slab_read(next_read, None, led.solo.now)
    led.solo.take()
    assert ("read_failed", "n1") in led.solo.replica.member.alarms


def test_a_read_of_an_earlier_epoch_is_not_used() -> None:
    led = Led(matched=False)
    stale = ReadSlab("n1", led.peer.dispatch_epoch - 1, 0, 1, 100)
    led.solo.replica.disk.slab_read(stale, led.solo.store.read_slab(1, 100), led.solo.now)
    assert led.solo.take() == []


def test_the_quota_is_a_share_of_what_was_measured_while_others_append() -> None:
    quota = CatchUpQuota(config_of(catch_up_bytes_per_s=1000))
    assert not quota.holds(0)
    quota.appended(0)
    assert quota.holds(100 * MS) and quota.ask(100 * MS) == 0
    quota.taken(2000, 200 * MS)  # 20,000 bytes a second, of which it gets nine tenths
    assert quota.holds(200 * MS) and (quota.capacity_bytes_per_s, quota.bytes_per_s) == (20_000, 18_000)
    assert 11 * MS < quota.ask(200 * MS) < 12 * MS  # 2000 bytes in 111 ms
    quota.taken(2000, 1300 * MS)  # 1836 bytes a second now: what is measured moves a quarter of the way
    assert quota.capacity_bytes_per_s == 15_459
    assert not quota.holds(1300 * MS) and quota.bytes_per_s == 0  # nobody has appended for a while


def test_the_quota_never_falls_below_its_floor_and_may_be_off() -> None:
    quota = CatchUpQuota(config_of(catch_up_bytes_per_s=1000))
    quota.appended(0)
    assert quota.holds(0) and quota.ask(0) == 0
    quota.taken(100, 1000 * MS)
    quota.appended(1000 * MS)
    assert quota.holds(1000 * MS) and quota.bytes_per_s == 1000
    assert quota.ask(1000 * MS) == 0  # the slab took longer than its share of a second already
    unlimited = CatchUpQuota(config_of(catch_up_bytes_per_s=0))
    unlimited.appended(0)
    assert not unlimited.holds(0)


def far_behind(**changes: Any) -> tuple[Led, PushRequest]:
    """A peer that holds one entry of ten, and the COMPARE that has just told; nothing is in the leader's memory."""
    led = Led(matched=False, **changes)
    for _ in range(10):
        led.propose()
    led.solo.store.recent_from = 99
    (compare,) = pushes(led.first, "n1", PushKind.COMPARE)
    return led, compare


def test_while_clients_append_a_peer_far_behind_gets_one_slab_at_a_time_with_pauses() -> None:
    led, compare = far_behind(catch_up_bytes_per_s=1000)
    led.solo.ack("n1", compare, 0, end_index=0)
    (read,) = led.solo.effects.reads
    assert (read.first_index, read.max_bytes, read.pause_ns) == (1, SLAB_BYTES_MAX, 0)
    led.solo.replica.disk.slab_read(read, led.solo.store.read_slab(1, 120), led.solo.now)
    (append,) = pushes(led.solo.take(), "n1", PushKind.APPEND)
    assert led.solo.effects.reads == []  # not before it is answered
    assert append.slab is not None
    led.solo.now += 10 * MS
    led.propose()
    led.solo.ack("n1", append, append.slab.last_index)
    (read,) = led.solo.effects.reads
    assert (read.first_index, read.max_bytes) == (append.slab.last_index + 1, SLAB_BYTES_MAX)


def test_while_nobody_appends_a_peer_far_behind_gets_all_that_fits_the_window() -> None:
    led, compare = far_behind()
    led.solo.now += 300 * MS
    led.solo.ack("n1", compare, 0, end_index=0)
    (read,) = led.solo.effects.reads
    assert (read.max_bytes, read.pause_ns) == (SLAB_BYTES_MAX, 0)
    led.solo.replica.disk.slab_read(read, led.solo.store.read_slab(1, 60), led.solo.now)
    assert len(pushes(led.solo.take(), "n1", PushKind.APPEND)) == 1
    assert [one.first_index for one in led.solo.effects.reads] == [2]


def test_an_idle_peer_hears_the_committed_index() -> None:
    led = Led()
    led.solo.sync()
    assert led.solo.replica.committed_index == 3
    (commit,) = pushes(led.solo.tick(150), "n1", PushKind.COMMIT)
    assert commit.commit_index == 3
    assert pushes(led.solo.tick(150), "n1", PushKind.COMMIT) == []  # it knows


def test_an_answer_beyond_our_end_is_not_believed() -> None:
    led = Led()
    (append,) = led.propose()
    led.solo.ack("n1", append, 99)
    assert led.peer.match_index == 3 and ("bad_answer", "n1") in led.solo.replica.member.alarms
