"""When a driver has to tick: not to count a silence that is none yet, and for everything else in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from node.consensus.api import MS
from node.protocol.codes import FlushMode, ResponseCode, Role, VoterState
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse, PushRequest, VoteRequest
from node.store.faults.results import Fault
from tests.unit.core_kit import Leader, Solo, store_of

REST_NS = 112_500_000  # a heartbeat and an eighth of one


def beat(solo: Solo, term: int = 1) -> None:
    solo.receive("n1", HeartBeatRequest(5, "n1", term, -1, None))


def following(**changes: Any) -> Solo:
    """n0 follows n1 in term 1, and has just heard of it."""
    solo = Solo(store_of([1, 1], term=1), **changes)
    beat(solo)
    return solo


def run(solo: Solo, until: int, *, rests: bool) -> int:
    """A member that runs, until then or until it asks for votes; how often it ticked."""
    ticks = 0
    replica = solo.replica
    while (at := replica.next_look(solo.now) if rests else replica.next_deadline()) < until:
        solo.now = max(solo.now, at)
        ticks += 1
        replica.tick(solo.now)
        if any(isinstance(message, VoteRequest) for _to, message in solo.take()):
            return ticks
    solo.now = until
    return ticks


def test_a_silent_leader_is_missed_after_as_many_looks_and_a_rest_later_at_most() -> None:
    resting, watching = following(), following()
    began = resting.now
    looks = run(resting, began + 3000 * MS, rests=True)
    assert looks == run(watching, began + 3000 * MS, rests=False) >= 10
    assert 0 < resting.now - watching.now <= REST_NS


def test_a_follower_of_a_leader_that_speaks_does_not_tick_at_all() -> None:
    solo = following()
    for _ in range(40):
        until = solo.now + 100 * MS
        assert run(solo, until, rests=True) == 0
        beat(solo)
    assert solo.replica.role is Role.FOLLOWER


def test_a_lost_connection_ends_the_rest() -> None:
    solo = following()
    assert solo.replica.next_look(solo.now) == solo.now + REST_NS
    solo.replica.links.lost("n1", solo.now)
    assert solo.replica.next_look(solo.now) == solo.replica.next_deadline() <= solo.now + 50 * MS


def test_a_vote_given_away_ends_the_rest() -> None:
    solo = following()
    solo.replica.links.lost("n1", solo.now)
    solo.receive("n2", VoteRequest(9, "n2", 2, 5, 1))
    solo.receive("n2", VoteRequest(9, "n2", 2, 5, 1))
    assert solo.replica.next_look(solo.now) == solo.replica.next_deadline()


def _damage(solo: Solo) -> None:
    solo.replica.disk.log_damaged([Fault(0, 0, "record_invalid", "a bit")], solo.now)


def _gives_up_its_vote(solo: Solo) -> None:
    solo.replica.membership.rejoin("its disk was replaced", solo.now)


def _full(solo: Solo) -> None:
    solo.replica.disk.disk_full(True, solo.now)


@pytest.mark.parametrize("happens", [_damage, _gives_up_its_vote, _full])
def test_who_has_something_to_look_after_ticks_all_the_time(happens: Callable[[Solo], None]) -> None:
    solo = following()
    assert solo.replica.next_look(solo.now) == solo.now + REST_NS
    solo.late_tick(0)
    happens(solo)
    solo.take()
    for _ in range(5):  # however often the leader speaks meanwhile
        ticked_at = solo.now
        for _ in range(4):
            assert solo.replica.next_look(solo.now) <= ticked_at + 50 * MS
            solo.now += 10 * MS
            beat(solo)
        solo.late_tick(10)


def test_an_answer_that_waits_for_its_sync_is_looked_after() -> None:
    solo = following()
    solo.late_tick(0)
    solo.compare(1)
    assert solo.append(solo.slab(1), 1) is None
    assert solo.replica.next_look(solo.now) <= solo.now + 50 * MS
    assert solo.late_tick(50)  # the answer
    beat(solo)
    assert solo.replica.next_look(solo.now) == solo.now + REST_NS


def test_what_is_due_sooner_than_the_rest_ends_is_not_put_off() -> None:
    solo = following()
    solo.replica.read_index(lambda _outcome: None, solo.now)
    read_until = solo.replica.follower_reads.next_deadline()
    assert read_until is not None
    solo.now = read_until - 10 * MS
    beat(solo)
    assert solo.replica.next_look(solo.now) == read_until


def test_a_group_without_an_id_ticks_all_the_time() -> None:
    solo = Solo(store_of([1], term=1, group_id=None))
    beat(solo)
    assert solo.replica.next_look(solo.now) <= solo.now + 50 * MS


def answered(led: Leader, sent: list[Any], peers: tuple[str, ...] = ("n1", "n2")) -> None:
    """These peers answer the heartbeats among that."""
    for to, message in sent:
        if to in peers and isinstance(message, HeartBeatRequest):
            code = ResponseCode.SUCCESS
            led.solo.receive(to, HeartBeatResponse(message.seq, 1, code, 0, VoterState.VOTER, -1))


def resting() -> Leader:
    """A leader whose peers hold all and answer, right after a heartbeat."""
    led = Leader(flush=FlushMode.SYNC)
    for _ in range(12):
        answered(led, led.solo.tick(100))
    led.solo.now = led.leadership.beat_at
    answered(led, led.solo.late_tick(0))
    return led


def look(led: Leader, *, rests: bool = True) -> list[Any]:
    """The next tick of that leader; what it sent."""
    replica = led.solo.replica
    led.solo.now = replica.next_look(led.solo.now) if rests else replica.next_deadline()
    return led.solo.late_tick(0)


def test_a_leader_whose_peers_answer_ticks_with_its_heartbeats_alone() -> None:
    led = resting()
    for _ in range(40):
        began = led.solo.now
        sent = look(led)
        assert led.solo.now == began + 100 * MS and any(isinstance(one, HeartBeatRequest) for _to, one in sent)
        answered(led, sent)


def test_a_leader_of_silent_peers_steps_down_a_rest_later_at_most() -> None:
    ended = []
    for rests in (True, False):
        led = resting()
        began = led.solo.now
        while led.solo.replica.role is Role.LEADER:
            look(led, rests=rests)
        ended.append(led.solo.now - began)
    assert 0 <= ended[0] - ended[1] <= 100 * MS and ended[1] >= 1000 * MS


def test_one_peer_that_is_silent_has_a_leader_count() -> None:
    led = resting()
    for _ in range(10):
        answered(led, look(led), ("n1",))
    began = led.solo.now
    ticks = 0
    while led.solo.now < began + 1000 * MS:
        answered(led, look(led), ("n1",))
        ticks += 1
    assert ticks >= 20


def _proposal(led: Leader) -> None:
    led.propose([b"x"])


def _transfer(led: Leader) -> None:
    led.solo.ack("n2", PushRequest(1, 0, "n0", 1, led.leadership.dispatchers["n2"].peer.dispatch_epoch, 0), 0)  # type: ignore[arg-type]
    led.transfer("n1")


def _lost_peer(led: Leader) -> None:
    led.solo.replica.links.lost("n2", led.solo.now)


def _read(led: Leader) -> None:
    led.solo.replica.read_index(lambda _outcome: None, led.solo.now)


@pytest.mark.parametrize("happens", [_proposal, _transfer, _lost_peer, _read])
def test_a_leader_for_whom_something_waits_ticks_all_the_time(happens: Callable[[Leader], None]) -> None:
    led = resting()
    happens(led)
    led.solo.take()
    assert led.solo.replica.next_look(led.solo.now) <= led.solo.now + 50 * MS
